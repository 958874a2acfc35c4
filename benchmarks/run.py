"""rbdata beside TorchRL and beside the floor, on the same shards in the same run.

    python benchmarks/run.py                           # 100k-row shard: about 3 minutes
    python benchmarks/run.py --rows 1000000            # the public data's size: TorchRL takes up to 20 GB of memory

Conversion: seconds, peak memory and bytes on disk of `AtariDQNExperienceReplay._preproc_run` and of ``rbdata.download``
from a directory mirror (one process), each in a fresh process, imports included, interleaved. Sampling: transitions a
second of random batches of 256, page cache warm, beside one bare `index_select` of the same windows, all in turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torchrl_atari
from atari_shards import Base, write_shards
from harness import Cost, compare, disk_use, gunzip_floor, interleave, machine, measure, median, size, table

WORK = Path(".bench")
BATCH = 256
#: Ways of sampling: name, rows of the window whose bare gather is the floor (0: no floor), options of ``load``.
WAYS: list[tuple[str, int, dict[str, Any]]] = [
    ("frame + next", 2, {}),
    ("4-stack + next", 5, {"frame_stack": 4}),
    ("slices of 32", 0, {"slice_len": 32}),
]


def convert(mirror: Path, game: str, root: Path, codec: Any) -> None:
    """``rbdata.download`` as a user calls it, one process."""
    shutil.rmtree(root, ignore_errors=True)
    import rbdata

    rbdata.download(f"{game}/1", root=root, mirror=str(mirror), procs=1, codec=codec)


def convert_torchrl(shard: Path, dataset: Path) -> None:
    shutil.rmtree(dataset, ignore_errors=True)
    torchrl_atari.convert(shard, dataset, 0)


def sample_in_turn(root: Path, theirs: Path | None, game: str, threads: int, seconds: float) -> dict[str, float]:
    """Median seconds of a batch of every rival, all in one process and in turn: one batch each, round after round.

    A shared machine slows down and speeds up from one second to the next; in turn, it does so for all of them alike. The
    raw and the compressed dataset are measured apart: after a parallel gather torch's threads spin for a while, and that
    would be charged to the decoder's.
    """
    import warnings

    import rbdata
    import torch

    torch.set_num_threads(threads)
    steps: dict[str, Callable[[], Any]] = {}
    dataset = rbdata.open_dataset(root / "atari" / game / "1")
    codec = dataset.schema["observation"].codec
    _warm(dataset)
    for what, window, options in WAYS:
        if window and codec == "raw":
            steps[f"floor, {what}"] = _floor(dataset, window)
        steps[f"rbdata {codec}, {what}"] = rbdata.load(dataset, batch_size=BATCH, seed=0, **options).sample
    if theirs is not None and theirs.exists():
        warnings.simplefilter("ignore")
        from torchrl.data.datasets.atari_dqn import _AtariStorage

        storage = _AtariStorage(theirs.absolute())
        for split in storage._split_tds:
            split.get(("data", "observation")).flatten()[::4096].sum()
        steps["TorchRL, frame + next"] = lambda: storage.get(torch.randint(len(storage), (BATCH,)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds * len(steps)
    while time.perf_counter() < end:
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values[len(values) // 10 :]) for name, values in times.items()}


def _floor(dataset: Any, window: int) -> Callable[[], Any]:
    """Nothing but one `index_select` of windows of the dataset's own raw frames, on 8-byte words."""
    import torch

    frames = dataset.rows["observation"].block(0, dataset.manifest.states).view(dataset.manifest.states, -1)
    words = frames.view(torch.int64)
    width = words.shape[1]
    windows = words.as_strided((len(words) - window + 1, window * width), (width, 1))
    return lambda: windows.index_select(0, torch.randint(len(windows), (BATCH,)))


def _warm(dataset: Any) -> None:
    """Touch every page through the mapping itself, so that no figure pays for first faults and another does not."""
    for rows in dataset.rows.values():
        if hasattr(rows, "tensor"):
            rows.tensor.flatten()[::512].sum()
        elif hasattr(rows, "_blob"):
            rows._blob[::4096].sum()
            rows._offsets[::512].sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="SpaceInvaders", help="its frames decide how well things compress")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the shard; 1000000 in the public data")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of sampling, for each figure")
    parser.add_argument("--no-torchrl", action="store_true", help="leave TorchRL out")
    args = parser.parse_args()

    mirror = WORK / f"mirror-{args.rows}"
    shard = mirror / "dqn" / args.game / "1" / "replay_logs"
    if not list(shard.glob("*observation_ckpt.0.gz")):
        print(f"making a shard of {args.rows} rows of {args.game} ...", flush=True)
        write_shards(Base(args.game, 60_000), shard, args.rows, 1, scratch=WORK / "scratch")
    print(machine(), end="\n\n", flush=True)
    roots = {codec: WORK / "rbdata" / codec for codec in ("zstd", "raw")}
    theirs = WORK / "torchrl" / args.game / "1"
    try:
        _conversion(args, mirror, shard, roots, theirs)
        _sampling(args, roots, theirs)
    finally:
        shutil.rmtree(WORK / "rbdata", ignore_errors=True)
        shutil.rmtree(WORK / "torchrl", ignore_errors=True)


def _conversion(args: argparse.Namespace, mirror: Path, shard: Path, roots: dict[str, Path], theirs: Path) -> None:
    rivals: dict[str, Callable[[], Cost]] = {}
    if not args.no_torchrl:
        rivals["TorchRL"] = partial(measure, convert_torchrl, shard, theirs)
    for codec, root in roots.items():
        rivals[f"rbdata {codec}"] = partial(measure, convert, mirror, args.game, root, codec)
    costs = interleave(rivals, args.repeats)
    print(f"convert one shard of {args.rows} rows of {args.game}")
    print(compare(costs))
    file = next(shard.glob("*observation_ckpt.0.gz"))
    floor = median(measure(gunzip_floor, file) for _ in range(args.repeats))
    print(f"floor: gunzip alone {floor.wall:.2f} s for {size(floor.result)} from {size(file.stat().st_size)}")
    for name, path in {**{f"rbdata {codec}": root for codec, root in roots.items()}, "TorchRL": theirs}.items():
        if path.exists():
            print(f"on disk, {name}: {size(disk_use(path))}")
    print(flush=True)


def _sampling(args: argparse.Namespace, roots: dict[str, Path], theirs: Path) -> None:
    rows = []
    for threads in sorted({1, min(2, os.cpu_count() or 1)}):
        runs = [
            {
                **measure(sample_in_turn, roots["raw"], theirs, args.game, threads, args.seconds).result,
                **measure(sample_in_turn, roots["zstd"], None, args.game, threads, args.seconds).result,
            }
            for _ in range(args.repeats)
        ]
        medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for name, value in medians.items():
            base = medians.get(f"floor, {name.partition(', ')[2]}")
            share = f"{base / value:.0%}" if base and not name.startswith("floor") else ""
            rows.append([name, threads, f"{value * 1e6:,.0f} us", f"{BATCH / value:,.0f}", share])
    print(table(["sample 256", "threads", "a batch", "transitions/s", "of the floor"], rows))


if __name__ == "__main__":
    main()
