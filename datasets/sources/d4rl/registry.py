"""The datasets of D4RL: a table (`registry.txt`), because nothing about them can be derived.

File names follow no rule (``medium-replay`` is ``_mixed`` in v0, the large AntMaze is ``hardest-maze``), some ids share a
file, and scores and horizons belong to the id. TorchRL lists the ids marked ``+`` as well.

The families state what is particular about each: what ends a trajectory, and what its numbers mean. From D4RL's
generation scripts and from what its users found (issue numbers are those of Farama-Foundation/D4RL).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: Where the files were published; paths of the table are below it.
HOME = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
#: A copy with all files in one folder; it holds MuJoCo v1 (in part) and v2, Adroit, AntMaze.
FLAT_COPY = "https://huggingface.co/datasets/imone/D4RL/resolve/main"


@dataclass(frozen=True)
class RegistryEntry:
    """One dataset.

    ``horizon`` is the environment's time limit in steps. ``low`` and ``high`` are the returns that normalised scores
    call 0 and 100 (a random and an expert policy); None where D4RL states none. ``listed`` is whether D4RL's own list of
    downloads has it.
    """

    name: str
    family: str
    path: str
    horizon: int
    low: float | None
    high: float | None
    listed: bool

    @property
    def file(self) -> str:
        """The file's base name, unique in the whole table."""
        return self.path.rpartition("/")[2]

    @property
    def sha256(self) -> str | None:
        """The sha256 of the file, if a copy states it."""
        return PINNED.get(self.file.removesuffix(".hdf5"))


def _lines(name: str) -> list[str]:
    """The lines of a table beside this module, without comments."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("# ")]


@cache
def registry() -> dict[str, RegistryEntry]:
    """All datasets by name, in the table's order."""
    entries: dict[str, RegistryEntry] = {}
    folder = family = ""
    for line in _lines("registry.txt"):
        if line.startswith("## "):
            folder, family = line[3:].replace(":", "").split()
            continue
        name, file, horizon, low, high, *mark = line.split()
        scores = [None if text == "-" else float(text) for text in (low, high)]
        path = f"{folder}/{file}.hdf5"
        entries[name] = RegistryEntry(name, family, path, int(horizon), scores[0], scores[1], listed=not mark)
    return entries


#: sha256 by file name, as the flat copy states them.
PINNED = dict(line.split() for line in _lines("pinned.txt"))


@dataclass(frozen=True)
class Family:
    """``terminals_end``: whether a row flagged terminal is the last of its trajectory.

    ``notes`` are sentences for the manifest.
    """

    terminals_end: bool = True
    notes: tuple[str, ...] = ()


#: The families that are particular in something.
_FAMILIES = {
    "maze2d": Family(
        terminals_end=False,
        notes=(
            "Maze2D is one continuous walk: a time-out marks a goal reached, not a reset. The row after it repeats the same "
            "observation while the simulation had already moved on (D4RL issue 85), so the flagged row's successor is not "
            "in the data.",
            "Rewards are computed from the observation before the action, not from the one after it (D4RL issue 194).",
        ),
    ),
    "antmaze": Family(
        terminals_end=False,
        notes=(
            "AntMaze terminals come in clusters while the ant is near the goal and do not end its trajectory (D4RL issue 199).",
            "Rewards and terminals were relabelled: 1 where the following observation is within 0.5 of the evaluation goal.",
        ),
    ),
    "kitchen": Family(notes=("A terminal marks the end of a demonstration, whether or not all its tasks were done.",)),
    "flow": Family(notes=("The generator went on stepping after done, without a reset.",)),
    "minigrid": Family(notes=("Everything was stored as float32, actions and pixels included.",)),
}


def family_of(entry: RegistryEntry | None) -> Family:
    """The family of a dataset; for an unknown dataset, a family that trusts the flags."""
    return _FAMILIES.get(entry.family if entry else "", Family())
