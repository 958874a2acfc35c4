"""RL Unplugged's ordered episodes to datasets: against what TensorFlow wrote, and against files written by hand."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from contents import content
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.convert import convert
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.sources.atari import rl_unplugged_decode
from rbdata.errors import CorruptSourceError, ObjectNotFoundError
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rlu_writer import Made, blobs, example, floats, frame, framed, ints, make_episodes, png, write_records, write_run
from ted_rules import check_invariants

DATA = DATA / "rl_unplugged"
LAYOUTS = [{"codec": "zstd"}, {"codec": "raw"}, {"layout": "ted"}]
each_layout = pytest.mark.parametrize("options", LAYOUTS, ids=["zstd", "raw", "ted"])


def get(
    mirror: Path, root: Path, name: str = "atari/Qbert/1", *, procs: int = 1, force: bool = False, **options
) -> Dataset:
    request = Request(name, root=root, mirror=str(mirror), procs=procs, force=force, options=ConvertOptions(**options))
    dataset = Dataset(download(request).path)
    assert check_invariants(dataset.path, dataset.manifest) == []
    assert verify(dataset.path).ok
    return dataset


def assert_holds(dataset: Dataset, episodes: Sequence[Made], *, zero: bool = False, limit: int = 27_000) -> None:
    """The dataset is these episodes, by the one rule: a step has a true successor, or is terminated, or is given up."""
    at, number = 0, 0
    everything = dataset[:]
    for made in episodes:
        rows = len(made.steps)
        clocked = made.terminal and rows == limit
        terminated = made.terminal and not clocked
        kept = rows if terminated or zero else rows - 1
        if kept <= 0:
            continue
        here = everything[at : at + kept]
        frames = np.stack([frame(step) for step in made.steps])
        assert np.array_equal(here["observation"].numpy(), frames[:kept])
        after = here["next", "observation"].numpy()
        assert np.array_equal(after[: rows - 1], frames[1:])
        assert kept < rows or not after[-1].any()
        assert here["action"].tolist() == made.action[:kept]
        assert here["next", "reward"].flatten().tolist() == made.reward[:kept]
        assert here["next", "terminated"].flatten().tolist() == [False] * (kept - 1) + [terminated]
        assert here["next", "truncated"].flatten().tolist() == [False] * (kept - 1) + [not terminated]
        assert int(dataset.episodes.starts[number]) == at
        assert int(dataset.episodes.lengths[number]) == kept
        assert int(dataset.episodes.outcomes[number]) == (1 if terminated else 2 if clocked else 3)
        assert float(dataset.episodes.returns[number]) == sum(made.reward[:kept])
        at, number = at + kept, number + 1
    assert (len(dataset), len(dataset.episodes)) == (at, number)


# -- what TensorFlow wrote -------------------------------------------------------------------------------------------


@each_layout
def test_the_truth_exactly(tmp_path: Path, options: dict[str, str]) -> None:
    truth = np.load(DATA / "truth_Breakout_1.npz", allow_pickle=False)
    dataset = get(DATA, tmp_path, "atari/Breakout/1", **options)
    everything, row, step = dataset[:], 0, 0
    for number, rows in enumerate(truth["lengths"].tolist()):
        terminated = truth["discounts"][row + rows - 1] == 0
        kept = rows if terminated else rows - 1
        here, rows_there = everything[step : step + kept], slice(row, row + kept)
        assert np.array_equal(here["observation"].numpy(), truth["frames"][rows_there])
        assert np.array_equal(here["next", "observation"].numpy()[: rows - 1], truth["frames"][row + 1 : row + rows])
        assert here["action"].tolist() == truth["actions"][rows_there].tolist()
        assert here["next", "reward"].flatten().tolist() == truth["rewards"][rows_there].tolist()
        assert here["next", "terminated"].flatten().tolist() == (truth["discounts"][rows_there] == 0).tolist()
        assert dataset.episodes.outcomes[number] == (1 if terminated else 3)
        row, step = row + rows, step + kept
    assert (len(dataset), len(dataset.episodes)) == (step, len(truth["lengths"]))
    manifest = dataset.manifest
    assert manifest.source["upstream"] == manifest.source["options"]["upstream"] == "rl-unplugged"
    assert manifest.counts["rows_read"] == len(truth["actions"]) and manifest.counts["pad_rows"] == 0
    assert manifest.counts["cut_episodes"] == manifest.counts["given_up_steps"] == 4
    assert any("50 files" in note and "2-49" in note for note in manifest.notes)
    objects = {item["name"]: item for item in manifest.source["objects"]}
    for path in (DATA / "atari_episodes_ordered" / "Breakout").iterdir():
        import google_crc32c

        assert objects[path.name]["crc32c"] == f"{google_crc32c.value(path.read_bytes()):08x}"


# -- order -----------------------------------------------------------------------------------------------------------


@each_layout
def test_stored_indices_decide_whatever_the_files(tmp_path: Path, options: dict[str, str]) -> None:
    """49 files in the name, checkpoints in no order, one split over files, episodes out of order in a file."""
    episodes = make_episodes([[5, 3, 4], [2, 6], [7], [3, 3, 3, 3]], cut=[(3, 1)])
    c0, c1, c2, c3 = ([episode for episode in episodes if episode.checkpoint == checkpoint] for checkpoint in range(4))
    write_run(tmp_path, [c2, [c3[2], c0[1]], c1, [c0[2], c0[0], c3[0]], [c3[3], c3[1]]], total=49)
    dataset = get(tmp_path, tmp_path / "root", **options)
    assert_holds(dataset, episodes)
    assert {entry["name"] for entry in dataset.manifest.source["objects"]} == {
        f"run_1-{n:05d}-of-00049" for n in range(5)
    }


def test_only_some_files(tmp_path: Path) -> None:
    episodes = make_episodes([[5], [6], [7]])
    write_run(tmp_path, [[episode] for episode in episodes])
    dataset = get(tmp_path, tmp_path / "root", parts=(0, 2))
    assert_holds(dataset, [episodes[0], episodes[2]])
    assert dataset.episodes.midway.tolist() == [False, True]
    assert dataset.manifest.counts["gaps"] == [{"before_checkpoint": 2, "checkpoints_missing": 1}]
    assert any("Files not taken: 1" in note for note in dataset.manifest.notes)
    # More of them later: a new dataset takes the place of the smaller one.
    assert_holds(get(tmp_path, tmp_path / "root"), episodes)
    with pytest.raises(ObjectNotFoundError, match="no file 7"):
        get(tmp_path, tmp_path / "other", parts=(7,))


def test_the_same_episode_twice(tmp_path: Path) -> None:
    episodes = make_episodes([[5, 6]])
    write_run(tmp_path, [episodes, episodes[1:]])
    with pytest.raises(
        CorruptSourceError, match=r"episode 1 of checkpoint 0 is there twice, in run_1-00000.*run_1-00001"
    ):
        get(tmp_path, tmp_path / "root")


def test_files_of_two_sets(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [make_episodes([[5]])])
    (folder / "run_1-00001-of-00049").write_bytes(b"")
    with pytest.raises(CorruptSourceError, match="files of 1 and of 49"):
        get(tmp_path, tmp_path / "root")


def test_other_runs_and_files_are_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [make_episodes([[5]])])
    write_run(tmp_path, [make_episodes([[9]])], run=3)
    (folder / "run_1-00000-of-00001.tmp").write_bytes(b"?")
    (folder / "README").write_bytes(b"?")
    assert len(get(tmp_path, tmp_path / "root")) == 5
    assert len(get(tmp_path, tmp_path / "root", "atari/Qbert/3")) == 9
    with pytest.raises(ObjectNotFoundError, match="Qbert/2"):
        get(tmp_path, tmp_path / "root", "atari/Qbert/2")


def test_a_folder_of_files(tmp_path: Path) -> None:
    episodes = make_episodes([[5], [6]])
    folder = write_run(tmp_path, [episodes[:1], episodes[1:]])
    outcome = convert(folder, "atari", Request("my/qbert", root=tmp_path / "root"))
    assert_holds(Dataset(outcome.path), episodes)


# -- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [False, True], ids=["truncate", "zero"])
def test_cut_timed_out_and_tiny_episodes(tmp_path: Path, zero: bool) -> None:
    lengths = [[4, 1, 7, 1, 2], [6, 7, 8], [2], [1]]
    episodes = make_episodes(lengths, cut=[(0, 1), (0, 4), (1, 0), (2, 0), (3, 0)])
    episodes.insert(3, Made(0, 99, []))
    write_run(tmp_path, [[e for e in episodes if e.checkpoint == number] for number in range(4)])
    options = {"unknown_next": "zero"} if zero else {}
    dataset = get(tmp_path, tmp_path / "root", time_limit=7, **options)
    assert_holds(dataset, episodes, zero=zero, limit=7)
    counts = dataset.manifest.counts
    assert counts["empty_episodes"] == 1
    assert counts["time_limit_episodes"] == 2
    assert counts["given_up_episodes"] == (0 if zero else 2)
    assert counts["given_up_steps"] == (0 if zero else 7)
    assert counts["cut_episodes"] == (5 if zero else 3)


def test_what_follows_a_checkpoint_cut_short_may_have_begun_there(tmp_path: Path) -> None:
    """Not known for sure, so both halves stand for themselves: the first cut, the second marked."""
    episodes = make_episodes([[3, 5], [4, 6], [7], [2]], cut=[(0, 1), (1, 0)])
    episodes[4].checkpoint, episodes[5].checkpoint = 2, 4
    write_run(tmp_path, [episodes])
    dataset = get(tmp_path, tmp_path / "root")
    assert_holds(dataset, episodes)
    assert dataset.episodes.midway.tolist() == [False, False, True, False, False, True]
    assert dataset.manifest.counts["midway_episodes"] == 2
    assert dataset.manifest.counts["gaps"] == [{"before_checkpoint": 4, "checkpoints_missing": 1}]


def test_last_rewards_are_kept(tmp_path: Path) -> None:
    """An episode of Pong ends when somebody scores: dropping its last row would drop the only reward."""
    episodes = make_episodes([[6, 6, 6]])
    for episode, last in zip(episodes, (1.0, -1.0, 0.0)):
        episode.reward = [0.0] * 5 + [last]
    write_run(tmp_path, [episodes])
    dataset = get(tmp_path, tmp_path / "root")
    assert dataset.episodes.returns.tolist() == [1.0, -1.0, 0.0]
    assert dataset.manifest.counts["silent_ends"] == 1


def test_long_episodes_span_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl_unplugged_decode, "BLOCK_ROWS", 16)
    episodes = make_episodes([[15, 1, 17, 16, 32], [40]], cut=[(0, 2), (0, 3)])
    write_run(tmp_path, [episodes[:5], episodes[5:]])
    assert_holds(get(tmp_path, tmp_path / "root", codec="raw"), episodes)


# -- the same experience from both upstreams -------------------------------------------------------------------------


def test_both_upstreams_give_the_same_dataset(tmp_path: Path) -> None:
    """The ring's files and RL Unplugged's, of the same play: equal up to the episode that a checkpoint cuts in two."""
    from atari_truth import write_run as write_ring

    lengths = [80, 120, 4, 79, 150]
    writer = write_ring(tmp_path / "ring" / "dqn" / "Qbert" / "1" / "replay_logs", 200, lengths)
    made: list[list[Made]] = [[], []]
    for number, episode in enumerate(writer.episodes(), 1):
        steps = list(range(episode.first_step, episode.first_step + len(episode)))
        halves = [steps[:50], steps[50:]] if number == 4 else [steps]  # the fourth is cut by a checkpoint
        for half, part in enumerate(halves):
            checkpoint = 0 if number < 4 or (number == 4 and not half) else 1
            first = part[0] - episode.first_step
            action = [int(value) for value in episode.actions[first : first + len(part)]]
            reward = [float(value) for value in episode.rewards[first : first + len(part)]]
            ends = part[-1] == steps[-1]
            made[checkpoint].append(Made(checkpoint, len(made[checkpoint]), part, ends, action, reward))
    write_run(tmp_path / "rlu", made)
    ring = get(tmp_path / "ring", tmp_path / "root-1")
    ordered = get(tmp_path / "rlu", tmp_path / "root-2")
    assert ring.manifest.source["upstream"] == "dqn-replay"
    cut = 80 + 120 + 4 + 50 - 1  # the row whose successor is in the next checkpoint
    kept = [step for step in range(len(ring)) if step != cut]
    for key in ("observation", "action", ("next", "reward"), ("next", "terminated"), ("next", "observation")):
        assert np.array_equal(ring[:][key].numpy()[kept], ordered[:][key].numpy()), key
    assert ordered.episodes.lengths.tolist() == [80, 120, 4, 49, 29, 150]
    assert ordered.episodes.midway.tolist() == [False] * 4 + [True, False]
    assert ring.manifest.counts["pad_rows"] and not ordered.manifest.counts["pad_rows"]


# -- damage ----------------------------------------------------------------------------------------------------------


def broken(tmp_path: Path, *records: bytes) -> str:
    """What is said about a second file that holds these records; nothing is left that could pass for a dataset."""
    folder = write_run(tmp_path, [make_episodes([[5]])], total=2)
    write_records(folder / "run_1-00001-of-00002", records)
    return refused(tmp_path)


def refused(tmp_path: Path) -> str:
    with pytest.raises(CorruptSourceError) as caught:
        get(tmp_path, tmp_path / "root")
    assert not (tmp_path / "root" / "atari" / "Qbert" / "1").exists()
    return str(caught.value)


def test_more_episodes_than_bytes_justify(tmp_path, monkeypatch):
    made = make_episodes([[1, 1]] * 20)
    write_run(tmp_path, [made])
    monkeypatch.setattr(rl_unplugged_decode, "_MOST_EPISODES", 19)
    monkeypatch.setattr(rl_unplugged_decode, "_LEAST_EPISODE", 1 << 20)
    assert "holds more than 19 episodes" in refused(tmp_path)
    monkeypatch.setattr(rl_unplugged_decode, "_LEAST_EPISODE", 8)
    assert_holds(get(tmp_path, tmp_path / "root"), made)


SOUND = Made(1, 0, [10, 11, 12])
RGB = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00T\x00\x00\x00T\x08\x02\x00\x00\x00" + bytes(40)
BAD_RECORDS = {
    "fewer actions": (SOUND.record(actions=ints([1, 2])), "lists of different lengths: 3 observations, 2 actions"),
    "one reward": (SOUND.record(clipped_rewards=floats([1.0])), "1 clipped_rewards"),
    "more discounts": (SOUND.record(discounts=floats([1, 1, 1, 0])), "4 discounts"),
    "no discounts": (SOUND.record(discounts=b""), "0 discounts"),
    "ends and goes on": (SOUND.record(discounts=floats([1, 0, 1])), "ends in row 1 of 3, and goes on"),
    "discount above 1": (SOUND.record(discounts=floats([1, 1.5, 1])), "row 1 has action 11, .* discount 1.5"),
    "discount not a number": (SOUND.record(discounts=floats([1, float("nan"), 1])), "discount nan"),
    "infinite reward": (SOUND.record(clipped_rewards=floats([0, 0, float("inf")])), "reward inf"),
    "wild action": (SOUND.record(actions=ints([1, 2, 18])), "action 18"),
    "negative action": (SOUND.record(actions=ints([1, -2, 1])), "action -2"),
    "actions as floats": (SOUND.record(actions=floats([1, 2, 3])), "actions are float32"),
    "observations as numbers": (SOUND.record(observations=ints([1, 2, 3])), "observations are numbers"),
    "rewards as bytes": (SOUND.record(clipped_rewards=blobs([b"1"])), "clipped_rewards are not numbers"),
    "no checkpoint": (SOUND.record(checkpoint_idx=b""), "checkpoint_idx is \\[\\]"),
    "negative episode": (SOUND.record(episode_idx=ints([-1])), "episode_idx is \\[-1\\]"),
    "RGB": (
        SOUND.record(observations=blobs([png(frame(1)), RGB, png(frame(2))])),
        "frame 1: the PNG is 84x84, 8-bit RGB",
    ),
    "wrong size": (
        SOUND.record(observations=blobs([png(np.zeros((80, 80), np.uint8))] * 3)),
        "frame 0: the PNG is 80x80",
    ),
    "no Example": (b"\x0a\xff", "is not a tf.train.Example"),
    "nothing at all": (b"", "has no actions"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_records_that_are_no_episodes(tmp_path: Path, name: str) -> None:
    import re

    record, words = BAD_RECORDS[name]
    first = Made(1, 5, [20, 21]).record()
    message = broken(tmp_path, first, record)
    assert f"run_1-00001-of-00002: record 1 (at byte {len(framed(first))} of the unpacked file)" in message
    assert re.search(words, message), message


def test_older_prefixes_and_shuffled_transitions_are_refused(tmp_path: Path) -> None:
    old = SOUND.features()
    del old["episode_idx"], old["checkpoint_idx"]
    assert "has no checkpoint_idx" in broken(tmp_path, example(old))
    transition = {name: blobs([png(frame(1))] * 4) for name in ("o_t", "o_tp1")} | {"d_t": floats([1.0])}
    assert "single transition" in broken(tmp_path / "2", example(transition))


def test_only_the_unclipped_rewards(tmp_path: Path) -> None:
    episode = make_episodes([[4]])[0]
    features = episode.features()
    del features["clipped_rewards"], features["clipped_episode_return"]
    write_records(write_run(tmp_path, []) / "run_1-00000-of-00001", [example(features)])
    assert_holds(get(tmp_path, tmp_path / "root"), [episode])


def test_damaged_files_say_where(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [make_episodes([[5]]), make_episodes([[5]])])
    path = folder / "run_1-00001-of-00002"
    records = [Made(1, number, [number, number + 1]).record() for number in range(3)]
    data = bytearray(b"".join(map(framed, records)))
    begin = len(framed(records[0]))
    data[begin + 50] ^= 1
    path.write_bytes(gzip.compress(bytes(data)))
    assert f"run_1-00001-of-00002: record 1 (at byte {begin} " in refused(tmp_path)
    whole = gzip.compress(b"".join(map(framed, records)))
    path.write_bytes(whole[:-20])
    assert "run_1-00001-of-00002 is cut short" in refused(tmp_path)
    path.write_bytes(gzip.compress(b"".join(map(framed, records))[:-5]))
    assert "record 2" in refused(tmp_path)
    path.write_bytes(b"".join(map(framed, records)))
    assert "is not gzip" in refused(tmp_path)


def test_no_step_at_all(tmp_path: Path) -> None:
    write_run(tmp_path, [make_episodes([[1]], cut=[(0, 0)])])
    assert "no complete step" in refused(tmp_path)
    write_run(tmp_path / "2", [[Made(0, 0, [])]])
    assert "no frames" in refused(tmp_path / "2")


# -- interrupted -----------------------------------------------------------------------------------------------------


def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Stopped after every second thing it says: the files decoded before are not read again, the bytes come out the same."""
    episodes = make_episodes([[5, 30], [20], [40]])
    folder = write_run(tmp_path, [[e for e in episodes if e.checkpoint == number] for number in range(3)])
    whole = content(get(tmp_path, tmp_path / "whole", codec="raw").path)

    class Stop(Exception):
        pass

    for when in range(0, 40, 2):
        root = tmp_path / f"root-{when}"
        count = 0

        def told(*_: object, when: int = when) -> None:
            nonlocal count
            count += 1
            if count > when:
                raise Stop

        request = Request("atari/Qbert/1", root=root, mirror=str(tmp_path), procs=1, options=ConvertOptions("raw"))
        try:
            download(request, Listener(on_stage=told, on_estimate=told, on_planned=told, on_part_done=told))
        except Stop:
            kept = list((root / "atari" / "Qbert" / ".1.writing" / ".parts").glob("*/part.json"))
            seen: list[int] = []
            dataset = Dataset(download(request, Listener(on_part_done=seen.append)).path)
            assert len(seen) == 3 - len(kept)
            assert content(dataset.path) == whole
        else:
            assert when > 5
            break
    assert len(list(folder.iterdir())) == 3


