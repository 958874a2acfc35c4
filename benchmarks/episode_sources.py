"""Sources whose raw files hold whole episodes: rates beside a plain reader, several processes, memory at ten times the data.

    python benchmarks/episode_sources.py                       # 10,000 frames (100,000 states) a source, and a tenth of them
    python benchmarks/episode_sources.py --only vd4rl-64 exorl --frames 50000 --procs 1 2 4

For each source: seconds of `rbdata convert` with each number of processes (whole commands, imports included), those of the
plain reader (every array read with NumPy, h5py or PyAV and thrown away, as the providers' own loaders do before they copy),
and the peak of anonymous memory for a tenth of the data and for all of them. Frames are those of
a camera that moves over a texture: random pixels would measure the compressor only.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Cost, interleave, machine, measure, measure_command, median, size

WORK = Path(".bench") / "episode_sources"
LENGTH = 500


def frames_of(rng: np.random.Generator, rows: int, side: int) -> np.ndarray:
    """``[rows, side, side, 3]`` uint8: a camera that follows a square over a textured ground, with noise of two bits."""
    ground = rng.integers(0, 60, (side, side, 3), np.uint8) + rng.integers(0, 120, 3, np.uint8)
    steps = rng.integers(-1, 2, (rows, 2)).cumsum(0)
    frames = np.stack([np.roll(ground, tuple(step), (0, 1)) for step in steps])
    frames += rng.integers(0, 4, frames.shape, np.uint8)
    frames[:, side // 2 - 6 : side // 2 + 6, side // 2 - 6 : side // 2 + 6] = (250, 200, 30)
    return frames


def control(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    """What a row has beside its frame, in dm_env order."""
    action = rng.uniform(-1, 1, (rows, 6)).astype(np.float32)
    return {
        "action": action,
        "reward": rng.uniform(0, 1, rows).astype(np.float32),
        "discount": np.ones(rows, np.float32),
    }


def episodes(frames: int) -> Iterator[np.random.Generator]:
    for number in range(max(1, frames // LENGTH)):
        yield np.random.default_rng(number)


def write_vd4rl_64(folder: Path, frames: int) -> Path:
    for number, rng in enumerate(episodes(frames)):
        name = f"20220109T013700-{number:032x}-{LENGTH}.npz"
        np.savez_compressed(folder / name, image=frames_of(rng, LENGTH + 1, 64), **control(rng, LENGTH + 1))
    return folder


def write_vd4rl_84(folder: Path, frames: int) -> Path:
    import h5py

    for shard in range(min(4, frames // LENGTH)):
        rows = [control(rng, LENGTH + 1) | {"rng": rng} for rng in list(episodes(frames))[shard::4]]
        count = len(rows) * (LENGTH + 1)
        with h5py.File(folder / f"{shard}.hdf5", "w") as file:
            shape, chunk = (count, 3, 84, 84), (50, 3, 84, 84)
            pictures = file.create_dataset("observation", shape, "u1", chunks=chunk, compression="gzip")
            kinds = np.ones((len(rows), LENGTH + 1), np.int64)
            kinds[:, 0], kinds[:, -1] = 0, 2
            for number, row in enumerate(rows):
                frames_here = frames_of(row.pop("rng"), LENGTH + 1, 84).transpose(0, 3, 1, 2)
                pictures[number * (LENGTH + 1) : (number + 1) * (LENGTH + 1)] = frames_here
            for key in ("action", "reward", "discount"):
                file[key] = np.concatenate([row[key] for row in rows])
            file["step_type"] = kinds.reshape(-1)
    return folder


def write_exorl(folder: Path, frames: int) -> Path:
    path = folder / "rnd.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number, rng in enumerate(episodes(10 * frames)):  # ten states cost less than a frame
            rows = LENGTH + 1
            row = control(rng, rows)
            row["reward"], row["discount"] = row["reward"][:, None], row["discount"][:, None]
            states = {"observation": (24, np.float32), "physics": (18, np.float64)}
            row |= {key: rng.normal(size=(rows, width)).astype(dtype) for key, (width, dtype) in states.items()}
            file = io.BytesIO()
            np.savez_compressed(file, **row)
            archive.writestr(f"buffer/episode_{number:06d}_{LENGTH}.npz", file.getvalue())
    return path


def write_ogbench(folder: Path, frames: int) -> Path:
    for shard in range(min(4, frames // LENGTH)):
        there = list(episodes(frames))[shard::4]
        rows = [
            (frames_of(rng, LENGTH + 1, 64), rng.uniform(-1, 1, (LENGTH + 1, 8)).astype(np.float32)) for rng in there
        ]
        ends = np.zeros((len(there), LENGTH + 1), np.float32)
        ends[:, -1] = 1
        observations, actions = (np.concatenate(columns) for columns in zip(*rows))
        arrays: dict[str, Any] = {"observations": observations, "actions": actions, "terminals": ends.reshape(-1)}
        np.savez_compressed(folder / f"puzzle-4x4-play-v0-{shard:03d}.npz", **arrays)
    return folder


def write_lerobot(folder: Path, frames: int) -> Path:
    import rbdata

    def made() -> Iterator[dict[str, object]]:
        for rng in episodes(frames):
            row = control(rng, LENGTH)
            state = rng.normal(size=(LENGTH + 1, 8)).astype(np.float32)
            observation = {"image": frames_of(rng, LENGTH + 1, 96), "state": state}
            ends = {"terminated": False, "truncated": True}
            yield {"observation": observation, "action": row["action"], "reward": row["reward"], **ends}

    root = folder.with_name(f"{folder.name}-root")
    rbdata.from_episodes(made(), "my/frames", root=root, force=True, progress=False)
    rbdata.export("my/frames", folder, to="lerobot", frames="video", fps=10, root=root, force=True)
    shutil.rmtree(root)
    return folder


# -- plain readers -------------------------------------------------------------------------------------------------------


def read_npz(path: Path) -> None:
    for file in sorted(path.glob("*.npz")):
        with np.load(file) as arrays:
            for key in arrays:
                arrays[key]


def read_hdf5(path: Path) -> None:
    import h5py

    for one in sorted(path.glob("*.hdf5")):
        with h5py.File(one, "r") as file:
            for key in file:
                file[key][:]


def read_zip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with np.load(io.BytesIO(archive.read(name))) as arrays:
                for key in arrays:
                    arrays[key]


def read_videos(path: Path) -> None:
    import av
    from pyarrow import parquet

    for table in sorted(path.rglob("data/**/*.parquet")):
        parquet.read_table(table)
    for video in sorted(path.rglob("*.mp4")):
        with av.open(str(video)) as container:
            for frame in container.decode(video=0):
                frame.to_ndarray(format="rgb24")


@dataclass(frozen=True)
class Source:
    name: str
    write: Callable[[Path, int], Path]
    read: Callable[[Path], None]


SOURCES = {
    "vd4rl-64": Source("vd4rl", write_vd4rl_64, read_npz),
    "vd4rl-84": Source("vd4rl", write_vd4rl_84, read_hdf5),
    "exorl": Source("exorl", write_exorl, read_zip),
    "ogbench": Source("ogbench", write_ogbench, read_npz),
    "lerobot": Source("lerobot", write_lerobot, read_videos),
}


def convert(path: Path, source: str, procs: int) -> Cost:
    root = WORK / "root"
    shutil.rmtree(root, ignore_errors=True)
    command = [
        str(Path(sys.executable).with_name("rbdata")),
        "convert",
        str(path),
        "--source",
        source,
        "--name",
        "my/x",
    ]
    return measure_command([*command, "--root", str(root), "--procs", str(procs), "--quiet"])


def data_of(name: str, frames: int) -> Path:
    folder = WORK / f"{name}-{frames}"
    done = folder.with_suffix(".done")
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        done.write_text(str(SOURCES[name].write(folder, frames)), encoding="utf-8")
    return Path(done.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--procs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    options = parser.parse_args()
    print(machine())
    for name in options.only:
        source = SOURCES[name]
        small, large = data_of(name, options.frames // 10), data_of(name, options.frames)
        rivals = {"plain": partial(measure, source.read, large)}
        rivals |= {str(procs): partial(convert, large, source.name, procs) for procs in options.procs}
        found = {way: median(costs) for way, costs in interleave(rivals, options.repeats).items()}
        tenth = convert(small, source.name, options.procs[0])
        plain, first = found.pop("plain"), found[str(options.procs[0])]
        print(f"{name}: plain reader {plain.wall:.1f} s; anonymous memory for a tenth {size(tenth.anonymous)}")
        for procs, cost in found.items():
            print(
                f"    {procs} processes: {cost.wall:.1f} s ({first.wall / cost.wall:.2f}x, {plain.wall / cost.wall:.2f} of the "
                f"plain reader's rate, {cost.cpu / cost.wall:.2f} cores), anonymous memory {size(cost.anonymous)}"
            )


if __name__ == "__main__":
    main()
