"""What a terminal shows: colours where they are wanted, bars that leave nothing behind."""

from __future__ import annotations

import io
import re
from contextlib import ExitStack, redirect_stderr, redirect_stdout

import pytest
from rbdata.cli import colour, progress
from rbdata.cli.console import Column, Console, Fact


class Terminal(io.StringIO):
    """A stream that says it is a terminal; both streams inside a ``with`` block."""

    def isatty(self) -> bool:
        return True

    def __enter__(self) -> Terminal:
        self._streams = ExitStack()
        self._streams.enter_context(redirect_stdout(self))
        self._streams.enter_context(redirect_stderr(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.close()


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    """An xterm of 60 columns."""
    for name, value in (("TERM", "xterm"), ("COLUMNS", "60"), ("LINES", "20")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


class TestColour:
    @pytest.mark.parametrize(
        ("environment", "terminal", "messages", "expected"),
        [
            ({"TERM": "xterm"}, True, False, True),
            ({"TERM": "xterm"}, False, True, False),
            ({"TERM": "dumb"}, True, True, False),
            ({"TERM": "xterm", "NO_COLOR": "1"}, True, True, False),
            ({"TERM": "xterm", "NO_COLOR": ""}, True, True, True),
            ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, False, True),
            ({"TERM": "dumb", "FORCE_COLOR": "1"}, False, True, True),
            ({"TERM": "dumb", "FORCE_COLOR": "1"}, False, False, False),
            ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, True, True, False),
        ],
    )
    def test_is_for_terminals_unless_the_user_says_otherwise(
        self, environment, terminal, messages, expected, monkeypatch
    ):
        for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert colour.is_wanted(terminal=terminal, messages=messages) is expected

    def test_follows_the_state(self):
        states = ("complete", "partial 37%", "damaged", "anything else")
        assert [colour.of_state(state) for state in states] == ["good", "doubtful", "bad", ""]

    def test_does_not_disturb_columns(self, terminal):
        state = Column("state", style=colour.of_state)
        with terminal:
            Console().table(
                (Column("id"), state, Column("n", right=True)), [("a", "damaged", 1), ("bb", "complete", 20)]
            )
        first, second = terminal.getvalue().splitlines()[1:]
        assert first == "a   \x1b[31mdamaged\x1b[0m    1"
        assert second == "bb  \x1b[32mcomplete\x1b[0m  20"
        assert len(re.sub(r"\x1b\[\d*m", "", first)) == len(re.sub(r"\x1b\[\d*m", "", second))

    def test_is_no_way_in_for_the_codes_of_others(self, terminal):
        with terminal:
            Console().facts([Fact("note", "a\x1b[31mb", style="good")])
        assert terminal.getvalue() == "note  \x1b[32ma\\x1b[31mb\x1b[0m\n"


class TestBars:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch):
        monkeypatch.setattr(progress, "BAR_DELAY", -1.0)

    def test_leave_room_for_what_ctrl_c_prints(self, terminal):
        """A ``^C`` that began a new line would move the cursor, and the bar would stay behind."""
        with terminal, progress.byte_progress("a title") as show:
            show(1, 10)
        drawn = re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", terminal.getvalue()))
        assert any("a title" in line for line in drawn)
        assert max(map(len, drawn)) <= 60 - len("^C^C")

    def test_are_not_drawn_again_by_a_thread_that_was_late(self, terminal):
        with terminal, progress.byte_progress("a title") as show:
            show(1, 10)
        before = terminal.getvalue()
        with terminal:
            show(2, 10)
        assert terminal.getvalue() == before
