"""How a storage is told where its episodes end.

In the order of TorchRL: a trajectory id if the data have one (what collectors write), else the done flag; a dataset
folder has an episode table, and nothing needs to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
        """The timeline of a storage of ``[length, width]`` rows. Raises UsageError when no edges are to be found."""
        rows = length * width
        if self.ends is not None:
            return from_ends(self._flags(self.ends, rows), length, width, oldest)
        if self.trajectories is not None:
            return from_ids(self._flags(self.trajectories, rows), length, width, oldest)
        if self.step_key is not None:
            return self._pieces(column, rows, width)
        candidates = [self.traj_key] if self.traj_key else [] if self.end_keys else list(TRAJECTORY_KEYS)
        for key in candidates:
            ids = column(key)
            if ids is not None:
                return from_ids(self._flags(ids, rows), length, width, oldest)
        if self.traj_key not in (None, *TRAJECTORY_KEYS):  # a usual one may be missing where done flags say it all
            message = f"the storage has no {'/'.join(self.traj_key or ())} to tell trajectories apart by"
            raise UnknownKeyError(message, hint="name another traj_key, or an end_key")
        flags = [column(key) for key in self.end_keys or (DONE,)]
        found = [self._flags(flag, rows).bool() for flag in flags if flag is not None]
        if not found:
            tried = ", ".join("/".join(key) for key in (*candidates, *(self.end_keys or (DONE,))))
            message = f"the storage does not say where episodes end: there is no {tried}"
            raise UsageError(message, hint="give traj_key or end_key, or ends= with a flag for every row")
        return from_ends(torch.stack(found).any(0), length, width, oldest)

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
