"""`rbdata verify` beside reading the same files and summing them (crc32c) with nothing else, in one run.

    python benchmarks/verify.py                        # 1,000,000 compressed frames, about 0.5 GB: under a minute
    python benchmarks/verify.py --codec raw --frames 200000

The dataset is made of a few thousand different frames that repeat: checksums do not care. The floor reads each file from its
beginning to its end, a block at a time, on one thread and on all processors; ``verify`` also compares checksums.
Files are in the page cache, where disks count least; ``--cold`` asks the kernel to drop them before each run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from harness import Cost, interleave, machine, measure, table

BLOCK = 4 << 20
EPISODE = 2000
SHAPE = (84, 84)


def make(root: Path, frames: int, parts: int, codec: str) -> Path:
    """A dataset of so many frames, of an Atari run's size when compressed."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
    from rbdata.datasets.ingest.block import END_TRUNCATED, Block, CopiedRows
    from rbdata.datasets.ingest.dictionary import store_dictionaries
    from rbdata.datasets.ingest.part import PartTask, parts_of
    from rbdata.storage.codecs import codec_of
    from rbdata.storage.episodes import TRUNCATED, EpisodeTable
    from rbdata.storage.folder import DatasetPlace
    from rbdata.storage.manifest import Manifest
    from rbdata.storage.schema import Leaf, Schema, ted_flags
    from rbdata.storage.work import Work
    from storage_tools import GivenBlocks, commit, write_lead

    place = DatasetPlace(root, f"bench/{codec}-{frames}")
    if place.exists():
        return place.path
    count = max(1, frames // (EPISODE + 1))
    lengths, outcomes = np.full(count, EPISODE), np.full(count, TRUNCATED, np.uint8)
    made = EpisodeTable(np.arange(count) * EPISODE, lengths, np.zeros(count), outcomes, np.zeros(count, bool))
    frame = Leaf("observation", "state", "uint8", SHAPE, codec)
    schema = Schema((frame, Leaf("action", "step", "int64", ()), *ted_flags()))
    rng = np.random.default_rng(0)
    some = np.zeros((2000, *SHAPE), np.uint8)
    some[:, ::9] = 87
    for row in some:  # what moves in a frame
        for y, x in rng.integers(0, 76, (12, 2)):
            row[y : y + 8, x : x + 3] = rng.integers(0, 256, (8, 3))
    bits = np.zeros(made.steps, np.uint8)
    bits[EPISODE - 1 :: EPISODE] = END_TRUNCATED
    rows: dict[str, Any] = {"action": rng.integers(0, 6, made.steps), "next/reward": np.zeros(made.steps, np.float32)}
    about = [{"name": f"part {number}"} for number in range(parts)]
    source = {"name": "bench"}
    manifest = Manifest(place.id, schema, steps=made.steps, episodes=len(made), source=source, parts=about)
    with place.lock():
        work = Work(place, "bench")
        encoded: Any = None
        if codec_of(frame).uses_dictionary:
            dictionary = codec_of(frame).train(iter(some))
            store_dictionaries(work.folder, {frame.name: frame}, {frame.name: dictionary}, "bench")
            encoded = Encoded(codec_of(frame), some, dictionary)
        bounds = np.linspace(0, made.steps + len(made), parts + 1).astype(int).tolist()
        units = []
        for number, (low, high) in enumerate(pairwise(bounds)):
            counts = [min(len(some), high - at) for at in range(low, high, len(some))]
            given: list[Any] = [CopiedRows(encoded, 0, count) if encoded else some[:count] for count in counts]
            blocks = [Block({frame.name: one}) for one in given]
            units.append(GivenBlocks(number, f"part {number}", high - low, "", given=blocks))
            PartTask(units[-1], work.folder, schema, 1)(lambda *_: None)
        lead = write_lead(work, schema, [Block(rows, bits)])
        every = [part for unit in units for part in parts_of(work.folder, unit)]
        return commit(place, manifest, made, [lead, *every], (frame.name,))


class Encoded:
    """Rows that are compressed once, and repeat."""

    def __init__(self, codec: Any, rows: np.ndarray, dictionary: bytes) -> None:
        size = rows[0].nbytes
        self._data, self._lengths = codec.encoder(dictionary)(rows.reshape(-1).data, np.arange(len(rows)) * size, size)

    def stored(self, first: int, stop: int) -> tuple[Any, np.ndarray]:
        begin, end = int(self._lengths[:first].sum()), int(self._lengths[:stop].sum())
        return self._data[begin:end], self._lengths[first:stop]


def verify(folder: Path) -> float:
    """Seconds that `storage.integrity.verify` takes; the process has neither torch nor the package imported before."""
    from rbdata.storage.integrity import verify

    begun = time.perf_counter()
    report = verify(folder)
    seconds = time.perf_counter() - begun
    assert report.ok, report.problems
    assert "torch" not in sys.modules
    return seconds


def floor(folder: Path, threads: int) -> float:
    """Seconds that reading the files and crc32c take."""
    places = [(path, at) for path in folder.rglob("*") if path.is_file() for at in range(0, path.stat().st_size, BLOCK)]

    def read(place: tuple[Path, int]) -> int:
        with place[0].open("rb", buffering=0) as file:
            file.seek(place[1])
            return google_crc32c.value(file.read(BLOCK))

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(read, places):
            pass
    return time.perf_counter() - begun


def drop(folder: Path) -> None:
    """Ask the kernel to forget the files' pages."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--codec", default="zstd")
    parser.add_argument("--root", type=Path, default=Path(".bench/verify"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--remove", action="store_true", help="remove the dataset at the end")
    args = parser.parse_args()
    folder = make(args.root, args.frames, args.parts, args.codec)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    cores = os.cpu_count() or 1

    def run(function: Callable[..., Any], *arguments: int) -> Callable[[], Cost]:
        def once() -> Cost:
            if args.cold:
                drop(folder)
            return measure(function, folder, *arguments)

        return once

    rivals = {"floor, 1 thread": run(floor, 1), f"floor, {cores} threads": run(floor, cores), "verify": run(verify)}
    costs = interleave(rivals, args.repeats)
    seconds = {name: statistics.median(cost.result for cost in runs) for name, runs in costs.items()}
    best = min(value for name, value in seconds.items() if name != "verify")
    rows = [
        [name, f"{value:.3f}", f"{size / value / 1e9:.2f}", f"{value / best:.2f}", f"{costs[name][0].peak / 1e6:.0f}"]
        for name, value in seconds.items()
    ]
    print(machine())
    print(f"{args.frames:,} frames, {args.codec}, {size / 1e6:,.0f} MB, {'cold' if args.cold else 'in the page cache'}")
    print(table(["", "s", "GB/s", "x floor", "peak MB"], rows))
    if args.remove:
        shutil.rmtree(args.root)


if __name__ == "__main__":
    main()
