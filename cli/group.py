"""The commands and their help. A command's module is imported when the command runs, not when the help lists it.

A module has a function ``run`` (or several in ``VERBS``) whose signature declares the arguments, and EXAMPLES for the help. A
parameter that is a dataclass stands for its fields. The options of all commands are added here, and those that sources declare
where ``run`` takes ``**source_options``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import partial, wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from .._version import __version__
from ..errors import UsageError
from .options import Root, SourceFlags

#: In the order in which a new user needs them.
COMMANDS = {
    "list": "List the datasets on this machine and those to download.",
    "search": "Search the datasets to download by words, kinds and size.",
    "info": "Show what is known of a dataset before it is downloaded.",
    "download": "Download datasets and convert them.",
    "convert": "Convert raw files that are already on this machine.",
    "preprocess": "Make a new dataset with a Python function.",
    "inspect": "Show what a dataset holds: tensors, episodes, returns, origin.",
    "sample": "Draw a batch: show it, or measure the speed.",
    "export": "Write a dataset as files of another library.",
    "verify": "Check datasets against their checksums.",
    "audit": "Say what is wrong with the data before training.",
    "delete": "Delete datasets from this machine.",
    "prune": "Delete what interrupted work left behind.",
    "mirror": "Copy datasets to a mirror, list a mirror, or delete from it.",
    "config": "Show the settings and where each comes from.",
}

#: In the help text, the lines after \b are printed unchanged.
EXIT_CODES = """\b
Exit codes:
  0    success
  1    failure
  2    wrong usage
  130  interrupted; finished parts are kept
"""

#: Set by the shell when it asks for completions.
_COMPLETION = "_RBDATA_COMPLETE"


def invoke(arguments: Sequence[str]) -> int:
    """Parse and run a command line; returns the exit code, raises every error."""
    words = [*arguments]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    group = _application()
    if _COMPLETION in os.environ:
        group.main(words, prog_name="rbdata")  # prints them, and exits
    try:
        with group.make_context("rbdata", words or ["--help"]) as context:
            result = group.invoke(context)
    except typer.Exit as stop:  # after --help and --version
        result = stop.exit_code
    if not arguments:
        return 2
    return result if isinstance(result, int) else 0


def _application() -> Any:
    def rbdata(
        version: Annotated[
            bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """Datasets for offline reinforcement learning: download once, sample at memory speed."""

    app = typer.Typer(
        cls=_Commands,
        rich_markup_mode=None,  # rich help costs 60 ms at every --help
        context_settings=_SETTINGS,
        epilog=EXIT_CODES + "\n\nDatasets are stored under --root, RBDATA_ROOT, or the user cache folder.",
    )
    app.callback()(_complete(rbdata, ("root", *_COMMON)))
    group = typer.main.get_command(app)
    _convert_without_pydantic(group.params)
    return group


def _show_version(wanted: bool) -> None:
    if wanted:
        from .console import out

        version = f"rbdata {__version__}"
        if not out.programs(lambda: {"version": __version__}, [version]):
            out.line(version)
        raise typer.Exit()


class _QuickHelp:
    """Mixin for Typer's commands: quick conversion for the option ``--help``, which they make themselves."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None and not isinstance(option.process_value, partial):
            _convert_without_pydantic([option])
        return option


