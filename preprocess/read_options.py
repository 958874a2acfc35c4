"""How the steps of the input are read: frame stacks, n-step returns, slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..storage.amounts import MOST_RECORDS
from ..storage.schema import Leaf, Schema
from .functions.checks import positive, whole


@dataclass(frozen=True)
class ReadOptions:
    """The options of a sampler: ``frame_stack`` k, ``n_step`` n with ``gamma``, ``slice_len`` L (steps)."""

    frame_stack: int | None = None
    n_step: int | None = None
    gamma: float = 0.99
    slice_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("frame_stack", "n_step", "slice_len"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low=1, high=MOST_RECORDS)
        positive("gamma", self.gamma, high=1)

    @property
    def reads_neighbours(self) -> bool:
        """Whether a step depends on other steps."""
        return self.frame_stack is not None or self.n_step is not None

    def to_json(self) -> dict[str, Any]:
        """The options that are set."""
        names = ("frame_stack", "n_step", "slice_len", *(["gamma"] if self.n_step is not None else []))
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def step_bytes(self, schema: Schema) -> int:
        """The approximate size of a step as functions get it, in bytes."""
        total = 0
        for leaf in schema:
            stacked = self.frame_stack if _is_observation(leaf) else None
            total += leaf.row_bytes * (2 if leaf.kind == "state" else 1) * (stacked or 1)
        return max(1, total)


def _is_observation(leaf: Leaf) -> bool:
    return leaf.kind == "state" or leaf.name.removeprefix("next/").partition("/")[0] in ("observation", "pixels")
