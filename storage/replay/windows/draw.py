"""What a sampler hands to the reader: which steps make a batch.

A draw is a number of pieces, each some consecutive steps. Single steps are named by the row they are stored in. Pieces
longer than one step are named by their place in time (`timeline`), since a ring that has wrapped holds consecutive
steps in rows that are not:

    transitions      start = rows                      length 1
    slices of 3      start = positions p, q            p p+1 p+2 | q q+1 q+2
    short slices     lengths = 3, 2                    p p+1 p+2 | q q+1
    padded           lengths = 3, 2, padded            p p+1 p+2 | q q+1 q+1      (the last step repeated, masked)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .timeline import Timeline

Key = tuple[str, ...]


@dataclass(frozen=True)
class SliceMarks:
    """Which flags a slice gets: ``truncated`` on its last step (and done), ``init`` on its first; None switches off."""

    truncated: Key | None = ("next", "truncated")
    init: Key | None = ("is_init",)


@dataclass
class Draw:
    """Pieces of ``length`` steps from each of ``start`` (int64 ``[n]``).

    ``lengths`` (int64 ``[n]``) is set where pieces may be shorter. With a ``timeline`` starts are positions in time,
    without one they are storage rows. ``info`` holds what the sampler knows of each step drawn (importance weights),
    ``notes`` what it says of the draw as a whole. ``overlapping``: single steps that follow each other, so that the same
    rows are wanted several times. ``goals`` (int64 ``[m]``): rows that the first m steps take their goals from, see
    `hindsight`.
    """

    start: torch.Tensor
    length: int = 1
    lengths: torch.Tensor | None = None
    timeline: Timeline | None = None
    padded: bool = False
    marks: SliceMarks | None = None
    info: dict[Any, torch.Tensor] = field(default_factory=dict)
    goals: torch.Tensor | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    overlapping: bool = False

    @classmethod
    def join(cls, draws: Sequence[Draw]) -> Draw:
        """Several draws of one sampler as one."""
        first = draws[0]
        start = torch.cat([draw.start for draw in draws])
        lengths = None
        if any(draw.lengths is not None for draw in draws):
            lengths = torch.cat([draw.each_length() for draw in draws])
        info = {name: torch.cat([draw.info[name] for draw in draws]) for name in first.info}
        marks, overlapping = first.marks, first.overlapping
        return cls(start, first.length, lengths, first.timeline, first.padded, marks, info, overlapping=overlapping)

    @property
    def steps(self) -> int:
        """How many steps were drawn, padding included."""
        if self.lengths is None or self.padded:
            return len(self.start) * self.length
        return int(self.lengths.sum())

    def each_length(self) -> torch.Tensor:
        """The length of every piece, int64 ``[n]``."""
        return torch.full((len(self.start),), self.length) if self.lengths is None else self.lengths

    def indices(self) -> torch.Tensor:
        """All steps drawn, in order: rows, or positions where there is a timeline; int64 ``[steps]``."""
        if self.length == 1:
            return self.start
        offsets = torch.arange(self.length)
        if self.lengths is None:
            return (self.start[:, None] + offsets).reshape(-1)
        if self.padded:
            return (self.start[:, None] + torch.minimum(offsets, self.lengths[:, None] - 1)).reshape(-1)
        return (self.start[:, None] + offsets)[offsets < self.lengths[:, None]]

    def ends(self) -> torch.Tensor:
        """Where in ``indices`` the last step of every piece is, int64 ``[n]``."""
        if self.lengths is None:
            return torch.arange(self.length - 1, len(self.start) * self.length, self.length)
        if self.padded:
            return torch.arange(0, len(self.start) * self.length, self.length) + self.lengths - 1
        return self.lengths.cumsum(0) - 1

    def beginnings(self) -> torch.Tensor:
        """Where in ``indices`` the first step of every piece is, int64 ``[n]``."""
        return self.ends() - self.each_length() + 1

    def mask(self) -> torch.Tensor:
        """True where ``indices`` holds a step, False where it holds padding; bool ``[steps]``."""
        if self.lengths is None or not self.padded:
            return torch.ones(self.steps, dtype=torch.bool)
        return (torch.arange(self.length) < self.lengths[:, None]).reshape(-1)
