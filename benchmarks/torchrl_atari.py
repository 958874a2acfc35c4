"""What TorchRL's own Atari DQN loader costs on the same shards: the number to beat.

    python benchmarks/torchrl_atari.py .bench/mirror-100k/dqn/Pong/1/replay_logs

Runs the two halves of `torchrl.data.datasets.AtariDQNExperienceReplay` that are left when the download is taken away
(it shells out to gsutil for a bucket that no longer answers): `_preproc_run` on one checkpoint, and sampling batches of
random indices from `_AtariStorage`, each in its own process. A 1,000,000-row shard takes about 20 GB of memory and
leaves 7 GB on disk.
"""

from __future__ import annotations

import argparse
import shutil
import warnings
from pathlib import Path

from harness import disk_use, machine, measure, rate, size, table


def convert(shard_folder: Path, dataset: Path, suffix: int) -> None:
    """Convert checkpoint `suffix` into ``<dataset>/<suffix>``, as TorchRL's download does."""
    warnings.simplefilter("ignore")
    from torchrl.data.datasets.atari_dqn import AtariDQNExperienceReplay

    checkpoints = AtariDQNExperienceReplay._list_runs(shard_folder)
    AtariDQNExperienceReplay._preproc_run(dataset / str(suffix), checkpoints, suffix)


def import_only() -> None:
    """What importing TorchRL costs, which `convert` and `sample` both pay."""
    warnings.simplefilter("ignore")
    import torchrl.data.datasets.atari_dqn  # noqa: F401


def sample(dataset: Path, batch: int = 256, threads: int = 1, seconds: float = 5.0) -> float:
    """Transitions per second from TorchRL's storage at random indices, page cache warm."""
    warnings.simplefilter("ignore")
    import torch
    from torchrl.data.datasets.atari_dqn import _AtariStorage

    torch.set_num_threads(threads)
    storage = _AtariStorage(dataset)
    for split in storage._split_tds:
        for frames in split.get(("data", "observation")).split(4096):
            frames.sum(dtype=torch.int64)
    return rate(lambda: storage.get(torch.randint(len(storage), (batch,))), batch, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shard", type=Path, help="a replay_logs folder")
    parser.add_argument("--suffix", type=int, default=0, help="which checkpoint of it")
    parser.add_argument("--work", type=Path, default=Path(".bench/torchrl"), help="where the converted data goes")
    parser.add_argument("--keep", action="store_true", help="leave the converted data there")
    args = parser.parse_args()

    # <Game>/<run>: TorchRL names the dataset after the folders it writes to.
    dataset = args.work / Path(*args.shard.resolve().parts[-3:-1])
    shutil.rmtree(dataset, ignore_errors=True)
    print(machine(), end="\n\n")
    try:
        imported = measure(import_only)
        converted = measure(convert, args.shard, dataset, args.suffix)
        rows = [
            ["import torchrl", f"{imported.wall:.1f} s", f"{imported.cpu:.1f} s", size(imported.peak), "", ""],
            [
                "convert, import included",
                f"{converted.wall:.1f} s",
                f"{converted.cpu:.1f} s",
                size(converted.peak),
                size(disk_use(dataset)),
                "",
            ],
        ]
        for threads in (1, 2):
            sampled = measure(sample, dataset, threads=threads)
            rows.append(
                [f"sample 256, torch threads: {threads}", "", "", size(sampled.peak), "", f"{sampled.result:,.0f}"]
            )
        print(table(["TorchRL", "wall", "cpu", "peak", "disk", "transitions/s"], rows))
    finally:
        if not args.keep:
            shutil.rmtree(dataset, ignore_errors=True)


if __name__ == "__main__":
    main()
