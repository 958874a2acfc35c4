"""The columns of a table: which are label, feature or left out (`column_roles`), and how features become vectors (`Encoder`).

    numeric      the value; missing: NaN
    nominal      its code, 0 for the first value declared; missing: NaN, or (``missing`` code) one more code
    nominal, one_hot    one number for each value, 1 at the code; missing: all zeros, or one more number

``standardize`` numeric makes every numeric column (v - mean) / std over the rows that are kept, missing values aside; all
does so with codes as well. The standard deviation is that of the population; a column that never varies becomes 0.
One-hot columns stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import UsageError
from ...formats.arff import Attribute, ColumnValues
from ...ingest.spaces import LossyCastError, cast
from .client import Description
from .table_options import TableOptions

_MOST_SHOWN = 20


@dataclass
class ColumnRoles:
    """Indices of the columns, and why others are left out, by name."""

    targets: list[int]
    features: list[int]
    left_out: dict[str, str]


def column_roles(attributes: Sequence[Attribute], about: Description, options: TableOptions, name: str) -> ColumnRoles:
    """Decide what every column is.

    Labels are those asked for, else the dataset's own. Row identifiers, columns that the dataset says to ignore, text, and
    what is excluded are left out. Raises UsageError if there is no label, no feature, or no such column.
    """
    index = {attribute.name: at for at, attribute in enumerate(attributes)}
    flagged = {feature.name: feature for feature in about.features}
    wanted = options.target or about.targets or tuple(f.name for f in about.features if f.is_target)
    shown = ", ".join(list(index)[:_MOST_SHOWN]) + (" ..." if len(index) > _MOST_SHOWN else "")
    if not wanted:
        hint = f"choose one with --target; its columns: {shown}"
        if not about.features:  # a file on this machine
            hint += "; `rbdata convert PATH --source arrays` reads rows that are steps of episodes"
        raise UsageError(f"{name} has no label of its own", hint=hint)
    unknown = [column for column in (*wanted, *options.exclude) if column not in index]
    if unknown:
        raise UsageError(f"{name} has no column {', '.join(unknown)}", hint=f"its columns: {shown}")
    targets = [index[column] for column in wanted]
    why_not = {at: _why_not(one, about, flagged, options) for at, one in enumerate(attributes) if at not in targets}
    features = [at for at, why in why_not.items() if why is None]
    kinds = {attributes[at].kind for at in targets}
    if "string" in kinds:
        raise UsageError(f"the label of {name} is text", hint=f"choose another with --target; its columns: {shown}")
    if len(kinds) > 1:
        raise UsageError(f"the labels of {name} are numbers and classes mixed", hint="choose some with --target")
    if not features:
        raise UsageError(f"{name} has no column that can be an observation", hint="all are text, ignored or excluded")
    return ColumnRoles(targets, features, {attributes[at].name: why for at, why in why_not.items() if why is not None})


def _why_not(attribute: Attribute, about: Description, flagged: dict, options: TableOptions) -> str | None:
    feature = flagged.get(attribute.name)
    if attribute.name in options.exclude:
        return "excluded"
    if attribute.name in about.row_id or (feature is not None and feature.is_row_id):
        return "it identifies the row"
    if attribute.name in about.ignored or (feature is not None and feature.is_ignored):
        return "OpenML says to ignore it"
    if attribute.kind == "string":
        return "it is text"
    return None


@dataclass
class EncodedColumn:
    """A column that becomes part of the observation: ``index`` in the table, ``codes`` it can have (0: numeric)."""

    index: int
    attribute: Attribute
    codes: int
    one_hot: bool
    #: Whether it is standardised, with these means and deviations (set by `Encoder.fit`); ``still``: it never varies.
    scaled: bool
    statistics: tuple[float, float] | None = None
    still: bool = False

    @property
    def nominal(self) -> bool:
        return self.attribute.kind == "nominal"

    @property
    def width(self) -> int:
        return self.codes if self.one_hot else 1


class ColumnCastError(Exception):
    """A column holds a number that the dtype of its leaf does not hold; ``row`` is that of the block."""

    def __init__(self, column: str, error: LossyCastError, dtype: str) -> None:
        super().__init__(f"holds {error.value}, which {dtype} does not")
        self.column, self.row = column, error.row


def to_stored(values: np.ndarray, dtype: str, column: str) -> np.ndarray:
    """The values of a column in the dtype of their leaf. Raises ColumnCastError."""
    try:
        return cast(values, dtype)
    except LossyCastError as error:
        raise ColumnCastError(column, error, dtype) from error


class Encoder:
    """Turns blocks of columns into ``float32 [rows, width]``; the options are those of `TableOptions`."""

    def __init__(self, columns: Sequence[tuple[int, Attribute]], options: TableOptions) -> None:
        self._missing_has_code = options.missing == "code"
        self.features = []
        for index, attribute in columns:
            nominal = attribute.kind == "nominal"
            one_hot = options.one_hot and nominal
            scaled = not one_hot and options.standardize in (("all",) if nominal else ("all", "numeric"))
            codes = len(attribute.values) + self._missing_has_code if nominal else 0
            self.features.append(EncodedColumn(index, attribute, codes, one_hot, scaled))

    @property
    def width(self) -> int:
        """Numbers of an observation."""
        return sum(feature.width for feature in self.features)

    @property
    def must_fit(self) -> bool:
        """Whether `fit` is needed."""
        return any(feature.scaled for feature in self.features)

    def fit(self, blocks: Iterable[Sequence[ColumnValues]]) -> None:
        """Compute means and deviations; blocks hold the rows that are kept."""
        scaled = [feature for feature in self.features if feature.scaled]
        count, mean, squares = (np.zeros(len(scaled)) for _ in range(3))
        for block in blocks:
            for at, feature in enumerate(scaled):
                values = self._values(block, feature)
                values = values[~np.isnan(values)]
                more = len(values)
                if not more:
                    continue
                # Chan's update: exact enough whatever the size of the mean.
                center = float(values.mean())
                delta, total = center - mean[at], count[at] + more
                squares[at] += float(((values - center) ** 2).sum()) + delta**2 * count[at] * more / total
                mean[at] += delta * more / total
                count[at] = total
        for at, feature in enumerate(scaled):
            deviation = float(np.sqrt(squares[at] / count[at])) if count[at] else 0.0
            # A column that never varies may still have a deviation from rounding errors.
            feature.still = deviation <= 10 * np.finfo(float).eps * abs(mean[at])
            feature.statistics = (float(mean[at]), 1.0 if feature.still else deviation)
            if not np.isfinite(feature.statistics).all():
                name = feature.attribute.name
                message = f"the column {name} has no finite mean and deviation to be standardised with"
                raise UsageError(message, hint=f"leave it out: --exclude {name}")

    def encode(self, block: Sequence[ColumnValues]) -> np.ndarray:
        """Observations, float32 ``[rows, width]``. Raises ColumnCastError for finite numbers that float32 does not hold."""
        first = block[self.features[0].index]
        assert first is not None
        out = np.zeros((len(first), self.width), np.float32)
        at = 0
        for feature in self.features:
            values = self._values(block, feature)
            if feature.one_hot:
                rows = np.flatnonzero(~np.isnan(values))
                out[rows, at + values[rows].astype(np.int64)] = 1
            else:
                if feature.statistics is not None:
                    mean, deviation = feature.statistics
                    values = (values - mean) / deviation
                    if feature.still:
                        values[~np.isnan(values)] = 0
                out[:, at] = to_stored(values, "float32", feature.attribute.name)
            at += feature.width
        return out

    def missing_rows(self, block: Sequence[ColumnValues]) -> np.ndarray:
        """Which rows miss a value that the policy does not give a code to, bool ``[rows]``."""
        return np.logical_or.reduce([np.isnan(self._values(block, feature)) for feature in self.features])

    def columns(self) -> list[dict[str, Any]]:
        """What every feature becomes, for the manifest: ``at`` is its first position in the observation."""
        described, at = [], 0
        for feature in self.features:
            entry: dict[str, Any] = {"name": feature.attribute.name, "kind": feature.attribute.kind, "at": at}
            if feature.nominal:
                entry["values"] = [*feature.attribute.values, *(["?"] * self._missing_has_code)]
                entry["as"] = "one-hot" if feature.one_hot else "code"
            if feature.statistics is not None:
                entry["mean"], entry["std"] = feature.statistics
            described.append(entry)
            at += feature.width
        return described

    def _values(self, block: Sequence[ColumnValues], feature: EncodedColumn) -> np.ndarray:
        """A column as float64 with NaN for missing values."""
        column = block[feature.index]
        assert column is not None
        if not feature.nominal:
            return column
        values = column.astype(np.float64)
        values[column < 0] = feature.codes - 1 if self._missing_has_code else np.nan
        return values
