"""Every pair of calls from several threads: none waits for ever, and batches hold whole rows.

``--hammer SECONDS`` of ``python tests/storage/replay/test_locking.py`` runs each pair for longer.
"""

from __future__ import annotations

import copy
import faulthandler
import itertools
import os
import signal
import subprocess
import sys
import tempfile
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
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from tensordict import TensorDict

ROWS = 200
SECONDS = 0.04


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
        "append_transform": lambda: buffer.append_transform(lambda batch: batch) if len(buffer.transform) < 9 else None,
        "set_rng": lambda: buffer.set_rng(torch.Generator().manual_seed(1)),
        "set_seed": lambda: buffer.set_seed(3),
        "set_sampler": lambda: buffer.set_sampler(RandomSampler()),
        "set_storage": lambda: (buffer.set_storage(LazyTensorStorage(ROWS)), buffer.extend(records(next(number)))),
        "close": buffer.close,
        "split": lambda: buffer.split(0, 1),
        "pickle": lambda: buffer.__getstate__(),
    }


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


with tempfile.TemporaryDirectory() as _folder:
    NAMES = list(calls(make(prefetch=0), Path(_folder)))


@pytest.mark.parametrize("name", NAMES)
def test_pairs_of_calls(tmp_path, name):
    """Each call beside each other one and a thread that samples."""
    seconds = float(os.environ.get("RBDATA_HAMMER_SECONDS", SECONDS))
    for other in NAMES[NAMES.index(name) :]:
        folder = tmp_path / other.replace(" ", "-")
        folder.mkdir()
        buffer = make()
        made = calls(buffer, folder)
        errors = run_beside([made[name], made[other], made["sample"]], seconds)
        assert not errors, (name, other, errors)
        buffer.close()


@pytest.mark.parametrize("call", ["empty", "close", "append_transform", "sample other size", "set_seed", "loads"])
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_batches_on_their_way_block_nobody(tmp_path, storage, call):
    buffer = make(storage)
    made = calls(buffer, tmp_path)

    def once() -> None:
        for _ in range(60):
            made["sample"]()
            made[call]()
        raise StopIteration

    (error,) = run_beside([once], 20)
    assert isinstance(error, StopIteration), error


def test_transforms_may_call_the_buffer(tmp_path):
    """From a prefetch thread, while other threads write and exchange parts."""
    buffer = make()
    made = calls(buffer, tmp_path)
    buffer.append_transform(lambda batch: (buffer.update_priority(0, 1.0), len(buffer), batch)[-1])
    buffer.append_transform(lambda batch: (made["extend"](), batch)[-1])
    buffer.append_transform(lambda batch: (buffer.set_seed(1), batch)[-1] if int(batch["x"][0]) % 7 == 0 else batch)
    assert not run_beside([made["sample"], made["sample"], made["empty"], made["close"]], 0.5)


def test_priorities_beside_samples(tmp_path):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROWS), sampler=PrioritizedSampler(ROWS, 0.7, 0.5), batch_size=16, prefetch=3
    )
    buffer.extend(records(0))

    def learn() -> None:
        batch = buffer.sample()
        assert whole(batch)
        buffer.update_priority(batch["index"], torch.rand(16))

    assert not run_beside([learn, learn, lambda: buffer.extend(records(7)), buffer.state_dict], 0.5)


def test_a_buffer_that_is_emptied_while_a_batch_is_collated():
    """Where the rows of a batch lie does not depend on how many there are by then."""

    def collate(batch: TensorDict) -> TensorDict:
        buffer.empty()
        return batch

    storage = LazyTensorStorage(200, ndim=2)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=16, seed=0, collate_fn=collate)
    buffer.extend(records(0).reshape(5, 8))
    batch = buffer.sample()
    environment_first = batch["index"].flip(-1)
    assert whole(batch) and bool((batch["x"] == environment_first @ torch.tensor([8, 1])).all())


