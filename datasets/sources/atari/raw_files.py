"""The raw files of a run at either upstream: found by listing, never assumed.

In the DQN Replay bucket, shard N is six objects in ``<Game>/<run>/replay_logs/`` (four of them per-row arrays), each one
``.npy`` in gzip:

    $store$_observation_ckpt.N.gz   uint8   [capacity, 84, 84]
    $store$_action_ckpt.N.gz        int32   [capacity]
    $store$_reward_ckpt.N.gz        float32 [capacity]
    $store$_terminal_ckpt.N.gz      uint8   [capacity]
    add_count_ckpt.N.gz             int64   []
    invalid_range_ckpt.N.gz         int64   [5]      (not used: it follows from the capacity)

Runs usually have N = 0..50, but short runs and gaps are known, so nothing is built from a count.

Below ``gs://rl_unplugged`` lie ``atari_episodes_ordered/<Game>/run_<R>-<XXXXX>-of-<NNNNN>``, R = 1..5; usually 50 files a
run, but 49 for Carnival, Gravitar and StarGunner. The number in the name says nothing about the contents. Source:
google-deepmind/deepmind-research, rl_unplugged/atari.py, and the TFDS builder ``rlu_atari_checkpoints_ordered``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....errors import CorruptSourceError, ObjectNotFoundError
from ...fetch import Location, RemoteObject
from ..source import first_found

DQN_REPLAY = "dqn-replay"
DQN_REPLAY_HOME = "gs://atari-replay-datasets/dqn"
FRAME = (84, 84)
#: The arrays of a shard that are read.
ARRAYS = ("observation", "action", "reward", "terminal", "add_count")

_SHARD_NAME = re.compile(rf"(?:\$store\$_)?({'|'.join(ARRAYS)})_ckpt\.(\d+)\.gz")


@dataclass(frozen=True)
class Shard:
    """One checkpoint of the ring: its number (the suffix) and its existing objects by array name."""

    number: int
    objects: Mapping[str, RemoteObject]

    @property
    def observation(self) -> RemoteObject:
        """The frames: nearly all of the bytes."""
        return self.objects["observation"]

    @property
    def missing(self) -> list[str]:
        """The missing arrays."""
        return sorted(set(ARRAYS) - set(self.objects))


def find_shards(location: Location, game: str, run: int) -> list[Shard]:
    """List a run's shards, in numerical order.

    The run's folder is looked for where the bucket has it below its ``dqn/`` prefix, and a little around: a mirror may
    have been copied from one level up or down. Raises ObjectNotFoundError if there is no shard.
    """
    folders = (f"{game}/{run}/replay_logs", f"dqn/{game}/{run}/replay_logs", f"{game}/{run}", f"dqn/{game}/{run}")
    missing = f"no shards of {game}/{run} at {location.url}"
    hint = "looked for $store$_*_ckpt.N.gz in {paths}; a mirror has the bucket's layout"
    return first_found(folders, lambda folder: group_shards(location.list(folder)), missing, hint)[1]


def group_shards(objects: Iterable[RemoteObject]) -> list[Shard]:
    """Group objects into shards by their suffix, in numerical order; other objects are skipped."""
    shards: dict[int, dict[str, RemoteObject]] = {}
    for item in objects:
        match = _SHARD_NAME.fullmatch(item.name)
        if match:
            shards.setdefault(int(match[2]), {})[match[1]] = item
    return [Shard(number, members) for number, members in sorted(shards.items())]


# -- RL Unplugged ------------------------------------------------------------------------------------------------------

RL_UNPLUGGED = "rl-unplugged"
RL_UNPLUGGED_HOME = "gs://rl_unplugged"
FOLDER = "atari_episodes_ordered"

#: The games of the DQN Replay dataset that RL Unplugged leaves out.
LEFT_OUT = frozenset(
    {
        *("AirRaid", "Asteroids", "Berzerk", "Bowling", "ElevatorAction", "JourneyEscape", "MontezumaRevenge"),
        *("Pitfall", "PrivateEye", "Skiing", "Solaris", "Tennis", "Tutankham", "Venture"),
    }
)

_EPISODE_NAME = re.compile(r"run_(\d+)-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class RunFile:
    """One file of a run: its number and how many the run has, both as its name says."""

    number: int
    total: int
    obj: RemoteObject


def find_episode_files(location: Location, game: str, run: int) -> list[RunFile]:
    """List a run's files, by number. Raises ObjectNotFoundError if it has no file.

    A mirror may have been copied from one level up or down.
    """
    if location.url == RL_UNPLUGGED_HOME and game in LEFT_OUT:
        raise ObjectNotFoundError(f"RL Unplugged does not have {game}")

    def files_in(folder: str) -> list[RunFile]:
        return group_episode_files(location.list(folder), run, f"{location.url} ({folder})")

    folders = (f"{FOLDER}/{game}", f"rl_unplugged/{FOLDER}/{game}", game)
    missing = f"no episodes of {game}/{run} at {location.url}"
    return first_found(folders, files_in, missing, f"looked for run_{run}-*-of-* in {{paths}}")[1]


def group_episode_files(objects: Iterable[RemoteObject], run: int | None, where: str) -> list[RunFile]:
    """The files of one run (the only one there, when ``run`` is None) among others.

    Raises CorruptSourceError when files of differing sets are mixed.
    """
    found: dict[int, list[RunFile]] = {}
    for item in objects:
        match = _EPISODE_NAME.fullmatch(item.name)
        if match and run in (None, int(match[1])):
            found.setdefault(int(match[1]), []).append(RunFile(int(match[2]), int(match[3]), item))
    if len(found) > 1:
        message = f"{where} holds runs {', '.join(map(str, sorted(found)))}"
        raise CorruptSourceError(message, hint="keep the files of one run in their own folder")
    files = sorted((file for files in found.values() for file in files), key=lambda file: file.number)
    if len({file.total for file in files}) > 1:
        totals = sorted({file.total for file in files})
        message = f"{where} mixes files of {' and of '.join(map(str, totals))}"
        raise CorruptSourceError(message, hint="two versions of the dataset are mixed; check the mirror")
    return files
