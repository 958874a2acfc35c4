"""One trajectory as an object: its steps by attribute, its length, its return; and data split into trajectories."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorClass, TensorDictBase

from ...errors import ArgumentTypeError, SchemaError, UnknownKeyError
from .windows.draw import Key
from .windows.edges import ColumnOf, Edges, as_key
from .windows.timeline import Timeline

_IDS: tuple[Key, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))
_FLAGS = ("done", "terminated", "truncated")


class Trajectory(TensorClass["nocast"]):  # type: ignore[name-defined]
    data: TensorDictBase

    def __post_init__(self) -> None:
        if self.data is None or self.batch_size:
            return
        if self.data.batch_dims > 1:
            raise SchemaError(f"a trajectory is data of one batch dimension, not of {tuple(self.data.batch_size)}")
        self.auto_batch_size_(1)

    @property
    def length(self) -> int:
        """How many steps there are."""
        return int(self.batch_size[0])

    @property
    def total_reward(self) -> torch.Tensor:
        """The sum of its rewards."""
        return self.reward.sum()

    def get(self, key: Any, default: Any = None) -> Any:
        """The entry of a key; of a name that is not there, the one under ``next``."""
        value = self.data.get(key, None)
        if value is None and isinstance(key, str):
            value = self.data.get(("next", key), None)
        return default if value is None else value

    def keys(self, *args: Any, **options: Any) -> Any:
        """The keys of ``data``."""
        return self.data.keys(*args, **options)


# A TensorClass loses the docstring of its body.
Trajectory.__doc__ = """The steps of one trajectory, in order: ``data`` is a TensorDict of batch ``[T]``.

Attributes are its keys: ``trajectory.observation`` is ``data["observation"]``, and ``trajectory.reward``, which is not
there, ``data["next", "reward"]``. A key in brackets gives the entry itself, anything else a part of the trajectory.
Trajectories of unlike lengths make one batch by ``tensordict.lazy_stack``.
"""

_own_attribute, _own_part = Trajectory.__getattr__, Trajectory.__getitem__


def _attribute(self: Any, name: str) -> Any:
    try:
        return _own_attribute(self, name)
    except AttributeError:
        value = None if name.startswith("_") else self.get(name)
        if value is None:
            keys = sorted("/".join(as_key(key)) for key in self.data.keys(True, True))
            raise AttributeError(f"the trajectory has no entry '{name}'; there are {', '.join(keys)}") from None
        return value


def _part(self: Any, index: Any) -> Any:
    key = index if isinstance(index, tuple) else (index,)
    return self.data[index] if key and all(isinstance(name, str) for name in key) else _own_part(self, index)


def _repr(self: Any) -> str:
    shape = f"length={self.length}" if self.batch_dims == 1 else f"batch_size={tuple(self.batch_size)}"
    return f"Trajectory({shape}, keys={sorted(map(str, self.data.keys()))})"


# tensorclass puts its own into a class when it is made.
for _name, _method in (("__getattr__", _attribute), ("__getitem__", _part), ("__repr__", _repr)):
    setattr(Trajectory, _name, _method)


def find_edges(column: ColumnOf, trajectory_key: Any = None) -> Edges:
    """Where data say that trajectories end: an id, or without one the flags, which a warning says.

    Raises UnknownKeyError when they do not say it.
    """
    for key in _IDS if trajectory_key is None else (as_key(trajectory_key),):
        if column(key) is not None:
            return Edges(traj_key=key)
    if trajectory_key is not None:
        raise UnknownKeyError(f"the data have no trajectory_key {trajectory_key!r}")
    for above in (("next",), ()):
        flags = tuple((*above, flag) for flag in _FLAGS if column((*above, flag)) is not None)
        if flags:
            warnings.warn(
                f"no trajectory ids: trajectories are told apart by end-of-episode flags "
                f"({', '.join(map('/'.join, flags))}), and one without a flag at its end is joined to the next",
                stacklevel=4,
            )
            return Edges(end_keys=flags)
    tried = ", ".join(map("/".join, _IDS))
    raise UnknownKeyError(
        f"the data do not say where trajectories end: there is no {tried}, and no end-of-episode flag"
    )


def iter_trajectories(data: TensorDictBase, trajectory_key: Any = None) -> Iterator[Trajectory]:
    """The trajectories of steps that lie after each other, ``[steps]``: views of the data.

    They are told apart by ``trajectory_key``, the usual ids, or flags, see `find_edges`. Raises SchemaError for other data.
    """
    if not isinstance(data, TensorDictBase):
        raise ArgumentTypeError(f"trajectories are found in a TensorDict, not in a {type(data).__name__}")
    if data.batch_dims != 1:
        raise SchemaError(f"trajectories are found in data of one batch dimension, not of {tuple(data.batch_size)}")
    if not len(data):
        return
    column = lambda key: data.get(key, None)  # noqa: E731
    timeline: Timeline = find_edges(column, trajectory_key).timeline(column, len(data))
    for low, high in zip(timeline.starts[:-1].tolist(), timeline.starts[1:].tolist()):
        yield Trajectory(data[low:high])


def filter_trajectories(
    data: TensorDictBase,
    predicate: Callable[[Trajectory], Any] | None = None,
    *,
    trajectory_key: Any = None,
) -> list[Trajectory]:
    """The trajectories of ``data`` for which ``predicate`` holds, see `iter_trajectories` and `trajectory_predicates`."""
    found = iter_trajectories(data, trajectory_key)
    return [trajectory for trajectory in found if predicate is None or predicate(trajectory)]
