"""One test for each known trap in the DQN Replay data and in memory-mapped TED, all through the real conversion."""

from __future__ import annotations

import io
import pickle
import re
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import atari_truth as truth
import numpy as np
import pytest
import torch
from atari_truth import FRAME, assert_holds, fed_truth, file_truth, frame, save_array, save_shard, write_run
from dqn_replay_writer import PAD, DQNReplayWriter
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.convert import convert
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.errors import CorruptSourceError, DiskError, ObjectNotFoundError, RbdataError, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from ted_rules import check_invariants
from ted_tools import load_plainly

REAL = DATA / "atari"
LAYOUTS = [{"codec": "raw"}, {"codec": "zstd"}, {"layout": "ted"}]
each_layout = pytest.mark.parametrize("options", LAYOUTS, ids=["raw", "zstd", "ted"])


def to_dataset(folder: Path, root: Path, **options) -> Dataset:
    """Convert a folder of shards (raw unless said otherwise) and check all that must hold in any dataset."""
    chosen = ConvertOptions(**({"codec": "raw"} | options if "layout" not in options else options))
    outcome = convert(folder, "atari", Request("my/run", root=root, procs=1, options=chosen))
    report = verify(outcome.path)
    assert report.ok, report.problems
    return Dataset(outcome.path)


def numbers(frames: torch.Tensor) -> list[int]:
    """The step numbers painted on frames; -1 for a black one."""
    words = frames.reshape(len(frames), -1)[:, :4].contiguous().numpy().view(np.uint32)[:, 0]
    return (words.astype(np.int64) - 1).tolist()


# -- DQN Replay ----------------------------------------------------------------------------------------------------


@each_layout
def test_trap_01_padding_rows(options, tmp_path):
    """Three rows of zeros at the run's start and after every terminal row are no transitions."""
    writer = write_run(tmp_path / "raw", 50, [7, 30, 1, 12, 44])
    dataset = to_dataset(tmp_path / "raw", tmp_path, **options)
    assert_holds(dataset, fed_truth(writer))
    assert -1 not in numbers(dataset["observation"])
    assert dataset.manifest.counts["pad_rows"] == sum(
        (dump.step_ids[dump.new_rows()] == PAD).sum() for dump in writer.dumps
    )


def test_trap_01_on_real_shards():
    """In Dopamine's own files the three rows after each terminal are all zero."""
    for folder in (REAL / "dqn/Pong/5/replay_logs", REAL / "dqn/Breakout/1/replay_logs"):
        for number in truth.numbers_in(folder):
            arrays = {name: truth.load_array(folder, name, number)[:-1] for name in truth.ARRAYS}
            for end in np.flatnonzero(arrays["terminal"]):
                for array in arrays.values():
                    assert not array[end + 1 : end + 4].any()


@each_layout
def test_trap_02_black_frames_are_data(options, tmp_path):
    """Real rows whose frame, action and reward are all zero survive, wherever in an episode they stand."""
    black = frozenset([0, 1, 2, 3, 11, 12, 13, 29, 30, 31, 32, 33, 60])
    writer = write_run(tmp_path / "raw", 45, [12, 20, 40], black=black)
    dataset = to_dataset(tmp_path / "raw", tmp_path, **options)
    assert_holds(dataset, fed_truth(writer), black=black)
    assert len(dataset) == 72


@pytest.mark.parametrize("shards", [None, (1,), (1, 2)], ids=["all", "second", "rest"])
def test_trap_03_padding_split_over_files(shards, tmp_path):
    """The group of three is cut by the seam in every possible way (with a lost lap where the jump passes over it)."""
    splits = set()
    for length in range(33, 38):
        folder = tmp_path / f"{length}"
        writer = write_run(folder / "raw", 20, [length, 50, 30])
        splits |= {int(np.argmax(dump.step_ids[dump.new_rows()] != PAD)) for dump in writer.dumps[1:-1]}
        dataset = to_dataset(folder / "raw", folder, parts=shards)
        assert_holds(dataset, fed_truth(writer, list(shards) if shards else None))
    assert {0, 1, 2, 3} <= splits


