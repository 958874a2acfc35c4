"""The Atari converter against two independent readings of the same shards, on any run a ring can produce."""

from __future__ import annotations

import tempfile
from pathlib import Path

import atari_truth as truth
import numpy as np
import pytest
import torch
from atari_truth import assert_holds, fed_truth, file_truth, write_run
from effort import examples
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.catalogue import load_source
from rbdata.datasets.convert import convert
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.atari.source import games
from rbdata.errors import CorruptSourceError
from rbdata.storage.dataset import Dataset
from ted_rules import check_invariants

REAL = DATA / "atari"


def looked_at(count: int) -> settings:
    return settings(max_examples=examples(count), deadline=None, suppress_health_check=list(HealthCheck))


def converted(folder: Path, root: Path, **options) -> Dataset:
    """The shards of a folder as a dataset, raw unless said otherwise."""
    request = Request("my/run", root=root, procs=1, options=ConvertOptions(**{"codec": "raw", **options}))
    return Dataset(convert(folder, "atari", request).path)


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Of frames, NumPy's own assertion, which says where arrays differ, takes several times as long as a comparison."""
    if not np.array_equal(found, expected):
        np.testing.assert_array_equal(found, expected)


@st.composite
def runs(draw):
    """Capacity, episode lengths, whether the last one is open, whether the ring was dumped at the end, and a seed."""
    capacity = draw(st.integers(8, 60))
    lengths = draw(st.lists(st.integers(1, 70), min_size=1, max_size=6))
    return capacity, lengths, draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 99))


def write(folder: Path, run) -> truth.DQNReplayWriter:
    capacity, lengths, still_open, final, seed = run
    writer = write_run(folder, capacity, lengths, still_open=still_open, final=final, seed=seed)
    assume(writer.dumps and truth.ambiguous(writer) is None)
    return writer


def check(folder: Path, root: Path, expected: truth.Truth, **options) -> None:
    """Convert and compare; where nothing whole is in the data, conversion must say so."""
    if not expected.episodes:
        with pytest.raises(CorruptSourceError, match="no complete step"):
            converted(folder, root, **options)
        return
    dataset = converted(folder, root, **options)
    assert_holds(dataset, expected, folder)
    assert check_invariants(dataset.path, dataset.manifest) == []


@looked_at(40)
@given(runs(), st.sampled_from(["truncate", "zero"]))
def test_whole_runs(run, unknown_next):
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "raw", Path(name) / "root"
        writer = write(folder, run)
        expected = fed_truth(writer, unknown_next=unknown_next)
        event(f"gaps: {min(2, expected.gaps)}")
        check(folder, root, expected, unknown_next=unknown_next)


@looked_at(40)
@given(runs(), st.data(), st.sampled_from(["truncate", "zero"]))
def test_chosen_and_missing_shards(run, data, unknown_next):
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "raw", Path(name) / "root"
        writer = write(folder, run)
        numbers = [dump.suffix for dump in writer.dumps]
        there = sorted(data.draw(st.sets(st.sampled_from(numbers), min_size=1), label="there"))
        chosen = sorted(data.draw(st.sets(st.sampled_from(there), min_size=1), label="chosen"))
        # Alone, a final dump of a full ring looks like the first lap under another number.
        assume(not writer.dumps[-1].final or writer.dumps[-1].add_count != writer.capacity - 1 or len(there) > 1)
        for number in set(numbers) - set(there):
            for path in folder.glob(f"*_ckpt.{number}.gz"):
                path.unlink()
        expected = fed_truth(writer, chosen, there, unknown_next)
        check(folder, root, expected, unknown_next=unknown_next, parts=tuple(chosen))


