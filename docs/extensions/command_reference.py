"""The reference of the commands, as Markdown: read from the Typer application, it is what ``rbdata COMMAND --help`` prints."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import click
from rbdata.cli.group import COMMANDS, load

#: Options of every command, which are shown once.
EVERYWHERE = frozenset({"--json", "--quiet", "--debug", "--help"})


def lines() -> Iterator[str]:
    """The options of every command, then a section for each."""
    first: Any = load(next(iter(COMMANDS)))
    yield from ("Every command has:", "")
    yield from table(first, everywhere=True)
    for name in COMMANDS:
        yield from command_lines(name)


def command_lines(name: str) -> Iterator[str]:
    """The Markdown of a command, with a section for each of its verbs, if it has some."""
    module = importlib.import_module(f"rbdata.cli.{name}")
    command: Any = load(name)
    yield from describe(command, f"rbdata {name}", "##")
    for verb, inner in getattr(command, "commands", {}).items():
        yield from describe(inner, f"rbdata {name} {verb}", "###")
    examples = inspect.cleandoc(module.EXAMPLES)
    yield from ("Examples:", "", "```text", *examples.splitlines(), "```", "")  # the pages' own examples are run


def describe(command: Any, title: str, heading: str) -> Iterator[str]:
    """Heading, usage, help, and the tables of arguments and options."""
    context = click.Context(command, info_name=title)
    yield from (f"{heading} {title}", "")
    if not hasattr(command, "commands"):
        pieces = " ".join(command.collect_usage_pieces(context))
        yield from ("```text", f"{title} {pieces}", "```", "")
    yield from (inspect.cleandoc(command.help or "").replace("\b", ""), "")
    yield from table(command)


def table(command: Any, *, everywhere: bool = False) -> Iterator[str]:
    """The arguments and options of a command, without those of every command, or these alone."""
    context = click.Context(command, info_name=command.name)
    params = [one for one in command.get_params(context) if EVERYWHERE.isdisjoint(one.opts) != everywhere]
    rows = [record for param in params if (record := record_of(param, context))]
    if rows:
        yield from ("| | |", "| --- | --- |")
        for left, right in rows:
            yield f"| `{left}` | {escaped(right)} |"
        yield ""


def record_of(param: Any, context: click.Context) -> tuple[str, str] | None:
    """The option or argument as the help shows it; None for a hidden one."""
    if getattr(param, "hidden", False):
        return None
    record = param.get_help_record(context)
    if record is None:
        return None
    return record[0].replace("|", "\\|"), " ".join(record[1].split())


def escaped(text: str) -> str:
    """The text of a table's cell: nothing of it is Markdown."""
    for sign in "\\|*_<>[]`":
        text = text.replace(sign, f"\\{sign}")
    return text
