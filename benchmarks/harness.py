"""Tools for honest benchmarks, and the floors that no program on this machine can beat.

    python benchmarks/harness.py --shard .bench/mirror-100k/dqn/Pong/1/replay_logs     # print the floors

How things are measured. Every measurement runs in a fresh process, so that no earlier one warms an allocator or leaves
memory behind. Rivals are interleaved (A B A B), so that a slow minute of a shared machine hits both, and compared by
their medians. Peak memory is the resident set's high-water mark as the kernel keeps it per address space; `ru_maxrss`
is not used where avoidable, because on Linux a child starts with its parent's. Resident pages of mapped files count in
it though the kernel may drop them at will, so the peak of anonymous memory is given beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

POLL_SECONDS = 0.02
BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        wall: seconds. For a callable, of the call alone; for a command, of the whole process.
        cpu: user and system seconds, children included.
        peak: bytes, high-water mark of the resident set; children that live at the same time are added.
        anonymous: bytes, peak of the part of it that is not backed by files (sampled every 20 ms).
        result: what the callable returned, or the command's standard output.
    """

    wall: float
    cpu: float
    peak: int
    anonymous: int
    result: Any = None


def measure(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Cost:
    """Call a module-level function in a fresh process. Arguments and result must pickle."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, function, args, kwargs))
    process.start()
    theirs.close()
    with _MemoryWatch(process.pid) as watch:
        try:
            failed, wall, cpu, high_water, result = ours.recv()
        except EOFError:
            failed, result = True, "the process died"
        process.join()
    if failed:
        raise RuntimeError(f"{function.__name__}: {result} (exit code {process.exitcode})")
    return Cost(wall, cpu, max(high_water, watch.resident), watch.anonymous, result)


def measure_command(command: Sequence[str], **popen: Any) -> Cost:
    """Run a command to its end. A non-zero exit code is an error."""
    started = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True, **popen)
    with _MemoryWatch(process.pid) as watch:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, output)
    inherited = _maxrss(resource.getrusage(resource.RUSAGE_SELF))
    exact = _maxrss(usage) if _maxrss(usage) > inherited else 0
    return Cost(wall, usage.ru_utime + usage.ru_stime, max(exact, watch.resident), watch.anonymous, output)


def interleave(rivals: Mapping[str, Callable[[], Cost]], repeats: int = 3) -> dict[str, list[Cost]]:
    """Run every rival once, then all of them again, `repeats` times over. A rival is e.g. ``partial(measure, f)``."""
    costs: dict[str, list[Cost]] = {name: [] for name in rivals}
    for _ in range(repeats):
        for name, run in rivals.items():
            costs[name].append(run())
    return costs


def median(costs: Iterable[Cost]) -> Cost:
    """The median of every number on its own, with the result of the last run."""
    costs = list(costs)
    numbers = [
        statistics.median(getattr(cost, name) for cost in costs) for name in ("wall", "cpu", "peak", "anonymous")
    ]
    return Cost(numbers[0], numbers[1], int(numbers[2]), int(numbers[3]), costs[-1].result)


def compare(costs: Mapping[str, list[Cost]]) -> str:
    """A table of medians; ratios are against the first rival (above 1: quicker, or smaller, than the first)."""
    medians = {name: median(runs) for name, runs in costs.items()}
    first = next(iter(medians.values()))
    rows = [
        [
            name,
            f"{cost.wall:.2f} s",
            f"{min(run.wall for run in costs[name]):.2f}..{max(run.wall for run in costs[name]):.2f}",
            f"{cost.cpu:.2f} s",
            size(cost.peak),
            size(cost.anonymous),
            f"{first.wall / cost.wall:.2f}x",
            f"{first.peak / cost.peak:.2f}x",
        ]
        for name, cost in medians.items()
    ]
    return table(["", "wall", "range", "cpu", "peak", "anonymous", "speed", "memory"], rows)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns padded to width: the first flush left, the others flush right."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def size(count: float) -> str:
    """Bytes for a human: ``7.06 GB``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def disk_use(path: Path) -> int:
    """Bytes that a folder's files take on disk; holes are free."""
    return sum(file.stat().st_blocks * 512 for file in Path(path).rglob("*") if file.is_file())


def machine() -> str:
    """One line on what the numbers were measured on."""
    from importlib.metadata import version

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    memory = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "tensordict", "numpy"))
    load = os.getloadavg()[0]
    return (
        f"{name}, {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}, load {load:.1f}"
    )


def rate(step: Callable[[], Any], items: int, seconds: float = 2.0, warm_up: int = 20) -> float:
    """Items per second of a step that handles `items` of them, run for about `seconds`."""
    for _ in range(warm_up):
        step()
    steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(10):
            step()
        steps += 10
    return steps * items / elapsed


# -- floors --------------------------------------------------------------------------------------------------------


