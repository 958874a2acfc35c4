"""The two calls that draw a batch: ours, ``draw``, and TorchRL's, ``sample(storage, batch_size) -> (index, info)``.

A class of samplers defines one of them, and `link_calls` makes the other one from it, in every class of its own:

    class A(RandomSampler): sample        A.draw calls A.sample, in which super().sample() calls RandomSampler.draw
    class B(A): draw                      B.sample calls B.draw, in which super().draw() calls A.sample

So the most derived definition is what draws, whichever name it has, and ``super()`` reaches the next one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ....errors import SamplingError
from ..draw import Draw, slice_flags
from ..overrides import MADE, is_overridden, link
from ..storages.storage import Storage
from ..storages.trees import copy_of
from ..timeline import Key, as_key, entry_key

Sampler = Any  # the base class is in `uniform`, which imports this module


def link_calls(cls: type) -> None:
    """Give a class of samplers the one of the two methods that it does not define."""
    link(cls, "draw", "sample", _other)


def relink(cls: type, name: str, value: Any) -> None:
    """The class was given a ``draw`` or ``sample`` after it was made: the other one follows."""
    other = "sample" if name == "draw" else "draw"
    type.__setattr__(cls, other, getattr(value, MADE, None) or _other(name, value))


def draw_batch(sampler: Sampler, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
    """The next draw; by the ``sample`` that was set on this very sampler, if one was."""
    own = sampler.__dict__.get("sample")
    if own is not None and "draw" not in sampler.__dict__:
        return to_draw(sampler, storage, own(storage, batch_size))
    draw = sampler.draw(storage, batch_size, generator)
    return draw if is_known(sampler) else _copied(draw)


def _copied(draw: Draw) -> Draw:
    """The same, in memory that the user's sampler does not use again for the next batch."""
    start, lengths, goals, info = copy_of([draw.start, draw.lengths, draw.goals, draw.info])
    return replace(draw, start=start, lengths=lengths, goals=goals, info=info, notes=copy_of(draw.notes))


def is_known(sampler: Sampler) -> bool:
    """Whether nothing of how the sampler draws was overridden, so that its draws can be taken back by `Sampler.position`."""
    return not (is_overridden(sampler, "draw") or is_overridden(sampler, "sample"))


def _other(given: str, function: Any) -> Any:
    """``sample`` made from a ``draw``, or ``draw`` from a ``sample``."""

    def draw(self: Sampler, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        before, self._rng = self._rng, generator
        try:
            return to_draw(self, storage, _bound(function, self)(storage, batch_size))
        finally:
            self._rng = before

    def sample(self: Sampler, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        generator = self._rng if self._rng is not None else torch.default_generator
        return _by_row(_bound(function, self)(storage, batch_size, generator), storage)

    made = sample if given == "draw" else draw
    setattr(made, MADE, function)
    made.__doc__ = {
        "draw": "The next batch: what `sample` returns.",
        "sample": "TorchRL's call: ``(index, info)`` of a batch, drawn from the generator the buffer has set.",
    }[made.__name__]
    return made


def _bound(function: Any, sampler: Sampler) -> Any:
    return function.__get__(sampler, type(sampler)) if hasattr(type(function), "__get__") else function


# -- from one to the other ---------------------------------------------------------------------------------------------


def _by_row(draw: Draw, storage: Storage) -> tuple[Any, dict[Any, Any]]:
    """What `sample` returns of a draw: rows, and what is known of them, slice flags included."""
    places = draw.indices()
    rows = places if draw.timeline is None else draw.timeline.rows(places)

    def column(key: Key) -> torch.Tensor | None:
        values = storage.column_as_read(key)
        return None if values is None else values[rows].clone()

    flags = {entry_key(key): flag for key, flag in slice_flags(draw, column).items()}
    return storage.coordinates(rows), {**draw.info, **flags, **draw.notes}


def to_draw(sampler: Sampler, storage: Storage, found: Any) -> Draw:
    """The draw that a user's ``sample`` stands for. Raises SamplingError for what is not ``(index, info)`` of this storage.

    ``index``: rows as a tensor, an array or a list, ``[N]`` (negative ones count from the end), or a tuple of one of these for
    each dimension of the storage. ``info``: values ``[N, ...]``, or single ones, which are repeated for each record.
    """
    name = f"{type(sampler).__name__}.sample"
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        raise SamplingError(f"{name} must return (index, info), with a dict as info, not {found!r:.100}")
    rows = rows_of(found[0], storage, f"the index that {name} returned")
    given = {key: value for key, value in found[1].items() if key not in ("index", ("index",))}
    each = {}
    for key, value in given.items():
        if not isinstance(key, (str, tuple)) or any("/" in part for part in as_key(key)):
            raise SamplingError(f"info[{key!r}] that {name} returned has no key that a batch could have")
        try:
            values = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SamplingError(
                f"info[{key!r}] that {name} returned is no tensor, but a {type(value).__name__}"
            ) from error
        if not values.ndim:
            values = values.expand(len(rows))
        if values.shape[0] != len(rows):
            message = f"info[{key!r}] that {name} returned has shape {list(values.shape)}, for {len(rows)} records"
            raise SamplingError(message, hint="a value for each record, or one for all of them")
        each[key] = values
    return _copied(Draw(rows, info=each, notes=given))


def rows_of(index: Any, storage: Storage, what: str) -> torch.Tensor:
    """Flat rows, int64 ``[N]``, of an index that a user's function returned. Raises SamplingError for what is none."""
    shape = tuple(storage.shape) if storage.ndim > 1 else (len(storage),)
    try:
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(part) for part in index], -1)
        rows = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SamplingError(f"{what} is a {type(index).__name__}: rows are whole numbers, [N]") from error
    if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
        raise SamplingError(f"{what} holds {rows.dtype}: rows are whole numbers, [N]")
    if rows.ndim == 1 and storage.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.shape[1] != len(shape):
        wanted = "[N]" if len(shape) == 1 else f"[N, {len(shape)}], or a tuple of {len(shape)} tensors [N]"
        raise SamplingError(f"{what} has shape {list(rows.shape)}", hint=f"return {wanted}")
    rows = rows.long().cpu()
    sizes = torch.tensor(shape)
    if len(rows) and not bool(((rows >= -sizes) & (rows < sizes)).all()):
        raise SamplingError(f"{what} has rows that are not among the {list(shape)} there are")
    return storage.flat(torch.where(rows < 0, rows + sizes, rows))
