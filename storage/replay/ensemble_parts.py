"""The storages, samplers and writers of an ensemble's members, each as one part that is indexed by member.

storages[1]          the storage of member 1
storages[:2]         a StorageEnsemble of members 0 and 1
storages[:, :3]      [records 0, 1, 2 of each]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDict

from ...errors import ReadOnlyError, SamplingError, UsageError
from .samplers.uniform import Sampler
from .storages.storage import Storage
from .writers.base import Writer


def pick_members(index: Any, count: int) -> int | list[int]:
    """A member's number for a number, a list of them for anything else. Raises IndexError when there is no such member."""
    if index is Ellipsis or isinstance(index, slice):
        return list(range(count))[slice(None) if index is Ellipsis else index]
    numbers = torch.as_tensor(index)
    if numbers.ndim > 1 or numbers.dtype == torch.bool or numbers.is_floating_point():
        message = f"members are named by whole numbers, a slice or one dimension of numbers, not {index!r}"
        raise UsageError(message)
    numbers = torch.where(numbers < 0, numbers + count, numbers)
    if bool(((numbers < 0) | (numbers >= count)).any()):
        raise IndexError(f"there is no member {index!r}: the ensemble has {count}")
    chosen: int | list[int] = numbers.tolist()
    return chosen


class EnsemblePart:
    """What the three have in common."""

    parts: tuple[Any, ...]

    def _some(self, chosen: list[int]) -> Any:
        """An ensemble of some of the parts."""
        return type(self)(*(self.parts[member] for member in chosen))

    def __getitem__(self, index: Any) -> Any:
        members, *rows = index if isinstance(index, tuple) else (index,)
        chosen = pick_members(members, len(self.parts))
        if not rows:
            return self.parts[chosen] if isinstance(chosen, int) else self._some(chosen)
        place = rows[0] if len(rows) == 1 else tuple(rows)
        return self.parts[chosen][place] if isinstance(chosen, int) else [self.parts[part][place] for part in chosen]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def empty(self, empty_write_count: bool = True) -> None:
        """Empty every one of them."""
        for part in self.parts:
            part.empty()

    _empty = empty

    def state_dict(self) -> dict[str, Any]:
        """The states of all, by the number of the member."""
        return {str(member): part.state_dict() for member, part in enumerate(self.parts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {str(member) for member in range(len(self.parts))}:
            raise UsageError(f"the state has {len(state)} members, the ensemble {len(self.parts)}")
        self._load([state[str(member)] for member in range(len(self.parts))])

    def _load(self, states: list[Any]) -> None:
        """Load the state of each part, or none of them."""
        before = [part.state_dict() for part in self.parts]
        try:
            for part, own in zip(self.parts, states):
                part.load_state_dict(own)
        except BaseException:
            for part, own in zip(self.parts, before):
                part.load_state_dict(own)
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"


class StorageEnsemble(EnsemblePart, Storage):
    """The storages of an ensemble's members; ``transforms``: one (or None) for each, applied to what is sampled.

    ``len()`` counts members, as in TorchRL. Nothing can be written: write to the members.
    """

    def __init__(self, *storages: Storage, transforms: Sequence[Any] | None = None) -> None:
        if transforms is not None and len(transforms) != len(storages):
            raise UsageError(f"{len(transforms)} transforms for {len(storages)} storages")
        super().__init__(sum(storage.max_size for storage in storages) or 1)
        self.parts, self.transforms = storages, transforms

    def _some(self, chosen: list[int]) -> StorageEnsemble:
        transforms = None if self.transforms is None else [self.transforms[member] for member in chosen]
        return StorageEnsemble(*(self.parts[member] for member in chosen), transforms=transforms)

    def get(self, index: Any) -> list[tuple[int, Any]]:
        """``(member, records)`` for each entry of a TensorDict of ``buffer_ids`` ``[k]`` and ``index`` ``[k, n]``."""
        found = []
        for member, rows in zip(index["buffer_ids"].tolist(), index["index"]):
            storage = self.parts[member]
            records = storage.get(rows if storage.ndim == 1 else rows.unbind(-1))
            transform = None if self.transforms is None else self.transforms[member]
            found.append((member, records if transform is None else transform(records)))
        return found

    def _load(self, states: list[Any]) -> None:
        for part, own in zip(self.parts, states):
            with part.checking():
                part.load_state_dict(own)
        for part, own in zip(self.parts, states):
            part.load_state_dict(own)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise ReadOnlyError("an ensemble's storages are written by its members", hint="ensemble[0].extend(...)")


class WriterEnsemble(EnsemblePart, Writer):
    """The writers of an ensemble's members; it writes nothing itself."""

    def __init__(self, *writers: Writer) -> None:
        self.parts = writers

    def register_storage(self, storage: Any) -> None:
        """Give each writer the storage of its member."""
        if len(storage) != len(self.parts):
            raise UsageError(f"{len(self.parts)} writers for {len(storage)} storages")
        for writer, own in zip(self.parts, storage):
            writer.register_storage(own)

    @property
    def write_count(self) -> int:
        """Records that all members have written."""
        return sum(getattr(writer, "write_count", 0) for writer in self.parts)

    def add(self, data: Any) -> Any:
        raise ReadOnlyError("an ensemble's writers write to their members only", hint="ensemble[0].extend(...)")

    extend = add


class SamplerEnsemble(EnsemblePart, Sampler):
    """The samplers of an ensemble's members, and which members a batch comes from.

    - ``p``: probabilities of the members, any numbers that are not negative; None: all alike. ``"sampleable"``: in proportion
      to what can be drawn from each at that moment (records, or starts of slices); members too small for their part have none.
    - ``sample_from_all``: a part from every member, in order; excludes ``p``.
    - ``num_buffer_sampled``: how many parts a batch has; the default is the number of members.

    ``p`` may be assigned at any time.
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Any = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
    ) -> None:
        if sample_from_all and p is not None:
            raise UsageError("sample_from_all leaves no room for p")
        self.parts, self.sample_from_all = samplers, sample_from_all
        self._p: torch.Tensor | Literal["sampleable"] | None = None
        self.p = p
        count = len(samplers) if sample_from_all or num_buffer_sampled is None else num_buffer_sampled
        if count < 1:
            raise UsageError(f"num_buffer_sampled must be at least 1, not {count}")
        self.num_buffer_sampled = count

    @property
    def p(self) -> torch.Tensor | Literal["sampleable"] | None:
        """The probabilities, summing to 1, float64 ``[members]``; or None, or ``"sampleable"``."""
        return self._p

    @p.setter
    def p(self, given: Any) -> None:
        if given is None or (isinstance(given, str) and given == "sampleable"):
            self._p = None if given is None else "sampleable"
            return
        try:
            values = torch.as_tensor(given, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"p is one number for each member, or 'sampleable', not {given!r}") from error
        if values.shape != (len(self.parts),) or not bool((values >= 0).all()) or not 0 < float(values.sum()) < 1e300:
            raise UsageError(f"p must be {len(self.parts)} numbers, not negative and not all zero: {given!r}")
        self._p = values / values.sum()

    def _some(self, chosen: list[int]) -> SamplerEnsemble:
        p = self.p[chosen] if isinstance(self.p, torch.Tensor) else self.p
        return SamplerEnsemble(
            *(self.parts[member] for member in chosen),
            p=p,
            sample_from_all=self.sample_from_all,
            num_buffer_sampled=self.num_buffer_sampled,
        )

    def part_size(self, batch_size: int) -> int:
        """Records of each part. Raises SamplingError when the batch cannot be divided."""
        if batch_size % self.num_buffer_sampled:
            message = f"batch_size {batch_size} cannot be divided by num_buffer_sampled {self.num_buffer_sampled}"
            raise SamplingError(message)
        return batch_size // self.num_buffer_sampled

    def draw_members(self, storages: Sequence[Storage], part: int, generator: torch.Generator | None) -> torch.Tensor:
        """The members that the parts of a batch come from, int64 ``[num_buffer_sampled]``."""
        if self.sample_from_all:
            return torch.arange(len(self.parts))
        p = self.p
        if p is None:
            return torch.randint(len(self.parts), (self.num_buffer_sampled,), generator=generator)
        if isinstance(p, str):
            counts = [sampler.sampleable(storage, part) for sampler, storage in zip(self.parts, storages)]
            if not any(counts):
                message = f"no member has what a part of {part} records takes"
                raise SamplingError(message, hint="extend the members first, or take smaller batches")
            p = torch.tensor(counts, dtype=torch.float64)
        return torch.multinomial(p, self.num_buffer_sampled, replacement=True, generator=generator)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, Any]:
        """``(index, infos)``: a TensorDict of ``buffer_ids`` ``[k]`` and ``index`` ``[k, n]``, and what each sampler says."""
        if not isinstance(storage, StorageEnsemble):
            raise UsageError(f"a SamplerEnsemble samples from a StorageEnsemble, not from a {type(storage).__name__}")
        part = self.part_size(batch_size)
        ids = self.draw_members(storage.parts, part, self._rng)
        drawn = [self.parts[member].sample(storage.parts[member], part) for member in ids.tolist()]
        rows = [torch.stack(index, -1) if isinstance(index, tuple) else index for index, _ in drawn]
        index = TensorDict({"buffer_ids": ids, "index": torch.stack(rows)}, [len(ids)])
        return index, [info for _, info in drawn]
