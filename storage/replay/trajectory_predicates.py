"""Questions about trajectories, written like expressions: ``(traj.reward.sum() > 100) & (traj.length >= 50)``.

    traj.reward             a field: one value for each step
    traj.reward.sum()       a number of the trajectory
    ... > 100               a predicate (of a field: one for each step, until any() or all() makes one of them)

Each says which keys it reads, so that nothing else has to be read to answer it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentTypeError, UnknownKeyError
from .windows.edges import as_key

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
        raise ArgumentTypeError(
            f"{self._description} has an answer for each step, not one: call .any() or .all() on it"
        )

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
