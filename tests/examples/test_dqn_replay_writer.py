"""The writer of DQN Replay shards, against Dopamine's own files and against a ring that never wraps."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import dqn_replay_writer
import numpy as np
import pytest
import record_atari
from dqn_replay_writer import PAD, UNWRITTEN, DQNReplayWriter, invalid_range
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import DATA

DOPAMINE = sorted((DATA).rglob("[PB]*/[15]/replay_logs"))  # written by Dopamine itself
COLUMNS = ("observation", "action", "reward", "terminal")
FRAME = (2, 2)


def load(folder: Path, suffix: int) -> dict[str, np.ndarray]:
    """The six arrays of one checkpoint."""
    names = {name: f"$store$_{name}" for name in COLUMNS} | {name: name for name in ("add_count", "invalid_range")}
    return {
        name: np.load(io.BytesIO(gzip.decompress((folder / f"{file}_ckpt.{suffix}.gz").read_bytes())))
        for name, file in names.items()
    }


def numbered(step: int) -> np.ndarray:
    """A frame that says which step it is; never black."""
    return np.frombuffer(np.uint32(step + 1).tobytes(), np.uint8).reshape(FRAME)


def number_of(frames: np.ndarray) -> np.ndarray:
    return frames.reshape(len(frames), 4).copy().view(np.uint32)[:, 0].astype(np.int64) - 1


def add_episodes(writer: DQNReplayWriter, lengths: list[int], still_open: bool = False) -> list[int]:
    """Add numbered steps. Returns every row the ring ever got, in time order: a step's number or PAD."""
    rows: list[int] = []
    step = 0
    for episode, length in enumerate(lengths):
        rows += [PAD] * 3
        for left in reversed(range(length)):
            terminal = left == 0 and not (still_open and episode == len(lengths) - 1)
            writer.add(numbered(step), step % 18, float(step % 3 - 1), terminal)
            rows.append(step)
            step += 1
    return rows


def write(folder: Path, capacity: int, lengths: list[int], final: bool = False, **options) -> DQNReplayWriter:
    writer = DQNReplayWriter(folder, capacity, frame_shape=FRAME, gzip_level=1, **options)
    writer.rows = add_episodes(writer, lengths)
    writer.close(final)
    return writer


# -- the files -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not DOPAMINE, reason="no shards by Dopamine in tests/data")
@pytest.mark.parametrize("folder", DOPAMINE, ids=lambda folder: folder.parent.parent.name)
def test_writes_what_dopamine_wrote(folder, tmp_path):
    """The experience in Dopamine's shards, unrolled and added again, gives the same shards."""
    shards = [load(folder, n) for n in range(len(list(folder.glob("add_count*"))))]
    capacity = len(shards[0]["action"])
    unrolled = {}
    for name in COLUMNS:
        seam = [np.concatenate([shard[name][-1:], shard[name][:-1]]) for shard in shards]
        unrolled[name] = np.concatenate(seam)[1:]  # the last slot of file 0 was never written

    writer = DQNReplayWriter(tmp_path, capacity, gzip_level=1)
    row, at_start = 0, True
    while row < len(unrolled["action"]):
        row += 3 * at_start
        values = [unrolled[name][row] for name in COLUMNS]
        writer.add(values[0], int(values[1]), float(values[2]), bool(values[3]))
        at_start = bool(values[3])
        row += 1
    writer.close(final_dump=False)

    assert len(writer.dumps) == len(shards)
    for n, theirs in enumerate(shards):
        ours = load(tmp_path, n)
        for name, array in theirs.items():
            assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
            last = -1 if n == 0 and name in COLUMNS else None
            np.testing.assert_array_equal(
                ours[name][:last] if array.ndim else ours[name], array[:last] if array.ndim else array
            )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in folder.iterdir())
    for path in folder.iterdir():  # .npy headers, and the name that gzip keeps
        assert gzip.decompress(path.read_bytes())[:128] == gzip.decompress((tmp_path / path.name).read_bytes())[:128]
        assert (
            path.read_bytes()[10 : 10 + len(path.stem)] == (tmp_path / path.name).read_bytes()[10 : 10 + len(path.stem)]
        )


