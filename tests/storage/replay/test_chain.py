"""Chains of transforms: order, inverses, modules, and what is refused."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_tools import numbers, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict
from torch.utils.data import DataLoader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


class Scale:
    """Forward times two, inverse half: stands for a transform with both directions."""

    def __call__(self, data):
        return data.set("action", data["action"] * 2)

    def inv(self, data):
        return data.set("action", data["action"] // 2)


def test_transforms_run_in_order():
    seen = []
    buffer = numbers()
    buffer.append_transform(lambda batch: seen.append("b") or batch)
    buffer.append_transform(lambda batch: seen.append("c"))  # returns nothing: changed in place
    buffer.insert_transform(0, lambda batch: seen.append("a") or batch)
    assert buffer.sample().batch_size == (5,)
    assert seen == ["a", "b", "c"]
    assert len(buffer.transform) == 3


def test_transforms_on_the_way_in():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), transform=Scale(), batch_size=8)
    buffer.extend(rollout([8]))
    assert buffer.storage.get(slice(None))["action"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert buffer["action"].tolist() == [0, 0, 2, 2, 4, 4, 6, 6]
    inverted = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=8)
    inverted.append_transform(Scale(), invert=True)
    inverted.extend(rollout([4]))
    inverted.add(rollout([5])[4])
    assert inverted.storage.get(slice(None))["action"].tolist() == [0, 2, 4, 6, 8]
    assert inverted["action"].tolist() == [0, 1, 2, 3, 4]


def test_modules_and_torchrl_transforms(folder):
    from tensordict.nn import TensorDictModule

    net = TensorDictModule(
        torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.9)), ["observation"], ["value"]
    )
    buffer = rbdata.load(folder, batch_size=4, transform=net)
    batch = buffer.sample()
    assert not net.training
    assert torch.equal(batch["value"], net(batch.clone())["value"])
    transforms = pytest.importorskip("torchrl.envs.transforms")
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(5),
        batch_size=3,
        transform=transforms.Compose(
            transforms.RenameTransform(["observation"], ["state"]), transforms.DoubleToFloat()
        ),
    )
    buffer.extend(rollout([5]))
    assert "state" in buffer.sample().keys()  # noqa: SIM118


def test_a_transform_may_keep_data_back():
    class Never:
        def __call__(self, batch):
            return batch

        def inv(self, data):
            return None

    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=3, transform=Never())
    assert buffer.extend(rollout([5])).shape == (0, 1)
    assert buffer.add(rollout([1])[0]) is None
    assert len(buffer) == 0


def test_bad_transforms():
    with pytest.raises(UsageError, match="called with a batch"):
        ReplayBuffer(transform=5)
    with pytest.raises(UsageError, match="no place 3"):
        ReplayBuffer().insert_transform(3, Scale())


def _prioritized(library, transform, **options):
    sampler = library.PrioritizedSampler(30, 0.9, 0.5)
    return library.TensorDictReplayBuffer(
        storage=library.LazyTensorStorage(30), sampler=sampler, transform=transform, batch_size=8, seed=0, **options
    )


CHANGES = {
    "half": lambda td: td.half(),
    "float in place": lambda td: td.float(),
    "select": lambda td: td.select("observation"),
    "exclude": lambda td: td.exclude("index", "priority_weight"),
    "in place": lambda td: td.apply_(lambda leaf: leaf.mul_(2) if leaf.dtype != torch.bool else leaf),
    "locked": lambda td: td.half().lock_(),
    "another batch": lambda td: TensorDict({"x": td["observation"] * 2}, td.batch_size),
}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_what_the_sampler_says_stays_as_it_is(change, prefetch):
    plain, buffer = _prioritized(rbdata, None), _prioritized(rbdata, CHANGES[change], prefetch=prefetch)
    for each in (plain, buffer):
        each.extend(rollout([9, 8]))
        each.update_priority(torch.arange(17), torch.linspace(0.1, 3, 17))
    for _ in range(5):
        expected, (batch, info) = plain.sample(), buffer.sample(return_info=True)
        for key in ("index", "priority_weight", "_weight"):
            assert torch.equal(batch[key], expected[key]) and torch.equal(info[key], expected[key])
        if not prefetch:  # batches that were made ahead do not know the new priorities
            for each, drawn in ((buffer, batch.unlock_()), (plain, expected)):
                each.update_tensordict_priority(drawn.set("td_error", drawn["index"].float() + 1))


def test_inference_mode():
    buffer, plain = _prioritized(rbdata, CHANGES["in place"]), _prioritized(rbdata, None)
    for each in (buffer, plain):
        each.extend(rollout([9, 8]))
    with torch.inference_mode():
        assert torch.equal(buffer.sample()["index"], plain.sample()["index"])


def test_ensembles_keep_what_samplers_say():
    members = [_prioritized(rbdata, None) for _ in range(2)]
    for number, member in enumerate(members):
        member.extend(rollout([9 + number]))
    ensemble = rbdata.ReplayBufferEnsemble(*members, transform=lambda td: td.half(), batch_size=8, seed=0)
    batch = ensemble.sample()
    assert batch["index", "index"].dtype == batch["index", "buffer_ids"].dtype == torch.int64
    assert batch["priority_weight"].dtype == torch.float32
    assert batch["observation"].dtype == torch.float16
    batch["td_error"] = torch.rand(2, 4)
    ensemble.update_tensordict_priority(batch)


def test_index_is_added_where_torchrl_adds_it():
    torchrl = pytest.importorskip("torchrl.data")
    for change in ("half", "select", "another batch"):
        found = []
        for library in (torchrl, rbdata):
            storage = library.LazyTensorStorage(30)
            buffer = library.TensorDictReplayBuffer(storage=storage, transform=CHANGES[change], batch_size=8)
            buffer.extend(rollout([9, 8]))
            batch = buffer.sample()
            found.append({key: batch[key].dtype for key in batch.keys(True, True)})
        assert found[0] == found[1], change


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_transforms_that_work_in_place_leave_the_records_as_they_are(storage):
    def halve(data):
        data["o"].div_(2)

    buffer = TensorDictReplayBuffer(storage=storage(8), batch_size=4, transform=halve)
    buffer.extend(
        TensorDict({"o": torch.ones(8, 3), "traj": torch.zeros(8), "next": {"done": torch.zeros(8, 1).bool()}}, [8])
    )
    for _ in range(2):
        read = [
            buffer[0],
            buffer[:],
            buffer[[1, 2]],
            {"o": buffer["o"]},
            *DataLoader(buffer.as_map(), batch_size=4),
            buffer.sample(),
        ]
        assert all(bool((data["o"] == 0.5).all()) for data in read)