@looked_at(40)
@given(runs(), st.data(), st.integers(2, 12))
def test_both_truths_agree(run, data, time_limit):
    """The oracles check each other: one knows what was played, the other only the files."""
    with tempfile.TemporaryDirectory() as name:
        writer = write(Path(name), run)
        numbers = [dump.suffix for dump in writer.dumps]
        chosen = sorted(data.draw(st.sets(st.sampled_from(numbers), min_size=1)))
        one, other = (
            fed_truth(writer, chosen, time_limit=time_limit),
            file_truth(Path(name), chosen, time_limit=time_limit),
        )
        assert [(e.actions, e.rewards, e.outcome, e.midway) for e in one.episodes] == [
            (e.actions, e.rewards, e.outcome, e.midway) for e in other.episodes
        ]
        assert (one.pads, one.gaps, len(one.given_up)) == (other.pads, other.gaps, len(other.given_up))
        for mine, its in zip(one.episodes, other.episodes):
            assert_same(truth.pictures(mine.frames), truth.pictures(its.frames, Path(name)))


@looked_at(28)
@given(runs(), st.integers(2, 30), st.sampled_from(["truncate", "zero"]))
def test_any_time_limit(run, time_limit, unknown_next):
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "raw", Path(name) / "root"
        writer = write(folder, run)
        expected = fed_truth(writer, unknown_next=unknown_next, time_limit=time_limit)
        check(folder, root, expected, unknown_next=unknown_next, time_limit=time_limit)


@looked_at(20)
@given(runs(), st.sampled_from([{"codec": "zstd"}, {"codec": "auto", "layout": "ted"}]), st.data())
def test_every_codec_and_layout(run, options, data):
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "raw", Path(name) / "root"
        writer = write(folder, run)
        chosen = sorted(data.draw(st.sets(st.sampled_from([dump.suffix for dump in writer.dumps]), min_size=1)))
        unknown_next = data.draw(st.sampled_from(["truncate", "zero"]))
        expected = fed_truth(writer, chosen, unknown_next=unknown_next)
        check(folder, root, expected, unknown_next=unknown_next, parts=tuple(chosen), **options)


@pytest.mark.parametrize("options", [{"codec": "zstd"}, {"codec": "auto", "layout": "ted"}])
@pytest.mark.parametrize("capacity", [8, 5000])
def test_only_step_in_the_last_row_of_a_file(tmp_path, capacity, options):
    """The final dump has one new row, which began the lap: it is the last one of the file, and no row of its head is new."""
    writer = write_run(tmp_path / "raw", capacity, [capacity - 3], final=True)
    assert [dump.suffix for dump in writer.dumps] == [0, 1]
    options = {**options, "unknown_next": "zero", "parts": (1,)}
    check(tmp_path / "raw", tmp_path / "root", fed_truth(writer, [1], unknown_next="zero"), **options)


@looked_at(24)
@given(runs(), st.sampled_from(["raw", "zstd"]))
def test_frame_stacks(run, codec):
    """``read(before=3)`` is what the agent saw."""
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "raw", Path(name) / "root"
        expected = fed_truth(write(folder, run))
        assume(expected.episodes)
        dataset = converted(folder, root, codec=codec)
        window = dataset.read(range(len(dataset)), before=3)
        assert_same(window["observation"].numpy(), truth.stacks(expected))
        lengths = [index for episode in expected.episodes for index in range(len(episode))]
        assert window["mask"].sum(1).tolist() == [min(4, index + 1) for index in lengths]


