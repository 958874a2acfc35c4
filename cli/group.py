"""The commands and their help. A command's module is imported when the command runs, not when the help lists it.

Simple arguments are converted here instead of by Typer, whose import of pydantic takes longer than most commands run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from .._version import __version__
from ..errors import UsageError
from .console import Interrupted, OutputClosed
from .options import Root

# -- conversion of arguments ---------------------------------------------------------------------------------------------


def _convert_without_pydantic(params: list[Any]) -> None:
    for param in params:
        param.process_value = partial(_process, param, param.process_value)


def _process(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """`Parameter.process_value` for absent options, text, paths and lists of text; calls ``convert`` for other values."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    several = param.multiple or param.nargs == -1
    converted: Any
    is_option = param.param_type_name == "option"
    if "" in (value if isinstance(value, (list, tuple)) else [value]) and (is_option or kind is Path):
        # From a variable that is not set, as in --root "$DATA"; a path would be the current folder.
        hint = "name a file or folder (. is the current one)" if kind is Path else "give it a value"
        hint += ", or leave it out; an empty value often comes from a variable that is not set"
        raise UsageError(f"{param.opts[0] if is_option else param.metavar} is empty", hint=hint)
    if value is None and not param.required:
        converted = () if several else None
    elif kind in (str, Path) and isinstance(value, str):
        converted = kind(value)
    elif kind == list[str] and several and value:
        converted = [str(one) for one in value]
    else:
        return convert(ctx, value)
    return param.callback(ctx, param, converted) if param.callback else converted


class _QuickHelp:
    """Mixin for Click's commands: quick conversion for the option ``--help``, which Click creates itself."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None and not isinstance(option.process_value, partial):
            _convert_without_pydantic([option])
        return option


# -- help ----------------------------------------------------------------------------------------------------------------

#: Options that every command has.
_EVERYWHERE = ("root", "json", "quiet", "debug", "help")


class _Command(_QuickHelp, TyperCommand):
    """A command whose help groups the options. A parameter with an attribute ``by_source`` (source name to help text) is
    listed under each of these sources."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write ID instead of Click's {ID} for required arguments."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            left, right = record
            by_source: dict[str, str] = getattr(param, "by_source", {})
            if param.param_type_name == "argument":
                sections["Arguments"].append((left.partition(" <")[0], right.removesuffix("[required]").rstrip()))
            elif by_source:
                for source, text in by_source.items():
                    sections[f"Options of {source}"].append((left, text[:1].upper() + text[1:]))
            else:
                place = "Options of every command" if param.name in _EVERYWHERE else "Options"
                sections[place].append((left, right.replace("  [x>=1]", "")))
        last = sections.pop("Options of every command", [])
        for title, records in [*sections.items(), ("Options of every command", last)]:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


# -- commands ------------------------------------------------------------------------------------------------------------

#: In the order in which a new user needs them. The module of the same name has the command's ``run`` and ``EXAMPLES``.
COMMANDS = {
    "list": "List the datasets on this machine and those to download.",
    "search": "Search the datasets to download by words, kinds and size.",
    "info": "Show what is known of a dataset before it is downloaded.",
    "download": "Download datasets and convert them.",
    "convert": "Convert raw files that are already on this machine.",
    "preprocess": "Make a new dataset with a Python function.",
    "inspect": "Show what a dataset holds: tensors, episodes, returns, origin.",
    "sample": "Draw a batch: show it, save it, or measure the speed.",
    "export": "Write a dataset as files of another library.",
    "verify": "Check datasets against their checksums.",
    "audit": "Say what is wrong with the data before training.",
    "delete": "Delete datasets from this machine.",
    "prune": "Delete what interrupted work left behind.",
    "mirror": "Copy datasets to a mirror, list a mirror, or delete from it.",
    "config": "Show the settings and where each comes from.",
}

#: In Click's help text, the lines after \b are printed unchanged.
EXIT_CODES = """\b
Exit codes:
  0    success
  1    failure
  2    wrong usage
  130  interrupted; finished parts are kept
"""


