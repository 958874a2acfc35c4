"""Trajectories as objects, and questions about them.

`Trajectory`: the steps by attribute, the length, the return. `traj` writes questions like expressions:
``(traj.reward.sum() > 100) & (traj.length >= 50)``.

    traj.reward             a field: one value for each step
    traj.reward.sum()       a number of the trajectory
    ... > 100               a predicate (of a field: one for each step, until any() or all() makes one of them)

`query` finds the trajectories of a buffer for which something holds. Predicates written with `traj` say which keys they read:
only those are read, and only the transforms that make them are applied, until a trajectory is found. Over a dataset episodes
are asked one at a time, each leaf is read when it is asked for, and lengths and returns come from the episode table, so that
``traj.length > 100`` reads nothing at all.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from tensordict import LazyStackedTensorDict, TensorClass, TensorDictBase

from ....errors import ArgumentTypeError, SchemaError, UnknownKeyError
from ...dataset import Dataset
from ..storages.dataset_storage import DatasetStorage
from ..storages.storage import Storage
from ..storages.trees import stack_records
from ..timeline import ColumnOf, Edges, Key, Timeline, as_key, path_of
from ..transforms import Transforms

_IDS: tuple[Key, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))
_FLAGS = ("done", "terminated", "truncated")


class Trajectory(TensorClass["nocast"]):  # type: ignore[name-defined]
    data: TensorDictBase

    def __post_init__(self) -> None:
        if self.data is None or self.batch_size:  # type: ignore[has-type]
            return
        if self.data.batch_dims > 1:
            raise SchemaError(f"a trajectory is data of one batch dimension, not of {tuple(self.data.batch_size)}")
        if isinstance(self.data, LazyStackedTensorDict):  # whose batch size cannot be set, not even to what it is
            self.batch_size = self.data.batch_size
        else:
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
            keys = sorted(path_of(key) for key in self.data.keys(True, True))
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
    """Where data say that trajectories end: an id, else the flags, with a warning. Raises UnknownKeyError without them."""
    for key in _IDS if trajectory_key is None else (as_key(trajectory_key),):
        if column(key) is not None:
            return Edges(traj_key=key)
    if trajectory_key is not None:
        raise UnknownKeyError(f"the data have no trajectory_key {trajectory_key!r}")
    for above in (("next",), ()):
        flags = tuple((*above, flag) for flag in _FLAGS if column((*above, flag)) is not None)
        if flags:
            message = (
                f"no trajectory ids: trajectories are told apart by end-of-episode flags "
                f"({', '.join(map('/'.join, flags))}), and one without a flag at its end is joined to the next"
            )
            warnings.warn(message, stacklevel=4)
            return Edges(end_keys=flags)
    tried = ", ".join(map("/".join, _IDS))
    message = f"the data do not say where trajectories end: there is no {tried}, and no end-of-episode flag"
    raise UnknownKeyError(message)


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


Keys = frozenset[Any] | None  # None: not known


class TrajectoryPredicate:
    """A function of a `Trajectory` that is True or False; combined with ``&``, ``|`` and ``~``."""

    def __init__(self, fn: Callable[[Any], Any], description: str = "predicate", keys: Keys = None) -> None:
        self._fn, self._description, self._keys = fn, description, keys

    def required_keys(self) -> Keys:
        """The keys that it reads, None where that is not known."""
        return self._keys

    def __call__(self, trajectory: Any) -> bool:
        return bool(self._fn(trajectory))

    def _both(self, other: Callable[[Any], Any], sign: str, fn: Callable[[Any], Any]) -> TrajectoryPredicate:
        keys = other.required_keys() if isinstance(other, TrajectoryPredicate) else None
        joined = None if keys is None or self._keys is None else self._keys | keys
        return TrajectoryPredicate(fn, f"({self._description} {sign} {other!r})", joined)

    def __and__(self, other: Callable[[Any], Any]) -> TrajectoryPredicate:
        return self._both(other, "&", lambda trajectory: self(trajectory) and other(trajectory))

    def __or__(self, other: Callable[[Any], Any]) -> TrajectoryPredicate:
        return self._both(other, "|", lambda trajectory: self(trajectory) or other(trajectory))

    def __invert__(self) -> TrajectoryPredicate:
        return TrajectoryPredicate(lambda trajectory: not self(trajectory), f"~{self._description}", self._keys)

    def __repr__(self) -> str:
        return self._description


class StepPredicate:
    """A comparison that has an answer for each step: ``any()`` and ``all()`` make one of them."""

    def __init__(self, fn: Callable[[Any], torch.Tensor], description: str, keys: Keys) -> None:
        self._fn, self._description, self._keys = fn, description, keys

    def any(self) -> TrajectoryPredicate:
        """Whether it holds for some step."""
        return TrajectoryPredicate(lambda found: self._fn(found).any(), f"{self._description}.any()", self._keys)

    def all(self) -> TrajectoryPredicate:
        """Whether it holds for every step."""
        return TrajectoryPredicate(lambda found: self._fn(found).all(), f"{self._description}.all()", self._keys)

    def __call__(self, trajectory: Any = None) -> bool:
        message = f"{self._description} has an answer for each step, not one: call .any() or .all() on it"
        raise ArgumentTypeError(message)

    def __repr__(self) -> str:
        return self._description


def _comparison(sign: str, compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda expression, other: expression._compare(other, sign, compare)


class _Expression:
    """A value of a trajectory that can be compared, with a number, a tensor or another expression."""

    _predicate: Callable[..., Any]

    def __init__(self, fn: Callable[[Any], Any], description: str, keys: frozenset[Any]) -> None:
        self._fn, self._description, self._keys = fn, description, keys

    def _compare(self, other: Any, sign: str, compare: Callable[[Any, Any], Any]) -> Any:
        expression = isinstance(other, _Expression)
        keys = self._keys | other._keys if expression else self._keys
        fn = lambda found: compare(self._fn(found), other._fn(found) if expression else other)  # noqa: E731
        return self._predicate(fn, f"({self._description} {sign} {other!r})", keys)

    __gt__, __ge__ = _comparison(">", operator.gt), _comparison(">=", operator.ge)
    __lt__, __le__ = _comparison("<", operator.lt), _comparison("<=", operator.le)
    __eq__, __ne__ = _comparison("==", operator.eq), _comparison("!=", operator.ne)
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self._description


class Scalar(_Expression):
    """A number of a trajectory."""

    _predicate = TrajectoryPredicate


class Field(_Expression):
    """An entry of a trajectory, a value for each step."""

    _predicate = StepPredicate

    def __init__(self, key: Any, description: str) -> None:
        self._key = as_key(key) if isinstance(key, tuple) else key
        super().__init__(self._of, description, frozenset({self._key}))

    def _of(self, trajectory: Any) -> torch.Tensor:
        value = trajectory.get(self._key)
        if value is None:
            raise UnknownKeyError(f"the trajectory has no entry {self._key!r}")
        found: torch.Tensor = value
        return found

    def _reduced(self, name: str, fn: Callable[[torch.Tensor], Any]) -> Scalar:
        return Scalar(lambda trajectory: fn(self._of(trajectory)), f"{self._description}.{name}()", self._keys)

    def sum(self) -> Scalar:
        """The sum over all steps."""
        if self._key == "reward":  # which a dataset has in its episode table
            return Scalar(lambda trajectory: trajectory.total_reward, f"{self._description}.sum()", self._keys)
        return self._reduced("sum", torch.sum)

    def mean(self) -> Scalar:
        """The mean over all steps."""
        return self._reduced("mean", lambda values: values.float().mean())

    def max(self) -> Scalar:
        """The largest value."""
        return self._reduced("max", torch.max)

    def min(self) -> Scalar:
        """The smallest value."""
        return self._reduced("min", torch.min)

    def first(self) -> Scalar:
        """The value of the first step."""
        return self._reduced("first", lambda values: values[0])

    def last(self) -> Scalar:
        """The value of the last step."""
        return self._reduced("last", lambda values: values[-1])


class _Start:
    """What expressions begin with: ``traj.KEY``, ``traj["KEY"]``, ``traj["nested", "KEY"]``, and the two numbers below.

    Keys are looked for at the root, then under ``next``.
    """

    @property
    def length(self) -> Scalar:
        """The number of steps."""
        return Scalar(lambda trajectory: trajectory.length, "traj.length", frozenset())

    @property
    def total_reward(self) -> Scalar:
        """The sum of the rewards."""
        return Scalar(lambda trajectory: trajectory.total_reward, "traj.total_reward", frozenset({"reward"}))

    def __getattr__(self, name: str) -> Field:
        if name.startswith("_"):
            raise AttributeError(name)
        return Field(name, f"traj.{name}")

    def __getitem__(self, key: Any) -> Field:
        return Field(key, f"traj[{key!r}]")

    def __repr__(self) -> str:
        return "traj"


traj = _Start()


Predicate = Callable[[Any], Any]


class DatasetTrajectories(Sequence[Trajectory]):
    """Trajectories of a dataset: each is read (and transformed) when it is taken out.

    ``episodes`` int64 ``[n]``: their numbers in the dataset.
    """

    def __init__(self, dataset: Dataset, starts: torch.Tensor, episodes: torch.Tensor, transforms: Transforms) -> None:
        self.dataset, self.episodes = dataset, episodes
        self._starts, self._transforms = starts, transforms

    def __len__(self) -> int:
        return len(self.episodes)

    @overload
    def __getitem__(self, place: int) -> Trajectory: ...

    @overload
    def __getitem__(self, place: slice) -> DatasetTrajectories: ...

    def __getitem__(self, place: int | slice) -> Trajectory | DatasetTrajectories:
        if isinstance(place, slice):
            return DatasetTrajectories(self.dataset, self._starts, self.episodes[place], self._transforms)
        episode = int(self.episodes[place])  # beyond the end an IndexError, which ends iteration
        steps = self.dataset[int(self._starts[episode]) : int(self._starts[episode + 1])]
        return Trajectory(self._transforms.apply_to_stored(steps))

    def __repr__(self) -> str:
        return f"DatasetTrajectories({len(self)} of {self.dataset!r})"


class _Episode:
    """A `Trajectory` of a dataset as predicates see it: a leaf is read when it is asked for."""

    def __init__(self, dataset: Dataset, low: int, high: int, total: float | None) -> None:
        self._dataset, self._low, self.length, self._total = dataset, low, high - low, total
        self._whole: Trajectory | None = None

    @property
    def total_reward(self) -> torch.Tensor:
        if self._total is None:
            found: torch.Tensor = self.get("reward").sum()
            return found
        return torch.tensor(self._total, dtype=torch.float64, device="cpu")

    def get(self, key: Any, default: Any = None) -> Any:
        names = [path_of(key)]
        if isinstance(key, str):
            names.append(f"next/{key}")
        for name in names:
            root = name if name in self._dataset.rows else name.removeprefix("next/")
            if name in self._dataset.schema.names and root in self._dataset.rows:
                steps = torch.arange(self._low, self._low + self.length, device="cpu")
                return self._dataset.read(steps, keys=[root])[tuple(name.split("/"))][:, 0]
        return default

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get(name)
        return getattr(self._read(), name) if value is None else value

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __len__(self) -> int:
        return self.length

    def _read(self) -> Trajectory:
        if self._whole is None:
            self._whole = Trajectory(self._dataset[self._low : self._low + self.length])
        return self._whole


def query_trajectories(
    storage: Storage, transforms: Transforms, predicate: Predicate | None, trajectory_key: Any
) -> Sequence[Trajectory]:
    """The trajectories for which ``predicate`` holds (all without one), in order of time, through the transforms."""
    if not len(storage):
        return []
    keys = getattr(predicate, "required_keys", lambda: None)()
    if isinstance(storage, DatasetStorage):
        return _in_dataset(storage, transforms, predicate, keys, trajectory_key)
    source = storage.get(slice(None))
    source = stack_records(source) if isinstance(source, list) else source
    if not isinstance(source, TensorDictBase):
        raise ArgumentTypeError(f"queries are about TensorDicts, and the storage holds a {type(source).__name__}")
    timeline = storage.timeline(find_edges(storage.column, trajectory_key))
    places = list(_places(timeline, storage))
    if predicate is None:
        return [Trajectory(transforms.apply_to_stored(source[place])) for place in places]
    asked, transformed = source, transforms
    if keys is not None:
        transformed, needed = needed_transforms(transforms, keys)
        asked = source if needed is None else source.select(*needed, strict=False)
    asked = transformed.apply_to_stored(asked)
    chosen = [place for place in places if predicate(Trajectory(asked[place]))]
    if keys is None:  # everything was transformed already
        return [Trajectory(asked[place]) for place in chosen]
    return [Trajectory(transforms.apply_to_stored(source[place])) for place in chosen]


def _in_dataset(
    storage: DatasetStorage, transforms: Transforms, predicate: Predicate | None, keys: Any, trajectory_key: Any
) -> DatasetTrajectories:
    edges = Edges() if trajectory_key is None else find_edges(storage.column, trajectory_key)
    starts, dataset = storage.timeline(edges).starts, storage.dataset
    every = DatasetTrajectories(dataset, starts, torch.arange(len(starts) - 1, device="cpu"), transforms)
    if predicate is None:
        return every
    raw = not len(transforms) or (keys is not None and not len(needed_transforms(transforms, keys)[0]))
    # Returns in the table are those of its own episodes, of rewards under their usual name.
    table = dataset.episodes.returns if trajectory_key is None and "reward" not in dataset.schema.names else None
    chosen = []
    for number, (low, high) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist())):
        total = None if table is None else float(table[number])
        if predicate(_Episode(dataset, low, high, total) if raw else every[number]):
            chosen.append(number)
    return DatasetTrajectories(dataset, starts, torch.tensor(chosen, dtype=torch.int64, device="cpu"), transforms)


def _places(timeline: Timeline, storage: Storage) -> Iterator[Any]:
    """What to index the records of a storage with, for each trajectory: a slice (a view) where its rows follow each other."""
    for low, high in zip(timeline.starts[:-1].tolist(), timeline.starts[1:].tolist()):
        rows = timeline.rows(torch.arange(low, high, device="cpu"))
        first, last = int(rows[0]), int(rows[-1])
        contiguous = storage.ndim == 1 and timeline.order is None and last - first == high - low - 1
        yield slice(first, last + 1) if contiguous else storage.coordinates(rows)


def needed_transforms(transforms: Transforms, keys: frozenset[Any]) -> tuple[Transforms, set[Key] | None]:
    """The transforms that make any of ``keys``, and what has to be read for it; None: everything.

    A transform without ``out_keys`` may make anything: it and all before it are needed.
    """
    needed = {as_key(key) for key in keys} | {("next", key) for key in keys if isinstance(key, str)}
    kept: list[Any] = []
    for place in reversed(range(len(transforms))):
        made = [as_key(key) for key in getattr(transforms[place], "out_keys", None) or ()]
        if not made:
            return Transforms(*(transforms[before] for before in range(place + 1)), *kept), None
        # One key is the other one, or lies below it.
        if any(key[: len(other)] == other[: len(key)] for key in made for other in needed):
            kept.insert(0, transforms[place])
            needed.update(as_key(key) for key in getattr(transforms[place], "in_keys", None) or ())
    return Transforms(*kept), needed