def test_trap_03_unread_neighbour_knows_the_padding(tmp_path):
    """A shard read alone, whose padding fell into the file before it, still begins an episode: that file says so."""
    found = set()
    for length in (12, 15, 16, 17):
        folder = tmp_path / f"{length}"
        writer = write_run(folder / "raw", 20, [length, 50])
        expected = fed_truth(writer, [1])
        assert_holds(to_dataset(folder / "raw", folder, parts=(1,)), expected)
        found.add((expected.pads, expected.episodes[0].midway))
    assert (3, False) in found and (0, True) in found


@each_layout
def test_trap_04_last_slot_comes_first(options, tmp_path):
    """Row C-1 of file N stands in time right before its row 0."""
    write_run(tmp_path / "raw", 50, [400], still_open=True, final=False)
    dataset = to_dataset(tmp_path / "raw", tmp_path, **options)
    shown = numbers(dataset["observation"])
    assert shown == list(range(len(shown)))
    assert len(shown) == 8 * 50 - 1 - 3 - 1  # eight laps, less the junk, the padding, and the one without successor


@pytest.mark.parametrize("fill", [0, 255, None])
def test_trap_05_last_slot_of_file_0_is_junk(fill, tmp_path):
    """Uninitialised memory neither appears nor ends an episode nor splits one."""
    writer = DQNReplayWriter(tmp_path / "raw", 30, fill=fill, fast_gzip=True)
    for step in range(80):
        writer.add(frame(step), step % 18, 1.0, False)
    writer.close(final_dump=False)
    dataset = to_dataset(tmp_path / "raw", tmp_path)
    assert dataset.manifest.episodes == 1
    assert numbers(dataset["observation"]) == list(range(len(dataset)))


@pytest.mark.parametrize("fill", [255, None])
def test_trap_05_junk_in_a_final_dump(fill, tmp_path):
    """Training that ends with the first lap leaves two equal files, both with junk (even NaN) in the last slot."""
    for stop in (26, 27, 28):
        folder = tmp_path / f"{stop}"
        writer = DQNReplayWriter(folder / "raw", 30, fill=fill, fast_gzip=True)
        for step in range(stop):
            writer.add(frame(step), step % 18, 1.0, False)
        writer.close()
        assert_holds(to_dataset(folder / "raw", folder), fed_truth(writer))


def test_trap_06_successor_in_the_next_file(tmp_path):
    """The row before the seam has its successor in the next file; without that file the episode is cut there."""
    write_run(tmp_path / "raw", 50, [300], still_open=True, final=False)
    both = to_dataset(tmp_path / "raw", tmp_path / "both", parts=(0, 1))
    shown, after = numbers(both["observation"]), numbers(both["next/observation"])
    last_of_file_0 = 50 - 1 - 3 - 1
    assert after[shown.index(last_of_file_0)] == last_of_file_0 + 1
    one = to_dataset(tmp_path / "raw", tmp_path / "one", parts=(0,))
    assert numbers(one["observation"])[-1] == last_of_file_0 - 1
    assert numbers(one["next/observation"])[-1] == last_of_file_0
    assert one["next/truncated"][-1] and not one["next/terminated"].any()
    assert one.episodes.outcomes.tolist() == [3]
    assert one.manifest.counts["given_up_steps"] == 1
    assert any("with no next state" in note for note in one.manifest.notes)


@each_layout
def test_trap_07_final_file_is_mostly_stale(options, tmp_path):
    """Behind the cursor of the final file stands what the file before it had already."""
    for steps in (95, 100, 101, 140) if options.get("codec") == "raw" else (101,):
        folder = tmp_path / f"{steps}"
        writer = write_run(folder / "raw", 50, [30, steps - 30], still_open=True)
        dataset = to_dataset(folder / "raw", folder, **options)
        assert_holds(dataset, fed_truth(writer))
        shown = numbers(dataset["observation"])
        assert len(shown) == len(set(shown))
        stale = 49 - writer.dumps[-1].add_count
        assert dataset.manifest.counts["stale_rows"] == stale
        (note,) = [note for note in dataset.manifest.notes if note.startswith("Not read: ")]
        assert f"{stale} stale row" in note and "1 row of a slot that the ring buffer had not filled" in note


