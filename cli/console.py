"""The output of every command: all of it is printed through ``out``.

stdout carries the result and nothing else: tables, values, one JSON document. stderr carries progress, notes, hints,
questions and errors. Three modes: text, ``--json`` (one document, also for errors) and ``--quiet`` (ids or paths).
Text has two forms: aligned columns on a terminal, and tab-separated rows with plain numbers in a pipe.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from . import colour, text
from .failures import STANDARD_OUTPUT, Failure


class OutputClosed(Exception):
    """The reader of stdout has ended (``| head``). Not a failure: the rest of the output is not needed."""


@dataclass(frozen=True)
class Column:
    """A table's column. ``show`` formats a value on a terminal; pipes get the bare value. None is shown as ``-``.

    ``optional`` columns are left out on a terminal that is too narrow for all columns. ``style`` chooses the style of a
    value (see `colour`).
    """

    title: str
    show: Callable[[Any], str] = str
    right: bool = False
    optional: bool = False
    style: Callable[[Any], str] = lambda value: ""


#: The columns that state the size of a dataset.
AMOUNTS = (
    Column("steps", text.count, right=True),
    Column("episodes", text.count, right=True, optional=True),
    Column("size", text.size, right=True),
)


@dataclass(frozen=True)
class Fact:
    """A named value: its text on a terminal, in a style, and the bare value in a pipe (the text where ``value`` is None)."""

    name: str
    text: str
    value: object = None
    style: str = ""


class Console:
    """See the module. The streams are looked up at each use, so that tests and progress bars can replace them."""

    def __init__(self) -> None:
        self.configure(())

    def configure(self, arguments: Sequence[str]) -> None:
        """Read the mode from the unparsed command line, so that errors about arguments are printed in that mode too."""
        self.arguments = words = list(arguments)
        if "--" in words:
            words = words[: words.index("--")]
        self.json = "--json" in words
        self.quiet = "--quiet" in words or "-q" in words
        self.debug = "--debug" in words

    # -- the streams -------------------------------------------------------------------------------------------------

    @property
    def on_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return _is_terminal(sys.stdout)

    @property
    def live(self) -> bool:
        """Whether stderr is a terminal that can draw progress bars."""
        return not self.quiet and _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """Columns of the terminal, 80 where it does not state them."""
        return shutil.get_terminal_size().columns

    # -- the result: stdout ------------------------------------------------------------------------------------------

    def document(self, content: object) -> None:
        """Print the result as JSON."""
        self.line(json.dumps(content, indent=2, default=str))

    def line(self, content: str = "", style: str = "") -> None:
        """Print one line of the result."""
        self._print(self._painted(text.printable(content), style))

    def _print(self, content: str) -> None:
        with _named_stdout():
            print(content, file=sys.stdout)

    def flush(self) -> None:
        """Write what is buffered of the result."""
        with _named_stdout():
            if sys.stdout is not None:
                sys.stdout.flush()

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> None:
        """Print rows of bare values."""
        if not self.on_terminal:
            for row in rows:
                self.line(
                    "\t".join("-" if value is None else text.printable(str(value), one_line=True) for value in row)
                )
            return

        def show(column: Column, value: Any) -> str:
            shown = "-" if value is None else value if isinstance(value, str) else column.show(value)
            return text.printable(shown, one_line=True)

        values = [*rows]
        cells = [[show(column, value) for column, value in zip(columns, row)] for row in values]
        titles = [column.title for column in columns]
        widths = [max(map(len, entries)) for entries in zip(titles, *cells)]
        shown = list(range(len(columns)))
        for index in reversed(range(len(columns))):
            if columns[index].optional and sum(widths[i] + 2 for i in shown) - 2 > self.width:
                shown.remove(index)

        def align(entries: Sequence[str], styles: Sequence[str]) -> str:
            aligned = []
            for i in shown:
                space = " " * (widths[i] - len(entries[i]))
                painted = self._painted(entries[i], styles[i])
                aligned.append(space + painted if columns[i].right else painted + space)
            return "  ".join(aligned).rstrip()

        self._print(self._painted(align(titles, [""] * len(titles)), "strong"))
        for row, entries in zip(values, cells):
            self._print(align(entries, [column.style(value) for column, value in zip(columns, row)]))

    def facts(self, facts: Sequence[Fact]) -> None:
        """Print named values, one per line."""
        margin = max((len(fact.name) for fact in facts), default=0) + 2
        for fact in facts:
            if self.on_terminal:
                name = fact.name.ljust(margin)
                shown = text.printable(text.wrapped(fact.text, self.width, name))
                self._print(name + self._painted(shown.removeprefix(name), fact.style))
            else:
                value = text.printable(str(fact.text if fact.value is None else fact.value), one_line=True)
                self.line(f"{fact.name}\t{value}")

    def heading(self, title: str) -> None:
        """Start a section of a long result; on terminals only."""
        if self.on_terminal:
            self._print("\n" + self._painted(text.wrapped(title, self.width), "strong"))

    # -- everything else: stderr -------------------------------------------------------------------------------------

    def note(self, content: str, prefix: str = "", style: str = "") -> None:
        """Print a note behind a prefix in a style; omitted with --quiet."""
        if not self.quiet:
            self._write_wrapped(content, prefix, style)

    def warn(self, content: str) -> None:
        """Print a warning; omitted with --quiet."""
        self.note(content, "warning: ", "doubtful")

    def hint(self, content: str) -> None:
        """Print the command to try next; omitted with --json and --quiet."""
        if not self.json:
            self.note(content, "next: ", "next")

    def fail(self, error: BaseException, failure: Failure, about: str = "") -> None:
        """Print an error in at most two lines (with --debug also its traceback), also with --quiet.

        An error in a user's own function is printed with that function's part of the traceback.
        """
        self.trace(error)
        if failure.detail and not self.debug:
            self._write(failure.detail.rstrip("\n") + "\n")
        named = not about or about in failure.message
        self._write_wrapped(failure.message if named else f"{about}: {failure.message}", "error: ", "error")
        if failure.hint:
            self._write_wrapped(failure.hint, "hint: ", "next")

    def trace(self, error: BaseException) -> None:
        """Print the traceback of an error, with --debug only."""
        if self.debug:
            self._write("".join(traceback.format_exception(error)))

    def confirm(self, question: str, about: Sequence[str] = ()) -> bool:
        """Print the lines ``about``, then ask a yes-or-no question; call it only where ``can_ask``."""
        for line in about:
            self._write(line + "\n")
        self._write(f"{question} [y/N] ")
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            self._write("\n")
        return answer.strip().lower() in ("y", "yes")

    @property
    def can_ask(self) -> bool:
        """Whether the user can answer a question: stdin and stderr are terminals."""
        return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)

    # ----------------------------------------------------------------------------------------------------------------

    def _write_wrapped(self, content: str, prefix: str, style: str = "") -> None:
        terminal = _is_terminal(sys.stderr)
        painted = colour.paint(prefix, style) if colour.is_wanted(terminal=terminal, messages=True) else prefix
        width = self.width if terminal else None
        for part in content.splitlines() or [""]:
            wrapped = text.printable(text.wrapped(part, width, prefix, " " * len(prefix)))
            self._write(painted + wrapped.removeprefix(prefix) + "\n", printable=True)
            prefix = painted = " " * len(prefix)

    def _write(self, content: str, *, printable: bool = False) -> None:
        # stderr is closed, full, or its reader has ended (``2>&1 | head``): no reason to stop the work.
        with suppress(OSError, ValueError):
            if sys.stderr is not None:
                sys.stderr.write(content if printable else text.printable(content))
                sys.stderr.flush()

    def _painted(self, content: str, style: str) -> str:
        return colour.paint(content, style) if colour.is_wanted(terminal=self.on_terminal, messages=False) else content


@contextmanager
def _named_stdout() -> Iterator[None]:
    """Errors of stdout state that they are: its disk may be full, not that of the datasets."""
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


out = Console()
