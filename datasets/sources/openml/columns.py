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
from typing import Any, Literal

import numpy as np

from ....errors import UsageError
from ....storage.amounts import listed
from ...formats.arff import Attribute, ColumnValues
from ...ingest.spaces import LossyCastError, cast
from .client import Description


@dataclass(frozen=True)
class TableOptions:
    """``target``, ``exclude``: column names (none: the dataset's own); ``missing``: `TableUnit`; the others: above."""

    target: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    missing: Literal["keep", "error", "drop", "code"] = "keep"
    one_hot: bool = False
    standardize: Literal["none", "numeric", "all"] = "none"

    def to_json(self, target: Sequence[str]) -> dict[str, Any]:
        """What identifies a conversion to these labels, in the form in which the options are given."""
        names = {"target": ",".join(target), "exclude": ",".join(self.exclude) or None}
        return {**names, "missing": self.missing, "one_hot": self.one_hot, "standardize": self.standardize}


@dataclass(frozen=True)
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
    wanted, columns = options.target or about.targets, f"its columns: {listed(index, 20)}"
    if not wanted:
        raise UsageError(f"{name} has no label of its own", hint=f"choose one with --target; {columns}")
    unknown = [column for column in (*wanted, *options.exclude) if column not in index]
    if unknown:
        raise UsageError(f"{name} has no column {', '.join(unknown)}", hint=columns)
    left_out = {
        **{one.name: "it is text" for one in attributes if one.kind == "string"},
        **dict.fromkeys(about.ignored, "OpenML says to ignore it"),
        **dict.fromkeys(about.row_id, "it identifies the row"),
        **dict.fromkeys(options.exclude, "excluded"),
    }
    left_out = {name: left_out[name] for name in index if name in left_out and name not in wanted}
    targets = [index[column] for column in wanted]
    features = [at for column, at in index.items() if column not in left_out and column not in wanted]
    kinds = {attributes[at].kind for at in targets}
    if "string" in kinds:
        raise UsageError(f"the label of {name} is text", hint=f"choose another with --target; {columns}")
    if len(kinds) > 1:
        raise UsageError(f"the labels of {name} are numbers and classes mixed", hint="choose some with --target")
    if not features:
        raise UsageError(f"{name} has no column that can be an observation", hint="all are text, ignored or excluded")
    return ColumnRoles(targets, features, left_out)


def to_stored(values: np.ndarray, dtype: str, column: str, where: str, first: int) -> np.ndarray:
    """The values of a column, of steps from ``first`` on, in the dtype of their leaf. Raises UsageError."""
    try:
        return cast(values, dtype)
    except LossyCastError as error:
        message = (
            f"the column {column} of {where} holds {error.value}, which {dtype} does not, in step {first + error.row}"
        )
        raise UsageError(message, hint=f"leave it out: --exclude {column}") from error


@dataclass
class EncodedColumn:
    """A column that becomes part of the observation: ``index`` in the table, ``codes`` it can have (0: numeric)."""

    index: int
    attribute: Attribute
    codes: int
    one_hot: bool
    #: Whether it is standardised, with these mean and deviation (set by `Encoder.fit`); ``still``: it never varies.
    scaled: bool
    mean: float = 0.0
    deviation: float = 1.0
    still: bool = False

    @property
    def width(self) -> int:
        return self.codes if self.one_hot else 1


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
        self.width = sum(feature.width for feature in self.features)
        self.scaled = [feature for feature in self.features if feature.scaled]

    @np.errstate(over="ignore", invalid="ignore")  # a deviation that is not finite is refused below
    def fit(self, blocks: Iterable[Sequence[ColumnValues]]) -> None:
        """Compute means and deviations; blocks hold the rows that are kept."""
        count, mean, squares = (np.zeros(len(self.scaled)) for _ in range(3))
        for block in blocks:
            for at, feature in enumerate(self.scaled):
                values = self._values(block, feature)
                values = values[~np.isnan(values)]
                if not len(values):
                    continue
                # Chan's update: exact enough whatever the size of the mean.
                center, total = float(values.mean()), count[at] + len(values)
                delta = center - mean[at]
                squares[at] += float(((values - center) ** 2).sum()) + delta**2 * count[at] * len(values) / total
                mean[at] += delta * len(values) / total
                count[at] = total
        for at, feature in enumerate(self.scaled):
            feature.mean, deviation = float(mean[at]), float(np.sqrt(squares[at] / max(1, count[at])))
            # A column that never varies may still have a deviation from rounding errors.
            feature.still = deviation <= 10 * np.finfo(float).eps * abs(mean[at])
            feature.deviation = 1.0 if feature.still else deviation
            if not np.isfinite([feature.mean, feature.deviation]).all():
                name = feature.attribute.name
                message = f"the column {name} has no finite mean and deviation to be standardised with"
                raise UsageError(message, hint=f"leave it out: --exclude {name}")

    def encode(self, block: Sequence[ColumnValues], where: str, first: int) -> np.ndarray:
        """Observations, float32 ``[rows, width]``, of steps from ``first`` on. Raises as `to_stored`."""
        parts = []
        for feature in self.features:
            values = self._values(block, feature)
            if feature.one_hot:
                parts.append((values[:, None] == np.arange(feature.codes)).astype(np.float32))
                continue
            if feature.scaled:
                values = (values - feature.mean) / feature.deviation
                if feature.still:
                    values[~np.isnan(values)] = 0
            parts.append(to_stored(values, "float32", feature.attribute.name, where, first)[:, None])
        return np.concatenate(parts, 1)

    def missing_rows(self, block: Sequence[ColumnValues]) -> np.ndarray:
        """Which rows miss a value that the policy does not give a code to, bool ``[rows]``."""
        return np.logical_or.reduce([np.isnan(self._values(block, feature)) for feature in self.features])

    def columns(self) -> list[dict[str, Any]]:
        """What every feature becomes, for the manifest: ``at`` is its first position in the observation."""
        described, at = [], 0
        for feature in self.features:
            entry: dict[str, Any] = {"name": feature.attribute.name, "kind": feature.attribute.kind, "at": at}
            if feature.codes:
                entry["values"] = [*feature.attribute.values, *(["?"] * self._missing_has_code)]
                entry["as"] = "one-hot" if feature.one_hot else "code"
            if feature.scaled:
                entry["mean"], entry["std"] = feature.mean, feature.deviation
            described.append(entry)
            at += feature.width
        return described

    def _values(self, block: Sequence[ColumnValues], feature: EncodedColumn) -> np.ndarray:
        """A column as float64 with NaN for missing values."""
        column = block[feature.index]
        assert column is not None
        if feature.attribute.kind != "nominal":
            return column
        values = column.astype(np.float64)
        values[column < 0] = feature.codes - 1 if self._missing_has_code else np.nan
        return values