class _Command(_QuickHelp, TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write ID instead of Typer's {ID} for required arguments."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class _Verbs(_QuickHelp, TyperGroup):
    """A command with verbs: ``config set``."""


class _Commands(_Verbs):
    """The group of all commands, which imports a command's module when it is needed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names: Any = dict.fromkeys(COMMANDS)  # Typer's suggestions need only the names
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in the help, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def load(name: str) -> Any:
    """Build a command from the ``run`` of its module, or a group from its ``VERBS``, with the options of all commands."""
    module = import_module(f".{name}", __package__)
    examples = module.EXAMPLES.strip("\n")
    epilog = f"\b\nExamples:\n{examples}\n\n{getattr(module, 'EXIT_CODES', EXIT_CODES)}"
    app = typer.Typer(cls=_Verbs, add_completion=False, rich_markup_mode=None)
    verbs: dict[str, Any] = getattr(module, "VERBS", {})
    for verb, function in (verbs or {name: module.run}).items():
        app.command(verb, cls=_Command, epilog=epilog)(_complete(function, _COMMON, name))
    if verbs:
        run = getattr(module, "run", None)
        callback = app.callback(help=module.HELP, epilog=epilog, invoke_without_command=run is not None)
        callback(_complete(run or (lambda: None), ("root", *_COMMON)))
    command: Any = typer.main.get_command(app)
    for one in (command, *getattr(command, "commands", {}).values()):
        _convert_without_pydantic(one.params)
    return command


# -- the options of all commands, and those of sources --------------------------------------------------------------------

_SETTINGS = {"help_option_names": ["--help", "-h"]}
_COMMON = ("json", "quiet", "debug")


def _common(
    root: Root = None,
    json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only ids or paths, for scripts.")] = False,
    debug: Annotated[bool, Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Options of every command. The console reads them from the command line: errors about arguments follow them too."""


def _complete(run: Callable[..., Any], common: Sequence[str], name: str = "") -> Callable[..., Any]:
    """A command's function with the options of all commands, and those of sources where it takes ``**source_options``."""
    own = parameters_of(run)
    bundles = {one: parameters_of(kind.annotation) for one, kind in own.items() if is_bundle(kind.annotation)}
    shown: dict[str, Parameter] = {}
    for one, parameter in own.items():
        if parameter.kind is not Parameter.VAR_KEYWORD:
            shown |= bundles.get(one, {one: parameter})
    every = parameters_of(_common)
    last = {one: every[one] for one in common if one not in shown}
    takes_more = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in own.values())
    flags = SourceFlags(name, {*shown, *last, "help"}) if takes_more else None
    parameters = {**shown, **(flags.parameters if flags else {}), **last}

    @wraps(run)
    def command(**values: Any) -> Any:
        more = flags.options(values) if flags else {}
        for one, fields in bundles.items():
            values[one] = own[one].annotation(**{field: values[field] for field in fields if field in values})
        return run(**{one: values[one] for one in own if one in values}, **more)

    keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters.values()]
    command.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in keywords}
    return command


def is_bundle(annotation: Any) -> bool:
    """Return whether a parameter stands for several options: the fields of a dataclass."""
    return isinstance(annotation, type) and is_dataclass(annotation)


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a function, with annotations that are no longer text."""
    hints = get_type_hints(function, include_extras=True)
    parameters = signature(function).parameters
    return {name: one.replace(annotation=hints.get(name, one.annotation)) for name, one in parameters.items()}


# -- conversion of arguments ----------------------------------------------------------------------------------------------


def _convert_without_pydantic(params: Sequence[Any]) -> None:
    """Convert text and paths here: pydantic, which Typer imports for that, takes longer than most commands run."""
    for param in params:
        param.process_value = partial(_process, param, param.process_value)
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None  # the help would have ID <list[str]>


def _process(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """`Parameter.process_value` for absent options, text, paths and lists of text; calls ``convert`` for other values."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    several = param.multiple or param.nargs == -1
    is_option = param.param_type_name == "option"
    if "" in (value if isinstance(value, (list, tuple)) else [value]) and (is_option or kind is Path):
        # From a variable that is not set, as in --root "$DATA"; a path would be the current folder.
        hint = "name a file or folder (. is the current one)" if kind is Path else "give it a value"
        hint += ", or leave it out; an empty value often comes from a variable that is not set"
        raise UsageError(f"{param.opts[0] if is_option else param.metavar} is empty", hint=hint)
    if value is None and not param.required:
        converted: Any = () if several else None
    elif kind in (str, Path) and isinstance(value, str):
        converted = kind(value)
    elif kind == list[str] and several and value:
        converted = [*value]
    else:
        return convert(ctx, value)
    return param.callback(ctx, param, converted) if param.callback else converted
