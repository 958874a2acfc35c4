"""The replay buffer over a dataset folder."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDict

from ...errors import SamplingError, UsageError
from ..dataset import Dataset
from .batches import BatchReader, Prepared
from .samplers import Draw, RandomSampler, Sampler, SamplerWithoutReplacement, SliceSampler, UniformOver


class ReplayBuffer:
    """Samples TED batches from a dataset.

    ``sample()`` returns a flat TensorDict ``[batch_size]`` with ``index`` (int64, the steps drawn). The arguments:

    - ``batch_size``: steps a batch; may be given to ``sample`` instead.
    - ``frame_stack=k``: observations become ``[k, *shape]``, oldest first, zeros before the episode's start.
    - ``slice_len`` or ``num_slices``, ``strict_length``, ``uniform_over``: slices of consecutive steps, see `SliceSampler`;
      the last step of every slice is truncated (and done).
    - ``replacement=False``: every step (or one slice of every episode) once a pass; ``drop_last`` leaves out a short last
      batch, ``shuffle=False`` keeps the order.
    - ``seed``: same seed, same batches. Without it the seed comes from torch's global generator.

    Iterating gives batches for ever, or one pass without replacement.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int | None = None,
        frame_stack: int | None = None,
        slice_len: int | None = None,
        num_slices: int | None = None,
        strict_length: bool = True,
        uniform_over: UniformOver = "trajectories",
        replacement: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.batch_size = None if batch_size is None else _checked_size(batch_size)
        self._reader = BatchReader(dataset, frame_stack=frame_stack)
        self.sampler: Sampler
        if slice_len is not None or num_slices is not None:
            self.sampler = SliceSampler(
                dataset.episode_starts,
                slice_len=slice_len,
                num_slices=num_slices,
                strict_length=strict_length,
                uniform_over=uniform_over,
                replacement=replacement,
                drop_last=drop_last,
                shuffle=shuffle,
            )
        elif replacement:
            self.sampler = RandomSampler(len(dataset))
        else:
            self.sampler = SamplerWithoutReplacement(len(dataset), drop_last=drop_last, shuffle=shuffle)
        self._endless = replacement
        self._ahead: deque[tuple[Prepared, bool]] = deque()
        self._ran_out = False
        self._generator = torch.Generator()
        self.set_seed(int(torch.randint(1 << 62, ())) if seed is None else seed)

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"ReplayBuffer({self.dataset!r}, batch_size={self.batch_size}, sampler={type(self.sampler).__name__})"

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that belongs to a seed."""
        self._ahead.clear()
        self._generator.manual_seed(seed)

    def sample(self, batch_size: int | None = None) -> TensorDict:
        """Draw one batch. Raises SamplingError when it cannot be drawn, UsageError without a batch size."""
        if batch_size is not None and batch_size != self.batch_size:
            # Out of the usual order: what is drawn ahead stays for the next call without a size.
            (prepared,) = self._reader.prepare([self.sampler.draw(_checked_size(batch_size), self._generator)])
            return self._reader.complete(prepared)
        if not self._ahead:
            self._draw_ahead()
        prepared, self._ran_out = self._ahead.popleft()
        return self._reader.complete(prepared)

    def _draw_ahead(self) -> None:
        if self.batch_size is None:
            raise UsageError("no batch size", hint="give batch_size to load() or to sample()")
        draws: list[Draw] = []
        ends: list[bool] = []
        for _ in range(self._reader.ahead(self.batch_size)):
            draws.append(self.sampler.draw(self.batch_size, self._generator))
            ends.append(self.sampler.ran_out)
        self._ahead.extend(zip(self._reader.prepare(draws), ends))

    def __getitem__(self, key: Any) -> Any:
        return self.dataset[key]

    def __iter__(self) -> Iterator[TensorDict]:
        if self.batch_size is None:
            raise UsageError("iteration needs batch_size given to load()")
        while True:
            yield self.sample()
            if not self._endless and self._ran_out:
                return


def _checked_size(batch_size: int) -> int:
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise SamplingError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    return batch_size
