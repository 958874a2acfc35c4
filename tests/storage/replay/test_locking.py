"""Every pair of calls from several threads: none waits for ever, and batches hold whole rows."""

from __future__ import annotations

import faulthandler
import itertools
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from rbdata.errors import SamplingError, SchemaError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from tensordict import TensorDict

ROWS = 200


def records(first: int, count: int = 40) -> TensorDict:
    """Rows whose small and large leaves hold the same number."""
    number = torch.arange(first, first + count)
    return TensorDict({"x": number, "image": number[:, None].expand(count, 2000).contiguous()}, [count])


def whole(batch: TensorDict) -> bool:
    return bool((batch["image"] == batch["x"][:, None]).all())


def make(storage=LazyTensorStorage, **options) -> TensorDictReplayBuffer:
    options = {"batch_size": 16, "prefetch": 2, **options}
    buffer = TensorDictReplayBuffer(storage=storage(ROWS), **options)
    buffer.extend(records(0))
    return buffer


def calls(buffer: TensorDictReplayBuffer, folder: Path) -> dict[str, Callable[[], object]]:
    """Each call of a buffer that takes its lock, with arguments that are valid at any time."""
    start = buffer.state_dict()
    number = itertools.count(0, 40)
    saved = folder / "saved"
    buffer.dumps(saved)

    def sample(**options) -> None:
        batch = buffer.sample(**options)
        assert whole(batch)

    def everything() -> None:
        try:
            buffer[:].sum()
        except SchemaError as error:  # a storage was just set: nobody has written to it yet
            assert "nothing was written yet" in str(error)

    return {
        "sample": sample,
        "sample other size": lambda: buffer.sample(8),
        "sample info": lambda: buffer.sample(return_info=True),
        "extend": lambda: buffer.extend(records(next(number))),
        "add": lambda: buffer.add(records(next(number))[0]),
        "set item": lambda: buffer.__setitem__(slice(0, 20), records(next(number), 20).set("index", torch.arange(20))),
        "get": everything,
        "empty": lambda: (buffer.empty(), buffer.extend(records(next(number)))),
        "load_state_dict": lambda: buffer.load_state_dict(start),
        "state_dict": buffer.state_dict,
        "dumps": lambda: buffer.dumps(folder / f"dump-{threading.get_ident()}"),
        "loads": lambda: buffer.loads(saved),
        "append_transform": lambda: buffer.append_transform(unchanged) if len(buffer.transform) < 9 else None,
        "set_rng": lambda: buffer.set_rng(torch.Generator().manual_seed(1)),
        "set_seed": lambda: buffer.set_seed(3),
        "set_sampler": lambda: buffer.set_sampler(RandomSampler()),
        "set_storage": lambda: (buffer.set_storage(LazyTensorStorage(ROWS)), buffer.extend(records(next(number)))),
        "close": buffer.close,
        "pickle": lambda: pickle.dumps(buffer),
    }


def unchanged(batch: TensorDict) -> TensorDict:
    return batch


def run_beside(functions: list[Callable[[], object]], seconds: float) -> list[BaseException]:
    """Call functions over and over, each in a thread of its own. Raises AssertionError when one does not return."""
    stop, errors = time.monotonic() + seconds, []

    def repeat(function: Callable[[], object]) -> None:
        try:
            while time.monotonic() < stop:
                with suppress(SamplingError):  # the buffer was empty at that moment
                    function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 20)
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(all_threads=True)
        raise AssertionError("a call does not return")
    return errors


@pytest.mark.parametrize("first", range(21))
def test_pairs_of_calls(tmp_path, first):
    """Each call beside itself, each other one and a thread that samples: of 21 fives, made so, each pair is in one."""
    buffer = make()
    made = calls(buffer, tmp_path)
    names = list(made)
    assert len(names) <= 21
    chosen = [names[at] for at in ((first + step) % 21 for step in (0, 1, 4, 14, 16)) if at < len(names)]
    errors = run_beside([made["sample"], *(made[name] for name in [chosen[0], *chosen])], 0.05)
    assert not errors, (chosen, errors)
    buffer.close()


@pytest.mark.parametrize("call", ["empty", "close", "append_transform", "sample other size", "set_seed", "loads"])
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_batches_on_their_way_block_nobody(tmp_path, storage, call):
    buffer = make(storage)
    made = calls(buffer, tmp_path)

    def once() -> None:
        for _ in range(25):
            made["sample"]()
            made[call]()
        raise StopIteration

    (error,) = run_beside([once], 20)
    assert isinstance(error, StopIteration), error


def test_priorities_beside_samples(tmp_path):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROWS), sampler=PrioritizedSampler(ROWS, 0.7, 0.5), batch_size=16, prefetch=3
    )
    buffer.extend(records(0))

    def learn() -> None:
        batch = buffer.sample()
        assert whole(batch)
        buffer.update_priority(batch["index"], torch.rand(16))

    assert not run_beside([learn, learn, lambda: buffer.extend(records(7)), buffer.state_dict], 0.25)


def test_next_and_iteration_from_several_threads():
    """Each iteration ends with its own thread's last batch of a pass."""
    buffer = make(prefetch=0, sampler=SamplerWithoutReplacement())

    def walk() -> None:
        assert all(whole(batch) for batch in buffer)

    assert not run_beside([buffer.next, buffer.next, walk, walk], 0.15)
