"""How a storage is told where its episodes end.

In the order of TorchRL: a trajectory id if the data have one (what collectors write), else the done flag; where end flags
are asked for and missing, a trajectory id. A dataset folder has an episode table, and nothing needs to be looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ....errors import UnknownKeyError, UsageError
from .draw import Key
from .timeline import Timeline, from_ends, from_ids, from_pieces

TRAJECTORY_KEYS: tuple[Key, ...] = (("collector", "traj_ids"), ("episode",))
DONE: Key = ("next", "done")

#: Gives the column of a key as ``[rows, ...]`` tensor, None where the data have no such key.
ColumnOf = Callable[[Key], torch.Tensor | None]


def as_key(key: str | Sequence[str]) -> Key:
    """A key as a tuple; ``"next/done"`` stays one name, as tensordict has it."""
    return (key,) if isinstance(key, str) else tuple(key)


@dataclass(frozen=True, eq=False)
class Edges:
    """Where to look for episode edges: keys in the data, or tensors given once and for all.

    ``traj_key`` or ``end_keys`` (OR-ed) when given; without either, the usual keys in turn. ``step_key`` goes with
    ``traj_key`` where the pieces of trajectories are interleaved. ``ends`` (bool) or ``trajectories`` (ids), one for each
    row, stand for what the storage holds now.
    """

    traj_key: Key | None = None
    end_keys: tuple[Key, ...] = ()
    step_key: Key | None = None
    ends: torch.Tensor | None = None
    trajectories: torch.Tensor | None = None

    @property
    def usual(self) -> bool:
        """Whether nothing but the usual keys was asked for: a dataset's own episode table serves as well."""
        if self.ends is not None or self.trajectories is not None or self.step_key is not None:
            return False
        return self.traj_key in (None, *TRAJECTORY_KEYS) and self.end_keys in ((), (DONE,))

    def timeline(self, column: ColumnOf, length: int, width: int = 1, oldest: int = 0) -> Timeline:
        """The timeline of a storage of ``[length, width]`` rows, and the key of the ids that it was made from.

        A key that is not there is replaced by the usual ones, as in TorchRL: missing ids by end flags, missing end flags
        by ids. Warns when the one that was named is missing. Raises UsageError when no edges are to be found.
        """
        rows = length * width
        if self.ends is not None:
            return from_ends(self._flags(self.ends, rows), length, width, oldest)
        if self.trajectories is not None:
            return from_ids(self._flags(self.trajectories, rows), length, width, oldest)
        if self.step_key is not None:
            return self._pieces(column, rows, width)
        for keys, flags in self._sources():
            found = [self._flags(values, rows) for values in map(column, keys) if values is not None]
            if not found:
                continue
            named = keys == ((self.traj_key,) if not flags else self.end_keys)
            if not named and (self.end_keys or self.traj_key not in (None, *TRAJECTORY_KEYS)):
                warnings.warn(
                    f"the storage has no {_names(self._named())}: episodes are told apart by {_names(keys)}",
                    stacklevel=2,
                )
            if flags:
                return from_ends(torch.stack([flag.bool() for flag in found]).any(0), length, width, oldest)
            return replace(from_ids(found[0], length, width, oldest), traj_key=keys[0])
        tried = _names([key for keys, _ in self._sources() for key in keys])
        message = f"the storage does not say where episodes end: there is no {tried}"
        error = UnknownKeyError if self._named() else UsageError
        raise error(message, hint="give traj_key or end_key, or ends= with a flag for every row")

    def _sources(self) -> list[tuple[tuple[Key, ...], bool]]:
        """Keys to look for, in turn, and whether they are end flags, of which those that are there are OR-ed."""
        ends = (self.end_keys or (DONE,), True)
        if self.traj_key is not None:
            return [((self.traj_key,), False), ends]
        usual = [((key,), False) for key in TRAJECTORY_KEYS]
        return [ends, *usual] if self.end_keys else [*usual, ends]

    def _named(self) -> tuple[Key, ...]:
        return (() if self.traj_key is None else (self.traj_key,)) + self.end_keys

    def _pieces(self, column: ColumnOf, rows: int, width: int) -> Timeline:
        assert self.step_key is not None
        if width > 1:
            raise UsageError("fragmented trajectories need a storage of one dimension")
        ids, counters = column(self.traj_key or TRAJECTORY_KEYS[0]), column(self.step_key)
        if ids is None or counters is None:
            raise UsageError("fragmented trajectories need a trajectory id and a step counter in the data")
        return from_pieces(self._flags(ids, rows), self._flags(counters, rows))

    @staticmethod
    def _flags(values: torch.Tensor, rows: int) -> torch.Tensor:
        """One value a row: ``[rows]``, ``[rows, 1]`` or the storage's own shape."""
        if values.numel() != rows:
            message = f"episode edges have shape {tuple(values.shape)}, which is not one value for each of {rows} rows"
            raise UsageError(message)
        return values.reshape(-1)


def _names(keys: Sequence[Key]) -> str:
    return ", ".join("/".join(key) for key in keys)
