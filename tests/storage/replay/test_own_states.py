"""States of what users bring: their samplers and the states of their transforms."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from rbdata.storage.replay import (
    LazyTensorStorage,
    Sampler,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from tensordict import TensorDict


def test_vec_norm_of_torchrl(tmp_path):
    transforms = pytest.importorskip("torchrl.envs.transforms")

    def make(seed):
        norm = transforms.Compose(transforms.VecNorm(in_keys=["observation"]))
        return TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=norm, batch_size=4, seed=seed)

    buffer, other = make(0), make(1)
    buffer.extend(rollout([9]))
    buffer.transform[0].train()
    for _ in range(3):
        buffer.sample()
    buffer.transform[0].eval()
    buffer.dumps(tmp_path / "checkpoint")
    other.loads(tmp_path / "checkpoint")
    assert equal(other.sample(), buffer.sample())


# -- with batches on their way -----------------------------------------------------------------------------------------


class InTurn(Sampler):
    """Rows in order, without end; its place is in its state, as TorchRL's samplers have it."""

    def __init__(self):
        super().__init__()
        self.place = 0

    def sample(self, storage, batch_size):
        rows = torch.arange(self.place, self.place + batch_size) % len(storage)
        self.place += batch_size
        return rows, {}

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def saved_as(way, buffer, made, folder):
    """A second buffer, that goes on where the first one is."""
    if way == "pickle":
        return pickle.loads(pickle.dumps(buffer))
    if way == "deepcopy":
        return copy.deepcopy(buffer)
    other = made()
    other.sample()
    if way == "state":
        other.load_state_dict(buffer.state_dict())
    else:
        buffer.dumps(folder / "checkpoint")
        other.loads(folder / "checkpoint")
    return other


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("way", ["state", "folder", "pickle", "deepcopy"])
def test_batches_on_their_way_are_not_lost(way, prefetch, tmp_path):
    def made():
        parts = {"sampler": InTurn(), "prefetch": prefetch}
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4, seed=0, **parts)
        buffer.extend(TensorDict({"a": torch.arange(20)}, [20]))
        return buffer

    alone, buffer = made(), made()
    wanted = [alone.sample() for _ in range(15)]
    for number in range(5):
        assert equal(buffer.sample(), wanted[number])
    other = saved_as(way, buffer, made, tmp_path)
    for number in range(5, 15):
        assert equal(buffer.sample(), wanted[number])
        assert equal(other.sample(), wanted[number])
