"""What public programs of TorchRL do with names that are here too (sota-implementations, tutorials, BenchMARL, acegen).

Each does the same with both libraries, in terms that no random number changes.
"""

from __future__ import annotations

import io
import logging
import threading

import pytest
import rbdata
import torch
from replay_tools import rollout
from tensordict import TensorDict, tensorclass

theirs = pytest.importorskip("torchrl.data")
from torchrl.envs.transforms import DoubleToFloat, RandomCropTensorDict, RenameTransform  # noqa: E402

logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")


def made(lib, storage="LazyTensorStorage", size=20, **options):
    return lib.TensorDictReplayBuffer(storage=getattr(lib, storage)(size), batch_size=4, **options)


def states_through_torch_save(lib):
    buffer, other = made(lib), made(lib)
    buffer.extend(rollout([9, 4]))
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=False))
    return len(other), other[:]["action"].tolist(), other.extend(rollout([2])).tolist(), other.sample().shape


def arguments_without_effect(lib):
    buffer = made(lib, pin_memory=False, shared=False, prefetch=2, compilable=False)
    buffer.extend(rollout([9]))
    return buffer.sample().shape


def priorities_where_there_are_none(lib):
    """A loop written for prioritized buffers runs with any."""
    buffer = made(lib)
    buffer.extend(rollout([9]))
    batch = buffer.sample()
    batch["td_error"] = torch.ones(4)
    buffer.update_tensordict_priority(batch)
    buffer.update_priority(batch["index"], torch.ones(4))
    return buffer.sample().shape


def the_storage_is_assigned(lib):
    """As the decision transformer does with its dataset."""
    buffer = made(lib)
    buffer.extend(rollout([9]))
    buffer._storage = lib.TensorStorage(rollout([6], first=100))
    return len(buffer), buffer[:]["action"].tolist(), bool((buffer.sample()["action"] >= 100).all())


class Half:
    """A transform with an inverse that acts at `extend`."""

    def __call__(self, batch):
        return batch.set("action", batch["action"] * 2)

    def inv(self, batch):
        return batch.set("action", batch["action"] // 2)


def parts_are_changed(lib):
    buffer = made(lib)
    buffer.extend(rollout([9]))
    buffer.set_sampler(lib.SamplerWithoutReplacement(shuffle=False))
    first = buffer.sample()["action"].tolist()
    storage = lib.LazyTensorStorage(5)
    storage.set(range(5), rollout([5], first=50))
    buffer.set_storage(storage)
    buffer.insert_transform(0, RenameTransform(["action"], ["seen"], create_copy=True))
    batch = buffer.sample()
    return first, batch["action"].tolist(), batch["seen"].tolist(), buffer.write_count, len(buffer)


def time_and_environment(lib):
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(24, ndim=2), batch_size=50)
    buffer.extend(torch.stack([rollout([6], first=100 * env) for env in range(3)]))
    batch = buffer.sample()
    time, env = batch["index"].unbind(1)
    return bool((batch["action"] == 100 * env + time).all()), sorted(env.unique().tolist())


def a_thread_writes(lib):
    buffer = made(lib, size=400)
    buffer.extend(rollout([5]))

    def write():
        for number in range(50):
            buffer.extend(rollout([5], first=10 * number))

    thread = threading.Thread(target=write)
    thread.start()
    shapes = {tuple(buffer.sample().shape) for _ in range(50)}
    thread.join()
    return shapes, len(buffer), buffer.write_count


@tensorclass
class Step:
    observation: torch.Tensor
    reward: torch.Tensor


def tensorclasses_and_plain_tensors(lib):
    seen = []
    for storage in ("LazyTensorStorage", "LazyMemmapStorage", "ListStorage"):
        classed = lib.ReplayBuffer(storage=getattr(lib, storage)(8), batch_size=4)
        classed.extend(Step(observation=torch.rand(6, 2), reward=torch.arange(6.0), batch_size=[6]))  # type: ignore[call-arg]
        seen.append((type(classed.sample()).__name__, classed.sample().observation.shape))
    for storage in ("LazyTensorStorage", "ListStorage"):
        plain = lib.ReplayBuffer(storage=getattr(lib, storage)(8), batch_size=4)
        plain.extend(torch.arange(12).view(6, 2))
        seen.append(plain.sample().shape)
    return seen


def the_best_molecules(lib):
    """A buffer of the highest scores, drawn without replacement; records of the same score stay those that came first."""
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(3),
        sampler=lib.SamplerWithoutReplacement(),
        writer=lib.TensorDictMaxValueWriter(rank_key="score"),
        batch_size=3,
    )
    kept = []
    for first in (0, 4, 2):
        scores = torch.arange(first, first + 4).float()
        buffer.extend(TensorDict({"score": scores, "number": torch.arange(4) + 10 * first}, [4]))
        kept.append(sorted(zip(buffer[:]["score"].tolist(), buffer[:]["number"].tolist())))
    return kept, sorted(buffer.sample()["score"].tolist())


def pieces_of_sequences(lib):
    crop = rbdata.RandomCropTensorDict if lib is rbdata else RandomCropTensorDict
    batch = torch.stack([rollout([9], first=100 * number) for number in range(4)])
    found = crop(3)(batch.clone())
    consecutive = bool((found["action"].diff(dim=1) == 1).all())
    rows = found["action"][:, 0] // 100
    return found.shape, sorted(map(str, found.keys(True, True))), consecutive, rows.tolist()


HELPERS = {"made", "Half", "Step"}
PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__]
PROGRAMS = [program for program in PROGRAMS if program.__name__ not in HELPERS]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program):
    torch.manual_seed(0)
    assert program(rbdata) == program(theirs)


def test_a_transform_with_an_inverse_acts_at_extend():
    """TorchRL's own transforms have ``inv``; there a plain object has none."""
    buffer = made(rbdata, transform=Half())
    buffer.extend(rollout([8]))
    assert buffer.storage[:]["action"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(buffer.sample()["action"].tolist()) <= {0, 2, 4, 6}
    stored = []
    for lib in (rbdata, theirs):
        buffer = lib.TensorDictReplayBuffer(
            storage=lib.LazyTensorStorage(4), batch_size=2, transform=DoubleToFloat(in_keys=["a"], in_keys_inv=["a"])
        )
        buffer.extend(TensorDict({"a": torch.arange(4.0)}, [4]))
        stored.append((buffer.storage[:]["a"].dtype, buffer.sample()["a"].dtype))
    assert stored[0] == stored[1]