@pytest.mark.parametrize("fast", [False, True])
def test_file_format(tmp_path, fast):
    DQNReplayWriter(tmp_path, 10, gzip_level=9, fast_gzip=fast).close()
    expected = {
        "$store$_observation_ckpt.0.gz": ("|u1", (10, 84, 84)),
        "$store$_action_ckpt.0.gz": ("<i4", (10,)),
        "$store$_reward_ckpt.0.gz": ("<f4", (10,)),
        "$store$_terminal_ckpt.0.gz": ("|u1", (10,)),
        "add_count_ckpt.0.gz": ("<i8", ()),
        "invalid_range_ckpt.0.gz": ("<i8", (5,)),
    }
    assert {path.name for path in tmp_path.iterdir()} == set(expected)
    for name, (descr, shape) in expected.items():
        packed = (tmp_path / name).read_bytes()
        assert packed[:4] == b"\x1f\x8b\x08\x08"  # gzip with a file name, which is this one
        assert packed[10:].split(b"\0")[0].decode() == name.removesuffix(".gz")
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
        assert gzip.decompress(packed)[:128] == b"\x93NUMPY\x01\x00v\x00" + header.ljust(117).encode() + b"\n"


def test_add_count_and_invalid_range_of_the_public_data():
    assert invalid_range(999_999, 1_000_000, 4).tolist() == [999_998, 999_999, 0, 1, 2]  # Pong/5, file 0
    assert invalid_range(1499, 1500, 4).tolist() == [1498, 1499, 0, 1, 2]


def test_first_file_ends_in_uninitialised_memory(tmp_path):
    write(tmp_path / "noise", 12, [30])
    noise = load(tmp_path / "noise", 0)
    assert noise["terminal"][-1] == 255
    assert np.isnan(noise["reward"][-1])
    assert noise["action"][-1] < 0
    assert noise["observation"][-1].any()
    assert noise["add_count"] == 11
    write(tmp_path / "filled", 12, [30], fill=0xFF)
    filled = load(tmp_path / "filled", 0)
    assert filled["action"][-1] == -1
    assert filled["terminal"][-1] == 255
    assert (filled["observation"][-1] == 255).all()
    assert load(tmp_path / "noise", 1)["terminal"].max() == 0  # gone one lap later


@pytest.mark.parametrize(
    "options", [{"fast_gzip": True}, {"scratch": True}, {"small_blocks": True}], ids=lambda o: next(iter(o))
)
def test_options_change_no_content(tmp_path, monkeypatch, options):
    write(tmp_path / "plain", 40, [17, 30, 5, 60, 4], final=True)
    if options.pop("small_blocks", False):
        monkeypatch.setattr(dqn_replay_writer, "BLOCK_BYTES", 3 * 4)
    if options.get("scratch"):
        options["scratch"] = tmp_path / "scratch"
    writer = write(tmp_path / "other", 40, [17, 30, 5, 60, 4], final=True, **options)
    assert len(writer.dumps) == 4
    for n in range(4):
        theirs = load(tmp_path / "plain", n)
        for name, array in load(tmp_path / "other", n).items():
            if n == 0 and name == "observation":  # the noise of the last slot is drawn block by block
                array, theirs[name] = array[:-1], theirs[name][:-1]
            np.testing.assert_array_equal(array, theirs[name])
    assert not list(tmp_path.glob("scratch/*"))


# -- the ring ------------------------------------------------------------------------------------------------------


def assert_dumps_match_rows(writer: DQNReplayWriter, capacity: int, saved_laps: list[int]) -> None:
    """Regular dump n holds lap `saved_laps[n]` of the unrolled rows, and the row before it in its last slot."""
    regular = [dump for dump in writer.dumps if not dump.final]
    assert len(regular) == len(saved_laps)
    for n, (dump, lap) in enumerate(zip(regular, saved_laps, strict=True)):
        first = lap * capacity
        before = writer.rows[first - 1] if lap else UNWRITTEN
        assert dump.step_ids.tolist() == [*writer.rows[first : first + capacity - 1], before]
        saved = load(writer.folder, n)
        assert saved["add_count"] == dump.add_count == first + capacity - 1
        assert saved["invalid_range"].tolist() == [capacity - 2, capacity - 1, 0, 1, 2]
        written = dump.step_ids != UNWRITTEN
        np.testing.assert_array_equal(number_of(saved["observation"])[written], dump.step_ids[written])
        pads = dump.step_ids == PAD
        assert not any(saved[name][pads].any() for name in COLUMNS)


