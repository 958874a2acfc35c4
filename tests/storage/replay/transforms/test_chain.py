"""Chains of transforms: order, inverses, modules, and what is refused."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_tools import rollout
from storage_tools import make_episodes, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def numbers(n: int = 20, **more) -> ReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(n), batch_size=5, seed=0, **more)
    buffer.extend(rollout([n]))
    return buffer


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
        transform_factory=lambda: transforms.Compose(
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
    with pytest.raises(UsageError, match="not both"):
        ReplayBuffer(transform=Scale(), transform_factory=Scale)
    with pytest.raises(UsageError, match="no place 3"):
        ReplayBuffer().insert_transform(3, Scale())
