"""The input as the functions are to see it: the steps of its `episodes`, with windows.

Frame stacks and n-step returns are those a sampler gives (`storage.replay.batches`): read from the whole dataset, cut at
the edges of its own episodes and not at those of slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from ..storage.dataset import Dataset
from ..storage.rows import ZstdRows
from ..storage.ted import nest
from .episodes import view_episodes
from .setting import Windows
from .stored import Stored


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

    def read_states(
        self, start: int, stop: int, fresh: bool
    ) -> tuple[TensorDict, dict[str, torch.Tensor], torch.Tensor]:
        """The same, state leaves left out: those by name, a row for each state, and where in them each step begins.

        Only without windows; a step's successor is the row after its own. ``fresh``: states may be changed.
        """
        columns: dict[str, torch.Tensor] = {}
        states: dict[str, torch.Tensor] = {}
        place = torch.zeros(stop - start, dtype=torch.int64)
        for name, rows in self.dataset.rows.items():
            if rows.leaf.kind == "step":
                columns[name] = rows.block(start, stop).clone()
            else:
                found, place = self.dataset._states(rows, start, stop)
                states[name] = found.clone() if fresh and rows.leaf.codec == "raw" else found
        td = nest(columns, (stop - start,))
        self._mark(td, start, stop)
        return td, states, place

    def stored(self, start: int, states: Mapping[str, torch.Tensor]) -> dict[str, Stored]:
        """Those of ``states``, as `read_states` gave them from step ``start`` on, that are compressed."""
        first = start + int(self.dataset.episode_of(torch.tensor([start])))
        leaves = ((name, self.dataset.rows[name]) for name in states)
        return {name: Stored(rows, first, states[name]) for name, rows in leaves if isinstance(rows, ZstdRows)}

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
        from ..storage.replay.batches import BatchReader
        from ..storage.replay.dataset_storage import DatasetStorage
        from ..storage.replay.draw import Draw
        from ..storage.replay.n_step import NStep

        windows = self.windows
        n_step = None if windows.n_step is None else NStep(windows.n_step, windows.gamma)
        storage = DatasetStorage(self.dataset)
        reader = BatchReader(storage, frame_stack=windows.frame_stack, n_step=n_step, marked=False)
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
