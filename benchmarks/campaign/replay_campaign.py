"""Random calls of replay buffers from threads and processes, over every storage, for as long as wanted.

    python benchmarks/campaign/replay_campaign.py --seconds 3600 --seed 1            # every storage in turn
    python benchmarks/campaign/replay_campaign.py --seconds 20 --case memmap-random-2-steady --seed 7

A case is a storage, a sampler, a depth of prefetching and a kind of calls. It runs in its own process: 8 threads there,
and 4 more processes (2 forked, 2 spawned) where the rows are shared. ``steady`` calls write and read; ``stormy`` ones also
empty, load, and change records. With odd seeds priorities are drawn by compiled loops, where numba is installed, from the 50th
draw of a process on. Checked are:

- Every record read, by whatever call, is whole: it holds who wrote it, its number and values computed from both.
- Steady: ``len`` lies between the records written before the call and those begun after it (which is one number where one
  thread writes), and at the end the storage holds of each thread its last records without a gap, in order of time.
- No call takes longer than ``--limit`` seconds, counted in ticks of a thread of the same process: what a busy machine takes
  away does not count. The stacks of all threads are written when one does.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rbdata.errors import RbdataError, SamplingError
from rbdata.storage.replay import (
    DatasetStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from rbdata.storage.replay.samplers import sum_tree
from tensordict import TensorDict

ROWS, BESIDE, BATCH, SLICE, EPISODE = 480, 3, 24, 4, 12
THREADS = 8
SHARED = {"memmap", "shared", "tensor", "memmap2", "shared2"}
STORAGES = ("memmap", "shared", "tensor", "memmap2", "shared2", "plain", "list", "dataset")
SAMPLERS = ("random", "passes", "slices", "slicepasses", "priorities", "priorityslices")
WRITERS = 400
TICK = 0.05


# -- records -----------------------------------------------------------------------------------------------------------


def records(writer: int, first: int, count: int, beside: int = 0) -> TensorDict:
    """Numbers ``first`` and on of a writer, one trajectory, ``[count]``, or ``[beside, count]`` of as many writers."""
    shape = (beside, count) if beside else (count,)
    number = torch.arange(first, first + count).expand(shape)
    who = torch.full((1,), writer)
    if beside:
        who = writer * BESIDE + torch.arange(beside)[:, None]
    content = derived(who.expand(shape).contiguous(), number.contiguous())
    content["traj"] = content["check"] - number + first
    done = number == first + count - 1
    content["next"]["done"] = done.unsqueeze(-1)
    return TensorDict(content, shape).apply(lambda leaf: leaf.contiguous())


def derived(writer: torch.Tensor, number: torch.Tensor) -> dict[str, Any]:
    """What a record of this writer and number holds."""
    check = writer * 10_000_000 + number
    return {
        "writer": writer,
        "number": number,
        "check": check,
        "payload": check.unsqueeze(-1) + torch.arange(16),
        "frame": (check % 251).to(torch.uint8).unsqueeze(-1).expand(*check.shape, 6000),
        "next": {"reward": number.float().unsqueeze(-1), "other": check.unsqueeze(-1) + torch.arange(3)},
    }


def check_records(batch: Any) -> None:
    """Raise AssertionError unless every record is whole."""
    expected = TensorDict(derived(batch["writer"], batch["number"]), batch.batch_size)
    for key, leaf in expected.items(True, True):
        if not bool((batch.get(key) == leaf).all()):
            bad = (batch.get(key) != leaf).reshape(batch.numel(), -1).any(1).nonzero().flatten().tolist()
            raise AssertionError(f"torn records {bad[:8]} of {batch.numel()} in {key}")


def check_slices(batch: Any) -> None:
    """Raise AssertionError unless the steps of every slice follow each other."""
    trajectory, number = batch["traj"].view(-1, SLICE), batch["number"].view(-1, SLICE)
    if not bool((trajectory == trajectory[:, :1]).all()) or not bool((number.diff(dim=1) == 1).all()):
        raise AssertionError(f"a slice of unconnected steps: {number.tolist()} of {trajectory.tolist()}")


# -- parts of a buffer -------------------------------------------------------------------------------------------------


def make_sampler(name: str) -> Any:
    slices = {"slice_len": SLICE, "traj_key": "traj"}
    if name == "passes":
        return SamplerWithoutReplacement()
    if name == "slices":
        return SliceSampler(**slices)
    if name == "slicepasses":
        return SliceSamplerWithoutReplacement(**slices)
    if name == "priorities":
        return PrioritizedSampler(ROWS, 0.7, 0.5)
    if name == "priorityslices":
        return PrioritizedSliceSampler(ROWS, 0.7, 0.5, **slices)
    return RandomSampler()


def make_buffer(case: Case, folder: Path) -> TensorDictReplayBuffer:
    storage: Any
    if case.storage.startswith("memmap"):
        storage = LazyMemmapStorage(ROWS, ndim=case.ndim, scratch_dir=folder / "rows")
    elif case.storage == "tensor":
        storage = TensorStorage(torch.cat([records(0, at, EPISODE) for at in range(0, ROWS, EPISODE)]))
    elif case.storage == "list":
        storage = ListStorage(ROWS)
    elif case.storage == "dataset":
        from storage_tools import make_episodes, write_dataset

        storage = DatasetStorage(write_dataset(folder / "data", make_episodes([9, 30, 24, 17])))
    else:
        storage = LazyTensorStorage(ROWS, ndim=case.ndim)
    options = {} if storage.immutable else {"writer": TensorDictRoundRobinWriter()}
    return TensorDictReplayBuffer(
        storage=storage,
        sampler=make_sampler(case.sampler) if case.storage != "dataset" else dataset_sampler(case.sampler),
        batch_size=BATCH,
        prefetch=case.prefetch,
        seed=case.seed,
        shared=case.storage in SHARED,
        **options,
    )


def unchanged(batch: Any) -> Any:
    """A transform."""
    return batch


def dataset_sampler(name: str) -> Any:
    if name in ("slices", "slicepasses"):
        return (SliceSampler if name == "slices" else SliceSamplerWithoutReplacement)(slice_len=SLICE)
    return RandomSampler() if name == "priorityslices" else make_sampler(name)


class Case:
    """One storage, sampler and depth of prefetching, by name: ``memmap-slices-2-steady``."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.storage, self.sampler, depth, mode = name.split("-")
        self.prefetch, self.steady = int(depth), mode == "steady"
        self.ndim = 2 if self.storage.endswith("2") else 1
        self.beside = BESIDE if self.ndim == 2 else 0
        self.shared = self.storage in SHARED
        self.read_only = self.storage == "dataset"
        self.prioritized = self.sampler.startswith("priorit")
        self.compiled = self.prioritized and seed % 2 == 1

    @property
    def processes(self) -> int:
        return 4 if self.shared or self.read_only else 0


