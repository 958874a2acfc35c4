"""Several buffers sampled as one.

num_buffer_sampled = 3, batch size 12       members drawn  1 0 1
batch [3, 4]                                4 records of member 1 | 4 of member 0 | 4 more of member 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, is_tensor_collection

from ...errors import ReadOnlyError, SamplingError, UsageError
from ..keywords import whole_number
from .batches import stack_records
from .buffer import ReplayBuffer, check_batch_size
from .chain import Transforms
from .order import Order, drawing_for
from .saved import Saved
from .timeline import as_key


class ReplayBufferEnsemble(Saved):
    """Batches ``[k, batch_size / k, ...]`` of k draws of members, by position; each samples as it does alone.

    - ``p``: the probability of each member to be drawn, of any sum; equal by default. ``num_buffer_sampled``: k, by default
      the number of members. ``sample_from_all``: every member once.
    - ``transform``, ``collate_fn`` (of a list of batches), ``batch_size``, ``seed`` or ``generator`` as in `ReplayBuffer`;
      those of the members apply to their parts first. Members prefetch, and put batches on a device, as they do alone.

    ``batch["index"]`` has ``buffer_ids`` and ``index``, both ``[k, batch_size / k]``: the member and the row of each record,
    which `update_priority` takes. Nothing can be written: write to the members, ``ensemble.buffers``.
    """

    def __init__(
        self,
        *buffers: ReplayBuffer,
        transform: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        p: Sequence[float] | torch.Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> None:
        if not buffers or not all(isinstance(buffer, ReplayBuffer) for buffer in buffers):
            kinds = ", ".join(type(one).__name__ for one in buffers if not isinstance(one, ReplayBuffer))
            hint = "give the members of an ensemble: *ensemble.buffers" if "Ensemble" in kinds else None
            raise UsageError(f"an ensemble needs buffers, by position, not {kinds or 'none'}", hint=hint)
        if any(buffer._batches.options.output is not None for buffer in buffers):
            message = "an ensemble puts TensorDicts together: load its members without output and form"
            raise UsageError(message, hint="rbdata.load([...], weights=[...]) mixes datasets in any form")
        if sample_from_all and (p is not None or num_buffer_sampled is not None):
            raise UsageError("sample_from_all draws every member once: leave out p and num_buffer_sampled")
        self.buffers, self.batch_size = buffers, None if batch_size is None else check_batch_size(batch_size)
        for buffer in buffers:  # whose own batch sizes do not count here
            buffer._warned |= {"sample"}
        self.p = None if p is None else self._probabilities(p)
        self.sample_from_all = sample_from_all
        count = (
            len(buffers) if num_buffer_sampled is None else whole_number("num_buffer_sampled", num_buffer_sampled, 1)
        )
        self.num_buffer_sampled, self.collate_fn, self.transform = count, collate_fn, Transforms.of(transform)
        self._order = Order.of(seed, generator)

    def _probabilities(self, p: Any) -> np.ndarray:
        found = np.asarray(p, np.float64).reshape(-1)
        if len(found) != len(self.buffers) or not np.isfinite(found).all() or (found < 0).any() or not found.any():
            raise UsageError(f"p has a probability for each of {len(self.buffers)} buffers, not all 0, and is {p!r}")
        return found / found.sum()

    # -- sampling ----------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Return one batch, or ``(batch, info)``. Raises SamplingError for a size that the draws of members do not divide."""
        size = self.batch_size if batch_size is None else check_batch_size(batch_size)
        if size is None:
            raise UsageError("no batch size", hint="give batch_size to the ensemble, or to sample()")
        members, number = self._drawn(), self._order.place.number
        if size % len(members):
            raise SamplingError(f"a batch of {size} cannot be divided among {len(members)} draws of buffers")
        parts = [self._part(member, size // len(members)) for member in members]
        batches, info = [part for part, _ in parts], LazyStackedTensorDict.maybe_dense_stack([one for _, one in parts])
        self._order.place = self._order.place._replace(number=number + 1)
        batch = _stacked(batches) if self.collate_fn is None else self.collate_fn(batches)
        if len(self.transform):
            with drawing_for(self._order, number):
                batch = self.transform(batch)
            if is_tensor_collection(batch) and batch.batch_size == info.batch_size:
                batch = batch.copy() if batch.is_locked else batch
                batch.update(info.clone())
        return (batch, info) if return_info else batch

    def _drawn(self) -> list[int]:
        """The members that the next batch is drawn from."""
        if self.sample_from_all:
            return list(range(len(self.buffers)))
        turn = self._order.turn()
        if self.p is None:
            return turn.below(len(self.buffers), self.num_buffer_sampled).tolist()
        upto = np.cumsum(self.p)
        upto[np.flatnonzero(self.p)[-1] :] = 1.0
        return np.searchsorted(upto, turn.floats(self.num_buffer_sampled), "right").tolist()

    def _part(self, member: int, size: int) -> tuple[Any, TensorDict]:
        """Records of a member, with what its sampler says of them."""
        batch, info = self.buffers[member].sample(size, return_info=True)
        if len(batch) != size:
            message = f"member {member} has a short batch, of {len(batch)} records instead of {size}"
            raise SamplingError(message, hint="its sampler takes drop_last=True, or draws with replacement")
        rows, ids = info["index"], torch.full((size,), member, device="cpu")
        rows = torch.stack(rows, -1) if isinstance(rows, tuple) else rows
        said = TensorDict({**info, "index": TensorDict({"buffer_ids": ids, "index": rows}, [size])}, [size])
        if is_tensor_collection(batch):
            batch = batch.copy().set("index", said["index"]).update(said)
        return batch, said

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.sample()

    def next(self) -> Any:
        """Return the next batch."""
        return self.sample()

    __next__ = next

    def __len__(self) -> int:
        return len(self.buffers)

    def __getitem__(self, index: int) -> ReplayBuffer:
        return self.buffers[index]

    def append_transform(self, transform: Any, *, invert: bool = False) -> Self:
        """Add a transform at the end; returns the ensemble."""
        self.transform.append(transform, invert=invert)
        return self

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that a seed determines, of the members as well."""
        self._order = Order.of(seed, None)
        for number, buffer in enumerate(self.buffers):
            buffer.set_seed((seed + 1 + number) % (1 << 62))

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Start the sequence of batches of a seed that is drawn from this generator, once."""
        self._order = Order.of(None, generator)

    # -- priorities --------------------------------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities of members' records by the ``index`` of a batch: one for each, or one for all."""
        ids, rows = index["buffer_ids"].reshape(-1), index["index"].flatten(0, index["buffer_ids"].ndim - 1)
        values = torch.as_tensor(priority).expand(index["buffer_ids"].shape).reshape(-1)
        for member, buffer in enumerate(self.buffers):
            mine = ids == member
            if bool(mine.any()):
                buffer.update_priority(rows[mine], values[mine])

    def update_tensordict_priority(self, data: Any) -> None:
        """Set priorities from the ``priority_key`` of a member (``td_error``) in a batch."""
        keys = [getattr(buffer, "priority_key", "td_error") for buffer in self.buffers]
        values = data.get(as_key(keys[0]), None)
        if values is None:
            raise UsageError(f"the batch has no {keys[0]}")
        self.update_priority(data["index"], values.reshape(data["index"].batch_size))

    def extend(self, data: Any) -> Any:
        raise ReadOnlyError("an ensemble doesn't allow writing", hint="extend its members: ensemble.buffers")

    add = extend

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        members = [buffer.state_dict() for buffer in self.buffers]
        return {"order": self._order.state_dict(), "_transforms": self.transform.state_dict(), "members": members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UsageError for the state of an ensemble with other members."""
        from .checkpoint import loading

        with loading(self):
            if len(state["members"]) != len(self.buffers):
                raise UsageError(f"the state has {len(state['members'])} members, the ensemble {len(self.buffers)}")
            self.transform.load_state_dict(state["_transforms"])
            self._order.load_state_dict(state["order"])
            for buffer, own in zip(self.buffers, state["members"]):
                buffer.load_state_dict(own)

    def __repr__(self) -> str:
        return f"ReplayBufferEnsemble({', '.join(map(repr, self.buffers))}, batch_size={self.batch_size})"


def _stacked(parts: list[Any]) -> Any:
    """Parts as one batch; those with unlike keys as a lazy stack, as in TorchRL."""
    if is_tensor_collection(parts[0]):
        return LazyStackedTensorDict.maybe_dense_stack(parts)
    return stack_records(parts)
