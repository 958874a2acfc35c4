"""Several buffers sampled as one.

num_buffer_sampled = 3, batch size 12       members drawn  1 0 1
batch [3, 4]                                4 records of member 1 | 4 of member 0 | 4 more of member 1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import ReadOnlyError, SamplingError, UsageError
from .argument_checks import check_batch_size, check_prefetch, check_seed, make_generator
from .batch_order import OrderState
from .buffer import ReplayBuffer
from .checkpoints.checkpoint import CheckpointWriter
from .devices import to_device
from .transforms.chain import Transforms


class ReplayBufferEnsemble:
    """Draws ``num_buffer_sampled`` of the ``buffers`` (default: as many as there are), and a part of the batch from each.

    - ``p``: probabilities of the members, any positive numbers; without it they are alike.
    - ``sample_from_all``: a part from every member, in order; excludes ``p``.
    - ``prefetch``: each member makes so many of its parts ahead, see `ReplayBuffer`.
    - ``transform``: applied after the members' own. ``collate_fn``: makes a batch of the parts; the default stacks them.

    A batch is ``[num_buffer_sampled, batch_size / num_buffer_sampled]``; members must therefore give the same keys and
    shapes. ``index`` is a TensorDict of ``buffer_ids`` and ``index``, in batches of TensorDicts and in the info. Read-only:
    write to the members.
    """

    def __init__(
        self,
        *buffers: ReplayBuffer,
        transform: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        p: Any = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        pin_memory: bool = False,
        device: Any = None,
        prefetch: int | None = None,
    ) -> None:
        strangers = [type(buffer).__name__ for buffer in buffers if not isinstance(buffer, ReplayBuffer)]
        if not buffers or strangers:
            raise UsageError(f"an ensemble needs buffers, not {', '.join(strangers) or 'nothing'}")
        if generator is not None and seed is not None:
            raise UsageError("give generator or seed, not both")
        if sample_from_all and p is not None:
            raise UsageError("sample_from_all leaves no room for p")
        self.buffers, self.sample_from_all = buffers, sample_from_all
        self.batch_size = None if batch_size is None else check_batch_size(batch_size)
        count = len(buffers) if sample_from_all or num_buffer_sampled is None else num_buffer_sampled
        if count < 1:
            raise UsageError(f"num_buffer_sampled must be at least 1, not {count}")
        self.num_buffer_sampled = count
        self.p = None if p is None else self._probabilities(p)
        self._transforms = transform if isinstance(transform, Transforms) else Transforms()
        if transform is not None and not isinstance(transform, Transforms):
            self._transforms.append(transform)
        self._collate = collate_fn
        self._prefetch = check_prefetch(prefetch, self.batch_size)
        if self._prefetch:
            for buffer in buffers:
                buffer._set_prefetch(self._prefetch)
        self._pin, self._device = pin_memory, None if device is None else torch.device(device)
        self._generator = make_generator(int(torch.randint(1 << 62, ()))) if generator is None else generator
        if seed is not None:
            self.set_seed(seed)

    def _probabilities(self, p: Any) -> torch.Tensor:
        values = torch.as_tensor(p, dtype=torch.float64)
        if values.shape != (len(self.buffers),) or not bool((values >= 0).all()) or not 0 < float(values.sum()) < 1e300:
            raise UsageError(f"p must be {len(self.buffers)} numbers, not negative and not all zero: {p!r}")
        return values / values.sum()

    @property
    def transform(self) -> Transforms:
        return self._transforms

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBufferEnsemble:
        """Add a transform at the end; returns the ensemble."""
        self._transforms.append(transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBufferEnsemble:
        """Add a transform before the one at ``index``; returns the ensemble."""
        self._transforms.insert(index, transform, invert=invert)
        return self

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw one batch, or ``(batch, info)``. Raises SamplingError when the batch cannot be divided among the members."""
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise UsageError("no batch size", hint="give batch_size to the ensemble, or to sample()")
        if check_batch_size(size) % self.num_buffer_sampled:
            message = f"batch_size {size} cannot be divided by num_buffer_sampled {self.num_buffer_sampled}"
            raise SamplingError(message)
        ids = self._members()
        part = size // self.num_buffer_sampled
        batches, infos = [], []
        for member in ids.tolist():
            data, info = self.buffers[member]._sample(
                part, self._prefetch > 0 or part == self.buffers[member].batch_size
            )
            batches.append(data)
            infos.append(info())
        index = self._index(ids, infos)
        batch = self._join(batches, index)
        if len(self._transforms):
            batch = self._transforms(batch)
        if self._pin or self._device is not None:
            batch = to_device(batch, self._device, self._pin)
        return (batch, {"index": index}) if return_info else batch

    def _members(self) -> torch.Tensor:
        if self.sample_from_all:
            return torch.arange(len(self.buffers))
        if self.p is None:
            return torch.randint(len(self.buffers), (self.num_buffer_sampled,), generator=self._generator)
        return torch.multinomial(self.p, self.num_buffer_sampled, replacement=True, generator=self._generator)

    def _index(self, ids: torch.Tensor, infos: list[dict[Any, Any]]) -> Any:
        rows = [info["index"] for info in infos]
        rows = [torch.stack(row, -1) if isinstance(row, tuple) else row for row in rows]
        if len({row.shape for row in rows}) > 1:  # short batches: no shape that holds them all
            return {"buffer_ids": ids, "index": rows}
        shape = (len(ids), len(rows[0]))
        content = {"buffer_ids": ids[:, None].expand(shape).contiguous(), "index": torch.stack(rows)}
        return TensorDict(content, batch_size=shape)

    def _join(self, batches: list[Any], index: Any) -> Any:
        if self._collate is not None:
            return self._collate(batches)
        if not isinstance(batches[0], TensorDictBase):
            from .storages.trees import stack

            return stack(batches)
        batches = [batch.exclude("index") for batch in batches]
        lengths = {len(batch) for batch in batches}
        if len(lengths) > 1:
            message = f"the members' parts have {', '.join(map(str, sorted(lengths)))} records"
            raise SamplingError(message, hint="sample with strict_length or with replacement, or give a collate_fn")
        try:
            joined: Any = torch.stack(batches)
        except (RuntimeError, KeyError) as error:
            message = f"the members' batches are not alike: {error}"
            raise SamplingError(message, hint="give members a transform that makes them so, or a collate_fn") from error
        return joined.set("index", index)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities of the members' rows; ``index`` is that of a batch (``buffer_ids`` and ``index``)."""
        ids, rows = index["buffer_ids"], index["index"]
        values = torch.as_tensor(priority)
        values = values.reshape(ids.shape) if values.numel() == ids.numel() else values.expand(ids.shape)
        for member in ids.unique().tolist():
            chosen = ids == member
            self.buffers[member].update_priority(rows[chosen], values[chosen])

    def update_tensordict_priority(self, data: TensorDictBase, priority_key: Any = "td_error") -> None:
        """Set the priorities of a batch's rows from ``priority_key``, one value for each."""
        self.update_priority(data["index"], data[priority_key])

    def add(self, data: Any) -> Any:
        raise ReadOnlyError("an ensemble doesn't allow writing", hint="write to its members: ensemble[0].extend(...)")

    extend = add

    def set_seed(self, seed: int) -> None:
        """Start the sequence of batches that belongs to a seed, in the members as well."""
        seed = check_seed(seed)
        self._generator.manual_seed(seed)
        for number, buffer in enumerate(self.buffers):
            buffer.set_seed(seed + 1 + number)

    def __iter__(self) -> Any:
        if self.batch_size is None:
            raise UsageError("iteration needs the batch_size given to the ensemble")
        while True:
            yield self.sample()

    def __len__(self) -> int:
        """How many members there are, as in TorchRL."""
        return len(self.buffers)

    def __getitem__(self, number: Any) -> Any:
        """A member; with a slice or list of numbers, an ensemble of some of them."""
        if isinstance(number, int):
            return self.buffers[number]
        chosen = list(range(len(self.buffers)))[number] if isinstance(number, slice) else [int(i) for i in number]
        return ReplayBufferEnsemble(
            *(self.buffers[member] for member in chosen),
            batch_size=self.batch_size,
            p=None if self.p is None else self.p[chosen],
            sample_from_all=self.sample_from_all,
        )

    def state_dict(self) -> dict[str, Any]:
        """The members' states, and where the ensemble's own draws stand."""
        return {
            "members": [buffer.state_dict() for buffer in self.buffers],
            "generator": self._generator.get_state(),
            "transforms": self._transforms.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state.get("members", ())) != len(self.buffers):
            raise UsageError(f"the state has {len(state.get('members', ()))} members, the ensemble {len(self.buffers)}")
        for buffer, own in zip(self.buffers, state["members"]):
            buffer.load_state_dict(own)
        self._generator.set_state(state["generator"])
        self._transforms.load_state_dict(state["transforms"])

    def dumps(self, path: Any) -> None:
        """Write every member to a folder of its own below ``path``, all or nothing; see `checkpoint`."""
        from .checkpoints.checkpoint import dump_into

        with CheckpointWriter(path) as folder:
            for number, buffer in enumerate(self.buffers):
                with buffer._lock:
                    dump_into(buffer, folder.part(str(number)))
            folder.describe("ReplayBufferEnsemble", {"members": len(self.buffers)})
            folder.tensors("rng", {"generator": OrderState(self._generator.get_state(), None).generator})
            folder.tensors("transforms", self._transforms.state_dict())

    save = dump = dumps

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote, into an ensemble of the same members."""
        from .checkpoints.checkpoint import Checkpoint, load_from

        checkpoint = Checkpoint(path, "ReplayBufferEnsemble")
        if checkpoint.about["members"] != len(self.buffers):
            message = f"the checkpoint has {checkpoint.about['members']} members, the ensemble {len(self.buffers)}"
            raise UsageError(message)
        for number, buffer in enumerate(self.buffers):
            with buffer._exclusive():
                load_from(buffer, checkpoint.part(str(number), type(buffer).__name__))
        self._generator.set_state(checkpoint.tensors("rng")["generator"])
        self._transforms.load_state_dict(checkpoint.tensors("transforms"))

    load = loads

    def __repr__(self) -> str:
        return f"ReplayBufferEnsemble({', '.join(map(repr, self.buffers))}, batch_size={self.batch_size})"
