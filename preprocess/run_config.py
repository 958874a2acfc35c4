"""What all tasks of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..storage.schema import Leaf, Schema
from .function import Function
from .function_chain import Per


@dataclass(frozen=True)
class Windows:
    """What a sampler would be asked for: ``frame_stack`` k, ``n_step`` n with ``gamma``, ``slice_len`` L."""

    frame_stack: int | None = None
    n_step: int | None = None
    gamma: float = 0.99
    slice_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("frame_stack", "n_step", "slice_len"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is a whole number from 1 on, not {value!r}")
        if not 0 < self.gamma <= 1:
            raise UsageError(f"gamma must lie in (0, 1], and is {self.gamma!r}")

    @property
    def reading(self) -> bool:
        """Whether a step is read with its neighbours."""
        return self.frame_stack is not None or self.n_step is not None

    def to_json(self) -> dict[str, Any]:
        """Those that are set."""
        given = {name: getattr(self, name) for name in ("frame_stack", "n_step", "slice_len")}
        given = {name: value for name, value in given.items() if value is not None}
        return {**given, **({"gamma": self.gamma} if self.n_step is not None else {})}


def row_bytes(schema: Schema, windows: Windows) -> int:
    """About how large a step is, as a function sees it."""
    total = 0
    for leaf in schema:
        stacked = windows.frame_stack if _is_observation(leaf) else None
        total += leaf.row_bytes * (2 if leaf.kind == "state" else 1) * (stacked or 1)
    return max(1, total)


def _is_observation(leaf: Leaf) -> bool:
    return leaf.kind == "state" or leaf.name.removeprefix("next/").partition("/")[0] in ("observation", "pixels")


@dataclass(frozen=True)
class Setting:
    """What all tasks of a run share; small and picklable. ``statistics`` are those of each function, where known.

    The first ``ignores_observations`` functions need no observations, with these windows.
    """

    key: str
    path: Path
    folder: Path
    functions: tuple[Function, ...]
    per: Per
    windows: Windows
    num_frames: int | None
    batch: int
    seed: int
    statistics: tuple[dict[str, Any] | None, ...]
    ignores_observations: int

    @property
    def whole_episodes(self) -> bool:
        return self.per == "episode"

    @property
    def all_ignores_observations(self) -> bool:
        """Whether observations that are stored as the result's are to be are copied unread."""
        return self.ignores_observations == len(self.functions)