def test_a_file_that_changed_meanwhile_is_decoded_again(tmp_path: Path) -> None:
    """And so is one whose rows were lost; the others are not."""
    episodes = make_episodes([[5, 30], [20], [40]])
    folder = write_run(tmp_path, [[e for e in episodes if e.checkpoint == number] for number in range(3)])
    root, done = tmp_path / "root", list[int]()

    def stop(index: int) -> None:
        done.append(index)
        if len(done) == 2:
            raise KeyboardInterrupt

    request = Request("atari/Qbert/1", root=root, mirror=str(tmp_path), procs=1, options=ConvertOptions("raw"))
    with pytest.raises(KeyboardInterrupt):
        download(request, Listener(on_part_done=stop))
    assert not (root / "atari" / "Qbert" / "1").exists()
    episodes = [Made(0, 0, [1, 2, 3]), *episodes[2:]]
    write_records(folder / "run_1-00000-of-00003", [episodes[0].record()])
    for rows in (root / "atari" / "Qbert" / ".1.writing" / ".parts").glob(f"*{done[1]}*/observation.*.rows"):
        rows.unlink()
    again = list[int]()
    assert_holds(Dataset(download(request, Listener(on_part_done=again.append)).path), episodes)
    assert sorted(again) == [0, 1, 2]


