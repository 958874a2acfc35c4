"""All values of Minari datasets read twice: by Minari's own storages, and by rbdata (h5py, pyarrow).

    python benchmarks/minari_package.py                # two minutes

Figures are in docs/performance.md: they are why rbdata has spaces from the package, and values from the libraries
below it.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from harness import compare, interleave, measure

#: Format, shape of observations, share of the steps, and steps of an episode.
SETS = {
    "HDF5, vectors, long episodes": ("hdf5", (17,), 1.0, 1000),
    "HDF5, vectors, short episodes": ("hdf5", (17,), 1.0, 100),
    "HDF5, frames (JPEG), one episode": ("hdf5", (84, 84, 3), 0.05, 10_000),
    "Arrow, vectors, long episodes": ("arrow", (17,), 1.0, 1000),
}


def write(folder: Path, data_format: str, shape: tuple[int, ...], steps: int, length: int) -> Path:
    """A dataset as Minari writes it, with two infos."""
    from gymnasium.spaces import Box
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    frames = len(shape) == 3
    observed = Box(0, 255, shape, np.uint8) if frames else Box(-np.inf, np.inf, shape, np.float64)
    storage = MinariStorage.new(folder, observed, Box(-1, 1, (6,), np.float32), data_format=data_format)
    rng = np.random.default_rng(0)
    for number in range(max(1, steps // length)):
        smooth = np.add.accumulate(rng.integers(0, 3, (length + 1, *shape)), 1) if frames else None
        storage.update_episodes(
            [
                EpisodeBuffer(
                    id=number,
                    observations=rng.normal(size=(length + 1, *shape)) if smooth is None else smooth.astype(np.uint8),
                    actions=rng.uniform(-1, 1, (length, 6)).astype(np.float32),
                    rewards=rng.normal(size=length).tolist(),
                    terminations=[False] * length,
                    truncations=[False] * (length - 1) + [True],
                    infos={name: rng.normal(size=(length + 1, 9)) for name in ("qpos", "qvel")},
                )
            ]
        )
    return folder


def by_minari(folder: Path) -> int:
    """Bytes of all values, read by Minari."""
    from minari.dataset.minari_storage import MinariStorage

    def size(value: object) -> int:
        values = value.values() if isinstance(value, dict) else ()
        return value.nbytes if isinstance(value, np.ndarray) else sum(map(size, values))

    storage = MinariStorage.read(folder)
    return sum(size(episode) for episode in storage.get_episodes(range(storage.total_episodes)))


def by_rbdata(folder: Path) -> int:
    """Bytes of all values, read as a conversion does: a survey, then blocks of rows of each column."""
    from rbdata.datasets.sources.minari.files import DataFiles
    from rbdata.datasets.sources.minari.metadata import parse_metadata
    from rbdata.datasets.sources.minari.survey import survey

    metadata = parse_metadata((folder / "metadata.json").read_bytes(), "metadata")
    data = DataFiles(metadata.format, "x", {str(path.relative_to(folder)): path for path in folder.rglob("*.*")})
    total = 0
    with data.open() as files:
        found = survey(files, metadata, "x", "bytes")
        for index, episode in enumerate(found.episodes):
            steps = int(found.steps[index])
            for source in found.sources:
                rows, size = steps + (source.column.per == "state"), max(1, (8 << 20) // source.column.row_bytes)
                for low in range(0, rows, size):
                    total += source.read(files, found, index, low, min(rows, low + size), "x").nbytes
            for name in ("rewards", "terminations", "truncations"):
                total += files.read(episode, name, 0, steps).nbytes
    return total


READERS = {"minari": by_minari, "rbdata": by_rbdata}


def main() -> None:
    """Print a table for each dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000, help="steps of the large datasets")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rbdata-minari-") as scratch:
        for number, (name, (data_format, shape, share, length)) in enumerate(SETS.items()):
            folder = write(Path(scratch) / str(number), data_format, shape, int(given.steps * share), length)
            rivals = {reader: partial(measure, read, folder) for reader, read in READERS.items()}
            print(f"{name}\n{compare(interleave(rivals, given.repeats))}\n")


if __name__ == "__main__":
    main()
