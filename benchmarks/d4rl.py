"""rbdata beside TorchRL on one D4RL file of a million steps, in the same run.

    python benchmarks/d4rl.py                  # a hopper-like file, packed as the published ones are
    python benchmarks/d4rl.py --plain          # the same, not packed

Seconds (imports included), peak memory and bytes on disk of ``rbdata.download`` from a directory mirror, and of
`torchrl.data.datasets.D4RLExperienceReplay` with its download taken out. Each runs in a fresh process, interleaved. The
floor is what h5py takes to read the same arrays and throw them away.

The two do not write the same thing: TorchRL zeroes the successor of every last step, drops the last row, and shifts rewards
and flags by one (see docs/sources/d4rl.md).
"""

from __future__ import annotations

import argparse
import shutil
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Cost, compare, disk_use, interleave, machine, measure, median, size

WORK = Path(".bench") / "d4rl"
NAME, FOLDER, FILE = "hopper-medium-v2", "gym_mujoco_v2", "hopper_medium-v2.hdf5"
_BLOCK = 1 << 16


def write_file(path: Path, rows: int, packed: bool, seed: int = 0) -> None:
    """A file like the published hopper ones: smooth observations, true successors, infos, a policy's weights."""
    import h5py
    import numpy as np

    rng = np.random.default_rng(seed)
    observations = np.cumsum(rng.standard_normal((rows + 1, 11), np.float32), 0, np.float32) / 100
    lengths = rng.integers(200, 1200, rows // 200 + 1)
    ends = np.cumsum(np.minimum(lengths, 1000)) - 1
    ends, by_clock = ends[ends < rows], (lengths >= 1000)[: np.count_nonzero(ends < rows)]
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    terminals[ends[~by_clock]] = True
    timeouts[ends[by_clock]] = True
    after = observations[1:].copy()
    after[ends] += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        arrays = {
            "observations": observations[:-1],
            "next_observations": after,
            "actions": rng.uniform(-1, 1, (rows, 3)).astype("f4"),
            "rewards": rng.uniform(0, 4, rows).astype("f4"),
            "terminals": terminals,
            "timeouts": timeouts,
            "infos/action_log_probs": rng.standard_normal(rows, np.float32),
            "infos/qpos": observations[:-1, :6],
            "infos/qvel": observations[:-1, 5:],
        }
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip" if packed else None)
        file["metadata/policy/fc0/weight"] = rng.standard_normal((256, 11), np.float32)


def convert(mirror: Path, root: Path) -> None:
    """``rbdata.download`` as a user calls it."""
    shutil.rmtree(root, ignore_errors=True)
    import rbdata

    rbdata.download(f"d4rl/{NAME}", root=root, mirror=str(mirror))


def convert_torchrl(file: Path, root: Path) -> None:
    """TorchRL's own loader, given the file instead of its URL."""
    warnings.simplefilter("ignore")
    shutil.rmtree(root, ignore_errors=True)
    from torchrl.data.datasets import d4rl

    d4rl._download_dataset_from_url = lambda url, folder: str(file)
    d4rl.D4RLExperienceReplay(NAME, batch_size=256, root=root, direct_download=True, from_env=True)


def read_only(file: Path) -> int:
    """The floor: read every per-step array in blocks, keep nothing. Returns the bytes read."""
    import h5py

    total = 0
    with h5py.File(file) as source:
        found: list[h5py.Dataset] = []
        source.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
        for array in found:
            for low in range(0, len(array), _BLOCK):
                total += array[low : low + _BLOCK].nbytes
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="a file that is not packed")
    parser.add_argument("--no-torchrl", action="store_true", help="leave TorchRL out")
    args = parser.parse_args()

    mirror = WORK / f"mirror-{args.rows}{'-plain' if args.plain else ''}"
    file = (mirror / FOLDER / FILE).absolute()
    if not file.exists():
        print(f"making a file of {args.rows:,} rows ...", flush=True)
        started = time.perf_counter()
        write_file(file, args.rows, not args.plain)
        print(f"{size(file.stat().st_size)} in {time.perf_counter() - started:.1f} s")
    print(machine(), end="\n\n", flush=True)
    ours, theirs = WORK / "rbdata", (WORK / "torchrl").absolute()
    try:
        rivals: dict[str, Callable[[], Cost]] = {}
        if not args.no_torchrl:
            rivals["TorchRL"] = partial(measure, convert_torchrl, file, theirs)
        rivals["rbdata"] = partial(measure, convert, mirror, ours)
        print(f"convert {size(file.stat().st_size)}, {args.rows:,} rows")
        print(compare(interleave(rivals, args.repeats)))
        floor = median(measure(read_only, file) for _ in range(args.repeats))
        print(f"floor: h5py alone reads {size(floor.result)} in {floor.wall:.2f} s")
        for name, path in {"rbdata": ours, "TorchRL": theirs}.items():
            if path.exists():
                print(f"on disk, {name}: {size(disk_use(path))}")
    finally:
        shutil.rmtree(ours, ignore_errors=True)
        shutil.rmtree(theirs, ignore_errors=True)


if __name__ == "__main__":
    main()