def test_trap_08_missing_shard(tmp_path):
    """Where a file is missing the open episode is cut, and no successor reaches across."""
    writer = write_run(tmp_path / "raw", 50, [20, 300], still_open=True)
    for path in (tmp_path / "raw").glob("*_ckpt.2.gz"):
        path.unlink()
    there = [0, 1, 3, 4, 5, 6]
    dataset = to_dataset(tmp_path / "raw", tmp_path)
    assert_holds(dataset, fed_truth(writer, there, there))
    assert dataset.manifest.counts["gaps"] == [{"before_shard": 3, "laps_missing": 1}]
    assert any("Missing before shard 3: 1 lap" in note for note in dataset.manifest.notes)
    shown, after = numbers(dataset["observation"]), numbers(dataset["next/observation"])
    assert all(b == a + 1 for a, b in zip(shown, after) if b != -1)


def test_trap_08_lap_lost_by_the_writer(tmp_path):
    """The numbers go on without a hole, and only add_count tells that a lap was never saved."""
    writer = write_run(tmp_path / "raw", 50, [44, 120, 90])  # row 47 ends the first episode: the next one jumps over 49
    assert writer.dumps[0].add_count == 99
    dataset = to_dataset(tmp_path / "raw", tmp_path)
    assert_holds(dataset, fed_truth(writer))
    writer = write_run(tmp_path / "raw2", 50, [94, 120, 90])
    assert [dump.add_count for dump in writer.dumps[:2]] == [49, 149]
    dataset = to_dataset(tmp_path / "raw2", tmp_path / "2")
    assert_holds(dataset, fed_truth(writer))
    assert dataset.manifest.counts["gaps"] == [{"before_shard": 1, "laps_missing": 1}]
    assert not dataset.episodes.midway.any()


def test_trap_09_terminal_row_belongs_to_the_episode_it_ends(tmp_path):
    """As many episodes as terminals, plus the open one; each ends with its terminal row."""
    write_run(tmp_path / "raw", 50, [5, 1, 9, 30, 2, 60], still_open=True)
    dataset = to_dataset(tmp_path / "raw", tmp_path)
    ends = dataset["next/terminated"].flatten()
    assert dataset.manifest.episodes == int(ends.sum()) + 1
    episode = dataset.episode_of(torch.arange(len(dataset)))
    for end in ends.nonzero().flatten().tolist():
        assert end == 0 or dataset.episodes.lengths[episode[end]] == 1 or episode[end] == episode[end - 1]
        assert episode[end + 1] == episode[end] + 1


@each_layout
def test_trap_10_no_frame_after_a_terminal(options, tmp_path):
    """The successor of a terminal step is zeros, and the flag says that it is not to be used."""
    write_run(tmp_path / "raw", 50, [5, 1, 9, 30, 2, 60], seed=3)
    dataset = to_dataset(tmp_path / "raw", tmp_path, **options)
    ends = dataset["next/terminated"].flatten()
    assert not dataset["next/observation"][ends].any()
    assert dataset["next/observation"][~ends].flatten(1).any(1).all()
    values = dataset["next/observation"].flatten(1).float().mean(1, keepdim=True) + 1
    target = dataset["next/reward"] + 0.99 * values * ~dataset["next/terminated"]
    assert torch.equal(target[ends], dataset["next/reward"][ends])