def test_a_dry_run_writes_nothing_and_says_about_how_much(tmp_path: Path) -> None:
    episodes = make_episodes([[40] * 5] * 4)
    write_run(tmp_path, [[e for e in episodes if e.checkpoint == number] for number in range(4)])
    request = Request("atari/Qbert/1", root=tmp_path / "root", mirror=str(tmp_path), dry_run=True)
    estimate = download(request).estimate
    assert estimate is not None and not (tmp_path / "root").exists()
    assert estimate.steps == pytest.approx(800, rel=0.1)
    assert estimate.episodes == pytest.approx(20, rel=0.1)
    assert estimate.parts == 4
    dataset = get(tmp_path, tmp_path / "root")
    rows = [path for path in (dataset.path / "observation").iterdir() if path.name != "dictionary"]
    assert estimate.disk_bytes == pytest.approx(sum(path.stat().st_size for path in rows), rel=0.4)


# -- memory ----------------------------------------------------------------------------------------------------------

PEAK = """
import resource, sys
from pathlib import Path
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
def go(name):
    mirror = Path(sys.argv[1]) / name
    download(Request("atari/Qbert/1", root=mirror / "root", mirror=str(mirror), procs=1, options=ConvertOptions("raw")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = go("2")
print(go("10") - few)
"""


def test_memory_is_a_few_blocks_whatever_the_file(tmp_path: Path) -> None:
    """2,000 frames are 14 MB raw, 10,000 are 71 MB; the difference does not show."""
    many = blobs([png(frame(3), level=9)] * 1000)
    for count in (2, 10):
        made = [Made(0, number, [3] * 1000, action=[1] * 1000, reward=[0.0] * 1000) for number in range(count)]
        write_run(tmp_path / str(count), [])
        target = tmp_path / str(count) / "atari_episodes_ordered" / "Qbert" / "run_1-00000-of-00001"
        write_records(target, [example({**_light(episode), "observations": many}) for episode in made])
    run = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 30, "MiB"


def _light(episode: Made) -> dict[str, bytes]:
    return {
        "actions": ints(episode.action),
        "clipped_rewards": floats(episode.reward),
        "discounts": floats(episode.discount),
        "checkpoint_idx": ints([0]),
        "episode_idx": ints([episode.index]),
    }
