"""What is done to batches on their way out of a buffer, and to data on their way in.

A transform is any callable that takes a batch and returns one (or changes it in place and returns None), a
``torch.nn.Module``, or an object with an ``inv`` method as well, such as TorchRL's transforms: ``forward`` when sampling,
``inv`` when writing, in the reverse order. Inverted, it is the other way round:

    sampling     storage -> a -> b -> batch
    writing      storage <- a.inv <- b.inv <- data
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....errors import UsageError, reason


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

    def inv(self, data: Any) -> Any:
        """What is to be written; None where a transform keeps it back."""
        for transform in reversed(self._chain):
            data = _inverse(transform, data)
            if data is None:
                return None
        return data

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
