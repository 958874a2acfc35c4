"""The examples of TorchRL's pages on what is written and rewritten: generations, conditional updates, whole storages.

As test_documented.py: the same calls in both libraries, the same outcome.
"""

from __future__ import annotations

import logging

import pytest
import rbdata
import torch
from tensordict import TensorDict
from torch.utils._pytree import tree_leaves, tree_map

theirs = pytest.importorskip("torchrl.data")
logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")


def stamped(lib, **content):
    writer = lib.TensorDictRoundRobinWriter(track_generations=True)
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(10), writer=writer, batch_size=4)
    buffer.extend(TensorDict({"obs": torch.zeros(10, 3), **content}, [10]))
    return buffer


def generations(lib):
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(8), writer=lib.RoundRobinWriter(track_generations=True))
    rows = buffer.extend(torch.arange(8))
    before = buffer.writer.generations_of(rows).tolist()
    _, info = buffer.sample(200, return_info=True)
    buffer.extend(torch.arange(8, 11))
    stale = buffer.writer.generations_of(info["index"]) != info["index_generation"]
    return before, buffer.writer.generations_of(rows).tolist(), sorted(info["index"][stale].unique().tolist())


def updated_if_present(lib):
    buffer = stamped(lib)
    rows = torch.arange(4)
    where = {"index": rows, "generation": buffer.writer.generations_of(rows)}
    first = buffer.update_if_present(patch={"obs": torch.ones(4, 3)}, **where)
    written = bool((buffer[:]["obs"][rows] == 1).all())
    buffer.extend(TensorDict({"obs": torch.zeros(10, 3)}, [10]))
    second = buffer.update_if_present(patch={"obs": torch.ones(4, 3)}, **where)
    shape = buffer.sample()["index_generation"].shape
    return shape, (first.updated_count, first.stale_count), written, (second.updated_count, second.stale_count)


def updated_if_newer(lib):
    buffer = stamped(lib, version=torch.full((10,), 5, dtype=torch.int64))
    rows, seen = torch.arange(4), []
    for version in (4, 6):
        result = buffer.update_if_present(
            index=rows,
            generation=buffer.writer.generations_of(rows),
            patch={"obs": torch.ones(4, 3)},
            version_key="version",
            version=version,
            require_newer=True,
        )
        seen.append((result.updated_count > 0, result.version_rejected_count > 0))
    return seen


def rewritten_in_order(lib):
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(10))
    buffer.extend(TensorDict({"obs": torch.arange(3)}, [3]))
    data = buffer.read_all_in_order()
    same = bool((data == buffer[:]).all())
    data["target"] = data["obs"] + 1
    buffer.write_all(data)
    return same, sorted(buffer[:].keys()), buffer[:]["target"].tolist()


def texts_of_any_length(lib):
    buffer = lib.ReplayBuffer(storage=lib.LazyStackStorage(max_size=1000, stack_dim=-1))
    for length, text in ((10, "a string!"), (11, "another string!")):
        buffer.add(TensorDict(a=torch.randn(length), b=torch.rand(4), c=text))
    batch = buffer.sample(10)
    return type(batch).__name__, batch.batch_size, batch["b"].shape


def compressed_frames(lib):
    buffer = lib.ReplayBuffer(storage=lib.CompressedListStorage(max_size=1000, compression_level=3), batch_size=5)
    frames = torch.arange(10 * 12, dtype=torch.float32).view(10, 3, 2, 2)
    buffer.extend(TensorDict({"obs": frames}, [10]))
    batch = buffer.sample(3)["obs"]
    return batch.shape, all(any(bool((row == frame).all()) for frame in frames) for row in batch)


def files_cleaned_up(lib):
    storage = lib.LazyMemmapStorage(1000, auto_cleanup=True)
    storage.set(range(4), TensorDict({"a": torch.arange(4)}, [4]))
    storage.cleanup()
    return True


def trees_in_files(lib):
    buffer = lib.ReplayBuffer(
        storage=lib.LazyMemmapStorage(100), transform=lambda batch: tree_map(torch.zeros_like, batch)
    )
    buffer.add({"a": torch.randn(3), "b": {"c": (torch.zeros(2), [torch.ones(1)])}, 30: -torch.ones(())})
    return [(leaf.shape, float(leaf.abs().sum())) for leaf in tree_leaves(buffer.sample(10))]


EXAMPLES = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__]
EXAMPLES.remove(stamped)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_example(example):
    torch.manual_seed(0)
    assert example(rbdata) == example(theirs)
