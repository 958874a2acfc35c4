"""The output of every command, all printed through ``out``.

stdout carries only the result: tables, values or one JSON document. stderr carries progress, notes, hints, questions, errors,
and what a user's function prints. Three modes: text for people, the same on a terminal and in a pipe, ``--json`` for programs
(one document, also for errors), and ``--quiet`` (ids or paths).

A terminal gets colour unless ``NO_COLOR`` is set (https://no-color.org) or ``TERM`` is ``dumb``. ``FORCE_COLOR`` adds colour
on a dumb terminal, and in messages (stderr) that go to a file, such as the log of a CI job. Results in a pipe are never
coloured.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from ..errors import UsageError, without_logins
from ..errors import printable as escaped
from ..storage import amounts
from .failure import STANDARD_OUTPUT, Failure

# -- colour --------------------------------------------------------------------------------------------------------------

#: What a text means, and its code (ECMA-48, "select graphic rendition").
STYLES = {"strong": "1", "faint": "2", "bad": "31", "good": "32", "doubtful": "33", "next": "36", "error": "1;31"}

#: The states of datasets and the results of commands, by their first word.
_STATES = {
    "complete": "good",
    "good": "good",
    "written": "good",
    "repaired": "good",
    "partial": "doubtful",
    "planned": "doubtful",
    "not": "doubtful",
    "absent": "faint",
    "damaged": "bad",
    "failed": "bad",
}


def state_style(state: object) -> str:
    """Return the style of a state: ``complete``, ``partial 37%``, ``damaged``; '' for other text."""
    return _STATES.get(str(state).partition(" ")[0], "")


def wants_colour(*, terminal: bool, messages: bool) -> bool:
    """Return whether to colour a stream: a terminal or not, with messages (stderr) or results (stdout)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return terminal or messages
    return terminal and os.environ.get("TERM") not in (None, "", "dumb")


def _paint(content: str, style: str) -> str:
    """The text in a style of `STYLES`; unchanged where the style or the text is empty."""
    return f"\x1b[{STYLES[style]}m{content}\x1b[0m" if style and content else content


# -- text ----------------------------------------------------------------------------------------------------------------


def printable(content: str, *, one_line: bool = False) -> str:
    """Untrusted text (names, notes, licences, messages of servers) with control characters as escapes (``\\x1b``).

    The login in a URL becomes ``***``: outputs end up in logs and bug reports. Tabs and newlines are escaped only for
    ``one_line``.
    """
    if one_line:
        content = content.replace("\n", "\\n").replace("\t", "\\t")
    return escaped(without_logins(content))


def wrapped(text: str, width: int | None, prefix: str = "", rest: str | None = None) -> str:
    """Return a paragraph after a prefix, its further lines after ``rest`` (default: spaces); one line if ``width`` is None."""
    if width is None:
        return prefix + text
    indent = " " * len(prefix) if rest is None else rest
    return textwrap.fill(
        text,
        max(width, len(indent) + 20),
        initial_indent=prefix,
        subsequent_indent=indent,
        # Paths, URLs and commands stay whole, so that they can be copied.
        break_long_words=False,
        break_on_hyphens=False,
    )


def shortened(text: str, length: int) -> str:
    """Return the beginning of a text that is too long, with an ellipsis."""
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"


# -- the console ---------------------------------------------------------------------------------------------------------


class OutputClosed(Exception):
    """The reader of stdout has exited (``| head``). Not a failure: the rest of the output is not needed."""


@dataclass(frozen=True)
class TableColumn:
    """A table's column. ``show`` formats a value that is not text; None is shown as ``-``.

    ``optional`` columns are left out on a terminal that is too narrow for all columns, and a note names them. ``style``
    chooses the style of a value (see `STYLES`).
    """

    title: str
    show: Callable[[Any], str] = str
    right: bool = False
    optional: bool = False
    style: Callable[[Any], str] = lambda value: ""


#: The columns that state the size of a dataset.
AMOUNTS = (
    TableColumn("steps", amounts.count, right=True),
    TableColumn("episodes", amounts.count, right=True, optional=True),
    TableColumn("size", amounts.size, right=True),
)