@pytest.mark.parametrize("start", range(20 - 9, 20 + 6))
def test_an_episode_starts_near_the_seam(tmp_path, start):
    """The pads of the second episode begin at ring row `start` of lap 0 (or of lap 1): every offset to the seam."""
    capacity = 20
    writer = write(tmp_path, capacity, [start - 3, 50])
    jumped = start in (capacity - 4, capacity - 3, capacity - 2)
    assert_dumps_match_rows(writer, capacity, [1, 2] if jumped else [0, 1, 2])
    found = writer.recoverable_steps()
    row_of = {step: row for row, step in enumerate(writer.rows) if step != PAD}
    lost = range(capacity - 1) if jumped else range(0)
    beyond = range(3 * capacity - 1, len(writer.rows))  # never saved: the run was left there
    for step, row in row_of.items():
        assert found.present[step] == (row not in lost and row not in beyond)
        follows = row + 1 in row_of.values()  # not a pad, so of the same episode
        assert found.successor_present[step] == (follows and row + 1 not in lost and row + 1 not in beyond)


def test_lost_lap(tmp_path):
    """A start of four rows jumps over the last slot: the lap is gone, and the next file takes the next suffix."""
    just_in_time = write(tmp_path / "just_in_time", 20, [32, 40])  # pads in slots 15 to 17 of lap 1, a frame in 18
    assert [dump.add_count for dump in just_in_time.dumps] == [19, 39, 59]
    writer = write(tmp_path / "jump", 20, [34, 40])  # pads in slots 17 to 19 of lap 1, a frame in slot 0 of lap 2
    assert [int(load(writer.folder, n)["add_count"]) for n in (0, 1)] == [19, 59]
    found = writer.recoverable_steps()
    assert np.flatnonzero(~found.present)[:18].tolist() == list(range(16, 34))  # from the last slot of lap 0 on
    assert found.present[15] and not found.successor_present[15]
    assert found.present[34] and found.successor_present[34]
    # Its last slot is a pad whose fellows are lost: only the missing lap in add_count tells what it may be.
    assert writer.dumps[1].step_ids[19] == PAD


def test_a_lap_lost_at_the_very_start_leaves_a_valid_last_slot(tmp_path):
    """When lap 0 is lost, file 0 is of lap 1 and its last slot was written: only its add_count tells."""
    writer = write(tmp_path, 20, [13, 40])  # pads at rows 16, 17, 18, the first frame at 19
    assert int(load(tmp_path, 0)["add_count"]) == 39
    assert writer.dumps[0].new_rows()[0] == 19
    assert number_of(load(tmp_path, 0)["observation"])[19] == 13
    assert writer.recoverable_steps().present[13]


def test_final_file(tmp_path):
    """The run stops at cursor 7: rows 0 to 6 are new, then leftovers of the file before, then the row before row 0."""
    writer = write(tmp_path, 20, [44], final=True)
    before, final = load(tmp_path, 1), load(tmp_path, 2)
    assert final["add_count"] == 7 and final["add_count"].dtype == np.int64
    assert final["invalid_range"].tolist() == [6, 7, 8, 9, 10]
    for name in COLUMNS:
        np.testing.assert_array_equal(final[name][7:19], before[name][7:19])
    assert number_of(final["observation"])[[19, 0, 6]].tolist() == [36, 37, 43]
    assert writer.dumps[2].new_rows().tolist() == [19, 0, 1, 2, 3, 4, 5, 6]
    found = writer.recoverable_steps()
    assert found.present.all()
    assert found.successor_present.tolist() == [True] * 43 + [False]
    assert write(tmp_path / "without", 20, [44], final=False).recoverable_steps().present.sum() == 36


