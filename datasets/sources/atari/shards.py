"""Which shards a run has: found by listing, never assumed.

A shard N is six objects in ``<Game>/<run>/replay_logs/`` (four of them per-row arrays), each one ``.npy`` in gzip:

    $store$_observation_ckpt.N.gz   uint8   [capacity, 84, 84]
    $store$_action_ckpt.N.gz        int32   [capacity]
    $store$_reward_ckpt.N.gz        float32 [capacity]
    $store$_terminal_ckpt.N.gz      uint8   [capacity]
    add_count_ckpt.N.gz             int64   []
    invalid_range_ckpt.N.gz         int64   [5]      (not used: it follows from the capacity)

Runs usually have N = 0..50, but short runs and gaps are known, so nothing is built from a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....errors import ObjectNotFoundError
from ...fetch import Location, RemoteObject

UPSTREAM = "dqn-replay"
FRAME = (84, 84)
#: The arrays of a shard that are read.
ARRAYS = ("observation", "action", "reward", "terminal", "add_count")

_NAME = re.compile(rf"(?:\$store\$_)?({'|'.join(ARRAYS)})_ckpt\.(\d+)\.gz")


@dataclass(frozen=True)
class Shard:
    """One checkpoint of the ring: its number (the suffix) and its objects by array name, as many as there are."""

    number: int
    objects: Mapping[str, RemoteObject]

    @property
    def observation(self) -> RemoteObject:
        """The frames: nearly all of the bytes."""
        return self.objects["observation"]

    @property
    def missing(self) -> list[str]:
        """The arrays that are not there."""
        return sorted(set(ARRAYS) - set(self.objects))


def find_shards(location: Location, game: str, run: int) -> list[Shard]:
    """List a run's shards, in numerical order.

    The run's folder is looked for where the bucket has it below its ``dqn/`` prefix, and a little around: a mirror may
    have been copied from one level up or down. Raises ObjectNotFoundError if there is no shard.
    """
    tried = []
    for folder in (f"{game}/{run}/replay_logs", f"dqn/{game}/{run}/replay_logs", f"{game}/{run}", f"dqn/{game}/{run}"):
        try:
            found = group(location.list(folder))
        except ObjectNotFoundError:
            found = []
        tried.append(folder)
        if found:
            return found
    message = f"no shards of {game}/{run} at {location.url}"
    hint = f"looked for $store$_*_ckpt.N.gz in {', '.join(tried)}; a mirror has the bucket's layout"
    raise ObjectNotFoundError(message, hint=hint)


def group(objects: Iterable[RemoteObject]) -> list[Shard]:
    """Group objects into shards by their suffix, in numerical order; other objects are passed over."""
    shards: dict[int, dict[str, RemoteObject]] = {}
    for item in objects:
        match = _NAME.fullmatch(item.name)
        if match:
            shards.setdefault(int(match[2]), {})[match[1]] = item
    return [Shard(number, members) for number, members in sorted(shards.items())]
