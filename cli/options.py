"""Arguments that several commands share, with shell completion of dataset ids, and the options that sources declare."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

from typer import Argument, Context, Option

from ..datasets.sources.options import SourceOption
from ..datasets.workers import NAMES
from ..errors import UsageError
from ..storage.codecs import choices

if TYPE_CHECKING:
    from ..datasets.ingest.request import Request

_ROOT = "rbdata.root"


def _inherit_root(ctx: Context, value: Path | None) -> Path | None:
    """``--root`` may come before the command; a ``--root`` after the command takes precedence."""
    if value is not None:
        ctx.meta[_ROOT] = value
    return ctx.meta.get(_ROOT)


def _root(ctx: Context) -> Path | None:
    """The root that completion lists."""
    return ctx.params.get("root") or ctx.meta.get(_ROOT)


def _starting_with(incomplete: str, ids: list[str]) -> list[str]:
    """The full ids that start with the text; if there are none, the bare names that do."""
    full = [one for one in ids if one.startswith(incomplete)]
    return full or [name for name in (one.partition("/")[2] for one in ids) if name.startswith(incomplete)]


def complete_any(ctx: Context, incomplete: str) -> list[str]:
    from ..datasets import catalogue, local

    return _starting_with(incomplete, sorted({*local.known_here(_root(ctx)), *catalogue.known_ids()}))


def _complete_local(ctx: Context, incomplete: str) -> list[str]:
    from ..datasets import local

    return _starting_with(incomplete, local.known_here(_root(ctx)))


def complete_source(incomplete: str) -> list[str]:
    from ..datasets import catalogue

    return [name for name in catalogue.source_names() if name.startswith(incomplete)]


def _ids(what: str, complete: Callable[..., list[str]] = _complete_local, metavar: str = "ID") -> Any:
    return Argument(metavar=metavar, help=what, autocompletion=complete, show_default=False)


_ANY = "source/name, or the name alone where only one source has it."
AnyId = Annotated[str, _ids(f"A dataset id: {_ANY}", complete_any)]
AnyIds = Annotated[list[str], _ids(f"Dataset ids: {_ANY}", complete_any)]
LocalIds = Annotated[list[str], _ids("Datasets: ids or folders on this machine, or URLs of converted ones.")]
AnyLocalIds = Annotated[list[str], _ids("Ids of datasets on this machine, complete or not.")]
LocalId = Annotated[str, _ids("A dataset: its id or folder on this machine, or the URL of a converted one.")]
_HERE = "A dataset on this machine: its id or folder."
IdOrFolder = Annotated[str, _ids(_HERE)]
IdsOrFolders = Annotated[list[str], _ids(f"{_HERE} Several are read one after the other.", metavar="ID...")]
CacheDir = Annotated[
    Path | None, Option(metavar="DIR", help="With a URL: keep what is read here (default: .remote under the root).")
]
CacheLimit = Annotated[
    str | None, Option(metavar="SIZE", help="With a URL: keep at most this much of the dataset, such as 20GB.")
]

Root = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        callback=_inherit_root,
        help="Folder of the datasets (default: RBDATA_ROOT, else the user cache folder).",
    ),
]
SourceName = Annotated[
    str | None,
    Option("--source", metavar="NAME", help="The source that the files are from.", autocompletion=complete_source),
]
Procs = Annotated[
    int | None,
    Option(min=0, metavar="N", help="Worker processes (default: one per CPU core, at most 8; 0: the command's own)."),
]
Address = Annotated[str | None, Option(metavar="A", help="Address of the Ray cluster, such as auto.")]
if TYPE_CHECKING:
    Codec = str
    Engine = str
else:
    Engine = Annotated[Literal[NAMES], Option(help="Processes on this machine, or a Ray cluster.")]
    Codec = Annotated[
        str,
        Option(
            metavar="C",
            help="How frames are stored: raw, zstd (auto; Atari: 1/27 of raw), or zstd:LEVEL, 1 to 22: higher levels are "
            "smaller, slower to write, and read as fast.",
            autocompletion=choices,
        ),
    ]
Force = Annotated[bool, Option("--force", help="Start over and replace an existing dataset.")]
NoWait = Annotated[
    bool, Option("--no-wait", help="Fail where another process writes the same dataset, instead of waiting for it.")
]
Yes = Annotated[bool, Option("--yes", "-y", help="Delete without asking.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only show what would be done.")]
UserProject = Annotated[str | None, Option(metavar="P", help="Google Cloud project billed for requester-pays buckets.")]


@dataclass(frozen=True)
class Conversion:
    """The options that `download` and `convert` have in common."""

    shards: Annotated[str | None, Option(metavar="LIST", help="Only these shards of the run, such as 0-4,7.")] = None
    procs: Procs = None
    codec: Codec = "auto"
    layout: Annotated[
        Literal["auto", "ted"],
        Option(help="ted: plain TED for any tensordict program; stores each frame twice, raw."),
    ] = "auto"
    unknown_next: Annotated[
        Literal["truncate", "zero"],
        Option(
            help="Steps whose next state is unknown. truncate: drop them; zero: keep them with a next state of zeros."
        ),
    ] = "truncate"
    force: Force = False
    no_wait: NoWait = False
    engine: Engine = "local"
    address: Address = None
    dry_run: DryRun = False

    @contextmanager
    def requests(self, ids: Sequence[str], *arguments: Any, **more: Any) -> Iterator[list[Request]]:
        """The requests for these datasets, as of `make_request`, and the workers that carry them out."""
        from ..datasets.ingest.request import make_request
        from ..datasets.workers import open_cluster
        from .report import this_command

        names = ("shards", "procs", "codec", "layout", "unknown_next", "force", "dry_run")
        fields = {name: getattr(self, name) for name in names}
        fields |= {"wait": not self.no_wait, "command": this_command(), **more}
        with open_cluster(self.engine, procs=self.procs, address=self.address) or nullcontext() as cluster:
            yield [make_request(one, *arguments, engine=cluster, **fields) for one in ids]


# -- options that sources declare ----------------------------------------------------------------------------------------


class SourceFlags:
    """The options that sources declare for a command (``download`` or ``convert``), as parameters of that command.

    Sources that declare a flag of the same type share it. If the types differ, or the command itself has the flag (``taken``),
    the later source's flag begins with the name of the source: ``--csvlog-steps``.
    """

    def __init__(self, command: str, taken: Collection[str]) -> None:
        from ..datasets import catalogue

        #: The options that share a flag, with their sources, by the parameter.
        self._declared: dict[str, dict[str, SourceOption]] = {}
        for source_name, source in catalogue.sources().items():
            for option in source.options_of(command):
                name = _parameter_name(option.flag)
                same = self._declared.get(name, {}).values()
                if name in taken or any((one.name, _kind(one)) != (option.name, _kind(option)) for one in same):
                    name = f"{source_name}_{name}"
                self._declared.setdefault(name, {})[source_name] = option
        self.parameters = {name: _parameter(name, same) for name, same in self._declared.items()}

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that were given, by their names in Python; the source refuses those that it does not declare."""
        found = {}
        for name, same in self._declared.items():
            option, value = next(iter(same.values())), values.get(name)
            kind: Any = _kind(option)
            if value in (None, False, (), []):
                continue
            if kind is dict:
                value = parse_key_values(value, _flag(name), option.name == "map")
            elif kind in (int, float):
                with suppress(ValueError):  # the source refuses other texts
                    value = kind(value)
            found[option.name] = value
        return found


