"""The first batch of a download beside its first shard.

    python benchmarks/partial.py                     # 50 shards of 4,000 frames, made on the first run
    python benchmarks/partial.py --rows 50000 --rate 20e6

A server on this machine answers after 20 ms and sends 20 MB/s in all. Seconds from the call of ``rbdata.load(...,
download=True)`` to the first batch and to the end of the first shard, and of all; and those that ``rbdata.download`` takes for
that shard alone. All begin without a worker process, and with nothing on the disk.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, table
from remote import served

WORK = Path(".bench") / "partial"
NAME = "Pong/1"


def make(shards: int, rows: int) -> Path:
    """A mirror with a run of so many shards: episodes of 1,000 frames of noise in a few places on a still picture."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from dqn_replay_writer import DQNReplayWriter

    top = WORK / f"mirror-{shards}-{rows}"
    folder = top / "dqn" / NAME / "replay_logs"
    if (top / "made").exists():
        return top
    shutil.rmtree(top, ignore_errors=True)
    random = np.random.default_rng(0)
    picture = random.integers(0, 256, (84, 84), dtype=np.uint8)
    writer = DQNReplayWriter(folder, rows, gzip_level=1)
    for step in range(shards * rows):
        frame = picture.copy()
        frame[step % 80, :40] = random.integers(0, 256, 40, dtype=np.uint8)
        writer.add(frame, step % 6, float(step % 3 == 0), step % 1000 == 999)
        if len(writer.dumps) == shards:
            break
    writer.close(False)
    (top / "made").touch()
    return top


def measure(url: str, procs: int, batch: int) -> list[float]:
    """Seconds to the first batch, to the first shard, to the end, and of that shard alone."""
    import rbdata
    from rbdata.datasets.ingest.request import Listener

    root = WORK / "root"
    shutil.rmtree(root, ignore_errors=True)
    finished: dict[int, float] = {}
    began = time.perf_counter()

    def note(index: int) -> None:
        finished[index] = time.perf_counter() - began

    listener = Listener(on_part_done=note)
    options: dict[str, Any] = {"mirror": url, "procs": procs, "listener": listener}
    buffer = rbdata.load(NAME, root=root, download=options, batch_size=batch, frame_stack=4, seed=1)
    buffer.sample()
    first = time.perf_counter() - began
    dataset: Any = buffer.dataset
    while not dataset.complete:
        buffer.refresh(wait=60)
        buffer.sample()
    total = time.perf_counter() - began
    shutil.rmtree(root)
    began = time.perf_counter()
    rbdata.download(NAME, root=root, mirror=url, procs=procs, shards="0")
    alone = time.perf_counter() - began
    shutil.rmtree(root)
    return [first, finished[0], total, alone]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=50)
    parser.add_argument("--rows", type=int, default=4000, help="of a shard")
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=20e6, help="bytes a second, all connections together")
    args = parser.parse_args()
    top = make(args.shards, args.rows)
    print(machine())
    size = sum(path.stat().st_size for path in top.rglob("*.gz"))
    link = f"{args.latency * 1e3:.0f} ms, {args.rate / 1e6:.0f} MB/s"
    print(f"{args.shards} shards of {args.rows:,} frames, {size / 1e6:.0f} MB in all, {link}, {args.procs} processes")
    with served(top.absolute(), args.rate, args.latency) as url:
        row = measure(url, args.procs, args.batch)
    heads = ["first batch", "first shard", "all", "that shard alone"]
    print(table(heads, [[f"{seconds:.1f} s" for seconds in row]]))


if __name__ == "__main__":
    main()
