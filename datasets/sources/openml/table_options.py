"""What a table leaves open: its label, its columns, how values become numbers, and which file it is read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ....errors import UsageError
from ...fetch import Location, RemoteObject
from ...ingest.protocol import ConvertOptions

Missing = Literal["keep", "error", "drop", "code"]
Standardize = Literal["none", "numeric", "all"]
Format = Literal["auto", "arff", "parquet"]


@dataclass(frozen=True)
class TableFile:
    """Where a table lies; ``path`` is that of the file below ``location``, and in a mirror."""

    path: str
    location: Location
    item: RemoteObject
    is_parquet: bool


@dataclass(frozen=True)
class TableOptions:
    """``target``, ``exclude``: column names (none: the dataset's own); the others are those of `encode`.

    ``format``: which of the provider's files is read; auto takes ARFF, and Parquet where there is no ARFF.
    """

    target: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    missing: Missing = "keep"
    one_hot: bool = False
    standardize: Standardize = "none"
    format: Format = "auto"
    accept_changed: bool = False

    def to_json(self) -> dict[str, Any]:
        """What identifies a conversion, in the form in which the options are given."""
        return {
            "target": ",".join(self.target),
            "exclude": ",".join(self.exclude) or None,
            "missing": self.missing,
            "one_hot": self.one_hot,
            "standardize": self.standardize,
        }


def table_options(options: ConvertOptions, preset: Mapping[str, Any]) -> TableOptions:
    """The options given, over those of a preset. Raises UsageError for column names that name nothing."""
    given = {name: value for name, value in options.extra.items() if value is not None}
    for name in ("target", "exclude"):
        if name in given:
            given[name] = _columns(name, given[name])
    return TableOptions(**{**preset, **given})


def _columns(name: str, value: str) -> tuple[str, ...]:
    """Column names between commas."""
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names:
        raise UsageError(f"{name} names no column", hint=f"for example: {name} = 'age,income'")
    return names
