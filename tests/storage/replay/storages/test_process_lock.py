"""Several processes that write to one storage, and buffers on their way to other processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from replay_tools import numbered, write_rows


def run_workers(buffer: TensorDictReplayBuffer, start: str, count: int = 3) -> list[str]:
    context: Any = multiprocessing.get_context(start)
    results = context.Queue()
    workers = [context.Process(target=write_rows, args=(buffer, number, results)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    done = []
    with contextlib.suppress(queue.Empty):
        done = [results.get(timeout=1) for _ in workers]
    return done


@pytest.mark.parametrize(
    "kind, start",
    [
        ("memory", "fork"),
        ("memory", "forkserver"),
        ("memmap", "fork"),
        ("memmap", "forkserver"),
        ("memmap, nothing written", "fork"),
        ("memmap, nothing written", "forkserver"),
        ("folder, nothing written", "fork"),
        ("folder, nothing written", "forkserver"),
    ],
)
def test_no_row_is_lost(tmp_path, kind, start):
    if kind == "memory":
        storage = LazyTensorStorage(1000)
    else:
        storage = LazyMemmapStorage(1000, scratch_dir=tmp_path / "rows" if kind.startswith("folder") else None)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=16)
    if "nothing" not in kind:
        buffer.extend(numbered(0, 1))
    if kind == "memory":
        buffer.share()
    assert run_workers(buffer, start) == ["done"] * 3
    expected = [1 + worker * 10_000 + number for worker in range(3) for number in range(200)]
    expected += [] if "nothing" in kind else [0]
    assert len(buffer) == len(expected)
    assert buffer["x"].sort().values.tolist() == sorted(expected)
    assert torch.equal(buffer["index"], torch.arange(len(expected)))
    batch = buffer.sample()
    assert torch.equal(batch["y"][:, 0], batch["x"].float())
    buffer.extend(numbered(77, 1))  # after the others' rows
    assert len(buffer) == len(expected) + 1 and int(buffer[len(expected)]["x"]) == 77


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_ring_of_several_writers_wraps(start):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=16)
    buffer.extend(numbered(0, 1))
    buffer.share()
    assert run_workers(buffer, start) == ["done"] * 3
    assert len(buffer) == 100 and len(buffer["x"].unique()) == 100


@pytest.mark.parametrize("part", ["priorities", "ranks", "nothing shared"])
def test_what_cannot_be_shared(part, monkeypatch):
    options = {
        "priorities": {"sampler": PrioritizedSampler(100, 0.7, 0.5)},
        "ranks": {"writer": TensorDictMaxValueWriter("x")},
    }.get(part, {})
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=16, **options)
    if part == "nothing shared":
        buffer.share()
        done = run_workers(buffer, "fork", 2)
        assert done.count("done") == 1 and any("another process" in message for message in done), done
        with pytest.raises(UsageError, match="another process"):
            buffer.extend(numbered(0, 1))
        return
    buffer.extend(numbered(0, 1))
    buffer.share()
    (message,) = run_workers(buffer, "fork", 1)
    assert message.startswith("UsageError") and "process" in message
    assert len(buffer) == 1
    monkeypatch.setattr(buffer, "_made_in", 1)  # as in another process
    for call in (buffer.empty, lambda: buffer.load_state_dict(buffer.state_dict())):
        with pytest.raises(UsageError, match="keeps values of every row"):
            call()
    monkeypatch.undo()
    buffer.extend(numbered(1, 4))


def test_an_empty_buffer_cannot_be_spawned():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=16)
    with pytest.raises(UsageError, match="memory"):
        run_workers(buffer, "forkserver", 1)


def test_counters_move_to_shared_memory():
    """`ForkingPickler` moves tensors: what was read through the old address would be other memory."""
    for _ in range(20):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(100), batch_size=4, sampler=PrioritizedSampler(100, 1, 1)
        )
        buffer.extend(numbered(0, 10))
        data = ForkingPickler.dumps(buffer)
        garbage = [torch.full((3,), 140189316252584) for _ in range(50)]
        assert len(buffer) == 10 and buffer.storage.newest == 9
        buffer.extend(numbered(10, 5))
        assert len(buffer) == 15 and all(int(tensor[0]) == 140189316252584 for tensor in garbage)
        other = pickle.loads(data)
        assert len(other) == 15  # one memory
        other.extend(numbered(15, 1))
        assert len(buffer) == len(other) == 16 and buffer["x"].tolist() == list(range(16))
        # Priorities are copied: a change in one process is none in another.
        other.update_priority(torch.arange(5), 100.0)
        assert isinstance(buffer.sampler, PrioritizedSampler)
        assert buffer.sampler.tree.total == pytest.approx(15)
        buffer.sample(), other.sample()
