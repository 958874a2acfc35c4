"""The episodes of a dataset as records, each padded with zeros to the length of the longest; nothing of that is stored.

steps a0 a1 a2 b0 b1          ->       a0 a1 a2        mask  T T T
                                       b0 b1 --              T T F
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from ....errors import SamplingError
from ...row_index import row_index
from ..timeline import Edges, Timeline
from .dataset_storage import DatasetStorage


class EpisodeStorage(DatasetStorage):
    """The episodes of a dataset, read-only: ``storage[indices]`` is ``[n, longest]``.

    In addition to the leaves, batches have ``mask`` (bool ``[n, longest]``, True for steps) and ``traj_ids`` (int64, the
    number of the episode; 0 for padding), as `split_trajectories` adds them.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._starts = self.dataset._starts
        lengths = self._starts.diff()
        self.longest = int(lengths.max()) if len(lengths) else 0
        self.filled, self.max_size = len(lengths), max(1, len(lengths))
        self.capacity = self.max_size

    @property
    def batch_tail(self) -> tuple[int, ...]:
        return (self.longest,)

    def get(self, index: Any) -> Any:
        if isinstance(index, tuple):
            rest = index[1:]
            return self.get(index[0])[(..., *rest) if isinstance(index[0], int) else (slice(None), *rest)]
        numbers = row_index(index, len(self), "episode")
        if isinstance(numbers, int):
            return self._episodes(torch.tensor([numbers], device="cpu"))[0]
        return self._episodes(torch.arange(len(self), device="cpu")[numbers] if isinstance(numbers, slice) else numbers)

    def _episodes(self, numbers: torch.Tensor) -> TensorDict:
        flat = numbers.reshape(-1)
        batch = self.dataset.read(
            self._starts[flat], length=self.longest
        ).clone()  # a state and its successor share memory
        batch.set("traj_ids", torch.where(batch["mask"], flat[:, None], 0))
        return batch.reshape(*numbers.shape, self.longest)

    def leaves(self) -> None:  # type: ignore[override]
        return None

    def leaf_at(self, key: tuple[str, ...], rows: torch.Tensor) -> torch.Tensor | None:
        found: torch.Tensor | None = self.get(rows).get(key, None)
        return found

    def timeline(self, edges: Edges) -> Timeline:
        message = f"the records of {self!r} are whole episodes: slices cannot be drawn from them"
        raise SamplingError(message, hint="leave out split_trajs to draw slices of steps")

    def __repr__(self) -> str:
        return f"EpisodeStorage({self.dataset!r}, longest={self.longest})"