def test_next_and_iteration_from_several_threads():
    """Each iteration ends with its own thread's last batch of a pass."""
    buffer = make(prefetch=0, sampler=SamplerWithoutReplacement())

    def walk() -> None:
        assert all(whole(batch) for batch in buffer)

    assert not run_beside([buffer.next, buffer.next, walk, walk], 0.3)


def test_parts_are_made_once_where_several_threads_need_them():
    def transform():
        made.append(1)
        time.sleep(0.05)
        return lambda batch: batch

    made: list[int] = []
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=16, transform_factory=transform)
    threads = [threading.Thread(target=buffer.extend, args=(records(40 * number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(buffer), made) == (160, [1])


def test_memory_moves_when_nobody_reads():
    """``share`` waits for batches on their way."""
    buffer, reading, go_on = make(prefetch=1), threading.Event(), threading.Event()
    inner = buffer._pipeline.read

    def read(prepared):
        reading.set()
        go_on.wait()
        return inner(prepared)

    buffer._pipeline.read = read
    threads = [threading.Thread(target=call, daemon=True) for call in (buffer.sample, buffer.share)]
    threads[0].start()
    reading.wait()
    threads[1].start()
    threads[1].join(0.1)
    assert not buffer.storage.is_shared
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert buffer.storage.is_shared and whole(buffer.sample())
    buffer.close()


def test_nobody_waits_while_a_checkpoint_goes_to_the_disk(tmp_path, monkeypatch):
    buffer = make(prefetch=0)

    begun = threading.Event()

    def sync(descriptor: int) -> None:
        if threading.current_thread().name.startswith("rbdata-sync") and not begun.is_set():
            begun.set()
            writer = threading.Thread(target=buffer.extend, args=(records(50),), daemon=True)
            writer.start()
            writer.join(20)
            assert not writer.is_alive()

    monkeypatch.setattr("os.fsync", sync)
    buffer.dumps(tmp_path / "saved")
    copy = make(prefetch=0)
    copy.loads(tmp_path / "saved")
    assert (begun.is_set(), len(copy), len(buffer)) == (True, 40, 80)


def other_process(folder: Path) -> TensorDictReplayBuffer:
    """A buffer over the same files; its lock is one of its own, as that of another process is."""
    return TensorDictReplayBuffer(storage=LazyMemmapStorage(40, scratch_dir=folder, existsok=True), batch_size=4)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    "sampler", [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=4, traj_key="traj")]
)
def test_rows_that_another_process_writes_while_a_batch_is_read(tmp_path, prefetch, sampler):
    def rows(first: int) -> TensorDict:
        return records(first).set("traj", torch.full((40,), first))

    storage = LazyMemmapStorage(40, scratch_dir=tmp_path)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=16, prefetch=prefetch, sampler=sampler())
    buffer.extend(rows(0))
    other, number, written = other_process(tmp_path), itertools.count(), []
    images = storage.fields()["image"]
    inner = images.take

    def take(index: torch.Tensor) -> torch.Tensor:
        """The large leaf of a batch is read last: the small ones are read by now."""
        if next(number) % 2 == 0 and not storage._write_lock.depth:
            other.extend(rows(40 * next(number))[: 8 + 3 * len(written)])
            written.append(1)
        return inner(index)

    images.take = take
    for _ in range(12):
        batch = buffer.sample()
        assert whole(batch) and len(batch) in (16, 8)  # the end of a pass
        if "traj" in batch.keys() and isinstance(buffer.sampler, SliceSampler):  # noqa: SIM118
            assert bool((batch["x"].view(4, 4).diff(dim=1) == 1).all())
    assert len(written) > 3
    buffer.close()


