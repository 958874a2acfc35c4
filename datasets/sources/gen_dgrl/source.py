"""Gen-DGRL: the 16 games of Procgen on 1, 40 and 200 levels, expert and suboptimal.

Mediratta, You, Jiang, Raileanu, "The Generalization Gap in Offline Reinforcement Learning", ICLR 2024
(https://arxiv.org/abs/2312.05742). The project's downloader (facebookresearch/gen_dgrl, procgen/download.py) and TorchRL's
class name the same sets and two layouts, both below https://dl.fbaipublicfiles.com/DGRL:

    chaser-1M_E       1M/expert/chaser.tar.xz             Procgen/Datasets/Compressed/1M/level_200/expert/chaser.tar.xz
    chaser-level_1_E  100k_procgen_dataset_1.tar (all games)   Procgen/Datasets/Compressed/100k/level_1/expert/chaser.tar.xz
"""

from __future__ import annotations

from pathlib import Path

from ....errors import UsageError
from ...fetch import Location, RemoteObject
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..options import declared
from ..source import Source, files_below, first_found, only_file, only_object

HOME = "https://dl.fbaipublicfiles.com/DGRL"
GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot"),
    *("heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
#: Steps after which Procgen ends an episode (openai/procgen, src/games: ``timeout``; 1000 where a game sets none).
LIMITS = dict.fromkeys(GAMES, 1000) | {"bigfish": 6000, "bossfight": 4000, "plunder": 4000, "leaper": 500, "maze": 500}
#: Set -> the path of its archive in the project's layout, and in TorchRL's.
SETS = {
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


class GenDgrlSource(Source):
    """Names are ``<game>-<set>``, as TorchRL has them."""

    name = "gen_dgrl"
    home = HOME
    options = declared("gen_dgrl")

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Finds the archive, in the layout of the project or of TorchRL. Raises FetchErrors."""
        missing = f"no archive of {name} at {location.url}"
        path, item = first_found(archives(name), location.stat, missing, "looked for {paths}")
        return _archive(name, name.partition("-")[0], location, path, item, options)

    def recognises(self, path: Path) -> bool:
        from .reader import is_episode

        file = only_file(path, ".xz", ".tar")
        if file is None and path.is_dir():
            return any(is_episode(one.name) for pattern in ("*.np[yz]", "*/*.np[yz]") for one in path.glob(pattern))
        return file is not None and file.name.partition(".")[0] in GAMES

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """An archive, a folder with one, or the folder of a game, unpacked: then episodes are in the order in which they were
        played, since their names begin with the time."""
        from ...ingest.episode_files import group_files
        from .reader import GenDgrlEpisode, GenDgrlReader, game_of, is_episode

        wanted = (self.asked_dataset(options) or "").partition("-")[0]
        files = [(path, item) for path, item in files_below(location, "", ".npy", ".npz") if is_episode(path)]
        if not files:
            item = only_object(location, "tar", ".tar.xz", ".tar")
            game = wanted or item.name.partition(".")[0]
            return _archive(None, game if game in GAMES else None, location, item.name, item, options)
        of = [game_of(f"{location.url}/{path}", GAMES) or wanted for path, _ in files]
        game = wanted or of[0]
        files = [one for one, its in zip(files, of) if its == game]
        if not files or not game or (not wanted and len(files) < len(of)):
            what = (
                f"holds files of {', '.join(sorted(set(of)))}, not of one game"
                if any(of)
                else "is not named after a game"
            )
            message = f"{location.url} {what}"
            raise UsageError(message, hint="give the folder of one game, or name the dataset: --dataset chaser-1M_E")
        reader = GenDgrlEpisode(LIMITS, game, options.unknown_next == "zero")
        groups = group_files(location, sorted(files, key=lambda one: _when(one[0])))
        return GenDgrlReader(None, location, groups, reader, options)


def _when(path: str) -> tuple[str, int]:
    """When the episode of a file was written: the time in its name, and its number."""
    time, number, *_ = path.rpartition("/")[2].split("_")
    return time, int(number)


def archives(name: str) -> list[str]:
    """The paths of the archives that may hold a dataset, in the order in which to try them: the archive of one game before the
    archive of all games, which is read to its end for a sixteenth of it."""
    game, one = name.split("-")
    paths = [path.format(game=game) for path in SETS[one]]
    in_torchrl = f"{_TORCHRL}/{paths[1]}"
    return [paths[0], in_torchrl, paths[1]] if paths[0].endswith(".xz") else [in_torchrl, paths[1], paths[0]]


def _archive(
    name: str | None, game: str | None, location: Location, path: str, item: RemoteObject, options: ConvertOptions
) -> Reader:
    """``game``: see `GenDgrlEpisodes`."""
    from ...ingest.episode_files import file_groups
    from .reader import GenDgrlEpisodes, GenDgrlReader

    reader = GenDgrlEpisodes(LIMITS, game, options.unknown_next == "zero")
    return GenDgrlReader(name, location, file_groups(location, [(path, item)]), reader, options)
