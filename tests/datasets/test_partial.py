"""Datasets read while they are downloaded: what is shown is, row by row, what the finished dataset holds."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rbdata
import torch
from atari_truth import write_run
from rbdata import cli
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.job import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.errors import DamagedDatasetError, DatasetNotFoundError, StoppedError, StoppedWarning, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import JOURNAL, DatasetPlace
from rbdata.storage.journal import PLAN
from rbdata.storage.partial_dataset import PartialDataset

ID = "atari/Qbert/2"
LAYOUTS = [{"codec": "raw"}, {"codec": "zstd"}, {"layout": "ted"}]
each_layout = pytest.mark.parametrize("options", LAYOUTS, ids=["raw", "zstd", "ted"])
#: Buffers of every kind; all see other steps when more of them are there.
BUFFERS: dict[str, dict[str, Any]] = {
    "steps": {},
    "stacks": {"frame_stack": 3, "n_step": 2},
    "ahead": {"frame_stack": 2, "prefetch": 3},
    "slices": {"slice_len": 4},
    "transitions": {"slice_len": 4, "uniform_over": "transitions"},
    "priorities": {"alpha": 0.6, "beta": 0.4},
    "priorities of slices": {"alpha": 0.6, "slice_len": 4},
}


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """A run of six shards of 90 rows, with episodes over their seams and one that is longer than a shard."""
    top = tmp_path_factory.mktemp("mirror")
    write_run(top / "dqn" / "Qbert" / "2" / "replay_logs", 90, [20, 40, 35, 60, 150, 50, 33, 60])
    return top


@pytest.fixture(scope="module")
def whole(mirror, tmp_path_factory):
    return Dataset(run(mirror, tmp_path_factory.mktemp("whole")))


def place(root: Path) -> DatasetPlace:
    return DatasetPlace(root, ID)


def run(mirror: Path, root: Path, after_part: Callable[[int], None] = lambda index: None, **fields) -> Path:
    """Download in this process, calling ``after_part`` whenever a part is finished: nothing goes on meanwhile."""
    options = ConvertOptions(**{"codec": "raw", **fields.pop("options", {})})  # no dictionary to train
    request = Request(ID, root=root, mirror=str(mirror), options=options, procs=1, **fields)
    return download(request, Listener(on_part_done=after_part)).path


class Stop(Exception):
    """Ends a download from within, as a kill would."""


def run_until(part: int, mirror: Path, root: Path, **fields) -> None:
    """Download until this part is finished, and no further."""

    def stop(index: int) -> None:
        if index == part:
            raise Stop

    with suppress(Stop):
        run(mirror, root, stop, **fields)


def assert_begins(whole: Dataset, partial: Dataset) -> None:
    """All that the partial dataset holds is the beginning of the whole one."""
    steps, episodes = len(partial), len(partial.episodes)
    assert partial.episode_starts.tolist() == whole.episode_starts[: episodes + 1].tolist()
    for column in ("length", "returns", "outcome", "midway"):
        assert (getattr(partial.episodes, column) == getattr(whole.episodes, column)[:episodes]).all()
    for name in partial.schema.names:
        assert torch.equal(partial[name], whole[name][:steps]), name
    assert (partial.to_tensordict() == whole[:steps]).all()
    assert (partial.episode(-1) == whole.episode(episodes - 1)).all()


# -- what is shown -----------------------------------------------------------------------------------------------------


@each_layout
def test_rows_of_finished_shards(tmp_path, mirror, options):
    seen, sizes = [], []

    def look(index: int) -> None:
        try:
            seen.append(PartialDataset(place(tmp_path)))
        except DatasetNotFoundError as error:
            assert not seen and "can be read yet: 1 of 6 parts" in str(error)
        else:
            sizes.append(len(seen[-1]))
            assert seen[0].refresh() == (len(sizes) > 1 and sizes[-1] > sizes[-2])
            assert len(seen[0]) == sizes[-1] and seen[0].state == "being written"

    path = run(mirror, tmp_path, look, options=options)
    whole = Dataset(path)
    assert len(set(sizes)) > 2 and sizes == sorted(sizes)
    for partial in seen[::2]:  # their files were renamed meanwhile
        assert_begins(whole, partial)
        assert partial.refresh() and not partial.refresh() and partial.complete
        assert partial.path == path and len(partial) == len(whole)
    assert_begins(whole, seen[0])


def test_a_shard_that_is_finished_too_early_waits_for_those_before_it(tmp_path, mirror):
    """Shards finish in any order; the steps that are there must keep their numbers."""
    run_until(1, mirror, tmp_path)
    partial = PartialDataset(place(tmp_path))
    before = len(partial)
    journal = place(tmp_path).working / JOURNAL
    lines = [line for line in journal.read_bytes().splitlines(True) if b'"merged", "number": 0' not in line]
    from rbdata.storage.checksums import Crc32c
    from rbdata.storage.journal import _parse, seal

    journal.write_bytes(seal((_parse(line[9:].strip()) for line in lines), Crc32c()))
    with pytest.raises(DatasetNotFoundError, match="0 of 6 parts"):
        PartialDataset(place(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedWarning)
        assert not partial.refresh()
    assert len(partial) == before


def test_what_it_says_of_itself(tmp_path, mirror, capsys):
    run_until(2, mirror, tmp_path)
    partial = rbdata.open_dataset("Qbert/2", root=tmp_path, partial=True)
    assert partial.state == "interrupted" and partial.progress == "3 of 6 parts"
    assert re.search(r"interrupted, 3 of 6 parts, steps=\d+ of \d+, episodes=\d+ of \d+", repr(partial))
    assert partial.manifest.lengths["max"] == partial.episodes.length.max()
    with pytest.raises(DatasetNotFoundError, match="is not complete"):
        rbdata.open_dataset("Qbert/2", root=tmp_path)
    assert cli.run(["sample", "Qbert/2", "--partial", "-n", "4", "--seed", "1", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "observation" in printed.out and "drawn from 3 of 6 parts" in printed.err
    (only,) = rbdata.list_datasets(root=tmp_path)
    assert (only.state, only.done) == ("partial", 0.5)


def test_specs_are_those_of_the_whole(tmp_path, mirror, whole):
    pytest.importorskip("torchrl")
    run_until(1, mirror, tmp_path)
    assert PartialDataset(place(tmp_path)).spec == whole.spec


# -- who writes --------------------------------------------------------------------------------------------------------


def test_interrupted_and_continued(tmp_path, mirror, whole):
    run_until(1, mirror, tmp_path)
    partial = PartialDataset(place(tmp_path))
    first = len(partial)
    with pytest.warns(StoppedWarning, match="with 2 of 6 parts finished"):
        assert not partial.refresh()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not partial.refresh()  # said once
    with pytest.raises(StoppedError, match="is no longer being written") as caught:
        partial.refresh(wait=60)
    assert caught.value.code == "stopped" and "continue it" in caught.value.hint
    before, sizes = partial.to_tensordict(), []

    def look(index: int) -> None:
        partial.refresh()
        sizes.append(len(partial))
        assert (partial[:first] == before).all()

    run(mirror, tmp_path, look)
    assert sizes[-1] > first
    assert partial.refresh() and partial.state == "complete"
    assert_begins(whole, partial)


@each_layout
def test_mapped_files_outlive_a_run_that_writes_them_anew(tmp_path, mirror, whole, options):
    """A continued run plans anew: what a reader has mapped must neither shrink nor change."""
    run_until(3, mirror, tmp_path, options=options)
    partial = PartialDataset(place(tmp_path))
    working = place(tmp_path).working
    mapped = {path: path.stat().st_ino for path in working.rglob("*.memmap") if path.stat().st_size}
    run_until(4, mirror, tmp_path, options=options)
    rewritten = {path.relative_to(working).as_posix() for path, inode in mapped.items() if path.stat().st_ino != inode}
    assert {"action.memmap", "next/reward.memmap", "episodes/start.memmap"} <= rewritten
    assert not any(path.startswith("observation") for path in rewritten)
    assert_begins(whole, partial)


@pytest.mark.parametrize("how", ["deleted", "begun anew"])
def test_no_longer_there(tmp_path, mirror, whole, how):
    run_until(2, mirror, tmp_path)
    partial = PartialDataset(place(tmp_path))
    copy = pickle.dumps(partial)
    assert len(pickle.loads(copy)) == len(partial)
    if how == "deleted":
        rbdata.delete(ID, root=tmp_path)
    else:
        run_until(2, mirror, tmp_path, options={"parts": (0, 1, 2, 3)}, force=True)
    with pytest.raises(DatasetNotFoundError, match="was deleted, or replaced"):
        partial.refresh()
    with pytest.raises(UsageError, match="was deleted or replaced"):
        pickle.loads(copy)
    assert_begins(whole, partial)


def test_nothing_to_read(tmp_path, mirror):
    with pytest.raises(DatasetNotFoundError, match="is not under"):
        rbdata.open_dataset("Qbert/2", root=tmp_path, partial=True)
    with pytest.raises(DatasetNotFoundError, match="can be read yet: none of its parts"):
        rbdata.open_dataset("Qbert/2", root=tmp_path, partial=True, wait=0.01)
    with pytest.raises(UsageError, match="wait is only for partial"):
        rbdata.open_dataset("Qbert/2", root=tmp_path, wait=1)
    with pytest.raises(UsageError, match="on this machine"):
        rbdata.open_dataset("s3://bucket/x", partial=True)
    path = run(mirror, tmp_path)
    assert rbdata.open_dataset("Qbert/2", root=tmp_path, partial=True).complete
    assert rbdata.open_dataset(path, partial=True).complete
    assert not (path / PLAN).exists()


def test_a_damaged_plan_is_named(tmp_path, mirror):
    run_until(1, mirror, tmp_path)
    working = place(tmp_path).working
    starts = working / "episodes/start.memmap"
    good = starts.read_bytes()
    starts.write_bytes(good[8:] + good[:8])
    with pytest.raises(DamagedDatasetError, match="episode table"):
        PartialDataset(place(tmp_path))
    starts.write_bytes(good)
    (working / PLAN).write_bytes((working / PLAN).read_bytes().replace(b'"steps": ', b'"steps": 9', 1))
    with pytest.raises(DamagedDatasetError, match="checksum"):
        PartialDataset(place(tmp_path))


# -- buffers -----------------------------------------------------------------------------------------------------------


def batches(buffer, count: int) -> list:
    """Batches, with priorities set by what is in them."""
    found = []
    for _ in range(count):
        batch = buffer.sample()
        if "priority_weight" in batch:
            batch["td_error"] = batch["action"].float().reshape(-1) + 1
            buffer.update_tensordict_priority(batch)
        found.append(batch)
    return found


def assert_same(found: list, expected: list) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert (one == other).all()


@pytest.mark.parametrize("kind", BUFFERS)
def test_batches_follow_from_the_seed_and_the_growth(tmp_path, mirror, whole, kind):
    options = {**BUFFERS[kind], "batch_size": 12, "seed": 5}
    found, states, buffer = [], [], None

    def train(index: int) -> None:
        nonlocal buffer
        if index == 2:
            buffer = rbdata.load(PartialDataset(place(tmp_path)), **options)
            assert len(buffer) < len(whole)
        elif index > 2:
            assert buffer.refresh() or index == 5
            assert (buffer[:] == whole[: len(buffer)]).all()
        if buffer is not None:
            found.extend(batches(buffer, 3))
            states.append(buffer.state_dict())
            found.extend(batches(buffer, 2))

    path = run(mirror, tmp_path, train)
    assert buffer.refresh() or len(buffer) == len(whole)
    assert len(buffer) == len(whole)
    found += batches(buffer, 3)
    growth = buffer.state_dict()["_storage"]["growth"]
    assert growth[0][0] == 0 and growth[-1][1] == len(whole) and len(growth) > 2
    # From the seed and the growth, with the whole dataset.
    assert_same(batches(rbdata.load(path, growth=growth, **options), len(found)), found)
    # From any of the states: what was shown then is shown, until it is refreshed.
    for number, state in enumerate(states):
        again = rbdata.load(path, **options)
        again.load_state_dict(state)
        assert len(again) == state["_storage"]["growth"][-1][1]
        assert_same(batches(again, 2), found[5 * number + 3 : 5 * number + 5])
        # Beside the growth, a run that is repeated and resumed goes on to the end.
        again = rbdata.load(path, growth=growth, **options)
        again.load_state_dict(state)
        assert_same(batches(again, len(found) - 5 * number - 3), found[5 * number + 3 :])
        again = rbdata.load(path, **options)
        again.load_state_dict(state)
    assert again.state_dict()["_storage"]["growth"] == states[-1]["_storage"]["growth"]
    again.refresh()
    assert len(again) == len(whole)


def test_passes_grow_when_they_begin(tmp_path, mirror, whole):
    seen: list[list[int]] = []
    buffer: Any = None

    def train(index: int) -> None:
        nonlocal buffer
        if index == 2:
            buffer = rbdata.load(PartialDataset(place(tmp_path)), replacement=False, batch_size=50, seed=1)
            batch = buffer.sample()
            seen.append(batch["index"].tolist())
        if index == 4:
            assert not buffer.refresh()  # in the middle of a pass
            seen[0] += [step for batch in buffer for step in batch["index"].tolist()]
            seen.append([step for batch in buffer for step in batch["index"].tolist()])

    run(mirror, tmp_path, train)
    first, second = seen
    assert sorted(first) == list(range(len(first))) and sorted(second) == list(range(len(second)))
    assert len(first) < len(second) < len(whole)
    growth = buffer.state_dict()["_storage"]["growth"]
    assert growth == [[0, len(first)], [-(-len(first) // 50), len(second)]]
    again = rbdata.load(whole, growth=growth, replacement=False, batch_size=50, seed=1)
    for expected in seen:
        assert [step for batch in again for step in batch["index"].tolist()] == expected


def test_stacks_at_the_seam_of_two_shards(tmp_path, mirror, whole):
    """The episode over a seam is not there before its last shard is; then its stacks are those of the whole dataset."""
    seam = whole.manifest.parts[2]["first_state"]
    starts = [int(start) + number for number, start in enumerate(whole.episodes.start)]  # in state rows
    episode = max(number for number, start in enumerate(starts) if start < seam)
    assert starts[episode] < seam < starts[episode] + int(whole.episodes.length[episode])
    step = int(whole.episodes.start[episode]) + seam - starts[episode]  # the first whose state is in the second shard

    def look(index: int) -> None:
        partial = PartialDataset(place(tmp_path)) if index else None
        if index == 1:
            assert partial.manifest.episodes == episode
        if index > 1 and partial.manifest.episodes > episode:
            steps = torch.arange(step - 3, step + 4)
            assert (partial.read(steps, before=3) == whole.read(steps, before=3)).all()

    run(mirror, tmp_path, look)


def test_states_of_another_size(tmp_path, mirror, whole):
    of_all = rbdata.load(whole, seed=1, batch_size=4).state_dict()
    run_until(3, mirror, tmp_path / "more")
    more = rbdata.load(PartialDataset(place(tmp_path / "more")), seed=1, batch_size=4)
    run_until(1, mirror, tmp_path / "less")
    less = rbdata.load(PartialDataset(place(tmp_path / "less")), seed=1, batch_size=4)
    with pytest.raises(UsageError, match="were shown") as caught:
        less.load_state_dict(more.state_dict())
    assert "wait until more" in caught.value.hint
    with pytest.raises(UsageError, match="the state is of all"):
        less.load_state_dict(of_all)
    more.load_state_dict(less.state_dict())
    assert len(more) == len(less)
    assert (more.sample() == less.sample()).all()
    for wrong in ([[1, 5]], [[0, 5], [3]], [[0, 7.5]], "x", [[0, 10**9]], [[0, len(less)], [5, 1]]):
        with pytest.raises(UsageError):
            rbdata.load(whole, growth=wrong)
    with pytest.raises(UsageError, match="not whole episodes"):
        rbdata.load(whole, growth=[[0, len(less) - 1]])


def test_what_needs_the_whole_dataset(tmp_path, mirror):
    run_until(1, mirror, tmp_path)
    partial = PartialDataset(place(tmp_path))
    with pytest.raises(UsageError, match="complete"):
        rbdata.load(partial, shuffle="blocks")
    with pytest.raises(UsageError, match="must see the same steps"):
        rbdata.load(partial, replacement=False, seed=1, rank=0, world_size=2)
    assert len(rbdata.load(partial, batch_size=4, seed=1, rank=1, world_size=2).sample()) == 4


def test_saved_and_copied(tmp_path, mirror, whole):
    run_until(2, mirror, tmp_path)
    buffer = rbdata.load(PartialDataset(place(tmp_path)), batch_size=6, seed=3, frame_stack=2)
    batches(buffer, 2)
    buffer.dumps(tmp_path / "checkpoint")
    copy = pickle.dumps(buffer)
    expected = batches(buffer, 2)
    path = run(mirror, tmp_path)
    assert_same(batches(pickle.loads(copy), 2), expected)
    again = rbdata.load(path, batch_size=6, frame_stack=2)
    again.loads(tmp_path / "checkpoint")
    assert_same(batches(again, 2), expected)
    assert again.state_dict()["batches"] == 4


def test_computed_leaves_of_what_is_there_so_far(mirror, whole, tmp_path):
    run_until(2, mirror, tmp_path)
    partial = PartialDataset(place(tmp_path))
    for option in ({"normalize": "observation"}, {"reward_scale": "return_range"}):
        with pytest.raises(UsageError, match="incomplete"):
            rbdata.load(partial, **option)
    options: dict[str, Any] = {"batch_size": 16, "seed": 0, "extra": ["step", "return_to_go"], "reward_scale": 0.5}
    batch = rbdata.load(partial, **options).sample()
    expected = rbdata.load(whole, **options)[batch["index"]]
    for name in ("step", "return_to_go", ("next", "reward")):
        assert torch.equal(batch[name], expected[name])
    buffer = rbdata.load(partial, batch_size=16, seed=0, goals=rbdata.Goals(0.0, 0.0, 1.0))
    buffer.sample()
    run(mirror, tmp_path)
    assert buffer.refresh()
    assert all(buffer.sample()["goal"].shape == buffer.sample()["observation"].shape for _ in range(3))