@looked_at(24)
@given(runs(), st.sets(st.integers(0, 120), max_size=20))
def test_black_frames_are_frames(run, black):
    """Real rows that look exactly like padding, anywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "raw", Path(name) / "root"
        capacity, lengths, still_open, final, seed = run
        black = frozenset(black)
        writer = write_run(folder, capacity, lengths, still_open=still_open, final=final, seed=seed, black=black)
        assume(writer.dumps and truth.ambiguous(writer) is None)
        # Where reading begins in the middle, padding is told by its content, and a black frame could be some.
        expected = fed_truth(writer)
        assume(expected.episodes and not expected.gaps and writer.dumps[0].add_count < capacity)
        assert_holds(converted(folder, root), expected, folder, black)


def test_games_and_runs_by_name(tmp_path):
    """Every game of the dataset is found under its own name; a few are converted."""
    assert len(games()) == 60 and len(set(load_source("atari").names())) == 300
    for game, run, capacity in (("AirRaid", 1, 9), ("MontezumaRevenge", 3, 33), ("Zaxxon", 5, 61), ("UpNDown", 2, 20)):
        folder = tmp_path / "mirror" / "dqn" / game / str(run) / "replay_logs"
        writer = write_run(folder, capacity, [3, 25, 1, 40, 7], seed=capacity)
        outcome = download(Request(f"{game}/{run}", root=tmp_path / "root", mirror=str(tmp_path / "mirror"), procs=1))
        assert outcome.path == tmp_path / "root" / "atari" / game / str(run)
        assert_holds(Dataset(outcome.path), fed_truth(writer))


def plain_reading(folder: Path) -> tuple[np.ndarray, ...]:
    """Shards that Dopamine wrote, unrolled with numpy: frames, actions, rewards, terminals and which rows are padding."""
    columns = []
    numbers = truth.numbers_in(folder)
    for name in truth.ARRAYS:
        shards = [truth.load_array(folder, name, number) for number in numbers]
        columns.append(np.concatenate([np.concatenate([shard[-1:], shard[:-1]]) for shard in shards])[1:])
    after = np.concatenate([[True], columns[3][:-1] == 1])
    pad = after.copy()
    for distance in (1, 2):
        pad[distance:] |= after[:-distance]
    return *columns, pad


@pytest.mark.parametrize("name, codec, layout", [("Breakout/1", "zstd", "auto"), ("Pong/5", "auto", "ted")])
def test_real_shards(name, codec, layout, tmp_path):
    """Files that Dopamine itself wrote, against numpy and against the row by row reading."""
    folder = REAL / "dqn" / name / "replay_logs"
    frames, actions, rewards, terminals, pad = plain_reading(folder)
    options = ConvertOptions(codec=codec, layout=layout)
    dataset = Dataset(download(Request(name, root=tmp_path, mirror=str(REAL), procs=1, options=options)).path)
    assert not frames[pad].any() and not actions[pad].any() and not rewards[pad].any()
    real = np.flatnonzero(~pad)[:-1]  # the very last row has no successor
    assert len(dataset) == len(real)
    assert_same(dataset["observation"].numpy(), frames[real])
    assert_same(dataset["action"].numpy(), actions[real])
    assert_same(dataset["next/reward"].numpy()[:, 0], rewards[real])
    assert_same(dataset["next/terminated"].numpy()[:, 0], terminals[real] == 1)
    inner = terminals[real] == 0
    assert_same(dataset["next/observation"].numpy()[inner], frames[real + 1][inner])
    assert not dataset["next/observation"].numpy()[~inner].any()
    if codec == "zstd":
        read = file_truth(folder)
        assert_holds(dataset, read, folder)
        expected = truth.stacks(read, folder)
        steps = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:500]
        found = dataset.read(steps, before=3)["observation"].numpy()
        assert_same(found, expected[steps.numpy()])


@pytest.mark.parametrize(
    "shards, unknown_next", [((1,), "zero"), ((0, 2), "truncate"), ((0, 2), "zero"), ((1, 2), "truncate")]
)
def test_some_real_shards(shards, unknown_next, tmp_path):
    folder = REAL / "dqn" / "Breakout/1" / "replay_logs"
    options = ConvertOptions(codec="raw", parts=shards, unknown_next=unknown_next)
    request = Request("Breakout/1", root=tmp_path, mirror=str(REAL), procs=1, options=options)
    dataset = Dataset(download(request).path)
    assert_holds(dataset, file_truth(folder, list(shards), unknown_next), folder)
    assert check_invariants(dataset.path, dataset.manifest) == []
