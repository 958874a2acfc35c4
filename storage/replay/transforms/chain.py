"""What is done to batches on their way out of a buffer, and to data on their way in.

A transform is any callable that takes a batch and returns one (or changes it in place and returns None), a
``torch.nn.Module``, or an object with an ``inv`` method as well, such as TorchRL's transforms: ``forward`` when sampling,
``inv`` when writing, in the reverse order. Inverted, it is the other way round:

    sampling     storage -> a -> b -> batch
    writing      storage <- a.inv <- b.inv <- data
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch.utils import _pytree as pytree

from ....errors import UsageError, reason
from ..overrides import is_own_code


class Inverted:
    """A transform the other way round: its forward when writing, its inverse when sampling."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, data: Any) -> Any:
        return _inverse(self.transform, data)

    def inv(self, data: Any) -> Any:
        return _forward(self.transform, data)

    def __repr__(self) -> str:
        return f"Inverted({self.transform!r})"


class Transforms:
    """A chain of transforms."""

    def __init__(self, *transforms: Any) -> None:
        self._chain: list[Any] = []
        for transform in transforms:
            self.append(transform)

    def append(self, transform: Any, *, invert: bool = False) -> None:
        """Add at the end: applied last when sampling, first when writing."""
        self.insert(len(self._chain), transform, invert=invert)

    def insert(self, place: int, transform: Any, *, invert: bool = False) -> None:
        """Add before the one at ``place``. Raises UsageError for what cannot be called, and places that are not there."""
        if not callable(transform):
            raise UsageError(f"a transform is something to be called with a batch, not a {type(transform).__name__}")
        if not -len(self._chain) <= place <= len(self._chain):
            raise UsageError(f"there is no place {place} among {len(self._chain)} transforms")
        if isinstance(transform, torch.nn.Module):
            transform.eval()
        chain = self._chain.copy()  # a batch in the making goes through the chain as it was
        chain.insert(place, Inverted(transform) if invert else transform)
        self._chain = chain

    def __call__(self, batch: Any) -> Any:
        for transform in self._chain:
            batch = _forward(transform, batch)
        return batch

    def apply_beside(self, batch: Any, info: Iterable[str], flags: Mapping[Any, Any] | None = None) -> Any:
        """Apply to a batch of which the keys ``info`` hold what the sampler says of its records.

        As in TorchRL, ``half()`` or ``select(...)`` must not reach them: they are put back, and ``flags`` (values by key) where
        a transform has removed them or changed their dtype. Of other records than those drawn the sampler says nothing, and
        where a transform changed their order, by ``index``, the batch stays as it is.
        """
        if not self._chain or not isinstance(batch, TensorDictBase):
            return self(batch)
        found = {key: batch.get(key, None) for key in info}
        said = {key: (value, value.clone(), _version(value)) for key, value in found.items() if value is not None}
        size = batch.batch_size
        batch = self(batch)
        if not isinstance(batch, TensorDictBase) or batch.batch_size != size:
            return batch
        lost: dict[Any, Any] = {}
        for key, (value, copy, version) in said.items():
            found_now = batch.get(key, None)
            if found_now is value and _version(value) == version:
                continue
            if key == "index" and _reordered(copy, found_now):
                return batch
            lost[key] = copy
            if _version(value) != version:
                value.copy_(copy)  # the info has it as well
        for key, value in (flags or {}).items():
            found_now = batch.get(key, None)
            if value is not None and (found_now is None or found_now.dtype != value.dtype):
                lost[key] = value
        if lost:
            batch = batch.copy() if batch.is_locked else batch
            for key, value in lost.items():
                batch.set(key, value if batch.device is None else value.to(batch.device))
        return batch

    def inv(self, data: Any) -> Any:
        """What is to be written; None where a transform keeps it back."""
        for transform in reversed(self._chain):
            data = _inverse(transform, data)
            if data is None:
                return None
        return data

    @property
    def are_own_code(self) -> bool:
        """Whether one of them comes from outside of this package."""
        return any(is_own_code(part.transform if isinstance(part, Inverted) else part) for part in self._chain)

    def __len__(self) -> int:
        return len(self._chain)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._chain)

    def __getitem__(self, place: int) -> Any:
        return self._chain[place]

    def state_dict(self) -> dict[str, Any]:
        """The states of the modules among them, copied, by ``place.name``: tensors, and what ``get_extra_state`` gives."""
        return {
            f"{place}.{name}": _copied(value)
            for place, module in self._modules()
            for name, value in module.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave, here or that of TorchRL's ``Compose``; all of it or, with UsageError, nothing."""
        before = self.state_dict()
        try:
            self._load(state)
        except BaseException:
            self._load(before)
            raise

    def _load(self, state: dict[str, Any]) -> None:
        # A module may keep the extra state that it is given, and change it.
        state = {name.removeprefix("transforms."): _copied(value) for name, value in state.items()}
        for place, module in self._modules():
            prefix = f"{place}."
            own = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
            try:
                module.load_state_dict(own)
            except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise UsageError(f"the state does not fit transform {place}: {reason(error)}") from error

    def _modules(self) -> Iterator[tuple[int, torch.nn.Module]]:
        for place, transform in enumerate(self._chain):
            if isinstance(transform, Inverted):
                transform = transform.transform
            if isinstance(transform, torch.nn.Module):
                yield place, transform

    def __repr__(self) -> str:
        return f"Transforms({', '.join(map(repr, self._chain))})"


def _version(value: Any) -> Any:
    """What changes when a tensor, or one of a TensorDict's, is changed in place."""
    if not isinstance(value, torch.Tensor):
        return [_version(leaf) for leaf in value.values(True, True)]
    return float("nan") if value.is_inference() else value._version  # inference mode does not count: always another one


def _reordered(index: Any, found: Any) -> bool:
    """Whether ``found`` has the rows of ``index`` in another order."""
    if isinstance(index, TensorDictBase) and isinstance(found, TensorDictBase):  # of an ensemble
        index, found = ([part.get("buffer_ids"), part.get("index")] for part in (index, found))
        index, found = (torch.stack(part, -1) if part[0].shape == part[1].shape else None for part in (index, found))
    if not isinstance(index, torch.Tensor) or not isinstance(found, torch.Tensor):
        return False
    if found.dtype != index.dtype or found.shape != index.shape or torch.equal(index, found):
        return False
    every = (each.reshape(-1, each.shape[-1]) if each.ndim > 1 else each[:, None] for each in (index, found))
    first, second = (torch.unique(each, dim=0, return_counts=True) for each in every)
    return torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def _copied(state: Any) -> Any:
    copy: Any = pytree.tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else deepcopy(leaf), state
    )
    return copy


def as_transforms(transform: Any) -> Transforms:
    """A chain as it is, a chain of one transform, or of none."""
    if isinstance(transform, Transforms):
        return transform
    return Transforms() if transform is None else Transforms(transform)


def _forward(transform: Callable[[Any], Any], batch: Any) -> Any:
    result = transform(batch)
    return batch if result is None else result


def _inverse(transform: Any, data: Any) -> Any:
    inverse = getattr(transform, "inv", None)
    return data if inverse is None else inverse(data)


def share_state(transform: Any) -> None:
    """Put what a transform keeps between writes in shared memory. Raises UsageError where it keeps some and cannot."""
    if isinstance(transform, Inverted):
        transform = transform.transform
    share = getattr(transform, "share_memory_", None)
    parts = transform if isinstance(transform, Transforms) else getattr(transform, "transforms", None)
    if parts is not None:
        for part in parts:
            share_state(part)
    elif callable(share):
        share()
    elif getattr(transform, "requires_shared_write_state", False):
        message = (
            f"a {type(transform).__name__} keeps write state that processes cannot share: it has no share_memory_()"
        )
        raise UsageError(message, hint="write in one process, or give the transform a share_memory_()")
