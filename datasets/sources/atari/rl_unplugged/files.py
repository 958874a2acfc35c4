"""Which files a run has: found by listing, never assumed.

Below ``gs://rl_unplugged`` lie ``atari_episodes_ordered/<Game>/run_<R>-<XXXXX>-of-<NNNNN>``, R = 1..5; usually 50 files a
run, but 49 for Carnival, Gravitar and StarGunner. The number in the name says nothing of what is inside.

Source: google-deepmind/deepmind-research, rl_unplugged/atari.py, and the TFDS builder ``rlu_atari_checkpoints_ordered``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .....errors import CorruptSourceError, ObjectNotFoundError
from ....fetch import Location, RemoteObject

UPSTREAM = "rl-unplugged"
HOME = "gs://rl_unplugged"
FOLDER = "atari_episodes_ordered"

#: The games of the DQN Replay dataset that RL Unplugged leaves out.
LEFT_OUT = frozenset(
    {
        *("AirRaid", "Asteroids", "Berzerk", "Bowling", "ElevatorAction", "JourneyEscape", "MontezumaRevenge"),
        *("Pitfall", "PrivateEye", "Skiing", "Solaris", "Tennis", "Tutankham", "Venture"),
    }
)

_NAME = re.compile(r"run_(\d+)-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class EpisodeFile:
    """One file of a run: its number and how many the run has, both as its name says."""

    number: int
    total: int
    obj: RemoteObject


def find_files(location: Location, game: str, run: int) -> list[EpisodeFile]:
    """List a run's files, by number. Raises ObjectNotFoundError if it has no file.

    A mirror may have been copied from one level up or down.
    """
    if location.url == HOME and game in LEFT_OUT:
        raise ObjectNotFoundError(f"RL Unplugged does not have {game}")
    folders = (f"{FOLDER}/{game}", f"rl_unplugged/{FOLDER}/{game}", game)
    for folder in folders:
        try:
            found = group(location.list(folder), run, f"{location.url} ({folder})")
        except ObjectNotFoundError:
            continue
        if found:
            return found
    message = f"no episodes of {game}/{run} at {location.url}"
    raise ObjectNotFoundError(message, hint=f"looked for run_{run}-*-of-* in {', '.join(folders)}")


def group(objects: Iterable[RemoteObject], run: int | None, where: str) -> list[EpisodeFile]:
    """The files of one run (the only one there, when ``run`` is None) among others.

    Raises CorruptSourceError when files of differing sets are mixed.
    """
    found: dict[int, list[EpisodeFile]] = {}
    for item in objects:
        match = _NAME.fullmatch(item.name)
        if match and run in (None, int(match[1])):
            found.setdefault(int(match[1]), []).append(EpisodeFile(int(match[2]), int(match[3]), item))
    if len(found) > 1:
        message = f"{where} holds runs {', '.join(map(str, sorted(found)))}"
        raise CorruptSourceError(message, hint="keep the files of one run in a folder of their own")
    files = sorted((file for group in found.values() for file in group), key=lambda file: file.number)
    if len({file.total for file in files}) > 1:
        totals = sorted({file.total for file in files})
        message = f"{where} mixes files of {' and of '.join(map(str, totals))}"
        raise CorruptSourceError(message, hint="two versions of the dataset are mixed; check the mirror")
    return files
