"""The commands, and how they are found: a module is imported when its command is run, not when help lists it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .._version import __version__
from .console import ReaderGone
from .failures import Interrupted

#: In the order one meets them. The module of the same name has the command's ``run`` and ``EXAMPLES``.
COMMANDS = {
    "list": "The datasets on this machine and those that can be had.",
    "download": "Fetch datasets and convert them on the way.",
    "convert": "Convert raw files that are already on this machine.",
    "preprocess": "Make a new dataset with a Python function.",
    "inspect": "What a dataset holds: tensors, episodes, returns, origin.",
    "sample": "Draw a batch, look at it, keep it, or measure the speed.",
    "verify": "Read datasets again and compare with their checksums.",
    "delete": "Remove datasets from this machine.",
    "mirror": "Copy datasets to a mirror, and see what one holds.",
    "config": "The settings in force, and where each comes from.",
}

#: A table of Click's help text: lines after \b stay as they are.
EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed
  2    wrong usage
  130  interrupted; what is finished is kept
"""


class Commands(TyperGroup):
    """A group that imports a command's module when it is needed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names: Any = dict.fromkeys(COMMANDS)  # without commands, which Typer does not need for its suggestions
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _not_for_typer():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _not_for_typer():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list in the help, without loading anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@contextmanager
def _not_for_typer() -> Iterator[None]:
    """Typer would end without a word on Ctrl-C, and call it a failure when the reader of the answer has enough."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted") from error
    except BrokenPipeError as error:
        raise ReaderGone from error


def load(name: str) -> Any:
    """A command, made from the ``run`` of its module (or, of several verbs, from its ``VERBS``).

    It also takes the options that all commands have.
    """
    module = import_module(f".{name}", __package__)
    examples = module.EXAMPLES.strip("\n")
    epilog = f"\b\nExamples:\n{examples}\n\n{getattr(module, 'EXIT_CODES', EXIT_CODES)}"
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    if hasattr(module, "VERBS"):
        app.callback(help=module.HELP, epilog=epilog)(lambda: None)
        for verb, function in module.VERBS.items():
            app.command(verb, epilog=epilog)(function)
    else:
        app.command(name, epilog=epilog)(module.run)
    command = typer.main.get_command(app)
    if getattr(module, "SOURCE_OPTIONS", False):
        from .source_options import parameters

        command.params.extend(parameters())
    command.params.extend(_common())
    for verb in getattr(command, "commands", {}).values():
        verb.params.extend(_common())
    return command


def _common() -> list[Any]:
    """Options of every command. The console reads them for itself, so commands are not told (``expose_value``)."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def options(
        json: Annotated[bool, typer.Option("--json", help="Answer in JSON.", expose_value=False)] = False,
        quiet: Annotated[
            bool, typer.Option("--quiet", "-q", help="Only what a script needs: ids or paths.", expose_value=False)
        ] = False,
        debug: Annotated[
            bool, typer.Option("--debug", help="Show where an error came from.", expose_value=False)
        ] = False,
    ) -> None: ...

    return list(typer.main.get_command(app).params)


def _show_version(wanted: bool) -> None:
    if wanted:
        from .console import out

        if out.json:
            out.document({"version": __version__})
        else:
            out.line(f"rbdata {__version__}")
        raise typer.Exit()


def invoke(arguments: list[str]) -> int:
    """Parse and run; returns the exit code of commands that end well, raises what goes wrong."""
    app = typer.Typer(
        cls=Commands,
        rich_markup_mode=None,  # Typer's decorated help costs 60 ms at every --help
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
        epilog=EXIT_CODES + "\n\nDatasets lie under --root, RBDATA_ROOT, or the cache folder of the platform.",
    )

    @app.callback()
    def rbdata(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """Datasets for offline reinforcement learning: get them once, sample them at the speed of memory."""

    group = typer.main.get_command(app)
    group.params.extend(_common())
    result = group.main(arguments or ["--help"], prog_name="rbdata", standalone_mode=False)
    if not arguments:
        return 2
    return result if isinstance(result, int) else 0
