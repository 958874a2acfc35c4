"""Options of sources: how a source declares an option, and the keyword arguments for the options of the built-in sources.

The command line, the check of every download, the settings and the tables in ``docs/sources`` are made from the declarations
(`SourceOption`). Type checkers and editors read the TypedDicts below: `rbdata.download` ends in
``**source_options: Unpack[SourceOptions]``, `rbdata.convert` in ``Unpack[RawFileOptions]``, and the dataset classes take those
of their source. ``tests/test_signatures.py`` compares them with the declarations.

This module is imported for ``rbdata download --help``: nothing heavy here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypedDict

from ...errors import UsageError

#: Arguments that `rbdata.download` and `rbdata.convert` have beside the options of sources.
RESERVED = frozenset(
    {
        *("dataset_id", "path", "source", "root", "mirror", "procs", "shards", "codec", "layout", "unknown_next"),
        *("keep_raw", "force", "wait", "user_project", "progress", "listener", "options", "engine", "address"),
    }
)


@dataclass(frozen=True)
class SourceOption:
    """One option of a source.

    ``name`` is the argument of `rbdata.download` and the key in ``ConvertOptions.extra``; on the command line it is ``flag``,
    by default ``--name`` with hyphens. ``help`` is a phrase without a period, to which the default is appended.

    ``type`` is str, int, float, bool (a flag without a value) or dict (names to values, on the command line ``KEY=VALUE``,
    repeatable). ``choices`` are the strings allowed, ``least`` and ``most`` the bounds of numbers, both included. Where
    nothing is given, ``default`` is used; None leaves it to the source. ``commands`` are those that take the option. With
    ``setting`` the value, a string, may also come from ``RBDATA_<NAME>`` or ``name = ...`` in the configuration file.
    """

    name: str
    help: str
    type: type = str
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    metavar: str | None = None
    flag: str = ""
    commands: tuple[str, ...] = ("download", "convert")
    setting: bool = False
    #: A whole number whose flag is text, because another source has the flag for text.
    flag_is_text: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in RESERVED:
            raise ValueError(f"{self.name!r} cannot be the name of a source's option")
        if self.type not in (str, int, float, bool, dict) or (self.setting and self.type is not str):
            raise ValueError(f"option {self.name} cannot be of type {self.type!r}")
        object.__setattr__(self, "flag", self.flag or "--" + self.name.replace("_", "-"))

    def check(self, value: Any, origin: str = "") -> Any:
        """The value as the source gets it. Raises UsageError for one that is not allowed, naming its ``origin``."""
        if self.type is int and self.flag_is_text and isinstance(value, str) and value.isdecimal():
            value = int(value)
        problem = self._problem(value)
        if problem:
            message = f"{origin}{': ' * bool(origin)}{self.name} is {value!r}, {problem}"
            raise UsageError(message, hint=f"{self.name}: {self.help}")
        if self.type is dict:
            return dict(value)
        return int(value) if self.type is int else value  # numpy's numbers, too

    def _problem(self, value: Any) -> str:
        """Why a value is not allowed; empty if it is allowed."""
        if self.type is str:
            if not isinstance(value, str):
                return "must be a string"
            return f"must be one of {', '.join(self.choices)}" if self.choices and value not in self.choices else ""
        if self.type is bool:
            return "" if isinstance(value, bool) else "must be True or False"
        if self.type is dict:
            named = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
            return "" if named else "must be a mapping of names to values"
        number = isinstance(value, Integral if self.type is int else (int, float)) and not isinstance(value, bool)
        if number and self.least <= value <= self.most:
            return ""
        bounds = f" of at least {self.least:g}" if self.least > -math.inf else ""
        bounds = f" from {self.least:g} to {self.most:g}" if bounds and self.most < math.inf else bounds
        return f"must be {'an integer' if self.type is int else 'a number'}{bounds}"


#: Options that several sources share.
TEXT = SourceOption(
    "text",
    "store text as UTF-8 bytes, zero-padded to the longest text allowed, or omit it",
    choices=("bytes", "omit"),
    default="bytes",
)
ACCEPT_CHANGED = SourceOption("accept_changed", "accept a file whose checksum has changed", bool, False)


# -- as keyword arguments ----------------------------------------------------------------------------------------------
# A key stands in one class only, so that classes can be combined: hence the two classes of options that several sources share.


class AcceptChangedOption(TypedDict, total=False):
    accept_changed: bool | None


class TextOption(TypedDict, total=False):
    text: Literal["bytes", "omit"] | None


class AtariOptions(TypedDict, total=False):
    upstream: Literal["auto", "dqn-replay", "rl-unplugged"] | None


class D4RLOptions(TypedDict, total=False):
    episodes_by: Literal["auto", "timeouts", "terminals", "both", "horizon"] | None
    horizon: int | None


class D4RLFileOptions(D4RLOptions, total=False):
    dataset: str | None


class OpenMLOptions(TypedDict, total=False):
    target: str | None
    exclude: str | None
    missing: Literal["keep", "error", "drop", "code"] | None
    one_hot: bool | None
    standardize: Literal["none", "numeric", "all"] | None
    format: Literal["auto", "arff", "parquet"] | None


class ExORLOptions(TypedDict, total=False):
    task: str | None


class EpisodesOption(TypedDict, total=False):
    episodes: int | str | None


class LerobotOptions(EpisodesOption, TextOption, total=False):
    size: str | None
    cameras: str | None


class GymnasiumOptions(EpisodesOption, total=False):
    name: str | None
    steps: int | None
    policy: str | None
    num_envs: int | None
    seed: int | None
    epsilon: float | None
    env_args: Mapping[str, Any] | None


class LeaveOutOption(TypedDict, total=False):
    leave_out: str | None


class SplitOption(TypedDict, total=False):
    split: str | None


class LastRowOption(TypedDict, total=False):
    last_row: Literal["auto", "observation", "step"] | None


class RldsOptions(LeaveOutOption, LastRowOption, SplitOption, total=False):
    max_length: int | None


class ArraysOptions(EpisodesOption, LeaveOutOption, SplitOption, total=False):
    map: Mapping[str, str | Sequence[str] | float] | None
    environment: str | None


class OptionsByName(TypedDict, total=False):
    """Options of sources in other packages."""

    options: Mapping[str, Any] | None


class SourceOptions(
    AtariOptions,
    D4RLOptions,
    AcceptChangedOption,
    OpenMLOptions,
    RldsOptions,
    ExORLOptions,
    LerobotOptions,
    GymnasiumOptions,
    OptionsByName,
    total=False,
):
    """The options of sources that `rbdata.download` takes."""


class RawFileOptions(
    AtariOptions,
    D4RLFileOptions,
    AcceptChangedOption,
    OpenMLOptions,
    RldsOptions,
    ExORLOptions,
    LerobotOptions,
    ArraysOptions,
    OptionsByName,
    total=False,
):
    """The options of sources that `rbdata.convert` takes."""


def given_options(options: SourceOptions | RawFileOptions) -> dict[str, Any]:
    """The given options by name, with those in ``options``. Raises UsageError for an option that is given in both ways."""
    by_name = options.get("options") or {}
    named = {name: value for name, value in options.items() if name != "options" and value is not None}
    twice = [name for name in by_name if name in named]
    if twice:
        raise UsageError(f"{', '.join(twice)}: given by keyword and in options", hint="give it once")
    return {**by_name, **named}
