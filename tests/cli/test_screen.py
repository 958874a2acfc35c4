"""What a terminal shows: colours where they are wanted, bars that leave nothing behind."""

from __future__ import annotations

import io
import re
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from processes import wait_until
from rbdata.cli import console, progress
from rbdata.cli.console import Console, TableColumn
from rbdata.datasets.fetch import retries
from rbdata.datasets.ingest.request import Estimate, Listener
from rbdata.datasets.workers.task import TaskProgress


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
        assert console.wants_colour(terminal=terminal, messages=messages) is expected

    def test_follows_the_state(self):
        states = ("complete", "partial 37%", "damaged", "anything else")
        assert [console.state_style(state) for state in states] == ["good", "doubtful", "bad", ""]

    def test_does_not_disturb_columns(self, terminal):
        state = TableColumn("state", style=console.state_style)
        with terminal:
            Console().table(
                (TableColumn("id"), state, TableColumn("n", right=True)), [("a", "damaged", 1), ("bb", "complete", 20)]
            )
        first, second = terminal.getvalue().splitlines()[1:]
        assert first == "a   \x1b[31mdamaged\x1b[0m    1"
        assert second == "bb  \x1b[32mcomplete\x1b[0m  20"
        assert len(re.sub(r"\x1b\[\d*m", "", first)) == len(re.sub(r"\x1b\[\d*m", "", second))

    def test_is_no_way_in_for_the_codes_of_others(self, terminal):
        with terminal:
            Console().line("a\x1b[31mb", "good")
        assert terminal.getvalue() == "\x1b[32ma\\x1b[31mb\x1b[0m\n"


def drawn(terminal: Terminal) -> list[str]:
    """Every line that was drawn, in order."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", terminal.getvalue()))


ESTIMATE = Estimate("a/b", Path("a/b"), "there", 1, 1000, 10, 1, 1000, 10**9, 0, 1)


class TestBars:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch):
        monkeypatch.setattr(progress, "BAR_DELAY", -1.0)

    def test_leave_room_for_what_ctrl_c_prints(self, terminal):
        """A ``^C`` that began a new line would move the cursor, and the bar would stay behind."""
        with terminal, progress.byte_progress("a title", then="") as show:
            show(1, 10)
        assert any("a title" in line for line in drawn(terminal))
        assert max(map(len, drawn(terminal))) <= 60 - len("^C^C")

    def test_are_not_drawn_again_by_a_thread_that_was_late(self, terminal):
        with terminal, progress.byte_progress("a title", then="") as show:
            show(1, 10)
        before = terminal.getvalue()
        with terminal:
            show(2, 10)
        assert terminal.getvalue() == before

    def test_are_never_full_while_something_else_runs(self, terminal):
        with terminal, progress.byte_progress("verifying", then="checking the episodes") as show:
            show(10, 10)
        with terminal, progress.show_progress("a/b", Listener()) as listener:
            listener.on_estimate(ESTIMATE)
            listener.on_progress([TaskProgress(0, 50, 100, 500, 0)])
            wait_until(lambda: any("50%" in line for line in drawn(terminal)))
            listener.on_progress([TaskProgress(0, 100, 100, 1000, 0)])
            time.sleep(0.25)  # the screen is drawn five times a second
            listener.on_part_done(0)
            listener.on_stage("committing")
        lines = drawn(terminal)
        assert not any("100%" in line for line in lines)
        shown = [
            next(i for i, line in enumerate(lines) if what in line) for what in ("checking", "50%", "writing", "commit")
        ]
        assert shown == sorted(shown)

    @pytest.mark.parametrize("columns", [40, 60])
    def test_show_the_share_on_a_narrow_screen(self, terminal, columns, monkeypatch):
        monkeypatch.setenv("COLUMNS", str(columns))
        with terminal, progress.byte_progress("verifying minari/D4RL/antmaze/large-diverse-v1", then="") as show:
            show(3 * 10**8, 10**9)
        assert any(re.match("verifying.* 30% 300 MB of 1.00 GB", line) for line in drawn(terminal))
        with terminal, progress.show_progress("a/b", Listener()) as listener:
            listener.on_estimate(replace(ESTIMATE, parts=2))
            waiting = TaskProgress(1, 21, 100, 500, 0, "HTTP 503: retry 1 of 4 in 2 s")
            listener.on_progress([TaskProgress(0, 53, 100, 500, 0), waiting])
        last = drawn(terminal)[-12:]
        assert any(re.match("working .* 37% .*HTTP 503", line) for line in last)

    def test_say_why_nothing_arrives(self, terminal):
        with terminal, progress.show_progress("a/b", Listener()) as listener:
            retries.announce("HTTP 503: retry 1 of 4 in 2 s", 0.0)
        assert any("HTTP 503: retry 1 of 4" in line for line in drawn(terminal))
        terminal.truncate(0)
        with terminal, progress.show_progress("a/b", Listener()) as listener:
            listener.on_estimate(ESTIMATE)
            listener.on_progress([TaskProgress(0, 0, 100, 0, 1, "timed out: retry 2")])
        assert any("working" in line and "timed out: retry 2" in line for line in drawn(terminal))


def test_a_log_gets_a_line_now_and_then_also_while_nothing_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.01)
    seen: list[str] = []

    def wait_for(line: str, times: int = 1) -> None:
        deadline = time.monotonic() + 600
        while seen.count(line) < times and time.monotonic() < deadline:
            time.sleep(0.01)
            seen.extend(capsys.readouterr().err.splitlines())
        assert seen.count(line) >= times

    with progress.show_progress("a/b", Listener()) as listener:
        listener.on_stage("looking for a/b")
        wait_for("a/b: looking for a/b", times=2)
    with progress.byte_progress("verifying a/b", then="checking the episodes") as show:
        show(1, 2)
        wait_for("verifying a/b: 50%, 1 byte of 2 bytes")
        show(2, 2)
        wait_for("verifying a/b: checking the episodes")
    with progress.count_progress("listing a/b") as count:
        wait_for("listing a/b")
        count(3, 0)
        wait_for("listing a/b: 3")
