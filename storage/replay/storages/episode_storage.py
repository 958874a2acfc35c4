"""A dataset's episodes as records: each is filled up with zeros to the longest one.

steps a0 a1 a2 b0 b1          ->       a0 a1 a2        mask  T T T
                                       b0 b1 --              T T F
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from ....errors import SamplingError
from ..windows.draw import Key
from ..windows.edges import Edges
from ..windows.timeline import Timeline
from .dataset_storage import DatasetStorage
from .gather import Readable


class EpisodeStorage(DatasetStorage):
    """The episodes of a dataset, read-only: ``storage[indices]`` is ``[n, longest]``.

    Beside the leaves there are ``mask`` (bool ``[n, longest]``, True where there is a step) and ``traj_ids`` (int64, the
    number of the episode; 0 where there is no step), as `split_trajectories` adds them. The padding is not stored.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._starts = self.dataset.episode_starts
        lengths = self._starts.diff()
        self.longest = int(lengths.max()) if len(lengths) else 0
        self.max_size = max(1, len(lengths))

    @property
    def filled(self) -> int:
        return len(self._starts) - 1

    @property
    def newest(self) -> int:
        return self.filled - 1

    @property
    def batch_tail(self) -> tuple[int, ...]:
        return (self.longest,)

    def get(self, index: Any) -> Any:
        if isinstance(index, tuple):
            rest = index[1:]
            return self.get(index[0])[(..., *rest) if isinstance(index[0], int) else (slice(None), *rest)]
        if isinstance(index, (int, np.integer)):
            if not -len(self) <= index < len(self):
                raise IndexError(f"there is no episode {index}: {self.dataset.id} has {len(self)}")
            return self._episodes(torch.tensor([int(index) % len(self)]))[0]
        return self._episodes(torch.arange(len(self))[index])

    def _episodes(self, numbers: torch.Tensor) -> TensorDict:
        flat = numbers.reshape(-1)
        batch = self.dataset.read(self._starts[flat], length=self.longest)
        if self.states:
            batch = batch.clone()  # a state leaf and its successor share memory
        batch.set("traj_ids", torch.where(batch["mask"], flat[:, None], 0))
        return batch.reshape(*numbers.shape, self.longest)

    def column(self, key: Key) -> torch.Tensor | None:
        return None

    def fields(self) -> dict[str, Readable] | None:  # type: ignore[override]
        return None

    def timeline(self, edges: Edges) -> Timeline:
        message = f"the records of {self!r} are whole episodes: slices cannot be drawn from them"
        raise SamplingError(message, hint="leave out split_trajs to draw slices of steps")

    def __repr__(self) -> str:
        return f"EpisodeStorage({self.dataset!r}, longest={self.longest})"
