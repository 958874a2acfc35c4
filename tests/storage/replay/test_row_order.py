"""What reads successive rows needs rows in order of time: refused where records were written to chosen rows."""

from __future__ import annotations

import copy

import pytest
import torch
from rbdata.datasets.torchrl_classes.offline_to_online import prefill_replay_buffer
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    Sequence,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    Writer,
)
from tensordict import TensorDict


def steps(*numbers):
    """Steps of one episode that goes on; the reward of step t is t."""
    time, no = torch.tensor(numbers), torch.zeros(len(numbers), 1, dtype=torch.bool)
    after = {"reward": time.float()[:, None], "done": no, "terminated": no.clone()}
    return TensorDict({"t": time, "next": after}, [len(numbers)])


def looking_ahead(storage, **options):
    return TensorDictReplayBuffer(storage=storage, batch_size=2, n_step=2, gamma=1.0, **options)


def returns(buffer):
    """The 2-step return of each row."""
    return buffer.sample_at(slice(None))["next", "reward"][:, 0].tolist()


def refuses(buffer):
    rows = torch.zeros(1, buffer.storage.ndim, dtype=torch.int64) if buffer.storage.ndim > 1 else slice(None)
    with pytest.raises(UsageError, match="not in order of time"):
        buffer.sample_at(rows)
    return True


def move(buffer, row):
    buffer.writer.cursor = row


def overwritten(storage):
    """A storage of 7, full, whose rows were overwritten from row 0 and then from row 4 on."""
    buffer = looking_ahead(storage)
    buffer.extend(steps(*range(9)))
    assert returns(buffer) == [15, 8, 5, 7, 9, 11, 13]
    move(buffer, 4)
    buffer.extend(steps(20))
    assert refuses(buffer)
    return buffer


STORAGES = [LazyTensorStorage, LazyMemmapStorage, CompressedListStorage]


@pytest.mark.parametrize("storage", STORAGES)
def test_order_comes_back_once_every_row_is_written_in_order(storage):
    buffer = overwritten(storage(7))
    for step in range(21, 26):
        buffer.add(steps(step)[0])
        assert refuses(buffer)
    buffer.extend(steps(26))
    assert buffer[:]["t"].tolist() == [23, 24, 25, 26, 20, 21, 22]
    assert returns(buffer) == [47, 49, 51, 26, 41, 43, 45]
    move(buffer, 3)
    buffer.extend(steps(*range(30, 45)))  # all of them at once
    assert returns(buffer) == [83, 85, 87, 44, 77, 79, 81]


def test_an_emptied_storage_is_in_order():
    buffer = looking_ahead(LazyTensorStorage(7), writer=TensorDictMaxValueWriter("t"))
    buffer.extend(steps(*range(9)))
    assert refuses(buffer)
    buffer.empty()
    buffer.set_writer(RoundRobinWriter())
    buffer.extend(steps(1, 2, 3))
    assert returns(buffer) == [3, 5, 3]


def test_rows_of_the_highest_values_in_files_that_are_opened_again(tmp_path):
    writer = TensorDictMaxValueWriter("t")
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=tmp_path), writer=writer)
    buffer.extend(steps(5, 6, 7, 8))
    buffer.extend(steps(9, 10))
    again = looking_ahead(LazyMemmapStorage(4, scratch_dir=tmp_path, existsok=True))
    assert refuses(again)
    again.extend(steps(11, 12))
    assert refuses(again)
    again.extend(steps(13, 14))
    assert returns(again) == [27, 14, 23, 25]


def test_processes_that_write_rows_of_their_own(tmp_path):
    one, two, three = (LazyMemmapStorage(8, scratch_dir=tmp_path, existsok=True) for _ in range(3))
    one.set(slice(0, 4), steps(0, 1, 2, 3))
    two.set(slice(4, 8), steps(4, 5, 6, 7))
    assert returns(looking_ahead(three)) == [1, 3, 5, 7, 9, 11, 13, 7]
    two.set(slice(4, 8), steps(14, 15, 16, 17))
    assert refuses(looking_ahead(three))


def test_files_of_an_older_version(tmp_path):
    """Their counters lack the number of rows in order; rows that are not a ring from the oldest one are refused."""
    buffer = looking_ahead(LazyMemmapStorage(4, scratch_dir=tmp_path / "ring"))
    buffer.extend(steps(0, 1, 2))
    counters = tmp_path / "ring" / "rbdata_counters.memmap"
    whole = counters.read_bytes()
    for number, wanted in ((2, [1, 3, 2]), (1, None)):
        counters.write_bytes(whole[:8] + number.to_bytes(8, "little") + whole[16:24])
        again = looking_ahead(LazyMemmapStorage(4, scratch_dir=tmp_path / "ring", existsok=True))
        assert refuses(again) if wanted is None else returns(again) == wanted
        assert again[:]["t"].tolist() == [0, 1, 2]