def _parameter_name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _kind(option: SourceOption) -> type:
    return str if option.flag_is_text else option.type


def _parameter(name: str, same: Mapping[str, SourceOption]) -> Parameter:
    first = next(iter(same.values()))
    choices = dict.fromkeys(choice for option in same.values() for choice in option.choices)
    shown = f"<{'|'.join(choices)}>" if choices else first.metavar or first.name.upper()
    sources: dict[str, list[str]] = {}
    for source, option in same.items():
        default = f"  [default: {option.default}]" if option.default not in (None, {}, False) else ""
        sources.setdefault(f"{option.help}.{default}", []).append(source)
    help_text = " ".join(f"{', '.join(names)}: {text}" for text, names in sources.items())
    is_flag = first.type is bool
    kind: Any = {bool: bool, dict: Optional[list[str]]}.get(first.type, Optional[str])  # noqa: UP045 - made at run time
    declared = Option(_flag(name), help=help_text, metavar=None if is_flag else shown, show_default=False)
    unset = False if is_flag else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=unset, annotation=Annotated[kind, declared])


def parse_key_values(words: Sequence[str], flag: str, keys_are_paths: bool = False) -> dict[str, Any]:
    """``["map_name=8x8", "is_slippery=false"]`` as keyword arguments; with ``keys_are_paths`` also ``observation/state=obs``.

    Values are JSON, Python's True, False or None, or else strings. Raises UsageError.
    """
    example = "observation/state=obs" if keys_are_paths else "is_slippery=false"
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        is_key = bool(name) if keys_are_paths else name.isidentifier()
        if not equals or not is_key:
            raise UsageError(f"{flag} {word!r} is not KEY=VALUE", hint=f"for example: {flag} {example}")
        if name in arguments:
            raise UsageError(f"{flag} gives {name} twice", hint="give it once")
        try:
            arguments[name] = _PYTHON_LITERALS[value] if value in _PYTHON_LITERALS else json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


#: Python users write these; as strings all of them would be true.
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}
