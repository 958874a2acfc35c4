"""The input as the functions are to see it: the steps of its `episodes`, with windows.

Frame stacks and n-step returns are those a sampler gives (`storage.replay.batches`): read from the whole dataset, cut at
the edges of its own episodes and not at those of slices.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from ..storage.dataset import Dataset
from ..storage.ted import nest
from .episode_view import view_episodes
from .passthrough import Origin, Stored
from .run_config import Windows


class View:
    """A dataset, limited and cut. ``read`` gives steps as TED; nothing that is done to them reaches the files."""

    def __init__(self, path: Path, num_frames: int | None, windows: Windows) -> None:
        self.dataset, self.windows = Dataset(path), windows
        self.episodes = view_episodes(self.dataset.episodes, num_frames, windows.slice_len)
        self.starts = torch.from_numpy(self.episodes.starts)

    def __len__(self) -> int:
        return self.episodes.steps

    @property
    def id(self) -> str:
        return self.dataset.id

    def read(self, start: int, stop: int) -> TensorDict:
        """Steps ``start..stop-1`` as TED, batch ``[stop - start]``, all tensors fresh and apart from each other."""
        if not self.windows.reading:
            td = self.dataset[start:stop]
        else:
            td = self._windowed(torch.arange(start, stop))
        self._mark(td, start, stop)
        return td

    def read_steps(self, start: int, stop: int) -> TensorDict:
        """The same without the state leaves; only without windows."""
        leaves = {name: rows for name, rows in self.dataset.rows.items() if rows.leaf.kind == "step"}
        td = nest({name: rows.block(start, stop).clone() for name, rows in leaves.items()}, (stop - start,))
        self._mark(td, start, stop)
        return td

    def states(self, start: int, stop: int, unread: Collection[str]) -> Origin:
        """The states of the same steps, a row for each: a step's successor is the row behind the one that it begins with.

        The rows of leaves in ``unread`` are not decoded.
        """
        numbers = self.dataset.state_numbers(start, stop)
        first, end = int(numbers[0]), int(numbers[-1]) + 2
        states = {name: rows for name, rows in self.dataset.rows.items() if rows.leaf.kind == "state"}
        stored = {
            name: Stored(leaf, first, None if name in unread else leaf.block(first, end))
            for name, leaf in states.items()
        }
        return Origin(numbers - first, stored)

    def scattered(self, steps: torch.Tensor) -> TensorDict:
        """Some steps, in any order, as ``read`` gives them."""
        if self.windows.reading:
            td = self._windowed(steps)
        else:
            td = self.dataset[steps]
        ends = self._added_ends()
        self._truncate(td, torch.isin(steps, ends))
        return td

    def _windowed(self, steps: torch.Tensor) -> TensorDict:
        from ..storage.replay.storages.dataset_storage import DatasetStorage
        from ..storage.replay.windows.batches import BatchReader
        from ..storage.replay.windows.draw import Draw
        from ..storage.replay.windows.n_step_return import NStep

        windows = self.windows
        n_step = None if windows.n_step is None else NStep(windows.n_step, windows.gamma)
        storage = DatasetStorage(self.dataset)
        reader = BatchReader(storage, frame_stack=windows.frame_stack, n_step=n_step, with_info=False)
        (prepared,) = reader.prepare([Draw(steps)])
        return reader.complete(prepared).clone()  # stacks are overlapping views: editing one would edit the others

    def _mark(self, td: TensorDict, start: int, stop: int) -> None:
        """Set truncated where this view ends an episode that goes on in the dataset."""
        episodes = self.episodes
        low, high = np.searchsorted(episodes.starts[1:], [start, stop], "right")
        ends = (episodes.starts[1:][low:high] - 1)[episodes.added[low:high]]
        if len(ends):
            mask = torch.zeros(stop - start, dtype=torch.bool)
            mask[torch.from_numpy(ends - start)] = True
            self._truncate(td, mask)

    def _added_ends(self) -> torch.Tensor:
        return torch.from_numpy((self.episodes.starts[1:] - 1)[self.episodes.added])

    @staticmethod
    def _truncate(td: TensorDict, mask: torch.Tensor) -> None:
        terminated = td.get(("next", "terminated"))
        mask = mask.view(-1, 1) & ~terminated
        for name in ("truncated", "done"):
            td.set(("next", name), td.get(("next", name)) | mask)

    def release(self) -> None:
        """Let go of the mapped files: pages read count as this process's memory for as long as they are mapped."""
        self.dataset.__dict__.pop("rows", None)