def test_final_file_of_a_run_shorter_than_the_ring(tmp_path):
    writer = write(tmp_path, 20, [5, 4], final=True)
    assert load(tmp_path, 0)["add_count"] == 15
    assert (
        writer.dumps[0].step_ids.tolist()
        == [PAD] * 3 + list(range(5)) + [PAD] * 3 + list(range(5, 9)) + [UNWRITTEN] * 5
    )
    assert writer.recoverable_steps().present.all()


def test_final_file_when_the_ring_was_just_saved(tmp_path):
    """Stopping with the cursor at the last slot saves the same rows twice."""
    writer = write(tmp_path, 20, [36], final=True)
    assert [dump.add_count for dump in writer.dumps] == [19, 39, 19]
    assert len(writer.dumps[2].new_rows()) == 0


def test_episodes(tmp_path):
    writer = DQNReplayWriter(tmp_path, 20, frame_shape=FRAME)
    add_episodes(writer, [4, 1, 7], still_open=True)
    episodes = writer.episodes()
    assert [(e.first_step, len(e), e.terminal) for e in episodes] == [(0, 4, True), (4, 1, True), (5, 7, False)]
    assert episodes[2].actions.tolist() == list(range(5, 12))
    assert episodes[0].rewards.tolist() == [-1, 0, 1, -1]
    assert DQNReplayWriter(tmp_path, 20).episodes() == []


@settings(max_examples=examples(60), deadline=None)
@given(
    capacity=st.integers(8, 40),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    final=st.booleans(),
)
def test_truth_against_an_unrolled_ring(tmp_path_factory, capacity, lengths, final):
    writer = write(tmp_path_factory.mktemp("ring"), capacity, lengths, final)
    # A lap was saved unless some call of `add` (one row, or four at a start) jumped over the count at its last slot.
    counts: set[int] = set()
    row = 0
    for length in lengths:
        counts.update(range(row + 4, row + 4 + length))
        row += 3 + length
    laps = [lap for lap in range(len(writer.rows) // capacity + 1) if (lap + 1) * capacity - 1 in counts]
    assert_dumps_match_rows(writer, capacity, laps)

    saved = np.concatenate([dump.step_ids[dump.new_rows()] for dump in writer.dumps] or [np.empty(0, np.int64)])
    steps = saved[saved >= 0]
    assert (np.diff(steps) > 0).all()  # every step once, in the order of time
    found = writer.recoverable_steps()
    np.testing.assert_array_equal(np.flatnonzero(found.present), steps)
    last_steps = {episode.first_step + len(episode) - 1 for episode in writer.episodes()}
    successors = [step for step in range(sum(lengths)) if step not in last_steps and step + 1 in set(steps.tolist())]
    assert np.flatnonzero(found.successor_present).tolist() == successors
    if final and len(laps) == (len(writer.rows) + 1) // capacity:  # no lap was lost
        assert found.present.all()


# -- the player ----------------------------------------------------------------------------------------------------


def test_record(tmp_path, monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(record_atari, "MAX_EPISODE_STEPS", 120)
    writer = record_atari.record("Pong", tmp_path / "Pong" / "5", steps=400, capacity=150, seed=3)
    folder = tmp_path / "Pong" / "5" / "replay_logs"
    assert len(writer.dumps) == 3
    assert [len(episode) for episode in writer.episodes()] == [120, 120, 120, 40]
    assert [episode.terminal for episode in writer.episodes()] == [True, True, True, False]
    file = load(folder, 1)
    assert file["observation"].shape == (150, 84, 84)
    assert set(np.unique(file["reward"])) <= {-1.0, 0.0, 1.0}
    assert set(np.unique(file["action"])) <= set(range(6))  # Pong's minimal action set
    real = writer.dumps[1].step_ids >= 0
    assert file["observation"][real].any((1, 2)).all()
    assert len(np.unique(file["observation"][real], axis=0)) > 100  # frames vary

    again = record_atari.record("Pong", tmp_path / "again", steps=400, capacity=150, seed=3)
    assert again.dumps[1].add_count == writer.dumps[1].add_count
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / "replay_logs" / path.name).read_bytes()