class Chosen(Writer):
    """Writes to every third row of 7, beginning at ``at``."""

    by_index = False

    def __init__(self):
        super().__init__()
        self.at = 0

    def add(self, data):
        return int(self.extend(data[None])[0])

    def extend(self, data):
        rows = self.rows(len(data)) if len(self._storage) else torch.arange(len(data))
        self.at += len(data)
        if self.by_index:
            self._storage[rows] = data
        else:
            self._storage.set(rows, data)
        return rows

    def rows(self, count):
        return (self.at + torch.arange(count)) * 3 % 7


class Ring(Chosen):
    def rows(self, count):
        return (self.at + torch.arange(count)) % 7


class ByIndex(Ring):
    by_index = True


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("writer", [Chosen, ByIndex])
def test_a_writer_that_chooses_rows(writer, storage):
    buffer = looking_ahead(storage(7), writer=writer())
    buffer.extend(steps(*range(7)))
    if writer is Chosen:
        assert returns(buffer) == [1, 3, 5, 7, 9, 11, 6]
    buffer.extend(steps(7, 8))
    assert refuses(buffer)
    buffer.set_sampler(SliceSampler(slice_len=2, traj_key="t"))
    with pytest.raises(UsageError, match="not in order of time"):
        buffer.sample()


@pytest.mark.parametrize("storage", STORAGES)
def test_a_writer_that_goes_round(storage):
    buffer = looking_ahead(storage(7), writer=Ring())
    buffer.extend(steps(*range(7)))
    buffer.extend(steps(7, 8))
    buffer.add(steps(9)[0])
    assert returns(buffer) == [15, 17, 9, 7, 9, 11, 13]


def test_writes_beside_the_writer():
    buffer = looking_ahead(LazyTensorStorage(12))
    buffer[:] = steps(*range(7))  # which does not move the row of the next record
    assert returns(buffer) == [1, 3, 5, 7, 9, 11, 6]
    buffer.extend(steps(20, 21))
    assert refuses(buffer)
    buffer = looking_ahead(LazyTensorStorage(12))
    buffer.extend(steps(*range(5)))
    buffer[2:4] = steps(12, 13)
    assert returns(buffer) == [1, 13, 25, 17, 4]
    buffer.writer.write_at(torch.tensor([2, 3]), steps(2, 3))
    assert refuses(buffer)


def test_rows_that_were_consumed_are_not_sliced():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), batch_size=2, consume_after_n_samples=1, seed=0)
    buffer.extend(steps(*range(5)))
    buffer.sample()
    buffer.extend(steps(5, 6))
    buffer.set_sampler(SliceSampler(slice_len=2, end_key=("next", "done")))
    assert refuses_slices(buffer)


def refuses_slices(buffer):
    with pytest.raises(UsageError, match="not in order of time"):
        buffer.sample()
    return True


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("way", ["state", "folder", "copy"])
def test_the_order_is_saved(storage, way, tmp_path):
    before = overwritten(storage(7))
    before.extend(steps(21, 22))
    if way == "copy":
        after = copy.deepcopy(before)
    else:
        after = looking_ahead(storage(7))
        if way == "state":
            after.load_state_dict(before.state_dict())
        else:
            before.dumps(tmp_path / "checkpoint")
            after.loads(tmp_path / "checkpoint")
    assert refuses(after)
    after.extend(steps(23, 24, 25))
    assert refuses(after)
    after.extend(steps(26))
    assert returns(after) == [47, 49, 51, 26, 41, 43, 45]


def test_torchrl_checkpoints_of_the_highest_values(tmp_path):
    theirs = pytest.importorskip("torchrl.data")
    before = theirs.TensorDictReplayBuffer(
        storage=theirs.LazyTensorStorage(7), writer=theirs.TensorDictMaxValueWriter("t"), batch_size=2
    )
    before.extend(steps(*range(9)))
    before.extend(steps(20, 21))
    before.dumps(tmp_path / "checkpoint")
    after = looking_ahead(LazyTensorStorage(7), writer=TensorDictMaxValueWriter("t"))
    after.loads(tmp_path / "checkpoint")
    assert refuses(after)
    with pytest.raises(UsageError, match="TensorDictMaxValueWriter"):
        looking_ahead(LazyTensorStorage(7)).loads(tmp_path / "checkpoint")