class Console:
    """Prints results and messages. Looks up the streams at each use, so that tests and progress bars can replace them."""

    def __init__(self) -> None:
        self.configure(())

    def configure(self, arguments: Sequence[str]) -> None:
        """Read the mode from the unparsed command line, so that errors about arguments are printed in that mode too."""
        self.arguments = words = list(arguments)
        if "--" in words:
            words = words[: words.index("--")]
        self.json, self.debug = "--json" in words, "--debug" in words
        self.quiet = "--quiet" in words or "-q" in words

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
        """Columns of the terminal, 80 if unknown."""
        return shutil.get_terminal_size().columns

    @property
    def _result_width(self) -> int | None:
        return self.width if self.on_terminal else None

    # -- the result: stdout ------------------------------------------------------------------------------------------

    def programs(self, document: Callable[[], object], lines: Iterable[str] = ()) -> bool:
        """Print the result for a program: with --json the document, with --quiet the lines. False if people read it."""
        if self.json:
            self.document(document())
        elif self.quiet:
            for line in lines:
                self.line(line)
        return self.json or self.quiet

    def document(self, content: object) -> None:
        """Print the result as JSON."""
        self.line(json.dumps(content, indent=2, default=str))

    def line(self, content: str = "", style: str = "") -> None:
        """Print one line of the result."""
        self._print(self._painted(printable(content), style))

    def paragraph(self, content: str, indent: str = "", style: str = "") -> None:
        """Print text of the result, wrapped on a terminal."""
        self.line(wrapped(content, self._result_width, indent), style)

    def _print(self, content: str) -> None:
        with _named_stdout():
            print(content, file=sys.stdout)

    def flush(self) -> None:
        """Write buffered output."""
        with _named_stdout():
            if sys.stdout is not None:
                sys.stdout.flush()

    def table(self, columns: Sequence[TableColumn], rows: Iterable[Sequence[Any]]) -> None:
        """Print a title and aligned rows."""
        values = [*rows]
        cells = [[_cell(column, value) for column, value in zip(columns, row)] for row in values]
        widths = [max(map(len, entries)) for entries in zip([column.title for column in columns], *cells)]
        shown = list(range(len(columns)))
        for index in reversed(shown[:]):
            is_wide = self.on_terminal and sum(widths[i] + 2 for i in shown) - 2 > self.width
            if columns[index].optional and is_wide:
                shown.remove(index)

        def align(entries: Sequence[str], styles: Sequence[str]) -> str:
            aligned = []
            for i in shown:
                space = " " * (widths[i] - len(entries[i]))
                painted = self._painted(entries[i], styles[i])
                aligned.append(space + painted if columns[i].right else painted + space)
            return "  ".join(aligned).rstrip()

        titles = [column.title for column in columns]
        self._print(self._painted(align(titles, [""] * len(titles)), "strong"))
        for row, entries in zip(values, cells):
            self._print(align(entries, [column.style(value) for column, value in zip(columns, row)]))
        if left := [title for index, title in enumerate(titles) if index not in shown]:
            self.note(f"the terminal is too narrow for {', '.join(left)}: widen it, or use --json")

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Print named values, one per line."""
        margin = max((len(name) for name, _ in facts), default=0) + 2
        for name, text in facts:
            self._print(wrapped(printable(text, one_line=True), self._result_width, name.ljust(margin)))

    def heading(self, title: str) -> None:
        """Start a section of a long result."""
        self._print("\n" + self._painted(wrapped(title, self._result_width), "strong"))

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

    def ask(self, question: str, option: str) -> str:
        """Return the user's answer to a question. Raises UsageError naming ``option`` without an answer or a terminal."""
        answer = self._read_answer(f"{question}: ") if self._can_ask else ""
        if not answer:
            raise UsageError(f"{question}: no answer, so pass {option}")
        return answer

    def confirm_deletion(
        self, what: str, columns: Sequence[TableColumn], rows: Sequence[Sequence[Any]], *, yes: bool, dry_run: bool
    ) -> bool:
        """Show what is to be deleted, and ask unless ``yes`` or ``dry_run``. Raises UsageError without a terminal to ask."""
        if yes or dry_run:
            if not (self.json or self.quiet):
                self.table(columns, rows)
            return True
        if not self._can_ask:
            message = f"nothing deleted ({what}): not a terminal; pass --yes"
            raise UsageError(message, hint="--dry-run shows what would be deleted")
        for row in rows:
            self._write("  ".join(_cell(column, value) for column, value in zip(columns, row)) + "\n")
        if self._read_answer(f"Delete {what}? [y/N] ").lower() in ("y", "yes"):
            return True
        self.note("nothing deleted")
        return False

    @property
    def _can_ask(self) -> bool:
        return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)

    def _read_answer(self, question: str) -> str:
        self._write(question)
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):  # end of input, without a line break on the terminal
            self._write("\n")
        return answer.strip()

    # ----------------------------------------------------------------------------------------------------------------

    def _write_wrapped(self, content: str, prefix: str, style: str = "") -> None:
        terminal = _is_terminal(sys.stderr)
        painted = _paint(prefix, style) if wants_colour(terminal=terminal, messages=True) else prefix
        width = self.width if terminal else None
        for part in content.splitlines() or [""]:
            shown = printable(wrapped(part, width, prefix, " " * len(prefix)))
            self._write(painted + shown.removeprefix(prefix) + "\n", is_printable=True)
            prefix = painted = " " * len(prefix)

    def _write(self, content: str, *, is_printable: bool = False) -> None:
        # A stderr that is closed, full, or without a reader (``2>&1 | head``) does not stop the work.
        try:
            if sys.stderr is not None:
                sys.stderr.write(content if is_printable else printable(content))
                sys.stderr.flush()
        except (OSError, ValueError):
            discard(sys.stderr)

    def _painted(self, content: str, style: str) -> str:
        return _paint(content, style) if wants_colour(terminal=self.on_terminal, messages=False) else content


def _cell(column: TableColumn, value: Any) -> str:
    shown = "-" if value is None else value if isinstance(value, str) else column.show(value)
    return printable(shown, one_line=True)


def discard(stream: Any) -> None:
    """Redirect a stream that cannot be written to /dev/null: Python flushes it again, when a process is started and at exit,
    which must not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _named_stdout() -> Iterator[None]:
    """Name stdout in its write errors: its disk may be full instead of the one with the datasets."""
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


@contextmanager
def other_output_to_stderr() -> Iterator[None]:
    """Redirect stdout to stderr inside the block, for Python's ``print``, C code and child processes."""
    if sys.stdout is None or sys.stderr is None:
        yield
        return
    sys.stdout.flush()
    saved = None
    with suppress(OSError):  # a descriptor is closed: ``2>&-``
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            _flush_c()
            os.dup2(saved, 1)
            os.close(saved)


def _flush_c() -> None:
    """Flush C's buffer of stdout, which would otherwise be written after the redirection ends."""
    ctypes = sys.modules.get("ctypes")  # if it is not loaded, no user's function was called
    if ctypes is not None:
        ctypes.CDLL(None).fflush(None)