class Commands(_QuickHelp, TyperGroup):
    """A command group that imports a command's module when it is needed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names: Any = dict.fromkeys(COMMANDS)  # Typer's suggestions need only the names
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _shielded_exceptions():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _shielded_exceptions():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in the help, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


class _Verbs(_QuickHelp, TyperGroup):
    """A command with verbs: ``config set``."""


@contextmanager
def _shielded_exceptions() -> Iterator[None]:
    """Replace two exceptions that Typer would handle: it prints nothing on Ctrl-C and reports a closed stdout as a failure."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted") from error
    except BrokenPipeError as error:
        raise OutputClosed from error


def load(name: str) -> Any:
    """Build a command from the ``run`` of its module (or a group from its ``VERBS``), with the options of all commands."""
    module = import_module(f".{name}", __package__)
    examples = module.EXAMPLES.strip("\n")
    epilog = f"\b\nExamples:\n{examples}\n\n{getattr(module, 'EXIT_CODES', EXIT_CODES)}"
    app = typer.Typer(cls=_Verbs, add_completion=False, rich_markup_mode=None)
    if hasattr(module, "VERBS"):
        without_verb = getattr(module, "run", None)
        callback = app.callback(help=module.HELP, epilog=epilog, invoke_without_command=without_verb is not None)
        callback(without_verb or (lambda: None))
        for verb, function in module.VERBS.items():
            app.command(verb, cls=_Command, epilog=epilog)(function)
    else:
        app.command(name, cls=_Command, epilog=epilog)(module.run)
    command = typer.main.get_command(app)
    common = _common_options(group=hasattr(module, "VERBS"))
    if getattr(module, "SOURCE_OPTIONS", False):
        from .options import source_parameters

        taken = {"--help", *(flag for param in [*command.params, *common] for flag in param.opts)}
        command.params.extend(source_parameters(name, taken))
    own = {flag for param in command.params for flag in param.opts}
    command.params.extend(param for param in common if not own.intersection(param.opts))
    for verb in getattr(command, "commands", {}).values():
        verb.params.extend(_common_options())
        _convert_without_pydantic(verb.params)
    _convert_without_pydantic(command.params)
    return command


def _common_options(group: bool = False) -> list[Any]:
    """Options of every command. The console reads them from the command line, so commands do not receive them.

    A ``group`` also accepts ``--root`` on behalf of the command that follows.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def options(
        root: Root = None,
        json: Annotated[bool, Option("--json", help="Print the result as JSON.", expose_value=False)] = False,
        quiet: Annotated[
            bool, Option("--quiet", "-q", help="Print only ids or paths, for scripts.", expose_value=False)
        ] = False,
        debug: Annotated[bool, Option("--debug", help="Print the traceback of an error.", expose_value=False)] = False,
    ) -> None: ...

    params = list(typer.main.get_command(app).params)
    params[0].expose_value = False
    return params if group else params[1:]


def _show_version(wanted: bool) -> None:
    if wanted:
        from .console import out

        if out.json:
            out.document({"version": __version__})
        else:
            out.line(f"rbdata {__version__}")
        raise typer.Exit()


def invoke(arguments: list[str]) -> int:
    """Parse and run a command line; returns the exit code, raises every error."""
    app = typer.Typer(
        cls=Commands,
        rich_markup_mode=None,  # rich help costs 60 ms at every --help
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
        epilog=EXIT_CODES + "\n\nDatasets are stored under --root, RBDATA_ROOT, or the user cache folder.",
    )

    @app.callback()
    def rbdata(
        version: Annotated[
            bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """Datasets for offline reinforcement learning: download once, sample at memory speed."""

    group = typer.main.get_command(app)
    group.params.extend(_common_options(group=True))
    _convert_without_pydantic(group.params)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    result = group.main(arguments or ["--help"], prog_name="rbdata", standalone_mode=False)
    if not arguments:
        return 2
    return result if isinstance(result, int) else 0
