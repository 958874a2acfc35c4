"""Files of every format with a few bytes wrong, and small files that unpack to a great deal.

    python benchmarks/campaign/inputs.py                          # every reader
    python benchmarks/campaign/inputs.py --reader parquet --rounds 100000 --seed 5 [--from N]
    python benchmarks/campaign/inputs.py --atheris parquet        # guided by coverage, see guided.py

An input is a valid file (of tests/data, or written by the provider's own library) that was changed as its seed says. It is
read in a warm forked process. What must come out: the right values, as far as the format proves them or another reader knows
them, or an RbdataError; never another exception, a crash, more than `LIMIT_SECONDS`, or more than `LIMIT_BYTES` beyond what
the process held before. A fault names the reader, the seed and the number of the input: ``--reader NAME --seed SEED --from
NUMBER --rounds 1``.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/support"))

from guided import fuzz, fuzz_all
from input_readers import READERS, Wrong
from report import Report, reset_peak

LIMIT_SECONDS, LIMIT_BYTES, LARGEST_INPUT = 60.0, 500_000_000, 10_000_000
#: Inputs between two messages to the parent.
_REPORTED = 64
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)
_TOKENS = (
    b"-1",
    b"1e400",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"9" * 5000,
    b"\xff\xfe",
    b"\0",
    b"'",
    b"{",
    b"[" * 300,
)


def run(rounds: int, seed: int) -> Report:
    """The bombs once, then ``rounds`` inputs over all readers, by their weights."""
    report = Report("inputs", seed)
    total = sum(reader.weight for reader in READERS.values())
    began = time.monotonic()
    for name, reader in READERS.items():
        part = attack(name, reader.rounds or max(1, rounds * reader.weight // total), seed)
        report.rounds += part.rounds
        report.outcomes.update(part.outcomes)
        report.faults += part.faults
        report.peak_memory = max(report.peak_memory, part.peak_memory)
    report.seconds = time.monotonic() - began
    return report


def attack(name: str, rounds: int, seed: int, first: int = 0) -> Report:
    """Inputs ``first..first+rounds-1`` of one reader, in a process that is replaced when it hangs or dies."""
    report = Report(name, seed, rounds)
    began, at = time.monotonic(), first
    while at < first + rounds:
        at = _watch(name, seed, at, at + 1 if READERS[name].apart else first + rounds, report)
    report.seconds = time.monotonic() - began
    return report


def _watch(name: str, seed: int, first: int, last: int, report: Report) -> int:
    """One worker for as long as it lives; returns the number of the next input."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    current = context.Value("q", first, lock=False)
    folder = Path(tempfile.mkdtemp(prefix=f"rbdata-{name}-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    worker = context.Process(target=_work, args=(name, seed, first, last, current, there, folder))
    worker.start()
    there.close()
    seen, since = -1, time.monotonic()
    repeat = f"--reader {name} --seed {seed} --rounds 1 --from"
    try:
        while True:
            if here.poll(0.5):
                outcomes, faults, peak = here.recv()
                report.outcomes.update({f"{name} {outcome}": times for outcome, times in outcomes.items()})
                report.faults += faults
                report.peak_memory = max(report.peak_memory, peak)
            if current.value != seen:
                seen, since = current.value, time.monotonic()
            elif time.monotonic() - since > LIMIT_SECONDS:
                worker.kill()
                report.outcomes[f"{name} hung"] += 1
                report.faults.append(f"hung for {LIMIT_SECONDS:.0f} s: {repeat} {seen}")
                return seen + 1
    except EOFError:
        worker.join()
        if worker.exitcode == 0:
            return last
        report.outcomes[f"{name} crashed"] += 1
        report.faults.append(f"the process ended with {worker.exitcode}: {repeat} {current.value}")
        return current.value + 1
    finally:
        worker.kill()
        worker.join()
        here.close()
        shutil.rmtree(folder, ignore_errors=True)  # also where the worker was killed


def _work(name: str, seed: int, first: int, last: int, current: Any, answer: Connection, folder: Path) -> None:
    from rbdata.datasets.workers import sandbox
    from rbdata.datasets.workers.worker_process import end_with_parent

    end_with_parent()
    sandbox._PATIENCE = (
        LIMIT_SECONDS / 3
    )  # a reader that hangs in its sandbox is refused before this process is a fault
    warnings.simplefilter("ignore")
    reader = READERS[name]
    corpus = reader.corpus(folder / "corpus")
    outcomes, faults, peak = Counter[str](), list[str](), 0
    gc.freeze()  # modules and corpus are not looked through again and again
    reset_peak()
    held = own_peak()
    for number in range(first, last):
        current.value = number
        rng = random.Random(f"{seed} {name} {number}")
        data = reader.change(corpus, rng, number) if reader.change else mutate(rng, rng.choice(corpus), corpus)
        data = data[:LARGEST_INPUT]
        outcome, fault = try_input(reader.read, data, folder)
        used = own_peak()
        peak = max(peak, used)
        if used - held > LIMIT_BYTES and not fault:
            outcome, fault = "too large", f"took {used - held >> 20} MiB"
            reset_peak()
        outcomes[outcome] += 1
        if fault:
            faults.append(f"{fault}: --reader {name} --seed {seed} --rounds 1 --from {number}")
        if fault or (number - first) % _REPORTED == _REPORTED - 1:
            answer.send((outcomes, faults, peak))
            outcomes, faults, peak = Counter(), [], 0
    answer.send((outcomes, faults, peak))
    answer.close()
    os._exit(0)


def own_peak() -> int:
    """The most memory in bytes that this process, without its children, took since `reset_peak`."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def try_input(read: Callable[[bytes, Path], Any], data: bytes, folder: Path) -> tuple[str, str]:
    """What became of an input, and the fault if it is one."""
    from rbdata.errors import RbdataError

    try:
        read(data, folder)
    except RbdataError as error:
        text = str(error)
        return ("refused", "") if len(text) < 20_000 else ("refused at length", f"a message of {len(text)} characters")
    except Wrong as error:
        return "wrong", f"wrong: {error}"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "untyped", f"{type(error).__name__} {str(error)[:80]!r} at {Path(place.filename).name}:{place.lineno}"
    return "read", ""


def mutate(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    """The same with one to five changes; most are small, so that much of a file stays what it was."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        at = rng.randrange(len(out) + 1) if rng.random() < 0.6 else rng.randrange(min(len(out), 512) + 1)
        what = rng.randrange(9)
        if what == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1 and at < len(out):
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif what == 2:
            width = rng.choice((2, 4, 8))
            number = rng.choice(_NUMBERS) & (1 << 8 * width) - 1
            out[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif what == 3:
            del out[at : at + rng.choice((1, 2, 4, 8, 64, rng.randrange(len(out) + 1)))]
        elif what == 4:
            end = min(len(out), at + rng.choice((1, 4, 16, 256)))
            out[at:at] = out[at:end] * rng.choice((1, 1, 2, 50))
        elif what == 5:
            del out[at:]
        elif what == 6:
            out[at : at + rng.choice((0, 1, 8))] = rng.choice(_TOKENS)
        elif what == 7:
            other = rng.choice(corpus)
            begin = rng.randrange(len(other) + 1)
            piece = other[begin : begin + rng.choice((4, 32, 512))]
            out[at : at + len(piece)] = piece
        else:
            out[at : at + rng.choice((1, 4, 8))] = bytes([rng.choice((0, 0xFF))]) * rng.choice((1, 4, 8))
    return bytes(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", choices=READERS, action="append")
    parser.add_argument("--rounds", type=int, default=10_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first input")
    parser.add_argument("--atheris", choices=["all", *READERS], help="guided by coverage; pip install atheris")
    parser.add_argument("--again", type=Path, help="an input that atheris left, to be read by that reader")
    parser.add_argument("--seconds", type=int, default=600, help="for atheris")
    given = parser.parse_args()
    if given.again:
        with tempfile.TemporaryDirectory() as folder:
            READERS[given.atheris].corpus(Path(folder, "corpus"))
            print(": ".join(try_input(READERS[given.atheris].read, given.again.read_bytes(), Path(folder))))
        return
    if given.atheris == "all":
        sys.exit(not fuzz_all(given.seconds))
    if given.atheris:
        fuzz(given.atheris, given.seconds, 2 * LIMIT_BYTES, LIMIT_SECONDS, try_input)
    for name in given.reader or READERS:
        rounds = min(given.rounds, (READERS[name].rounds or given.rounds + given.first) - given.first)
        report = attack(name, rounds, given.seed, given.first)
        shares = ", ".join(f"{outcome.partition(' ')[2]} {times}" for outcome, times in sorted(report.outcomes.items()))
        memory = f"{report.peak_memory / 1e6:.0f} MB"
        print(
            f"{name}: {report.rounds} in {report.seconds:.0f} s, {memory}, {len(report.faults)} faults: {shares}",
            flush=True,
        )
        for fault in report.faults[:20]:
            print(f"  {fault}", flush=True)


if __name__ == "__main__":
    main()
