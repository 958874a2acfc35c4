"""Names of Gen-DGRL's datasets, ``<game>-<set>``, and where their archives are.

The project's downloader (facebookresearch/gen_dgrl, procgen/download.py) and TorchRL's class name the same sets and two
layouts, both below https://dl.fbaipublicfiles.com/DGRL:

    chaser-1M_E       1M/expert/chaser.tar.xz             Procgen/Datasets/Compressed/1M/level_200/expert/chaser.tar.xz
    chaser-level_1_E  100k_procgen_dataset_1.tar (all games)   Procgen/Datasets/Compressed/100k/level_1/expert/chaser.tar.xz

Time limits of games are Procgen's (openai/procgen, src/games: ``timeout``; 1000 where a game sets none).
"""

from __future__ import annotations

GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot"),
    *("heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
#: Set -> the path of its archive in the project's layout, and in TorchRL's.
_SETS = {
    "1M_E": ("1M/expert/{game}.tar.xz", "1M/level_200/expert/{game}.tar.xz"),
    "1M_S": ("1M/suboptimal/{game}.tar.xz", "1M/level_200/suboptimal/{game}.tar.xz"),
    "10M": ("10M/{game}.tar.xz", "10M/level_200/expert/{game}.tar.xz"),
    "25M": ("25M/{game}.tar.xz", "25M/level_200/expert/{game}.tar.xz"),
    "level_1_E": ("100k_procgen_dataset_1.tar", "100k/level_1/expert/{game}.tar.xz"),
    "level_1_S": ("100k_procgen_dataset_1_suboptimal.tar", "100k/level_1/suboptimal/{game}.tar.xz"),
    "level_40_E": ("100k_procgen_dataset_40.tar", "100k/level_40/expert/{game}.tar.xz"),
    "level_40_S": ("100k_procgen_dataset_40_suboptimal.tar", "100k/level_40/suboptimal/{game}.tar.xz"),
}
_TORCHRL = "Procgen/Datasets/Compressed"
_LIMITS = {"bigfish": 6000, "bossfight": 4000, "plunder": 4000, "leaper": 500, "maze": 500}


def names() -> list[str]:
    """All names, in TorchRL's order."""
    return [f"{game}-{one}" for one in _SETS for game in GAMES]


def split(name: str) -> tuple[str, str] | None:
    """Game and set of a name; None for a name of none."""
    game, _, one = name.partition("-")
    return (game, one) if game in GAMES and one in _SETS else None


def archives(name: str) -> list[str]:
    """The paths of the archives that may hold a dataset, in the order in which to try them: that of one game before that of
    all, which is read to its end for a sixteenth."""
    game, one = name.split("-")
    paths = [path.format(game=game) for path in _SETS[one]]
    in_torchrl = f"{_TORCHRL}/{paths[1]}"
    return [paths[0], in_torchrl, paths[1]] if paths[0].endswith(".xz") else [in_torchrl, paths[1], paths[0]]


def time_limit(game: str) -> int:
    """Steps after which Procgen ends an episode of a game."""
    return _LIMITS.get(game, 1000)