@pytest.mark.parametrize("unknown_next", ["truncate", "zero"])
def test_trap_11_time_limit_looks_terminal(unknown_next, tmp_path):
    """An episode of exactly as many rows as the clock allows was truncated; its last frame was never stored."""
    writer = write_run(tmp_path / "raw", 50, [12, 13, 11, 12, 50, 12, 40])
    dataset = to_dataset(tmp_path / "raw", tmp_path / "1", unknown_next=unknown_next, time_limit=12)
    assert_holds(dataset, fed_truth(writer, unknown_next=unknown_next, time_limit=12))
    assert dataset.manifest.counts["time_limit_episodes"] == 3
    assert dataset.episodes.outcomes.tolist() == [2, 1, 1, 2, 1, 2, 1]
    assert dataset.episodes.lengths.tolist()[0] == (12 if unknown_next == "zero" else 11)
    never = to_dataset(tmp_path / "raw", tmp_path / "2", unknown_next=unknown_next, time_limit=0)
    assert never.episodes.outcomes.tolist() == [1] * 7


def test_trap_11_across_files_and_unknown_beginnings(tmp_path):
    """The length counts over the seam; an episode whose beginning is not in the data is not judged by it."""
    writer = write_run(tmp_path / "raw", 30, [10, 40, 20, 40, 33])
    assert_holds(to_dataset(tmp_path / "raw", tmp_path / "1", time_limit=40), fed_truth(writer, time_limit=40))
    rest = to_dataset(tmp_path / "raw", tmp_path / "2", parts=(1, 2, 3, 4), time_limit=37)
    expected = fed_truth(writer, [1, 2, 3, 4], time_limit=37)
    assert expected.episodes[0].midway
    assert_holds(rest, expected)


def test_trap_12_rewards_are_clipped(tmp_path):
    """The manifest says so; values outside [-1, 1] are kept and counted."""
    name = "Pong/5"
    options = ConvertOptions(codec="raw")
    dataset = Dataset(download(Request(name, root=tmp_path, mirror=str(REAL), procs=1, options=options)).path)
    assert dataset.manifest.source["options"]["time_limit"] == 27_000
    assert set(dataset["next/reward"].flatten().tolist()) <= {-1.0, 0.0, 1.0}
    assert any("clipped" in note for note in dataset.manifest.notes)
    assert dataset.manifest.counts["unclipped_rewards"] == 0
    reward = np.zeros(40, np.float32)
    reward[[5, 6]] = 7.5, -1
    save_shard(tmp_path / "raw", 0, 39, np.zeros(40, np.uint8), reward=reward)
    other = to_dataset(tmp_path / "raw", tmp_path)
    assert other.manifest.counts["unclipped_rewards"] == 1
    assert 7.5 in other["next/reward"].flatten().tolist()


@each_layout
def test_trap_13_dtypes_and_shapes(options, tmp_path):
    """Flags are bool [N, 1], rewards float32 [N, 1], actions int32 [N], frames uint8 [N, 84, 84]."""
    write_run(tmp_path / "raw", 50, [5, 40])
    td = to_dataset(tmp_path / "raw", tmp_path, **options)[:]
    count = td.batch_size[0]
    expected: dict[Any, tuple[torch.dtype, tuple[int, ...]]] = {
        "observation": (torch.uint8, (count, *FRAME)),
        "action": (torch.int32, (count,)),
        **dict.fromkeys(("done", "terminated", "truncated"), (torch.bool, (count, 1))),
        ("next", "observation"): (torch.uint8, (count, *FRAME)),
        ("next", "reward"): (torch.float32, (count, 1)),
        **{("next", name): (torch.bool, (count, 1)) for name in ("done", "terminated", "truncated")},
    }
    assert set(td.keys(True, True)) == set(expected)
    assert {key: (td[key].dtype, tuple(td[key].shape)) for key in expected} == expected


@each_layout
def test_trap_14_stacks_at_an_episode_start(options, tmp_path):
    """Frames before the first are zeros, never those of the episode before."""
    writer = write_run(tmp_path / "raw", 50, [6, 1, 2, 3, 30, 9])
    dataset = to_dataset(tmp_path / "raw", tmp_path, **options)
    expected = fed_truth(writer)
    found = dataset.read(range(len(dataset)), before=3)
    assert np.array_equal(found["observation"].numpy(), truth.stacks(expected))
    start = int(dataset.episodes.starts[4])
    for index in range(4):
        shown = numbers(found["observation"][start + index])
        assert shown == [-1] * (3 - index) + [12 + step for step in range(index + 1)]


