"""What a table leaves open: its label, its columns, how values become numbers, and the format of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ....errors import UsageError
from ...ingest.records import ConvertOptions

Missing = Literal["keep", "error", "drop", "code"]
Standardize = Literal["none", "numeric", "all"]
Format = Literal["auto", "arff", "parquet"]


@dataclass(frozen=True)
class TableOptions:
    """``target``, ``exclude``: column names (none: the dataset's own); the others are those of `columns`.

    ``format``: which of the provider's files is read; auto takes ARFF, or Parquet if there is no ARFF.
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
    """The options given, over those of a preset. Raises UsageError for an option that names no column."""
    given = {name: value for name, value in options.extra.items() if value is not None}
    for name in ("target", "exclude"):
        if name in given:
            given[name] = tuple(part.strip() for part in given[name].split(",") if part.strip())
            if not given[name]:
                raise UsageError(f"{name} names no column", hint=f"for example: {name} = 'age,income'")
    return TableOptions(**{**preset, **given})


@dataclass(frozen=True)
class Preset:
    """A table that TorchRL offers under its own name: its number, and options that are not given otherwise.

    The same dataset, version, label and scaling as `torchrl.data.datasets.OpenMLExperienceReplay`; codes and labels follow
    the declared order of their values, not the alphabetical one.
    """

    number: int
    options: Mapping[str, Any] = field(default_factory=dict)


_ADULT = {"target": ("occupation",), "exclude": ("class",), "missing": "drop"}

PRESETS = {
    "adult_num": Preset(179, {**_ADULT, "standardize": "all"}),
    "adult_onehot": Preset(179, {**_ADULT, "standardize": "numeric", "one_hot": True}),
    "mushroom_num": Preset(24, {"missing": "code", "standardize": "all"}),
    "mushroom_onehot": Preset(24, {"missing": "code", "one_hot": True}),
    "covertype": Preset(150, {"standardize": "all"}),
    "shuttle": Preset(40685, {"standardize": "all"}),
    "magic": Preset(1120, {"standardize": "all"}),
}
