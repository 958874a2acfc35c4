"""Sampling that consumes records: a record is removed after a given number of batches, and its row is written next.

rows              0  1  2  3  4        max_sample_count = 1
sample(2)         0  .  2  3  .        1 and 4 are consumed, 3 records are live
extend(3 more)    0  a  2  3  b  c     consumed rows first, oldest first; then from the writer's cursor on
"""

from __future__ import annotations

from typing import Any

import torch

from ....errors import ArgumentTypeError, SamplingError, UsageError, reason
from ..draw import Draw
from ..samplers.sampler import Sampler, Use
from ..samplers.uniform import RandomSampler
from ..storages.list_storage import ListStorage
from ..storages.storage import Storage, require_records
from ..storages.tensor_storage import TensorStorage
from ..writers import count_records


class ConsumingSampler(Sampler):
    """Uniform without replacement inside a batch; a record is consumed after ``max_sample_count`` batches.

    ``len(buffer)`` counts the remaining records, a larger batch is short, iteration ends with the last record, and `add` and
    `extend` write to consumed rows first. The cost of a draw is proportional to the length of the storage, which has one
    dimension. Not with prefetching, shared memory, windows, or data-parallel training. Raises UsageError for counts below 1.
    """

    ahead = False
    values_per_row = True
    arguments = frozenset(("max_sample_count",))

    def __init__(self, max_sample_count: int = 1) -> None:
        self.max_sample_count = _check_count(max_sample_count)
        self.empty()

    def _configure(self) -> None:
        self.__dict__["max_sample_count"] = _check_count(self.max_sample_count)
        self._take_over(self._sample_count[: self._size], self._free_indices, self.ran_out)

    def empty(self) -> None:
        self._sample_count = torch.zeros(0, dtype=torch.int64, device="cpu")  # for every row, with spare capacity
        self._size = 0
        #: Consumed rows, in the order of consumption.
        self._free_indices = torch.zeros(0, dtype=torch.int64, device="cpu")
        self.ran_out = False
        self._leave()

    @property
    def endless(self) -> bool:  # type: ignore[override]
        """Whether records remain: iteration continues if records were written after the batch that took the last ones."""
        return not self.ran_out

    @property
    def _live_mask(self) -> torch.Tensor:
        return self._sample_count[: self._size] < self.max_sample_count

    # -- parts of the buffer -----------------------------------------------------------------------------------------

    def _check_parts(self, storage: Storage, writer: Any, use: Use) -> None:
        if not callable(getattr(writer, "write_at", None)):
            lacking = type(writer).__name__
            message = f"a ConsumingSampler requires a writer with a callable write_at, which a {lacking} lacks"
            raise ArgumentTypeError(message, hint="for example RoundRobinWriter()")
        if not isinstance(storage, (ListStorage, TensorStorage)):
            kind = type(storage).__name__
            raise ArgumentTypeError(f"a ConsumingSampler needs a storage of lists or tensors, not a {kind}")
        if storage.ndim != 1:
            message = f"a ConsumingSampler is for 1-dimensional storages, and this one has {storage.ndim} dimensions"
            raise UsageError(message)
        if use.prefetch:
            message = "Prefetching is not supported with a ConsumingSampler: every draw consumes"
            raise UsageError(message, hint="prefetch=0")
        if use.windows:
            raise UsageError("consumed rows are written out of time order: leave out frame_stack and n_step")
        if use.shared or use.world_size > 1:
            raise UsageError("what is consumed is counted in one process: a ConsumingSampler cannot be shared or split")

    def _writer_for(self, writer: Any, storage: Storage) -> ReusingWriter:
        return ReusingWriter(writer, self, storage)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _resize(self, size: int) -> None:
        """Change the number of rows; added rows hold new records."""
        if size > len(self._sample_count):
            counts = torch.zeros(max(size, 2 * len(self._sample_count)), dtype=torch.int64, device="cpu")
            counts[: self._size] = self._sample_count[: self._size]
            self._sample_count = counts
        self._sample_count[self._size : size] = 0
        self._size = size
        if len(self._free_indices):
            self._free_indices = self._free_indices[self._free_indices < size]

    def live(self, storage: Storage) -> int:
        if len(storage) != self._size:  # written before this sampler existed, or by other code
            self._resize(len(storage))
        return self._size - len(self._free_indices)

    def consumed_rows(self, storage: Storage) -> torch.Tensor:
        """The rows that may be overwritten, int64 ``[n]``, in the order of consumption."""
        self.live(storage)
        return self._free_indices

    def _append_free_indices(self, rows: torch.Tensor) -> None:  # TorchRL's name: its own tests call it
        self._free_indices = torch.cat([self._free_indices, rows])

    def extend(self, index: Any) -> None:
        rows = torch.as_tensor(index, device="cpu").reshape(-1).long()
        if not len(rows):
            return
        if int(rows.max()) >= self._size:
            self._resize(int(rows.max()) + 1)
        self._sample_count[rows] = 0
        self.ran_out = False
        free = self._free_indices
        if torch.equal(free[: len(rows)], rows):  # in the order in which `ReusingWriter` takes them: no search needed
            self._free_indices = free[len(rows) :]
        elif len(free):
            self._free_indices = free[self._sample_count[free] >= self.max_sample_count]

    add = extend

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Reset the counts of the records in these rows: each may be drawn ``max_sample_count`` times again."""
        self.extend(index)

    # -- drawing -----------------------------------------------------------------------------------------------------

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        if not self.live(storage):
            self.ran_out = True
            require_records(storage)
            message = f"Cannot sample from an empty storage: all {self._size} records are consumed"
            raise SamplingError(message, hint="extend the buffer first")
        rows = self._live_mask.nonzero().squeeze(1)
        drawn = rows[torch.randperm(len(rows), generator=generator, device="cpu")[:batch_size]]
        self._sample_count[drawn] += 1
        self._append_free_indices(drawn[self._sample_count[drawn] >= self.max_sample_count])
        self.ran_out = len(self._free_indices) == self._size
        return Draw(drawn)

    def sampleable(self, storage: Storage, batch_size: int) -> int:
        return self.live(storage)

    # -- states ------------------------------------------------------------------------------------------------------

    def position(self) -> torch.Tensor:
        """``[ran_out, rows, count of every row ..., consumed rows ...]``, int64."""
        head = torch.tensor([int(self.ran_out), self._size], device="cpu")
        return torch.cat([head, self._sample_count[: self._size], self._free_indices])

    def set_position(self, position: Any) -> None:
        """Continue from a result of ``position``. Raises UsageError for anything else."""
        if not isinstance(position, torch.Tensor) or position.dtype != torch.int64 or position.ndim != 1:
            raise UsageError(f"this is not the position of a {type(self).__name__}: {position!r:.100}")
        size = int(position[1]) if len(position) > 1 else -1
        if not 0 <= size <= len(position) - 2:
            raise UsageError(f"this is not the position of a {type(self).__name__}: it ends too early")
        self._take_over(position[2 : 2 + size], position[2 + size :], bool(position[0]))

    def state_dict(self) -> dict[str, Any]:
        """The state under TorchRL's names."""
        return {
            "max_sample_count": self.max_sample_count,
            "_sample_count": self._sample_count[: self._size].clone(),
            "_live_mask": self._live_mask,
            "_known_storage_len": self._size,
            "_free_indices": self._free_indices.clone(),
            "_free_head": 0,
            "_ran_out": self.ran_out,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a copy of a state from ``state_dict``, of this package or of TorchRL."""
        try:
            most, size = _check_count(state["max_sample_count"]), int(state["_known_storage_len"])
            ran_out = bool(state["_ran_out"])
            counts, free = _rows(state["_sample_count"]), _rows(state.get("_free_indices"))
            if not 0 <= size <= len(counts):
                raise ValueError(f"{len(counts)} counts for {size} rows")
            free = free[int(state.get("_free_head", 0)) :]
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            message = f"the state is not that of a {type(self).__name__}: {type(error).__name__}: {reason(error)}"
            raise UsageError(message) from error
        before, self.__dict__["max_sample_count"] = self.max_sample_count, most
        try:
            self._take_over(counts[:size], free, ran_out)
        except UsageError:
            self.__dict__["max_sample_count"] = before
            raise

    def _take_over(self, counts: torch.Tensor, free: torch.Tensor, ran_out: bool) -> None:
        """Set copies of these values; consumed rows that ``free`` lacks are appended to it."""
        if len(counts) and int(counts.min()) < 0:
            raise UsageError("a record cannot have been sampled less than never")
        consumed = counts >= self.max_sample_count
        free = free[(free >= 0) & (free < len(counts))]
        first = list(dict.fromkeys(free[consumed[free]].tolist()))
        consumed[first] = False
        rows = torch.cat([torch.tensor(first, dtype=torch.int64, device="cpu"), consumed.nonzero().squeeze(1)])
        self._sample_count, self._size, self._free_indices, self.ran_out = counts.clone(), len(counts), rows, ran_out

    def __repr__(self) -> str:
        left = self._size - len(self._free_indices)
        return f"{type(self).__name__}(max_sample_count={self.max_sample_count}, sampleable={left})"


def consuming_sampler(sampler: Sampler, max_sample_count: int) -> ConsumingSampler:
    """The sampler of a buffer with ``consume_after_n_samples``, for the one that it would have without. Raises UsageError."""
    consuming = ConsumingSampler(max_sample_count)
    if type(sampler) is RandomSampler:
        return consuming
    if not isinstance(sampler, ConsumingSampler):
        message = f"consume_after_n_samples only supports the default RandomSampler, not a {type(sampler).__name__}"
        raise UsageError(message, hint="leave out the sampler, or consume_after_n_samples")
    if sampler.max_sample_count != consuming.max_sample_count:
        message = f"consume_after_n_samples={max_sample_count}, but the sampler has max_sample_count="
        raise UsageError(f"{message}{sampler.max_sample_count}", hint="leave out one of them")
    return sampler


class ReusingWriter:
    """Writes to consumed rows first, then from the cursor of ``writer`` on, which needs ``write_at`` and ``cursor``."""

    def __init__(self, writer: Any, sampler: ConsumingSampler, storage: Storage) -> None:
        self.writer, self.storage, self.free = writer, storage, sampler.consumed_rows(storage)

    def add(self, data: Any) -> Any:
        return self.writer.write_at(int(self.free[0]), data) if len(self.free) else self.writer.add(data)

    def extend(self, data: Any) -> torch.Tensor:
        count, capacity = count_records(data), self.storage.capacity_for(data)
        if not len(self.free) or not 0 < count <= capacity:  # if records exceed the capacity, the newest stay
            rows: torch.Tensor = self.writer.extend(data)
            return rows
        rows = self.free[:count]
        cursor, more = int(self.writer.cursor), count - len(rows)
        if more:
            after = (cursor + torch.arange(min(capacity, count), device="cpu")) % capacity
            rows = torch.cat([rows, after[~torch.isin(after, rows)][:more]])
            cursor = (int(rows[-1]) + 1) % capacity
        rows = self.writer.write_at(rows, data)
        self.writer.cursor = cursor
        return rows


def _check_count(count: Any) -> int:
    if not hasattr(count, "__index__") or isinstance(count, (bool, torch.Tensor)) or count < 1:
        raise UsageError(f"a record is consumed after a whole number of samples, at least 1, not {count!r}")
    return int(count)


def _rows(values: Any) -> torch.Tensor:
    return torch.as_tensor([] if values is None else values, device="cpu").reshape(-1).long()