def test_trap_15_cut_at_the_end_of_the_data(tmp_path):
    """The open episode is truncated, never terminated; nothing reads on into what follows it."""
    writer = write_run(tmp_path / "raw", 50, [20, 100], still_open=True)
    for unknown_next in ("truncate", "zero"):
        dataset = to_dataset(tmp_path / "raw", tmp_path / unknown_next, unknown_next=unknown_next)
        assert_holds(dataset, fed_truth(writer, unknown_next=unknown_next))
        assert dataset["next/truncated"][-1] and not dataset["next/terminated"][-1]
        assert bool(dataset["next/observation"][-1].any()) == (unknown_next == "truncate")
        window = dataset.read([len(dataset) - 1], after=3)
        assert window["mask"].tolist() == [[True, False, False, False]]


def test_trap_16_names_runs_and_suffixes(tmp_path):
    """Literal dollars, run 3 only, suffixes 2, 10 and 11: found by listing, in numerical order."""
    writer = write_run(tmp_path / "all", 30, [400], still_open=True, final=False)
    folder = tmp_path / "mirror" / "dqn" / "Asterix" / "3" / "replay_logs"
    folder.mkdir(parents=True)
    for number in (2, 10, 11):
        for path in (tmp_path / "all").glob(f"*_ckpt.{number}.gz"):
            shutil.copy(path, folder)
    (folder / "checkpoint").write_text("something else")
    (folder / "$store$_observation_ckpt.12.gz.part").write_text("something else")
    outcome = download(Request("Asterix/3", root=tmp_path, mirror=str(tmp_path / "mirror"), procs=1))
    dataset = Dataset(outcome.path)
    assert dataset.manifest.source["shards"] == [2, 10, 11]
    assert dataset.manifest.counts["gaps"] == [{"before_shard": 10, "laps_missing": 7}]
    assert_holds(dataset, fed_truth(writer, [2, 10, 11], [2, 10, 11]))
    with pytest.raises(ObjectNotFoundError, match="no shard 3") as caught:
        options = ConvertOptions(parts=(2, 3))
        download(Request("Asterix/3", root=tmp_path / "2", mirror=str(tmp_path / "mirror"), options=options))
    assert caught.value.hint == "it has 2, 10-11"


