"""The choices a table leaves open, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ....errors import UsageError
from ...ingest.protocol import ConvertOptions

Missing = Literal["keep", "error", "drop", "code"]
Standardize = Literal["none", "numeric", "all"]
Format = Literal["auto", "arff", "parquet"]
_NAMES = ("target", "exclude", "missing", "one_hot", "standardize", "format", "accept_changed")


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
    """What is asked for, over what a preset says. Raises UsageError for names and values that make no sense."""
    given = {name: value for name, value in options.extra.items() if value is not None}
    unknown = sorted(set(given) - set(_NAMES))
    if unknown:
        raise UsageError(f"openml knows no option {', '.join(unknown)}", hint=f"it has {', '.join(_NAMES)}")
    if options.parts is not None:
        raise UsageError("an OpenML dataset is one file: it has no shards to choose from")
    for name in ("target", "exclude"):
        if name in given:
            given[name] = _columns(name, given[name])
    for name in ("one_hot", "accept_changed"):
        if not isinstance(given.get(name, False), bool):
            raise UsageError(f"{name} is {given[name]!r}, neither True nor False")
    for name, choices in (("missing", Missing), ("standardize", Standardize), ("format", Format)):
        allowed = get_args(choices)
        if name in given and given[name] not in allowed:
            raise UsageError(f"{name} is {given[name]!r}", hint=f"it is one of {', '.join(allowed)}")
    return TableOptions(**{**preset, **given})


def _columns(name: str, value: Any) -> tuple[str, ...]:
    """Column names between commas."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}, not column names with commas between them")
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names:
        raise UsageError(f"{name} names no column")
    return names