def cases(seed: int) -> Iterator[str]:
    """Names of cases, every storage in turn."""
    chance = random.Random(seed)
    while True:
        for storage in STORAGES:
            yield "-".join(
                (storage, chance.choice(SAMPLERS), chance.choice("0123"), chance.choice(("steady", "steady", "stormy")))
            )


# -- calls -------------------------------------------------------------------------------------------------------------


class Caller:
    """One thread: makes random calls of one buffer. ``log`` int64 ``[writers, 2]``: records begun and written, by writer."""

    def __init__(self, case: Case, buffer: Any, folder: Path, log: np.ndarray, process: int, thread: int) -> None:
        self.case, self.buffer, self.folder, self.log = case, buffer, folder, log
        self.process, self.writer = process, process * 16 + thread
        self.chance = random.Random(f"{case.seed} {process} {thread}")
        self.call, self.begun = "", 0
        self.counts: Counter[str] = Counter()
        self.rows = self.longest = 0
        self.longest_call = ""
        self.is_copy = process > 0 and case.prioritized
        self.calls = self.calls_of_case()

    def calls_of_case(self) -> dict[Callable[[], Any], int]:
        calls: dict[Callable[[], Any], int] = {
            self.sample: 30,
            self.sample_other_size: 6,
            self.sample_with_info: 6,
            self.next: 6,
            self.iterate: 3,
            self.get_rows: 6,
            self.get_views: 4,
            self.get_column: 3,
            self.length: 10,
            self.look: 1,
            self.update_priority: 8,
            self.state: 1,
            self.set_seed: 1,
            self.set_rng: 1,
            self.close: 1,
            self.share: 1,
            self.pickled: 1,
            self.loader: 1,
        }
        if not self.case.read_only:
            calls |= {self.add: 20, self.extend: 20}
        if self.process == 0:
            calls |= {
                self.append_transform: 1,
                self.set_sampler: 1,
                self.set_writer: 1,
                self.set_storage: 1,
                self.dumps: 1,
            }
        if not self.case.steady and not self.case.read_only:
            calls |= {self.set_rows: 8, self.empty: 2, self.load_state: 1, self.loads: 1}
        return calls

    def run(self, stop: float) -> None:
        calls, weights = list(self.calls), list(self.calls.values())
        while time.monotonic() < stop:
            (call,) = self.chance.choices(calls, weights)
            begun = time.monotonic()
            self.call, self.begun = call.__name__, ticks()
            try:
                call()
            except RbdataError as error:
                if not self.may_fail(call.__name__, error):
                    raise
            self.counts[call.__name__] += 1
            self.begun = 0
            if time.monotonic() - begun > self.longest:
                self.longest, self.longest_call = time.monotonic() - begun, call.__name__

    def may_fail(self, call: str, error: RbdataError) -> bool:
        if self.is_copy:  # what keeps values of rows lives in one process
            return True
        return not self.case.steady and isinstance(error, SamplingError)  # empty at that moment

    # what is read

    def seen(self, batch: Any, rows: Any = None) -> Any:
        if not self.case.read_only:
            check_records(batch)
        elif len(batch):
            truth = self.truth[batch["index"] if rows is None else rows]
            assert bool((batch["action"] == truth["action"]).all())
            assert bool((batch["observation"] == truth["observation"]).all())
        self.rows += batch.numel()
        return batch

    @property
    def truth(self) -> Any:
        if not hasattr(self, "_truth"):
            self._truth = self.buffer.dataset.to_tensordict()
        return self._truth

    def sample(self) -> None:
        batch = self.seen(self.buffer.sample())
        if self.case.sampler in ("slices", "slicepasses", "priorityslices") and not self.case.read_only:
            check_slices(batch)

    def sample_other_size(self) -> None:
        self.seen(self.buffer.sample(self.chance.choice((8, 16, 12))))

    def sample_with_info(self) -> None:
        batch, info = self.buffer.sample(return_info=True)
        self.seen(batch)
        assert "index" in info

    def next(self) -> None:
        batch = self.buffer.next()
        if batch is not None:
            self.seen(batch)

    def iterate(self) -> None:
        for batch in itertools.islice(self.buffer, 3):
            self.seen(batch)

    def get_rows(self) -> None:
        size = len(self.buffer)
        rows = [self.chance.randrange(size) for _ in range(5)] if size else []
        if rows and self.case.steady:
            if self.case.ndim == 1:
                self.seen(self.buffer[torch.tensor(rows)], torch.tensor(rows))
            else:
                coordinates = torch.unravel_index(torch.tensor(rows), (size // BESIDE, BESIDE))
                self.seen(self.buffer[coordinates[1], coordinates[0]])

    def get_views(self) -> None:
        """Views show what is written later: only their shape is certain."""
        if self.case.steady:
            assert len(self.buffer[0:5]) == min(5, len(self.buffer), self.case.beside or 5)
            self.buffer[0]

    def get_column(self) -> None:
        if self.case.steady:
            low = len(self.buffer)
            column = self.buffer["action" if self.case.read_only else "number"]
            assert low <= column.numel() <= max(ROWS, low)

    def length(self, written: int | None = None) -> None:
        """``written``: how many records this process must have, where it does not share those of the others."""
        if self.case.read_only:
            assert len(self.buffer) == len(self.truth)
            return
        unit = self.case.beside or 1
        low = int(self.log[:, 1].sum()) if written is None else written
        found = len(self.buffer)
        high = int(self.log[:, 0].sum())
        assert 0 <= found <= ROWS and found % unit == 0, found
        if self.case.steady:
            assert min(ROWS, low) <= found <= min(ROWS, high), (low, found, high)

    def look(self) -> None:
        assert repr(self.buffer) and self.buffer.write_count >= 0
        assert len(self.buffer.storage.shape) == self.case.ndim

    # what is written

    def written(self, count: int, write: Callable[[Any], Any]) -> None:
        """Write the next records of this thread."""
        unit, first = self.case.beside or 1, int(self.log[self.writer, 2])
        data = records(self.writer, first, count, self.case.beside)
        self.log[self.writer, 0] += count * unit
        try:
            write(data)
        except BaseException:
            self.log[self.writer, 0] -= count * unit
            raise
        self.log[self.writer, 2] += count
        self.log[self.writer, 1] += count * unit
        self.rows += count * unit
        self.length()

    def add(self) -> None:
        self.written(1, lambda data: self.buffer.add(data[:, 0] if self.case.ndim == 2 else data[0]))

    def extend(self) -> None:
        self.written(self.chance.randint(1, 40), self.buffer.extend)

    def set_rows(self) -> None:
        size = len(self.buffer)
        if not size or self.case.ndim == 2:
            return
        data = records(self.writer, int(self.log[self.writer, 2]), 1)
        self.log[self.writer, 2] += 1
        row = self.chance.randrange(size)
        try:
            if self.case.storage != "tensor":  # whose memory has no place for it
                data.set("index", torch.tensor([row]))
            self.buffer[row : row + 1] = data
        except RbdataError as error:  # it was emptied meanwhile, and perhaps filled again
            refused = (f"record {row} cannot be written", f"rows slice({row}, {row + 1}, None) are not next to")
            if len(self.buffer) >= row and not any(text in str(error) for text in refused):
                raise

    def empty(self) -> None:
        self.buffer.empty()

    def update_priority(self) -> None:
        batch = self.buffer.sample()
        priority = torch.rand(len(batch))
        way = self.chance.randrange(3)
        if way == 0:
            self.buffer.update_priority(batch["index"], priority)
        elif way == 1:
            self.buffer.update_tensordict_priority(batch.set("td_error", priority))
        else:
            self.buffer.mark_update(batch["index"])

    # parts, states, copies

    def append_transform(self) -> None:
        if len(self.buffer.transform) < 4:
            self.buffer.append_transform(unchanged)

    def set_sampler(self) -> None:
        make = dataset_sampler if self.case.read_only else make_sampler
        self.buffer.set_sampler(make(self.case.sampler))

    def set_writer(self) -> None:
        if not self.case.read_only:
            self.buffer.set_writer(TensorDictRoundRobinWriter())

    def set_storage(self) -> None:
        self.buffer.set_storage(self.buffer.storage)

    def set_seed(self) -> None:
        self.buffer.set_seed(self.chance.randrange(100))

    def set_rng(self) -> None:
        self.buffer.set_rng(torch.Generator().manual_seed(self.chance.randrange(100)))

    def close(self) -> None:
        self.buffer.close()

    def share(self) -> None:
        if self.case.shared:
            self.buffer.share()

    def state(self) -> None:
        state = self.buffer.state_dict()
        if self.case.read_only:
            return
        data = state["_storage"]["_storage"]
        if data is not None and len(data):
            self.seen(torch.stack(data) if isinstance(data, list) else data)

    def load_state(self) -> None:
        self.buffer.load_state_dict(self.buffer.state_dict())

    def dumps(self) -> None:
        if self.case.storage == "list":
            return  # a file for each leaf of each record: the disk alone takes longer than a call may
        path = self.folder / f"dump-{self.writer}"
        self.buffer.dumps(path)
        if not self.case.read_only:
            count = json.loads((path / "storage" / "storage_metadata.json").read_text())["len"] // (
                self.case.beside or 1
            )
            data = TensorDict.load_memmap(path / "storage")[:count]
            if count:
                self.seen(data)

    def loads(self) -> None:
        path = self.folder / f"dump-{self.writer}"
        if path.exists():
            self.buffer.loads(path)

    def pickled(self) -> None:
        """By the bytes of a pickle where the rows stay where they are."""
        if self.case.storage.startswith("memmap") or self.case.read_only:
            copy = pickle.loads(pickle.dumps(self.buffer))
            self.seen(copy.sample())
            copy.close()

    def loader(self) -> None:
        for batch in self.buffer.as_iterable(2).loader():
            self.seen(batch)

    def fork(self) -> None:
        """A child while the other threads go on: it reads, and writes where the rows are shared."""
        written = None if self.case.shared else int(self.log[:, 1].sum())
        child = os.fork()
        if child:
            status = os.waitpid(child, 0)[1]
            assert status == 0, f"a forked child ended with {status}"
            return
        status = 1
        try:
            faulthandler.dump_traceback_later(20)
            signal.alarm(40)
            self.is_copy = self.case.prioritized
            self.sample_or_not()
            if self.case.shared and not self.is_copy:
                self.extend()
                self.add()
            self.sample_or_not()
            self.length(written)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def sample_or_not(self) -> None:
        try:
            self.sample()
        except SamplingError:
            if self.case.steady and not self.is_copy:
                raise


# -- processes ---------------------------------------------------------------------------------------------------------

_ticks = [1]


def compile_early(counts: Counter[str]) -> None:
    """Compiled loops for trees of any size from the 50th draw on, their calls counted."""

    def counted(loop: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            counts[f"compiled {loop.__name__}"] += 1
            return loop(*arguments)

        return call

    sum_tree.LARGE, sum_tree.OFTEN = 1, 50
    loops = sum_tree.load_loops()
    sum_tree._loaded[:] = [loops and sum_tree.Loops(*map(counted, loops))]


def ticks() -> int:
    return _ticks[0]


def work(
    name: str, seed: int, buffer: Any, folder: Path, process: int, threads: int, stop: float, limit: float
) -> None:
    """Make calls from threads until ``stop``; the result goes to a file. Ends the process when a call does not return."""
    faulthandler.enable()
    torch.set_num_threads(1)
    case = Case(name, seed)
    log = np.memmap(folder / "log", np.int64, "r+", shape=(WRITERS, 3))
    compiled: Counter[str] = Counter()
    if case.compiled:
        compile_early(compiled)
    callers = [Caller(case, buffer, folder, log, process, thread) for thread in range(threads)]
    errors: list[str] = []
    _ticks[0] = 1
    if process == 0 and hasattr(os, "fork"):
        callers[-1].calls[callers[-1].fork] = 1

    def run(caller: Caller) -> None:
        try:
            caller.run(stop)
        except BaseException:
            errors.append(f"{case.name} seed {seed} process {process}: {caller.call}\n{traceback.format_exc()}")
        finally:
            caller.begun = 0

    running = [threading.Thread(target=run, args=(caller,), daemon=True) for caller in callers]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        time.sleep(TICK)
        _ticks[0] += 1
        stuck = [caller for caller in callers if caller.begun and ticks() - caller.begun > limit / TICK]
        if stuck:
            print(
                f"{case.name} seed {seed} process {process}: {[c.call for c in stuck]} do not return", file=sys.stderr
            )
            faulthandler.dump_traceback(all_threads=True)
            sys.stderr.flush()
            os._exit(3)
    counts: Counter[str] = sum((caller.counts for caller in callers), compiled)
    longest = max(callers, key=lambda caller: caller.longest)
    result = {
        "calls": dict(counts),
        "rows": sum(caller.rows for caller in callers),
        "longest": [longest.longest, longest.longest_call],
        "errors": errors,
    }
    (folder / f"result-{process}.json").write_text(json.dumps(result))


def run_case(name: str, seed: int, seconds: float, limit: float, spawned: int) -> dict[str, Any]:
    """All processes of one case; raises AssertionError for what they found."""
    case = Case(name, seed)
    folder = Path(tempfile.mkdtemp(prefix="rbdata-campaign-"))
    try:
        log = np.memmap(folder / "log", np.int64, "w+", shape=(WRITERS, 3))
        buffer = make_buffer(case, folder)
        if not case.read_only and case.storage != "tensor":
            filler = Caller(case, buffer, folder, log, 0, 15)
            for _ in range(8):
                filler.written(EPISODE, buffer.extend)
        elif case.storage == "tensor":
            log[0] = ROWS
        buffer.sample()
        if case.compiled:
            sum_tree.load_loops()  # forked processes have them; spawned ones compile, and make fewer calls
        stop = time.monotonic() + seconds
        children = []
        for process in range(1, case.processes + 1):
            context: Any = multiprocessing.get_context("spawn" if process <= spawned else "fork")
            arguments = (name, seed, buffer, folder, process, 2, stop, limit)
            children.append(context.Process(target=work, args=arguments))
            children[-1].start()
        work(name, seed, buffer, folder, 0, THREADS, stop, limit)
        for child in children:
            child.join(240 + limit)
            if child.is_alive():
                os.kill(child.pid, signal.SIGABRT)
                raise AssertionError(f"{name} seed {seed}: process {child.name} does not end")
        codes = [child.exitcode for child in children]
        assert not any(codes), f"{name} seed {seed}: processes ended with {codes}"
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
        errors = [error for result in results for error in result["errors"]]
        assert not errors, "\n".join(errors)
        if not case.read_only:
            check_end(case, buffer, log)
        buffer.close()
        calls: Counter[str] = sum((Counter(result["calls"]) for result in results), Counter())
        longest = max(result["longest"] for result in results)
        return {"calls": calls, "rows": sum(result["rows"] for result in results), "longest": longest}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_end(case: Case, buffer: Any, log: np.ndarray) -> None:
    """What is left when all is over: whole records and, after steady calls, the last ones of every writer in order."""
    size, storage = len(buffer), buffer.storage
    if size:
        everything = storage.get(torch.arange(storage.filled))
        everything = torch.stack(everything) if isinstance(everything, list) else everything
        check_records(everything)
    if not case.steady:
        return
    assert size == min(ROWS, int(log[:, 1].sum())), (size, log[:, 1].sum())
    by_time = everything.roll(-storage.oldest, 0).reshape(-1) if case.ndim == 1 else everything.roll(-storage.oldest, 0)
    for writer in range(WRITERS):
        for beside in range(case.beside or 1):
            who = writer * BESIDE + beside if case.beside else writer
            mine = by_time["number"][by_time["writer"] == who].tolist()
            last = int(log[writer, 2])
            assert mine == list(range(last - len(mine), last)), (
                f"{case.name}: of writer {who} is left {mine}, last {last}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of calls, in all")
    parser.add_argument("--each", type=float, default=8, help="seconds of one case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5, help="seconds that a call may take")
    parser.add_argument("--case", action="append", help="storage-sampler-prefetch-mode")
    parser.add_argument("--go-on", action="store_true", help="after a fault")
    parser.add_argument("--here", action="store_true", help="the cases in this process, one after the other")
    parser.add_argument("--spawned", type=int, default=2, help="of the 4 processes; the others are forked")
    args = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    if args.here:
        torch.set_num_threads(1)
        for name in args.case:
            print(json.dumps(run_case(name, args.seed, args.each, args.limit, args.spawned)), flush=True)
            args.spawned = 0
        return
    names = itertools.cycle(args.case) if args.case else cases(args.seed)
    calls: Counter[str] = Counter()
    rows, faults, spent, longest = 0, 0, 0.0, [0.0, "", ""]
    for number, name in enumerate(names):
        if spent >= args.seconds:
            break
        each = min(args.each, args.seconds - spent)
        command = [sys.executable, __file__, "--here", "--case", name, "--seed", str(args.seed + number)]
        command += ["--each", str(each), "--limit", str(args.limit), "--spawned", str(args.spawned)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        spent += each
        if done.returncode:
            faults += 1
            print(f"-- {name} --seed {args.seed + number}: {done.returncode}\n{done.stderr[-6000:]}", flush=True)
            if not args.go_on:
                sys.exit(1)
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        calls.update(result["calls"])
        rows += result["rows"]
        longest = max(longest, [*result["longest"], name])
        made = sum(result["calls"].values())
        print(f"{name} --seed {args.seed + number}: {made} calls, longest {result['longest']}", flush=True)
    print(f"{spent:.0f} s, {sum(calls.values()):,} calls, {rows:,} records, {faults} faults, longest call {longest}")
    print(dict(calls))
    sys.exit(bool(faults))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/support"))
    main()
