"""The input as functions get it: the steps of `episode_view` with the options of `read_options`.

Frame stacks and n-step returns are those of a sampler (`storage.replay`): they are read from the whole dataset and end at the
edges of its episodes, not at those of slices.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from ..storage.dataset import Dataset, reopen
from ..storage.memory_map import release_pages
from ..storage.window import nest
from .episode_view import view_episodes
from .passthrough import SourceRows, SourceStates
from .read_options import ReadOptions

#: Pages of files of so many bytes in all stay in memory.
KEPT_BYTES = 128 << 20


class InputView:
    """A dataset as functions get it. The tensors that it returns are copies, which functions may modify.

    Raises UsageError where the dataset was replaced since the run began: its content is not ``content`` any more.
    """

    def __init__(self, path: Path, content: str, num_frames: int | None, options: ReadOptions) -> None:
        self.dataset, self.options = reopen(Dataset, (path,), content), options
        self.episodes = view_episodes(self.dataset.episodes, num_frames, options.slice_len)
        self._added_ends = self.episodes.starts[1:][self.episodes.added] - 1

    def read(self, start: int, stop: int) -> TensorDict:
        """Steps ``start..stop-1`` as TED, batch ``[stop - start]``; no two tensors share memory."""
        if not self.options.reads_neighbours:
            td = self.dataset[start:stop]
        else:
            td = self._read_with_neighbours(torch.arange(start, stop))
        return self._truncate_added_ends(td, torch.arange(start, stop))

    def read_step_leaves(self, start: int, stop: int) -> TensorDict:
        """The same without state leaves; not where steps are read with their neighbours."""
        leaves = {name: rows for name, rows in self.dataset.rows.items() if rows.leaf.kind == "step"}
        td = nest({name: rows.block(start, stop).clone() for name, rows in leaves.items()}, (stop - start,))
        return self._truncate_added_ends(td, torch.arange(start, stop))

    def read_states(self, start: int, stop: int, undecoded: Collection[str]) -> SourceStates:
        """The states of the same steps, one row each: the successor of a step is the row after the one it begins with.

        The rows of leaves in ``undecoded`` are not read.
        """
        numbers = self.dataset.state_numbers(start, stop)
        first, end = int(numbers[0]), int(numbers[-1]) + 2
        leaves = {
            name: SourceRows(rows, first, None if name in undecoded else rows.block(first, end))
            for name, rows in self.dataset.rows.items()
            if rows.leaf.kind == "state"
        }
        return SourceStates(numbers - first, leaves)

    def read_scattered(self, steps: torch.Tensor) -> TensorDict:
        """Steps in any order, as ``read`` returns them."""
        td = self._read_with_neighbours(steps) if self.options.reads_neighbours else self.dataset[steps]
        return self._truncate_added_ends(td, steps)

    def release(self) -> None:
        """Give back the pages of the files that were read, which count as memory of this process.

        Those of small datasets stay: they are read again in the next pass.
        """
        parts = [part for rows in self.dataset.rows.values() for part in vars(rows).values()]
        mapped = [part for part in parts if isinstance(part, np.ndarray)]
        if sum(part.nbytes for part in mapped) > KEPT_BYTES:
            for part in mapped:
                release_pages(part)

    def _read_with_neighbours(self, steps: torch.Tensor) -> TensorDict:
        from ..storage.replay.batches import BatchReader, NStep
        from ..storage.replay.draw import Draw
        from ..storage.replay.storages.dataset_storage import DatasetStorage

        options = self.options
        n_step = None if options.n_step is None else NStep(options.n_step, options.gamma)
        storage = DatasetStorage(self.dataset)
        reader = BatchReader(storage, frame_stack=options.frame_stack, n_step=n_step, with_info=False)
        (prepared,) = reader.prepare([Draw(steps)])
        return reader.complete(prepared).clone()  # stacks are overlapping views of the same memory

    def _truncate_added_ends(self, td: TensorDict, steps: torch.Tensor) -> TensorDict:
        """The steps, truncated where an episode of the view ends and that of the dataset continues."""
        ends = self._added_ends
        low, high = np.searchsorted(ends, [int(steps.min()), int(steps.max()) + 1])
        if low < high:
            is_end = torch.isin(steps, torch.from_numpy(ends[low:high]))
            mask = is_end.view(-1, 1) & ~td.get(("next", "terminated"))
            for name in ("truncated", "done"):
                td.set(("next", name), td.get(("next", name)) | mask)
        return td
