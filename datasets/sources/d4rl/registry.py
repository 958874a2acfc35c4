"""The datasets of D4RL: a table (`registry.txt`), because nothing about them can be derived.

File names follow no rule (``medium-replay`` is ``_mixed`` in v0, the large AntMaze is ``hardest-maze``), some ids share a
file, and scores and horizons belong to the id. TorchRL lists the ids marked ``+`` as well.
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
class Entry:
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
        """Of the file, where a copy states it."""
        return PINNED.get(self.file.removesuffix(".hdf5"))


@cache
def registry() -> dict[str, Entry]:
    """All datasets by name, in the table's order."""
    entries: dict[str, Entry] = {}
    folder = family = ""
    for line in Path(__file__).with_name("registry.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            folder, family = line[3:].replace(":", "").split()
        if line.startswith("#"):
            continue
        name, file, horizon, low, high, *mark = line.split()
        scores = [None if text == "-" else float(text) for text in (low, high)]
        path = f"{folder}/{file}.hdf5"
        entries[name] = Entry(name, family, path, int(horizon), scores[0], scores[1], listed=not mark)
    return entries


def by_file(file: str) -> list[Entry]:
    """The datasets that a file of this base name holds (more than one where ids share a file)."""
    return [entry for entry in registry().values() if entry.file == file]


#: sha256 of files as the flat copy states them (seen on its pages in 2023 and later). Its copies of
#: halfcheetah_medium, halfcheetah_expert (v0) and of the diverse medium AntMaze v0 are far smaller than the originals
#: and are not among them.
PINNED = {
    "Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse": (
        "527385c14b87892e8c222c43246546d6cd461fa2a5476d0b3b105ae422b7637c"
    ),
    "Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed": (
        "c9fec1c1daad97c71d61bd47f4ccc9f74faa855b8a2d2e8107d5378018827e5b"
    ),
    "Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse": (
        "e37afef5b80b968b30cad2682f9a93ee1b400e3b58c7a7f45e7d425d03a2b03d"
    ),
    "Ant_maze_medium_noisy_multistart_True_multigoal_False_sparse": (
        "af9b68743191ae655b4c62dd6d4d66ed5cd6803b71858cc4076662986daa41c9"
    ),
    "ant_expert-v2": "fa22531ca79ea051006fa48bb652120d2e12c813919c530369a03c2688311b0f",
    "ant_medium-v2": "461c03b9f70f40d66b47608a92965e4ef3642bd9cdb1320d10acc92754167137",
    "door-human-v1": "f9691288c3ddf2b4e7b31bdae0d8444b80ba035515495f8a902d60c43ee09370",
    "halfcheetah_full_replay-v2": "27fdf7ea86e5a2cbd24d611ae9e703c86ec2e8e52823abc69dd9af6afb3a36c0",
    "halfcheetah_random-v2": "25407aef85b5d16c0f36b4149341edb4acc6a9e88c1db529b2de19e7464874ba",
    "hammer-cloned-v1": "e48d75b159bdd72f51d3f01448d3eca4d38275714e11e995c14a36f6cf159db3",
    "hammer-v0_demos_clipped": "96bbad34845982807057d931956b0007b267b75ffef6caacbaa45b1544bf68d5",
    "hopper_expert": "6fea535033d962eff1427d76d7b2e0e4f57af1d4921f7ef6d917779f2968fd84",
    "hopper_expert-v2": "01aa219a5f8eea5e639eccdc636ec2bf40e317159a95cf4bf6e985f16909941b",
    "hopper_medium_expert-v2": "9d51ad87f8c905be3880d84c6140bcdb7fbf39a19e046a237f238ba34fec9e26",
}
