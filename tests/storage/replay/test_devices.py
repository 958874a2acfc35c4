"""Batches on devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import rbdata
import torch
from rbdata.errors import UsageError
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict
from torch.testing import assert_close


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def test_devices(folder):
    batch = rbdata.load(folder, batch_size=4, device="cpu", pin_memory=True).sample()
    assert batch.device == torch.device("cpu")
    meta = rbdata.load(folder, batch_size=4, device="meta", prefetch=1)
    assert meta.sample()["observation"].device.type == "meta"
    meta.close()


def test_generators_of_other_devices_are_refused(folder):
    generator: Any = SimpleNamespace(device=torch.device("cuda"))  # which torch cannot make without one
    buffer = rbdata.load(folder, batch_size=4, seed=1)
    ensemble = rbdata.ReplayBufferEnsemble(rbdata.load(folder), rbdata.load(folder), batch_size=4, seed=1)
    for part in (buffer, ensemble):
        with pytest.raises(UsageError, match="drawn on the CPU"):
            part.set_rng(generator)
        part.sample()
    with pytest.raises(UsageError, match="drawn on the CPU"):
        rbdata.ReplayBufferEnsemble(*ensemble.buffers, batch_size=4, generator=generator)


@pytest.fixture
def elsewhere():
    """Tensors of calls that name no device lie elsewhere: on a device without values, so that each one shows."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"frame_stack": 3},
        {"n_step": 3},
        {"slice_len": 4, "strict_length": False, "pad_output": True},
        {"replacement": False},
        {"alpha": 0.6, "beta": 0.4},
        {"goals": rbdata.Goals(goal_key="observation")},
        {"normalize": "observation", "extra": ["step", "return_to_go"]},
        {"windows": {"observation": (-1, 0), "action": (0, 3)}},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_batches_do_not_depend_on_the_default_device(folder, elsewhere, arguments):
    batch = rbdata.load(folder, batch_size=16, seed=1, **arguments).sample()
    torch.set_default_device(None)
    expected = rbdata.load(folder, batch_size=16, seed=1, **arguments).sample()
    for key, value in expected.items(True, True):
        assert_close(batch[key], value, rtol=0, atol=0, msg=str(key))


@pytest.mark.parametrize(
    "storage",
    [rbdata.LazyTensorStorage, rbdata.LazyMemmapStorage, rbdata.ListStorage],
)
def test_storages_do_not_depend_on_the_default_device(elsewhere, storage):
    number = torch.arange(30, device="cpu")
    buffer = rbdata.TensorDictReplayBuffer(
        storage=storage(20), sampler=rbdata.PrioritizedSampler(20, 0.6, 0.4), batch_size=8, priority_key="number"
    )
    buffer.extend(TensorDict({"number": number}, [30]))
    buffer.add(TensorDict({"number": number[5]}, []))
    batch = buffer.sample()
    buffer.update_tensordict_priority(batch)
    buffer.update_priority([1, 2], [3.0, 4.0])
    assert {leaf.device.type for leaf in batch.values()} == {"cpu"}
    assert buffer[[0, 10]]["number"].tolist() == [20, 5]
    assert sorted(buffer[:]["number"].tolist()) == [5, *range(11, 30)]