def damaged(kind: str, good: bytes) -> bytes:
    import gzip

    raw = gzip.decompress(good)
    if kind == "cut":
        return good[: len(good) * 2 // 3]
    if kind == "unpacked":
        return raw
    if kind == "dtype":
        array = np.load(io.BytesIO(raw))
        stream = io.BytesIO()
        np.save(stream, array.astype(np.float64))
        return gzip.compress(stream.getvalue())
    if kind == "short":
        return gzip.compress(raw[:-1])
    return gzip.compress(raw + b"\0")


KINDS = ("cut", "unpacked", "dtype", "short", "long")


@pytest.mark.parametrize(
    ("array", "kind"),
    [(array, kind) for array in ("observation", "action") for kind in KINDS]
    + [("reward", "dtype"), ("terminal", "short"), ("add_count", "cut")],
)
def test_trap_17_damaged_objects(array, kind, tmp_path):
    """Cut, unpacked in transit, of another dtype, too short or too long: a clean error and nothing half-made."""
    write_run(tmp_path / "raw", 30, [70])
    path = next((tmp_path / "raw").glob(f"*{array}_ckpt.1.gz"))
    path.write_bytes(damaged(kind, path.read_bytes()))
    with pytest.raises(CorruptSourceError, match=re.escape(path.name)) as caught:
        to_dataset(tmp_path / "raw", tmp_path / "root")
    assert caught.value.hint
    assert not (tmp_path / "root" / "my" / "run").exists()


PEAK = """
import resource, sys
from pathlib import Path
from rbdata.datasets.convert import convert
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.ingest.records import ConvertOptions
def go(name):
    options = ConvertOptions(codec="zstd")
    convert(Path(sys.argv[1]) / name, "atari", Request(f"my/{name}", root=Path(sys.argv[1]), procs=1, options=options))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = go("few")
print(go("many") - few)
"""


def test_trap_18_memory_is_bounded(tmp_path):
    """18,000 frames are 127 MB, 3,000 are 21: the difference does not show."""
    for name, rows in (("few", 3_000), ("many", 18_000)):
        terminal = np.zeros(rows, np.uint8)
        terminal[1_000::1_000] = 1
        save_shard(tmp_path / name, 0, rows - 1, terminal)
    run = subprocess.run([sys.executable, "-c", PEAK, tmp_path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 40, "MiB"


# -- all converters --------------------------------------------------------------------------------------------------


@each_layout
@pytest.mark.parametrize("unknown_next", ["truncate", "zero"])
def test_trap_59_invariants(unknown_next, options, tmp_path):
    """The checker finds nothing in what was converted, and finds what was broken on purpose."""
    write_run(tmp_path / "raw", 50, [5, 1, 9, 30, 2, 60], still_open=True)
    dataset = to_dataset(tmp_path / "raw", tmp_path, unknown_next=unknown_next, **options)
    assert check_invariants(dataset.path, dataset.manifest) == []
    path = dataset.path / "next" / "terminated.memmap"
    flags = bytearray(path.read_bytes())
    flags[2] = 1
    path.write_bytes(flags)
    assert check_invariants(dataset.path, dataset.manifest)
    assert not verify(dataset.path).ok


@each_layout
def test_trap_60_episodes_are_contiguous(options, tmp_path):
    """Slices found by episode number and by end flags are the same."""
    write_run(tmp_path / "raw", 50, [5, 1, 9, 30, 2, 60, 3, 3], still_open=True)
    dataset = to_dataset(tmp_path / "raw", tmp_path, **options)
    episode = dataset.episode_of(torch.arange(len(dataset))).tolist()
    done = dataset["next/done"].flatten().tolist()
    assert episode == sorted(episode)
    for length in (1, 2, 3, 8, 30):
        starts = range(len(dataset) - length + 1)
        by_number = [start for start in starts if episode[start] == episode[start + length - 1]]
        by_flag = [start for start in starts if not any(done[start : start + length - 1])]
        assert by_number == by_flag
        window = dataset.read(range(len(dataset)), length=length)["mask"].all(1)
        assert window.nonzero().flatten().tolist() == by_number


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "atari/../../x", "my/../x", "my//x", "my/.hidden", "/my/x", "my/a\0b"]
)
def test_trap_61_ids_that_lead_elsewhere(name, tmp_path):
    """An id is no path: nothing is read or written outside the root."""
    write_run(tmp_path / "raw", 20, [50])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError):
        convert(tmp_path / "raw", "atari", Request(name, root=tmp_path / "root", procs=1))
    with pytest.raises(UsageError):
        download(Request(name, root=tmp_path / "root", mirror=str(tmp_path / "raw"), procs=1))
    assert sorted(tmp_path.rglob("*")) == before


@each_layout
def test_trap_62_opens_without_pickle(options, tmp_path, monkeypatch):
    """Plain tensordict opens the folder, and nothing in it needs pickle."""
    writer = write_run(tmp_path / "raw", 50, [5, 1, 9, 30])
    dataset = to_dataset(tmp_path / "raw", tmp_path, **options)

    def refuse(*_, **__):
        raise AssertionError("pickle was used")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    td = load_plainly(dataset.path)
    assert td.batch_size == torch.Size([len(dataset)])
    steps = set(td.keys(True, True))
    assert {"action", ("next", "reward"), ("next", "done"), "done"} <= steps
    assert (("next", "observation") in steps) == (options.get("layout") == "ted")
    assert td["action"].tolist() == [action for episode in fed_truth(writer).episodes for action in episode.actions]
    if "layout" in options:
        assert torch.equal(td["observation"], dataset["observation"])
        assert torch.equal(td["next", "observation"], dataset["next/observation"])
    episodes = load_plainly(dataset.path / "episodes")
    assert episodes["length"].tolist() == dataset.episodes.lengths.tolist()
    files = [path for path in dataset.path.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in (".pkl", ".pickle", ".pt")]
    assert all(path.stat().st_size for path in files if path.suffix == ".memmap")