@pytest.mark.parametrize("prefetch", [1, 2])
def test_rows_that_another_process_writes_while_a_batch_is_drawn_ahead(tmp_path, prefetch):
    """An error of a draw from rows that changed meanwhile is nobody's: the batch is drawn again."""
    torn = itertools.cycle([True, True, False])

    class Racing(RandomSampler):
        def draw(self, storage, batch_size, generator):
            if next(torn) and not storage._write_lock.depth:
                other.extend(records(0)[:7])
                raise SamplingError("the episodes of these rows are gone")
            return super().draw(storage, batch_size, generator)

    storage = LazyMemmapStorage(40, scratch_dir=tmp_path)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=16, prefetch=prefetch, sampler=Racing())
    buffer.extend(records(0))
    other = other_process(tmp_path)
    for _ in range(9):
        assert whole(buffer.sample())
    buffer.close()


def test_a_writer_that_was_killed_blocks_nobody(tmp_path):
    """It leaves the number odd that says that rows are written."""
    storage = LazyMemmapStorage(40, scratch_dir=tmp_path)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4, prefetch=2)
    buffer.extend(records(0))
    for end in (lambda: whole(buffer.sample()), lambda: buffer.extend(records(1)) is not None):
        storage._count[2] += 1
        assert end()
        assert storage.version % 2 == 0
    buffer.close()


def test_members_beside_their_ensemble(tmp_path):
    buffers = [make(), make()]
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=32)
    functions = [ensemble.sample, lambda: ensemble.set_seed(1), ensemble.state_dict, buffers[0].empty]
    ensemble.dumps(tmp_path / "saved")
    errors = run_beside([*functions, lambda: ensemble.loads(tmp_path / "saved")], 0.5)
    assert not errors


def test_a_fork_while_threads_hold_the_lock():
    """In a process of its own: torch's pool of threads, which other tests have started, does not survive a fork."""
    done = subprocess.run([sys.executable, __file__, "--fork"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def fork_while_threads_hold_the_lock() -> None:
    torch.set_num_threads(1)
    buffer = make()
    buffer.sample()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            with buffer._lock:  # and nothing of torch
                time.sleep(0.001)

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        child = os.fork()
        if not child:
            faulthandler.dump_traceback_later(10)
            signal.alarm(20)
            buffer.extend(records(9))
            buffer.empty()
            buffer.extend(records(9))
            os._exit(0 if whole(buffer.sample()) else 1)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for thread in threads:
        thread.join()
    buffer.close()
    halves, entered = [0], threading.Event()

    def write() -> None:
        with buffer._lock:
            entered.set()
            time.sleep(0.2)
            halves.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    entered.wait()
    child = os.fork()
    if not child:
        os._exit(0 if len(halves) == 2 else 1)  # not what was there in the middle of a write
    assert os.waitpid(child, 0)[1] == 0
    writer.join()


class WritesWhenCopied:
    """A record; while it is copied, a thread writes."""

    def __init__(self, write: Callable[[], object]) -> None:
        self.thread = threading.Thread(target=write)

    def __deepcopy__(self, memo: dict[int, object]) -> str:
        if not self.thread.ident:
            self.thread.start()
            self.thread.join(0.3)
        return "copy"


def test_a_copy_of_a_buffer_is_of_one_moment() -> None:
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=4, collate_fn=list)
    record = WritesWhenCopied(lambda: buffer.extend(["c", "d", "e"]))
    buffer.extend(["a", "b"])
    vars(buffer.storage)["_records"][0] = record  # as it is: writing copies
    copied = copy.deepcopy(buffer)
    record.thread.join()
    assert buffer[:] == ["e", "b", "c", "d"]
    assert copied[:] == ["copy", "b"]
    assert copied.extend(["c", "d", "e"]).tolist() == [2, 3, 0]


if __name__ == "__main__":
    if "--fork" in sys.argv:
        fork_while_threads_hold_the_lock()
        sys.exit()
    os.environ["RBDATA_HAMMER_SECONDS"] = sys.argv[sys.argv.index("--hammer") + 1] if "--hammer" in sys.argv else "1"
    sys.exit(pytest.main([__file__, "-q", "-x", "-p", "no:cacheprovider"]))
