"""`rbdata verify` beside reading the same files and summing them (crc32c) with nothing else, in one run.

    python benchmarks/verify.py                        # 1,000,000 compressed frames, about 0.5 GB: under a minute
    python benchmarks/verify.py --codec raw --frames 200000

The dataset is made of a few thousand different frames that repeat: checksums do not care. The floor reads each file from its
beginning to its end, a block at a time, on one thread and on all processors; ``verify`` also joins checksums and checks the
rules of TED. Files are in the page cache, where disks count least; ``--cold`` asks the kernel to drop them before each run.
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
    from rbdata.storage.codecs import codec_of
    from rbdata.storage.codecs.compressed import compressed_codec
    from rbdata.storage.episodes import TRUNCATED, EpisodeBuilder
    from rbdata.storage.folder import DatasetPlace
    from rbdata.storage.manifest import Manifest
    from rbdata.storage.parts import PartFile
    from rbdata.storage.schema import Leaf, Schema, ted_flags
    from rbdata.storage.writer import DatasetWriter, open_sink

    place = DatasetPlace(root, f"bench/{codec}-{frames}")
    if place.exists():
        return place.path
    episodes = EpisodeBuilder()
    for _ in range(max(1, frames // (EPISODE + 1))):
        episodes.add(EPISODE, 0.0, TRUNCATED)
    made = episodes.table()
    frame = Leaf("observation", "state", "uint8", SHAPE, codec)
    schema = Schema((frame, Leaf("action", "step", "int64", ()), *ted_flags()))
    rng = np.random.default_rng(0)
    some = np.zeros((2000, *SHAPE), np.uint8)
    some[:, ::9] = 87
    for row in some:  # what moves in a frame
        for y, x in rng.integers(0, 76, (12, 2)):
            row[y : y + 8, x : x + 3] = rng.integers(0, 256, (8, 3))
    with place.lock():
        writer = DatasetWriter(place, schema, "bench", bulk=("observation",), parts=parts)
        columns = writer.columns()
        done = np.zeros((made.steps, 1), bool)
        done[EPISODE - 1 :: EPISODE] = True
        rows: dict[str, np.ndarray] = {
            "action": rng.integers(0, 6, made.steps),
            "next/reward": np.zeros((made.steps, 1), np.float32),
        }
        columns.append({**rows, "next/done": done, "next/truncated": done, "next/terminated": np.zeros_like(done)})
        writer.planned(columns.close(), made)
        if codec_of(frame).uses_dictionary:
            dictionary = codec_of(frame).train(iter(some))
            writer.dictionary(frame, dictionary)
            starts = np.arange(len(some)) * some[0].nbytes
            encoded, lengths = compressed_codec(codec).encoder(dictionary)(
                some.reshape(-1).data, starts, some[0].nbytes
            )
        bounds = np.linspace(0, writer.states, parts + 1).astype(int).tolist()
        for number, (low, high) in enumerate(pairwise(bounds)):
            sink = open_sink(writer.folder, frame, number, low, high - low, writer.states)
            for at in range(0, high - low, len(some)):
                count = min(len(some), high - low - at)
                if isinstance(sink, PartFile):
                    sink.append_encoded(encoded[: int(lengths[:count].sum())], lengths[:count])
                else:
                    sink.write(at, some.reshape(-1).data, np.arange(count) * some[0].nbytes)
            writer.part_done(number, {"leaves": {"observation": sink.finish()}})
            writer.merge()
        about = [{"name": f"part {number}"} for number in range(parts)]
        return writer.commit(
            Manifest(
                id=place.id,
                schema=schema,
                steps=made.steps,
                episodes=len(made),
                source={"name": "bench"},
                parts=about,
            )
        )


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