def test_trap_63_interrupted(tmp_path):
    """Ctrl-C in the middle leaves no dataset, keeps what is finished, and the next run completes it."""
    from rbdata.datasets.ingest.request import Listener

    writer = write_run(tmp_path / "raw", 40, [70, 100, 30])
    request = Request("my/run", root=tmp_path, procs=1, options=ConvertOptions(codec="zstd"))

    def interrupt(index: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "raw", "atari", request, Listener(on_part_done=interrupt))
    assert not (tmp_path / "my" / "run").exists()
    estimates = []
    outcome = convert(tmp_path / "raw", "atari", request, Listener(on_estimate=estimates.append))
    assert estimates[0].done_parts == 1
    assert_holds(Dataset(outcome.path), fed_truth(writer))
    assert verify(outcome.path).ok


@each_layout
def test_trap_64_disk_estimate(options, tmp_path):
    """What will be written is known before it is: within a quarter where it is compressed."""
    chosen = ConvertOptions(**options)
    request = Request("Breakout/1", root=tmp_path, mirror=str(REAL), procs=1, options=chosen, dry_run=True)
    estimate = download(request).estimate
    assert not (tmp_path / "atari").exists()
    manifest = download(Request("Breakout/1", root=tmp_path, mirror=str(REAL), procs=1, options=chosen)).manifest
    sizes = sum(sum(length for length, _ in ranges) for ranges in manifest.files.values())
    assert (estimate.steps, estimate.episodes) == (manifest.steps, manifest.episodes)
    assert estimate.disk_bytes == pytest.approx(sizes, rel=0.25 if options.get("codec") == "zstd" else 0.03)
    objects = (REAL / "dqn" / "Breakout" / "1" / "replay_logs").glob("*observation*")
    assert estimate.fetch_bytes == sum(path.stat().st_size for path in objects)


def test_trap_64_refusal_when_the_disk_is_short(tmp_path, monkeypatch):
    """Refused before the bulk is fetched, with what is needed and what is there; nothing stays behind."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**8, 10**8))
    request = Request("Breakout/1", root=tmp_path, mirror=str(REAL), procs=1, options=ConvertOptions(codec="raw"))
    with pytest.raises(DiskError, match=r"atari/Breakout/1 needs about 4\d\.\d MB .* 100 MB are free") as caught:
        download(request)
    assert "--root" in caught.value.hint
    assert not list((tmp_path / "atari").rglob("*.memmap"))
    small = Request("Breakout/1", root=tmp_path, mirror=str(REAL), procs=1)
    assert download(small).action == "written"


def test_trap_65_big_endian(tmp_path):
    """Arrays stored in the other byte order, or marked as Fortran's where that says nothing, give the same files."""
    write_run(tmp_path / "raw", 40, [30, 70], seed=5)
    shutil.copytree(tmp_path / "raw", tmp_path / "swapped")
    for number in truth.numbers_in(tmp_path / "raw"):
        for name, dtype in (("action", ">i4"), ("reward", ">f4"), ("add_count", ">i8")):
            array = truth.load_array(tmp_path / "raw", name, number)
            save_array(tmp_path / "swapped", name, number, array.astype(dtype))
    one = to_dataset(tmp_path / "raw", tmp_path / "1")
    other = to_dataset(tmp_path / "swapped", tmp_path / "2")
    assert one.manifest.files == other.manifest.files
    assert_holds(other, file_truth(tmp_path / "swapped"), tmp_path / "swapped")


