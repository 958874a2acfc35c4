"""Rows of a leaf that no file is read for: one value in every row, or values that are computed from the rows' numbers."""

from __future__ import annotations

import numpy as np
import torch

from .leaf import Leaf


class ComputedRows:
    """Rows that are computed from their numbers. A derived class defines ``take``."""

    #: Whether a row describes the result of the step's action, as the leaves under ``next`` do: with n-step returns it is then
    #: the row of the last step.
    follows_action = False

    def __init__(self, leaf: Leaf, count: int) -> None:
        self.leaf, self.count = leaf, count

    def take(self, index: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        steps = (first[:, None] + torch.arange(length, device="cpu")).reshape(-1)
        return self.take(steps).reshape(len(first), length, *self.leaf.shape)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.take(torch.arange(start, stop, device="cpu"))


class ConstantRows(ComputedRows):
    """A leaf whose rows all hold one value, such as the root flags of TED; its file is not read."""

    def take(self, index: torch.Tensor) -> torch.Tensor:
        shape, dtype = (*index.shape, *self.leaf.shape), np.dtype(self.leaf.dtype)
        # By NumPy: half the time of torch.zeros.
        if not self.leaf.constant:
            return torch.from_numpy(np.zeros(shape, dtype))
        return torch.from_numpy(np.full(shape, self.leaf.constant, dtype))

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return self.take(first[:, None].expand(-1, length))
