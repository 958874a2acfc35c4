"""The one sink for output: every command says what it has to say through ``out``.

stdout carries the answer and nothing else: tables, values, one JSON document. stderr carries progress, notes, hints,
questions and errors. Three modes: for people, ``--json`` (one document, also for errors) and ``--quiet`` (ids or paths).
For people there are two forms: aligned columns on a terminal, and tab-separated rows with plain numbers in a pipe.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from . import text
from .failures import Failure


class ReaderGone(Exception):
    """Whoever read the answer has enough (``| head``): the rest need not be said. No failure."""


#: Columns of a page where the terminal does not say how wide it is.
DEFAULT_WIDTH = 80


@dataclass(frozen=True)
class Column:
    """A table's column. ``show`` makes the text for people; programs get the bare value. None is shown as ``-``.

    ``optional`` columns are left out on a terminal too narrow for all.
    """

    title: str
    show: Callable[[Any], str] = str
    right: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Fact:
    """A named value: its text for people and the bare value for programs (the text itself where that is None)."""

    name: str
    text: str
    value: object = None


class Console:
    """See the module. Streams are looked up when used, so that tests and progress bars may replace them."""

    def __init__(self) -> None:
        self.configure(())

    def configure(self, arguments: Sequence[str]) -> None:
        """Take the mode from the command line, before it is parsed: wrong arguments are answered in that mode too."""
        self.arguments = words = list(arguments)
        if "--" in words:
            words = words[: words.index("--")]
        self.json = "--json" in words
        self.quiet = "--quiet" in words or "-q" in words
        self.debug = "--debug" in words

    # -- what the streams are ----------------------------------------------------------------------------------------

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads the answer as it comes."""
        return _is_terminal(sys.stdout)

    @property
    def live(self) -> bool:
        """Whether progress can be drawn, rather than told in lines."""
        return not self.quiet and _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns

    # -- the answer: stdout ------------------------------------------------------------------------------------------

    def document(self, content: object) -> None:
        """The answer as JSON."""
        self.line(json.dumps(content, indent=2, default=str))

    def line(self, content: str = "") -> None:
        """One line of the answer."""
        try:
            print(content, file=sys.stdout)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> None:
        """Rows of bare values."""
        if not self.on_terminal:
            for row in rows:
                self.line("\t".join("-" if value is None else str(value) for value in row))
            return
        cells = [[_cell(column, value) for column, value in zip(columns, row)] for row in rows]
        titles = [column.title for column in columns]
        widths = [max(map(len, entries)) for entries in zip(titles, *cells)]
        shown = list(range(len(columns)))
        for index in reversed(range(len(columns))):
            if columns[index].optional and sum(widths[i] + 2 for i in shown) - 2 > self.width:
                shown.remove(index)

        def lay(entries: Sequence[str]) -> str:
            laid = (entries[i].rjust(widths[i]) if columns[i].right else entries[i].ljust(widths[i]) for i in shown)
            return "  ".join(laid).rstrip()

        self.line(self._bold(lay(titles)))
        for entries in cells:
            self.line(lay(entries))

    def facts(self, facts: Sequence[Fact]) -> None:
        """Named values, one to a line."""
        margin = max((len(fact.name) for fact in facts), default=0) + 2
        for fact in facts:
            if self.on_terminal:
                self.line(text.wrapped(fact.text, self.width, fact.name.ljust(margin)))
            else:
                self.line(f"{fact.name}\t{fact.text if fact.value is None else fact.value}")

    def heading(self, title: str) -> None:
        """Begins a section of a long answer; programs need none."""
        if self.on_terminal:
            self.line("\n" + self._bold(title))

    # -- everything else: stderr -------------------------------------------------------------------------------------

    def note(self, content: str, first: str = "") -> None:
        """Something worth knowing, below a prefix; dropped by --quiet."""
        if not self.quiet:
            self._aside(content, first)

    def hint(self, content: str) -> None:
        """What to try next; nothing a program wants."""
        if not self.json:
            self.note(content, "next: ")

    def fail(self, error: BaseException, failure: Failure, about: str = "") -> None:
        """An error, in two lines at most (and where it came from, with --debug); --quiet does not silence it.

        What a user's own function raised comes with its own part of the traceback: it is theirs to read.
        """
        self.trace(error)
        if failure.detail and not self.debug:
            self._write(failure.detail.rstrip("\n") + "\n")
        self._aside(f"{about}: {failure.message}" if about else failure.message, "error: ")
        if failure.hint:
            self._aside(failure.hint, "hint: ")

    def trace(self, error: BaseException) -> None:
        """With --debug, where an error came from."""
        if self.debug:
            self._write("".join(traceback.format_exception(error)))

    def confirm(self, question: str, about: Sequence[str] = ()) -> bool:
        """Ask a yes-or-no question below the lines it is about; call only where ``can_ask``."""
        for line in about:
            self._write(line + "\n")
        self._write(f"{question} [y/N] ")
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            self._write("\n")
        return answer.strip().lower() in ("y", "yes")

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer."""
        return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)

    # ----------------------------------------------------------------------------------------------------------------

    def _aside(self, content: str, first: str) -> None:
        width = self.width if _is_terminal(sys.stderr) else None
        lines = (text.wrapped(part, width, first, " " * len(first)) for part in content.splitlines() or [""])
        self._write("\n".join(lines) + "\n")

    def _write(self, content: str) -> None:
        # Nobody reads the notes any more (``2>&1 | head``): no reason to stop working.
        with suppress(BrokenPipeError):
            sys.stderr.write(content)
            sys.stderr.flush()

    def _bold(self, content: str) -> str:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in (None, "", "dumb")
        return content if plain else f"\x1b[1m{content}\x1b[0m"


def _cell(column: Column, value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else column.show(value)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


out = Console()