def npy(text: str, version: int = 1, body: bytes = b"") -> bytes:
    header = text.encode("latin1") + b"\n"
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + body


HOSTILE = {
    "huge": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1099511627776,)}"),
    "overflowing": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (9223372036854775808,)}"),
    "large but empty": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (200000000,)}"),
    "negative": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (-5,)}"),
    "empty": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (0,)}"),
    "many dimensions": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (" + "1," * 100 + ")}"),
    "object": npy("{'descr': '|O', 'fortran_order': False, 'shape': (5,)}", body=pickle.dumps([print])),
    "object inside": npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (5,)}"),
    "code": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (__import__('os').getpid(),)}"),
    "nested": npy("(" * 5000),
    "nested lists": npy("[" * 30000 + "]" * 30000),
    "minus signs": npy("-" * 60000 + "1"),
    "open bracket": npy("{'descr': '<i4', "),
    "open string": npy("{'descr': '''<i4, "),
    "bad indent": npy("  {'descr':\n   1\n  }"),
    "backslash": npy("{'descr': '<i4'\\"),
    "null": npy("\0"),
    "not latin": npy("{'descr': '<i4', 'fortran_order': False, 'shape': (5,), '\xff\xfe': 1}", version=3),
    "header too long": b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little") + b"{}",
    "header cut": b"\x93NUMPY\x01\x00" + (100).to_bytes(2, "little") + b"{",
    "version 9": b"\x93NUMPY\x09\x00" + (2).to_bytes(2, "little") + b"{}",
    "no version": b"\x93NUMPY",
    "nothing": b"",
    "dtype of many bytes": npy("{'descr': '|V2147483647', 'fortran_order': False, 'shape': (5,)}"),
    "dtype that is none": npy("{'descr': 'quark', 'fortran_order': False, 'shape': (5,)}"),
    "dtype of tuples": npy("{'descr': ('<i4', (4, 4)), 'fortran_order': False, 'shape': (5,)}"),
    "keys missing": npy("{'descr': '<i4'}"),
    "no dictionary": npy("5"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", HOSTILE)
def test_trap_66_hostile_npy(kind, tmp_path):
    """Headers that lie, ask for pickle, or want to break the parser: refused, in no memory to speak of."""
    import gzip

    write_run(tmp_path / "raw", 30, [70])
    path = save_array(tmp_path / "raw", "action", 1, gzip.compress(HOSTILE[kind]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptSourceError, match=re.escape(path.name)) as caught:
        to_dataset(tmp_path / "raw", tmp_path / "root")
    assert len(caught.value.message) < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert not (tmp_path / "root" / "my" / "run").exists()


def test_trap_66_gzip_bomb(tmp_path):
    """A small file that unpacks to far more than its header says is left as soon as that shows."""
    from isal import igzip

    write_run(tmp_path / "raw", 30, [70])
    for name, header in (("observation", (30, *FRAME)), ("action", (30,))):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "raw", folder)
        path = next(folder.glob(f"*{name}_ckpt.1.gz"))
        descr = {"observation": "|u1", "action": "<i4"}[name]
        with igzip.IGzipFile(path, "wb", compresslevel=1) as file:
            np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": header})
            for _ in range(16):
                file.write(bytes(1 << 24))
        assert path.stat().st_size < 1 << 24
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(RbdataError, match=re.escape(path.name)):
            to_dataset(folder, tmp_path / f"{name}-root")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
        assert not (tmp_path / f"{name}-root" / "my" / "run").exists()


def test_a_gzip_file_of_very_many_members():
    import gzip

    from rbdata.datasets.formats.packed import gunzip

    members = [gzip.compress(bytes([number % 251]) * (number % 7)) for number in range(5000)]
    whole = b"".join(members)
    for pieces in ([whole], [whole[:70_001], whole[70_001:]]):
        assert b"".join(gunzip(pieces, "x")) == gzip.decompress(whole)
