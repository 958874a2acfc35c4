"""The first episodes of a dataset, as a dataset."""

from __future__ import annotations

from typing import Any

import torch

from .codecs.codec import Rows
from .dataset import Dataset
from .plan_file import first_episodes


class DatasetPrefix(Dataset):
    """The first ``episodes`` of a dataset as it is when this is made. Steps, episodes and rows have the same numbers."""

    def __init__(self, dataset: Dataset, episodes: int) -> None:
        self.whole, self.path = dataset, dataset.path
        self.manifest, self._table = first_episodes(dataset.manifest, dataset.episodes, episodes)
        self._stored = {
            name: FirstRows(rows, self.manifest.rows(rows.leaf)) for name, rows in dict(dataset.rows).items()
        }

    def _count(self, name: str) -> int:
        return self.whole._count(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetPrefix, (self.whole, self.manifest.episodes)

    def __repr__(self) -> str:
        return f"DatasetPrefix({self.whole!r}, steps={len(self)}, episodes={self.manifest.episodes})"


class FirstRows:
    """The first ``count`` rows of a leaf."""

    def __init__(self, rows: Rows, count: int) -> None:
        self.leaf, self.count, self._rows = rows.leaf, count, rows

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return self._rows.windows(first, length)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._rows.take(index)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self._rows.block(start, stop)
