"""The transforms of a buffer: of batches that are sampled, and of data that are written to it.

A transform is any callable that takes a batch and returns one (or changes it in place and returns None), a
``torch.nn.Module``, or an object with an ``inv`` method as well, such as TorchRL's transforms: ``forward`` when sampling,
``inv`` when writing, in the reverse order. Inverted, it is the other way round:

    sampling     storage -> a -> b -> batch
    writing      storage <- a.inv <- b.inv <- data

The sampler's information (``index``, weights) is set in the batch again after the transforms, as in TorchRL: ``half()`` or
``select("observation")`` do not lose it. A transform that puts the records into another order should do that to the learner's
copy instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import LazyStackedTensorDict

from ...errors import UsageError, reason
from .saved import Saved


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


class Transforms(Saved):
    """A ``chain`` of transforms."""

    def __init__(self, *transforms: Any) -> None:
        self.chain: list[Any] = []
        for transform in transforms:
            self.append(transform)

    @classmethod
    def of(cls, transform: Any) -> Transforms:
        """A new chain, from the transforms of a chain (which another buffer may use as well), from one transform, or None."""
        if isinstance(transform, Transforms):
            return cls(*transform)
        return cls() if transform is None else cls(transform)

    def append(self, transform: Any, *, invert: bool = False) -> None:
        """Add at the end: applied last when sampling, first when writing."""
        self.insert(len(self.chain), transform, invert=invert)

    def insert(self, place: int, transform: Any, *, invert: bool = False) -> None:
        """Add before the transform at ``place``. Raises UsageError for objects that cannot be called, and invalid places."""
        if not callable(transform):
            raise UsageError(f"a transform is something to be called with a batch, not a {type(transform).__name__}")
        if not -len(self.chain) <= place <= len(self.chain):
            raise UsageError(f"there is no place {place} among {len(self.chain)} transforms")
        if isinstance(transform, torch.nn.Module):
            transform.eval()
        chain = self.chain.copy()  # batches that are being made keep the old chain
        chain.insert(place, Inverted(transform) if invert else transform)
        self.chain = chain

    def __call__(self, batch: Any) -> Any:
        if self.chain and isinstance(batch, LazyStackedTensorDict):
            batch = _dense(batch)
        for transform in self.chain:
            batch = _forward(transform, batch)
        return batch

    def inv(self, data: Any) -> Any:
        """Return the data to write; None if a transform withholds them."""
        for transform in reversed(self.chain):
            data = _inverse(transform, data)
            if data is None:
                return None
        return data

    def __len__(self) -> int:
        return len(self.chain)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.chain)

    def __getitem__(self, place: int) -> Any:
        return self.chain[place]

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copied states of the transforms that are modules, by ``place.name``."""
        return {
            f"{place}.{name}": value.detach().clone() if isinstance(value, torch.Tensor) else value
            for place, module in self._modules()
            for name, value in module.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from ``state_dict``. Raises UsageError if it does not fit."""
        for place, module in self._modules():
            prefix = f"{place}."
            own = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
            try:
                module.load_state_dict(own)
            except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise UsageError(f"the state does not fit transform {place}: {reason(error)}") from error

    def _modules(self) -> Iterator[tuple[int, torch.nn.Module]]:
        for place, transform in enumerate(self.chain):
            module = transform.transform if isinstance(transform, Inverted) else transform
            if isinstance(module, torch.nn.Module):
                yield place, module

    def __repr__(self) -> str:
        return f"Transforms({', '.join(map(repr, self.chain))})"


def _dense(batch: LazyStackedTensorDict) -> Any:
    """Records that are alike in memory of their own, others as a copy of the stack: writes must not reach the records."""
    try:
        return batch.contiguous()
    except RuntimeError:
        return batch.copy()


def _forward(transform: Callable[[Any], Any], batch: Any) -> Any:
    result = transform(batch)
    return batch if result is None else result


def _inverse(transform: Any, data: Any) -> Any:
    inverse = getattr(transform, "inv", None)
    return data if inverse is None else inverse(data)
