"""n-step returns (Sutton, 1988), cut at the end of the episode.

    episode of 4, n = 3         steps   0    1    2    3 (done)
                                reward  r0   r1   r2   r3
    from step 0                 r0 + g r1 + g^2 r2          next is that of step 2      3 steps
    from step 2                 r2 + g r3                   next is that of step 3      2 steps, done

The cut is the episode's, not the batch's: rewards are read from the dataset, whatever steps a batch holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....amounts import MOST_RECORDS
from ....errors import UsageError


@dataclass(frozen=True)
class NStep:
    """Look ``steps`` ahead, discounting by ``gamma``."""

    steps: int
    gamma: float

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or not 1 <= self.steps <= MOST_RECORDS:
            message = f"n_step must be a whole number of at least 1 and at most {MOST_RECORDS:,}, not {self.steps!r}"
            raise UsageError(message)
        if not 0 < self.gamma <= 1:
            raise UsageError(f"gamma must lie in (0, 1], and is {self.gamma!r}")

    def ahead(self, position: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """How many steps there are to take: ``n``, or fewer before the episode's ``end``; int64 ``[B]``."""
        return (end - position).clamp(max=self.steps)

    def total(self, rewards: torch.Tensor) -> torch.Tensor:
        """The discounted sum of rewards ``[B, n, *shape]``, zero beyond the end: ``[B, *shape]``."""
        weights = self.gamma ** torch.arange(self.steps, dtype=torch.float64)
        summed = (rewards.double() * weights.view(1, -1, *[1] * (rewards.ndim - 2))).sum(1)
        return summed.to(rewards.dtype)

    def discount(self, taken: torch.Tensor) -> torch.Tensor:
        """What the value of the next state is multiplied by: gamma^k, float32 ``[B]``."""
        return (self.gamma ** taken.double()).float()