def gather_floor(
    frames: Path | int, window: int = 2, batch: int = 256, threads: int = 1, seconds: float = 2.0
) -> float:
    """Transitions per second of one `index_select` of frame windows: what sampling costs when nothing else is done.

    Args:
        frames: a ``.npy`` of uint8 [n, 84, 84], mapped and read once to warm it, or a number of made-up frames to
            hold in memory.
        window: rows of a window. 2: a frame and the next one; 5: a stack of four frames and the next.
        threads: of torch.

    Rows are taken as int64 (a frame is 882 of them), since torch copies wide elements faster than bytes, and windows
    overlap in one strided view of the frames, so that no window is ever built. The same output is written every time.
    """
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    if isinstance(frames, int):
        array = np.random.default_rng(0).integers(0, 256, (frames, 84, 84), np.uint8)
    else:
        array = np.load(frames, mmap_mode="c")  # private: torch wants a writable array
    flat = torch.from_numpy(array.reshape(len(array), -1).view(np.int64))
    for start in range(0, len(flat), 4096):
        flat[start : start + 4096].sum()
    count, width = len(flat) - window + 1, flat.shape[1]
    windows = flat.as_strided((count, window * width), (width, 1))
    out = torch.empty((batch, window * width), dtype=torch.int64)
    return rate(lambda: torch.index_select(windows, 0, torch.randint(count, (batch,)), out=out), batch, seconds)


def gunzip_floor(file: Path) -> int:
    """Decompress a gzip file block by block with ISA-L and keep nothing. Returns the bytes that came out."""
    from isal import igzip_lib

    total = 0
    decompressor = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    with Path(file).open("rb", buffering=0) as stream:
        while not decompressor.eof:
            data = stream.read(BLOCK_BYTES) if decompressor.needs_input else b""
            if not data and decompressor.needs_input:
                raise EOFError(f"{file}: the gzip stream is cut")
            total += len(decompressor.decompress(data, BLOCK_BYTES))
    return total


def read_floor(file: Path) -> int:
    """Read a file from start to end into one buffer. Returns its length."""
    total, buffer = 0, bytearray(BLOCK_BYTES)
    with Path(file).open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            total += count
    return total


# -- behind `measure` ----------------------------------------------------------------------------------------------


def _child(pipe: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cpu, started = _cpu_seconds(), time.perf_counter()
    try:
        result, failed = function(*args, **kwargs), False
    except BaseException as error:
        result, failed = f"{type(error).__name__}: {error}", True
    wall = time.perf_counter() - started
    pipe.send((failed, wall, _cpu_seconds() - cpu, _memory(os.getpid())[0], result))


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _maxrss(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _memory(pid: int) -> tuple[int, int, int]:
    """High-water mark, resident and anonymous bytes of a live process; zeros when it is gone."""
    if sys.platform != "linux":
        resident = psutil.Process(pid).memory_info().rss
        return resident, resident, resident
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0, 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    in_bytes = [1024 * int(fields.get(name, "0").split()[0]) for name in ("VmHWM", "VmRSS", "RssAnon")]
    return in_bytes[0], in_bytes[1], in_bytes[2]


class _MemoryWatch:
    """Samples a process and its descendants from a thread. After it: peak `resident` and `anonymous` bytes."""

    def __init__(self, pid: int | None) -> None:
        self.resident = self.anonymous = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                pids = [self._process.pid, *(child.pid for child in self._process.children(recursive=True))]
                memory = [_memory(pid) for pid in pids]
            except psutil.Error:
                continue
            # The mark of one process is exact between two samples; for a tree only what was resident together counts.
            resident = memory[0][0] if len(memory) == 1 else sum(now for _, now, _ in memory)
            self.resident = max(self.resident, resident)
            self.anonymous = max(self.anonymous, sum(anonymous for _, _, anonymous in memory))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the floors of this machine.")
    parser.add_argument("--frames", type=Path, help=".npy of uint8 [n, 84, 84]; made-up frames in memory without it")
    parser.add_argument("--shard", type=Path, help="a replay_logs folder: floors of reading and of gunzip")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(machine(), end="\n\n")

    rows = []
    for what, window in {"frame + next": 2, "4 stacked + next": 5}.items():
        for threads in (1, 2):
            runs = [
                measure(gather_floor, args.frames or 100_000, window, threads=threads).result
                for _ in range(args.repeats)
            ]
            rows.append(
                [f"gather, {what}", threads, f"{statistics.median(runs):,.0f}", f"{min(runs):,.0f}..{max(runs):,.0f}"]
            )
    print(table(["batch 256", "threads", "transitions/s", "range"], rows), end="\n\n")

    if args.shard:
        file = next(args.shard.glob("*observation_ckpt*"))
        rows = []
        for what, floor in {"read": read_floor, "gunzip": gunzip_floor}.items():
            cost = median(measure(floor, file) for _ in range(args.repeats))
            rows.append(
                [what, f"{cost.wall:.3f} s", size(cost.result), f"{size(cost.result / cost.wall)}/s", size(cost.peak)]
            )
        print(table([f"{file.name} ({size(file.stat().st_size)})", "wall", "bytes", "rate", "peak"], rows))


if __name__ == "__main__":
    main()