@pytest.mark.parametrize("way", ["state", "folder"])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_ring_in_a_larger_storage(storage, way, tmp_path):
    """The rows keep their numbers: the oldest one is in the middle, and the storage is not full."""
    before, after, straight = looking_ahead(storage(7)), looking_ahead(storage(12)), looking_ahead(storage(12))
    before.extend(steps(*range(9)))
    before.dumps(tmp_path / "wrapped")
    whole = looking_ahead(storage(7))
    whole.extend(steps(*range(7)))
    whole.dumps(tmp_path / "whole")
    if way == "state":
        after.load_state_dict(before.state_dict())
        straight.load_state_dict(whole.state_dict())
    else:
        after.loads(tmp_path / "wrapped")
        straight.loads(tmp_path / "whole")
    assert refuses(after)
    assert returns(straight) == [1, 3, 5, 7, 9, 11, 6]
    straight.extend(steps(7))  # the writer goes on in row 0, as it would have done there
    assert refuses(straight)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_rings_of_two_dimensions(storage, tmp_path):
    buffers = [looking_ahead(storage(8, ndim=2)) for _ in range(3)]
    time, no = torch.arange(6).repeat(2, 1), torch.zeros(2, 6, 1, dtype=torch.bool)
    after = {"reward": time.float()[..., None], "done": no, "terminated": no.clone()}
    buffers[0].extend(TensorDict({"t": time, "next": after}, [2, 6]))
    buffers[0].dumps(tmp_path / "checkpoint")
    buffers[1].loads(tmp_path / "checkpoint")
    buffers[2].load_state_dict(buffers[0].state_dict())
    for buffer in buffers:
        batch = buffer.sample_at(torch.cartesian_prod(torch.arange(4), torch.arange(2)))
        assert batch["next", "reward"][::2, 0].tolist() == [9, 5, 5, 7] and batch["t"][::2].tolist() == [4, 5, 2, 3]
        buffer.writer.cursor = 0
        assert refuses(buffer)


def test_units_that_reach_over_ends_of_episodes():
    unit = Sequence(2, episode_boundary="include_reset")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(7), batch_size=2, sample_unit=unit)
    buffer.extend(steps(*range(9)))
    buffer.sample()
    move(buffer, 4)
    buffer.extend(steps(20))
    assert refuses_slices(buffer)


@pytest.mark.parametrize("n_samples", [None, 5])
def test_records_that_are_copied_out_of_order(n_samples):
    source = TensorDictReplayBuffer(storage=LazyTensorStorage(7), batch_size=2)
    source.extend(steps(*range(9)))
    if n_samples is None:
        move(source, 4)
        source.extend(steps(20))
    buffer = prefill_replay_buffer(looking_ahead(LazyTensorStorage(7)), source, n_samples)
    assert refuses(buffer)
    buffer.extend(steps(*range(30, 37)))
    assert returns(buffer)[:3]


def test_slices_that_are_copied_stay_whole():
    source = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), batch_size=4, sampler=SliceSampler(slice_len=2, end_key=("next", "done"))
    )
    source.extend(steps(*range(8)))
    buffer = prefill_replay_buffer(looking_ahead(LazyTensorStorage(8)), source, 6, chunk_size=2)
    time = buffer[:]["t"]
    assert torch.equal(torch.tensor(returns(buffer))[::2], (2 * time[::2] + 1).float())


def test_members_out_of_order_are_not_left_out_of_an_ensemble():
    """By ``p="sampleable"`` they would have no share: only members that are too small have none."""
    made = lambda: SliceSampler(slice_len=2, end_key=("next", "done"))  # noqa: E731
    members = [TensorDictReplayBuffer(storage=LazyTensorStorage(7), batch_size=2, sampler=made()) for _ in range(2)]
    for member in members:
        member.extend(steps(*range(9)))
    ensemble = ReplayBufferEnsemble(*members, p="sampleable", batch_size=4, num_buffer_sampled=2)
    ensemble.sample()
    move(members[1], 4)
    assert refuses_slices(ensemble)


def test_writing_inside_a_compiled_function() -> None:
    """As TorchRL's test_extend_sample_recompile; what rows are in order is counted there too."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)

    def extend_and_sample(data: torch.Tensor) -> torch.Tensor:
        buffer.extend(data)
        return buffer.sample()

    compiled = torch.compile(extend_and_sample, backend="eager")
    for number in range(4):
        data = torch.arange(3.0) + 3 * number
        assert torch.isin(compiled(data), torch.arange(3.0 * (number + 1))).all()
    assert buffer[:].tolist() == [8.0, 9.0, 10.0, 11.0, 4.0, 5.0, 6.0, 7.0]
    assert buffer.storage.in_order
