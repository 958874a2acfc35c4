"""Options of sources, each declared once.

Those of the built-in sources are the keys of `SourceOptions` and `RawFileOptions`: `rbdata.download` ends in
``**source_options: Unpack[SourceOptions]``, `rbdata.convert` in ``Unpack[RawFileOptions]``, so that type checkers and editors
know them. The command line, the check of every download, the settings and the tables in ``docs/sources`` are made from the same
annotations (`declared`). A source of another package declares a `SourceOption` itself.

This module is imported for ``rbdata download --help``: nothing heavy here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from types import NoneType
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

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


# -- the options of the built-in sources ---------------------------------------------------------------------------------


class _Of:
    """What an option is for some sources (names separated by spaces): its help, and further fields of `SourceOption`."""

    def __init__(self, sources: str, help: str, **fields: Any) -> None:
        self.sources, self.fields = sources.split(), {"help": help, **fields}


class _SharedOptions(TypedDict, total=False):
    """Options of sources that both `rbdata.download` and `rbdata.convert` take."""

    upstream: Annotated[
        Literal["auto", "dqn-replay", "rl-unplugged"] | None,
        _Of(
            "atari",
            "which copy of the data; auto: the bucket, else RL Unplugged (on a mirror: whichever it holds)",
            default="auto",
            setting=True,
        ),
    ]
    episodes_by: Annotated[
        Literal["auto", "timeouts", "terminals", "both", "horizon"] | None,
        _Of("d4rl", "what ends an episode", default="auto"),
    ]
    horizon: Annotated[
        int | None,
        _Of(
            "d4rl",
            "maximum episode length, for files without time-out flags; by default the environment's limit",
            least=1,
            metavar="N",
        ),
    ]
    target: Annotated[
        str | None, _Of("openml", "label columns, comma-separated, instead of the dataset's own", metavar="COLUMNS")
    ]
    exclude: Annotated[str | None, _Of("openml", "columns to leave out, comma-separated", metavar="COLUMNS")]
    missing: Annotated[
        Literal["keep", "error", "drop", "code"] | None, _Of("openml", "how to handle missing values (keep)")
    ]
    one_hot: Annotated[bool | None, _Of("openml", "one-hot encode nominal columns")]
    standardize: Annotated[
        Literal["none", "numeric", "all"] | None, _Of("openml", "scale columns to mean 0, standard deviation 1 (none)")
    ]
    accept_changed: Annotated[
        bool | None, _Of("d4rl openml", "accept a file whose checksum has changed", default=False)
    ]
    task: Annotated[
        str | None,
        _Of(
            "exorl",
            "whose rewards the dataset has, computed from the states of the simulator (walker_run); as stored without",
            metavar="TASK",
        ),
    ]
    size: Annotated[str | None, _Of("lerobot", "resize frames to this size in pixels, width x height", metavar="WxH")]
    episodes: Annotated[
        int | str | None,
        _Of("lerobot", "only these episodes, such as 0-9,12", metavar="LIST"),
        _Of(
            "gymnasium",
            "whole episodes to record, of all environments together",
            type=int,
            least=1,
            metavar="N",
            flag_is_text=True,  # lerobot's is a list
        ),
    ]
    cameras: Annotated[str | None, _Of("lerobot", "only these cameras, such as front,wrist, or none", metavar="NAMES")]
    last_row: Annotated[
        Literal["auto", "observation", "step"] | None,
        _Of(
            "rlds",
            "what the last row of a terminated episode is: an observation alone, as RLDS says, or a step, as in most "
            "robot data; auto: a step where the first file has one with a reward or an action",
            default="auto",
        ),
    ]
    leave_out: Annotated[
        str | None,
        _Of("rlds", "features not to store, separated by commas, such as observation/depth,info", metavar="NAMES"),
        _Of(
            "arrays",
            "arrays not to read, separated by commas: names, groups, patterns with *",
            metavar="NAMES",
            commands=("convert",),
        ),
    ]
    split: Annotated[
        str | None,
        _Of("rlds", "the split, or several joined by +; train, or the only one", metavar="SPLIT"),
        _Of(
            "arrays",
            "the split to read, where folders or files are named after several (train, test)",
            metavar="SPLIT",
            commands=("convert",),
        ),
    ]
    max_length: Annotated[
        int | None,
        _Of(
            "rlds",
            "bytes of a text, and elements of a sequence of varying length, that a row holds",
            default=512,
            least=1,
            most=1 << 16,
            metavar="N",
        ),
    ]
    text: Annotated[
        Literal["bytes", "omit"] | None,
        _Of(
            "minari rlds lerobot gymnasium",
            "store text as UTF-8 bytes, zero-padded to the longest text allowed, or omit it",
            default="bytes",
        ),
    ]
    #: Options of sources in other packages.
    options: Mapping[str, Any] | None


class SourceOptions(_SharedOptions, total=False):
    """The options of sources that `rbdata.download` takes."""

    name: Annotated[
        str | None, _Of("gymnasium", "a name for the recording, so that there can be several: ID@NAME", metavar="NAME")
    ]
    steps: Annotated[
        int | None,
        _Of(
            "gymnasium",
            "steps to record, of all environments together; 20000 where episodes are not given",
            least=1,
            metavar="N",
        ),
    ]
    policy: Annotated[
        str | None,
        _Of("gymnasium", "random, or yours: pkg.mod:name or file.py:name, a function or a class", default="random"),
    ]
    num_envs: Annotated[int | None, _Of("gymnasium", "environments stepped together", default=1, least=1, metavar="N")]
    seed: Annotated[
        int | None, _Of("gymnasium", "the same seed gives the same recording", default=0, least=0, metavar="S")
    ]
    epsilon: Annotated[
        float | None,
        _Of(
            "gymnasium",
            "probability of a random action instead of the policy's",
            default=0.0,
            least=0,
            most=1,
            metavar="E",
        ),
    ]
    env_args: Annotated[
        Mapping[str, Any] | None,
        _Of(
            "gymnasium",
            "an argument of the environment, such as is_slippery=false; repeatable",
            default={},
            metavar="KEY=VALUE",
            flag="--env-arg",
        ),
    ]


class RawFileOptions(_SharedOptions, total=False):
    """The options of sources that `rbdata.convert` takes."""

    map: Annotated[
        Mapping[str, str | Sequence[str] | float] | None,
        _Of(
            "arrays",
            "which of the arrays is what, such as observation=obs, action=act, reward=rew, done=done; repeatable",
            default={},
            metavar="OURS=THEIRS",
        ),
    ]
    environment: Annotated[
        str | None, _Of("arrays", "the Gymnasium id of the environment that the data come from", metavar="ID")
    ]
    dataset: Annotated[
        str | None,
        _Of("d4rl", "the D4RL id of the file", metavar="ID"),
        _Of("gen_dgrl", "the Gen-DGRL id of the archive", metavar="ID"),
        _Of("ogbench", "the OGBench id of the file", metavar="ID"),
    ]


def declared(source: str) -> tuple[SourceOption, ...]:
    """The options of a built-in source, in the order in which they are declared above."""
    return tuple(_declared()[source])


@cache
def _declared() -> Mapping[str, list[SourceOption]]:
    found: dict[str, dict[str, SourceOption]] = defaultdict(dict)
    for keywords, commands in ((SourceOptions, ("download", "convert")), (RawFileOptions, ("convert",))):
        for name, hint in get_type_hints(keywords, include_extras=True).items():
            for one in getattr(hint, "__metadata__", ()):
                fields = {"commands": commands, **_type_of(hint.__origin__), **one.fields}
                for source in one.sources:
                    found[source].setdefault(name, SourceOption(name, **fields))
    return {source: list(options.values()) for source, options in found.items()}


def _type_of(annotation: Any) -> dict[str, Any]:
    """The type and the choices of ``annotation``; a union of several types is text."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if get_origin(kinds[0]) is Literal:
        return {"choices": get_args(kinds[0])}
    if get_origin(kinds[0]) is not None:  # Mapping[str, ...]
        return {"type": dict}
    return {"type": kinds[0] if len(kinds) == 1 else str}


def given_options(options: SourceOptions | RawFileOptions) -> dict[str, Any]:
    """The given options by name, with those in ``options``. Raises UsageError for an option that is given in both ways."""
    by_name = options.get("options") or {}
    named = {name: value for name, value in options.items() if name != "options" and value is not None}
    twice = [name for name in by_name if name in named]
    if twice:
        raise UsageError(f"{', '.join(twice)}: given by keyword and in options", hint="give it once")
    return {**by_name, **named}
