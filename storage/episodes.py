"""The episode table: the position, outcome and return of each episode.

Four flat arrays in ``episodes/`` (with a ``meta.json``, so that tensordict opens the folder too):

    start    int64    first step of the episode; episodes are in order and leave no gaps
    length   int64    its number of steps, at least 1
    return   float64  sum of its rewards
    outcome  uint8    how it ended: 1 terminated, 2 truncated (a time limit), 3 cut (the data end there)
    midway   bool     whether its beginning is missing from the data

State rows need no table: each episode has one more of them than steps, so the first state row of episode e
is ``start[e] + e``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from ..errors import DamagedDatasetError, MissingExtraError, SchemaError, UsageError
from .amounts import count, real
from .durable import open_replacement
from .memory_map import map_array, verify_hint

FOLDER = "episodes"
TERMINATED, TRUNCATED, CUT = 1, 2, 3
OUTCOMES = {TERMINATED: "terminated", TRUNCATED: "truncated", CUT: "cut"}

#: Rows of the table that are checked at once.
_CHECKED = 1 << 18

_COLUMNS = {"start": "int64", "length": "int64", "return": "float64", "outcome": "uint8", "midway": "bool"}


class EpisodeRow(NamedTuple):
    """One episode: number, first step, length in steps, return, outcome ("terminated", ...), whether it begins midway."""

    number: int
    start: int
    length: int
    returns: float
    outcome: str
    midway: bool


@dataclass(frozen=True, repr=False)
class EpisodeTable(Sequence[EpisodeRow]):
    """The table by columns: read-only arrays ``[episodes]``, those of the mapped files where it was opened from a folder.

    Columns are named in the plural, fields of an `EpisodeRow` as the files are.
    """

    starts: np.ndarray
    lengths: np.ndarray
    returns: np.ndarray
    outcomes: np.ndarray
    midway: np.ndarray

    def __post_init__(self) -> None:
        for name, array in vars(self).items():
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, key: int) -> EpisodeRow: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | np.ndarray) -> list[EpisodeRow]: ...
    def __getitem__(self, key: Any) -> EpisodeRow | list[EpisodeRow]:
        """An episode by number, or those of a slice, of numbers or of a mask (bool ``[episodes]``) as a list.

        Raises UnknownKeyError (an IndexError) for a number out of range.
        """
        from .row_index import row_index  # which loads torch

        index = row_index(key, len(self), "episode")
        if isinstance(index, int):
            return self._row(index)
        numbers = range(len(self))[index] if isinstance(index, slice) else index.reshape(-1).tolist()
        return [self._row(number) for number in numbers]

    def __iter__(self) -> Iterator[EpisodeRow]:
        return map(self._row, range(len(self)))

    def where(
        self,
        *,
        min_return: float | None = None,
        max_return: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        outcome: str | Sequence[str] | None = None,
        top: float | int | None = None,
    ) -> np.ndarray:
        """Return which episodes meet all conditions, bool ``[episodes]``: for `Dataset.select`.

        - ``min_return``, ``max_return``, ``min_length``, ``max_length``: both ends are included.
        - ``outcome``: "terminated", "truncated" or "cut", or several of them.
        - ``top``: of those, the ones with the largest returns: a share (0.1: a tenth, at least one; 1.0: all), or a whole
          number of episodes. Of equal returns the earlier episode comes first; NaN returns come last.

        Raises UsageError for an unknown outcome, a ``top`` that is not positive, and bounds that are not numbers.
        """
        met = np.ones(len(self), bool)
        for bound, values, within in (
            (min_return, self.returns, np.greater_equal),
            (max_return, self.returns, np.less_equal),
            (min_length, self.lengths, np.greater_equal),
            (max_length, self.lengths, np.less_equal),
        ):
            if bound is not None:
                if not hasattr(bound, "__float__") or math.isnan(float(bound)):
                    raise UsageError(f"returns and lengths are compared with numbers, not with {bound!r}")
                met &= within(values, bound)
        if outcome is not None:
            is_several = hasattr(outcome, "__iter__") and not isinstance(outcome, str)
            wanted: list[Any] = list(outcome) if is_several else [outcome]
            codes = {name: code for code, name in OUTCOMES.items()}
            unknown = [str(name) for name in wanted if name not in codes]
            if unknown:
                raise UsageError(f"there is no outcome {', '.join(unknown)}", hint=f"outcomes: {', '.join(codes)}")
            met &= np.isin(self.outcomes, [codes[name] for name in wanted])
        if top is not None:
            count = _number_of(top, int(met.sum()))
            order = np.lexsort((np.arange(len(self)), -self.returns, np.isnan(self.returns), ~met))
            met &= np.isin(np.arange(len(self)), order[:count])
        return met

    def to_arrow(self) -> Any:
        """Return the table as `pyarrow.Table`: episode, start, length, return, outcome (text), midway.

        Raises MissingExtraError.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtraError("to_arrow needs pyarrow", hint="pip install pyarrow") from error
        return pyarrow.table(self._columns())

    def to_pandas(self) -> Any:
        """Return the table as `pandas.DataFrame`, with the columns of `to_arrow`. Raises MissingExtraError."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("to_pandas needs pandas", hint="pip install pandas") from error
        return pandas.DataFrame(self._columns())

    def _columns(self) -> dict[str, Any]:
        outcomes = np.array([OUTCOMES.get(code, "") for code in range(max(OUTCOMES) + 1)])[self.outcomes]
        facts = {"start": self.starts, "length": self.lengths, "return": self.returns, "outcome": outcomes.tolist()}
        return {"episode": np.arange(len(self)), **facts, "midway": self.midway}

    def _row(self, number: int) -> EpisodeRow:
        facts = (int(self.starts[number]), int(self.lengths[number]), float(self.returns[number]))
        return EpisodeRow(number, *facts, OUTCOMES[int(self.outcomes[number])], bool(self.midway[number]))

    def __repr__(self) -> str:
        return f"EpisodeTable({', '.join(f'{name} {value}' for name, value in self._facts())})"

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("episodes", count(len(self))), ("steps", count(self.steps))]
        for name, values in (("length", self.lengths), ("return", self.returns)) if len(self) else ():
            facts.append((name, f"{real(values.mean())} ({real(values.min())} to {real(values.max())})"))
        ends = {name: int(np.count_nonzero(self.outcomes == code)) for code, name in OUTCOMES.items()}
        return [*facts, *((name, count(number)) for name, number in ends.items() if number)]

    # Names of earlier versions: programs in the field read ``episodes.length``.
    start = property(lambda self: self.starts)
    length = property(lambda self: self.lengths)
    outcome = property(lambda self: self.outcomes)

    @property
    def steps(self) -> int:
        """Steps of all episodes together."""
        return int(self.starts[-1] + self.lengths[-1]) if len(self) else 0

    @property
    def state_starts(self) -> np.ndarray:
        """First state row of every episode, int64."""
        return self.starts + np.arange(len(self))

    @property
    def whole(self) -> np.ndarray:
        """Which episodes are in the data from beginning to end, bool ``[episodes]``: neither cut nor begun midway.

        The return of any other episode covers only a part of it. An episode that a time limit truncated is whole.
        """
        return (self.outcomes != CUT) & ~self.midway

    def check(self) -> None:
        """Raise SchemaError unless the episodes are contiguous, in order and not empty, and have known outcomes."""
        expected = 0
        for low in range(0, len(self), _CHECKED):  # in blocks: tables of bandits have a row for every step
            start, length = self.starts[low : low + _CHECKED], self.lengths[low : low + _CHECKED]
            if int(length.min()) < 1 or int(start[0]) != expected or (start[1:] - start[:-1] != length[:-1]).any():
                raise SchemaError("the episode table leaves gaps, overlaps, or has empty episodes")
            if not np.isin(self.outcomes[low : low + _CHECKED], tuple(OUTCOMES)).all():
                raise SchemaError("the episode table has an unknown outcome")
            expected = int(start[-1]) + int(length[-1])

    def checked(self, folder: Path, steps: int) -> EpisodeTable:
        """This table. Raises DamagedDatasetError unless it is valid for a dataset with ``steps`` steps."""
        try:
            self.check()
        except SchemaError as error:
            raise DamagedDatasetError(f"{folder}: {error.message}", hint=verify_hint(folder)) from error
        if self.steps != steps:
            message = f"{folder}: the episode table covers {self.steps} steps, the dataset has {steps}"
            raise DamagedDatasetError(message, hint=verify_hint(folder))
        return self

    def summary(self) -> tuple[dict[str, float], dict[str, float]]:
        """``(returns, lengths)``: mean, std, min and max over episodes, for the manifest."""
        return _statistics(self.returns), _statistics(self.lengths)

    def write(self, folder: Path) -> list[str]:
        """Write the table into a dataset folder; returns the paths of its files there."""
        from .meta import write_meta

        self.check()
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        paths = [f"{FOLDER}/{name}.memmap" for name in _COLUMNS]
        for path, dtype, column in zip(paths, _COLUMNS.values(), vars(self).values()):
            with open_replacement(folder / path) as file:
                file.write(np.ascontiguousarray(column, np.dtype(dtype).newbyteorder("<")).data)
        return [*paths, *write_meta(folder, FOLDER, {name: (dtype, ()) for name, dtype in _COLUMNS.items()}, len(self))]


def open_episodes(folder: Path, episodes: int, steps: int) -> EpisodeTable:
    """Map the table of a dataset with this many episodes and steps. Raises DamagedDatasetError if it is invalid."""
    return map_episodes(folder, episodes).checked(folder, steps)


def map_episodes(folder: Path, episodes: int) -> EpisodeTable:
    """Map the table without reading it. Raises DamagedDatasetError if a file is missing or too short."""
    arrays = [
        map_array(folder / FOLDER / f"{name}.memmap", np.dtype(dtype), episodes) for name, dtype in _COLUMNS.items()
    ]
    return EpisodeTable(*arrays)


def _number_of(top: Any, count: int) -> int:
    """How many of ``count`` episodes ``top`` means: a share of them (a float), or a whole number."""
    if isinstance(top, Integral) and not isinstance(top, bool) and int(top) > 0:
        return min(count, int(top))
    if isinstance(top, Real) and not isinstance(top, Integral) and 0 < float(top) <= 1:
        return min(count, max(1, math.ceil(float(top) * count - 1e-9)))
    message = f"top is {top!r}, neither a share of at most 1.0 nor a number of episodes"
    raise UsageError(message, hint="0.1 is a tenth, 1.0 are all, 10 are ten episodes")


def _statistics(values: np.ndarray) -> dict[str, float]:
    return {name: float(getattr(values, name)()) for name in ("mean", "std", "min", "max")} if len(values) else {}
