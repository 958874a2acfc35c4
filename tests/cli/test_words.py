"""The parts of the command line that decide what to say: numbers in words, errors, the tally of a download."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from rbdata.cli.catalogue_table import combine
from rbdata.cli.console import Console, TableColumn, printable, wrapped
from rbdata.cli.failure import Interrupted, explain
from rbdata.cli.report import work
from rbdata.datasets.ingest.progress import Tally
from rbdata.datasets.ingest.request import Estimate
from rbdata.datasets.sources.catalogue_entry import CatalogueEntry
from rbdata.datasets.workers.task import TaskProgress
from rbdata.errors import DatasetNotFoundError, DiskError
from rbdata.storage import amounts


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_600, "1.00 MB"),
        (13_249_000_000, "13.2 GB"),
        (353e9, "353 GB"),
        (5e18, "5000 PB"),
    ],
)
def test_sizes_have_three_digits(amount, words):
    assert amounts.size(amount) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (60, "1 min 00 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds, words):
    assert amounts.duration(seconds) == words


def test_text_from_elsewhere_cannot_control_the_terminal():
    assert printable("a\x1b[31m\x9b\r\u202eb\ud800") == r"a\x1b[31m\x9b\r\u202eb\ud800"
    assert printable("naïve\t日本\n") == "naïve\t日本\n"
    assert printable("a\tb\n", one_line=True) == r"a\tb\n"


def test_passwords_are_not_printed():
    assert printable('"https://me:se@cret@host/x?a=b:c@d"') == '"https://***@host/x?a=b:c@d"'
    assert printable("https://host:8080/a@b gs://bucket/x:y@z") == "https://host:8080/a@b gs://bucket/x:y@z"


def test_a_share_is_full_only_when_it_is():
    assert [amounts.percent(share) for share in (0, 0.29, 0.9999, 1, 1.5)] == ["0%", "29%", "99%", "100%", "100%"]


def test_numbers():
    numbers = (1.0, -3.21043, 1032.44, float("nan"), float("inf"), 49_999_750, -2e300)
    assert [amounts.real(n) for n in numbers] == ["1", "-3.2104", "1,032.4", "nan", "inf", "49,999,750", "-2e+300"]


def test_wrapping_keeps_what_is_to_be_copied():
    told = wrapped("continue with: rbdata download --root /a-long-folder/with-hyphens/in-it", 40, "hint: ")
    assert "/a-long-folder/with-hyphens/in-it" in told
    assert told.splitlines()[1].startswith("      ")
    assert wrapped("a b", None, "hint: ") == "hint: a b"


def test_names_that_differ_in_their_number_share_a_line():
    names = ["atari/Pong/1", "atari/Pong/2", "atari/Pong/4", "atari/Pong/5", "d4rl/hopper-medium-v2"]
    entries = [CatalogueEntry(name, steps=3 + (name == "atari/Pong/5")) for name in names]
    assert [shown for shown, _ in combine(entries, {})] == ["atari/Pong/1-2,4", *names[3:]]


class TestErrors:
    def test_ours_carry_code_hint_and_exit_code(self):
        failure = explain(DatasetNotFoundError("no x", hint="try y"))
        assert failure.to_json() == {"code": "not_found", "message": "no x", "hint": "try y"}
        assert failure.exit_code == 2
        assert explain(DiskError("full")).exit_code == 1

    def test_a_full_disk_is_no_bug(self):
        failure = explain(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
        assert (failure.code, failure.message) == ("disk_full", "No space left on device: /data/x")
        assert "what is finished is kept" in failure.hint

    def test_torch_says_in_its_own_way_what_the_system_refuses(self):
        failure = explain(RuntimeError("unable to resize file </data/x> to the right size: File too large (27)"))
        assert (failure.code, failure.message) == (
            "file_too_large",
            "File too large: unable to resize file </data/x> to the right size",
        )
        assert explain(RuntimeError("unable to write to file <x>: No space left on device (28)")).code == "disk_full"

    def test_other_errors_of_the_system_are_no_bugs_either(self):
        failure = explain(OSError(errno.ENAMETOOLONG, "File name too long", "x"))
        assert failure.code == "name_too_long"
        failure = explain(OSError(errno.EXDEV, "Invalid cross-device link", "x"))
        assert failure.code == "system"
        assert "a bug" not in failure.hint

    def test_what_nobody_expected_is_one_line(self):
        failure = explain(RuntimeError("one\n  two"))
        assert failure.message == "RuntimeError: one two"
        assert "bug" in failure.hint
        assert failure.exit_code == 1


class TestMode:
    def test_is_known_before_the_arguments_are_parsed(self):
        console = Console()
        console.configure(["download", "x", "--json", "--debug"])
        assert (console.json, console.quiet, console.debug) == (True, False, True)

    def test_ends_at_the_double_dash(self):
        console = Console()
        console.configure(["delete", "--", "--json", "-q"])
        assert (console.json, console.quiet) == (False, False)


def test_a_narrow_terminal_loses_the_optional_columns_from_the_right(monkeypatch, capsys):
    monkeypatch.setattr(Console, "on_terminal", property(lambda self: True))
    monkeypatch.setenv("NO_COLOR", "1")
    columns = (
        TableColumn("id"),
        TableColumn("a", optional=True),
        TableColumn("b", optional=True),
        TableColumn("size", right=True),
    )
    for width, expected in ((25, "id       a   b   size"), (17, "id       a   size"), (3, "id       size")):
        monkeypatch.setenv("COLUMNS", str(width))
        Console().table(columns, [("Pong/5x", "aa", "bb", None)])
        assert capsys.readouterr().out.splitlines()[0] == expected


class TestTally:
    def estimate(self, **changes) -> Estimate:
        values = {"fetch_bytes": 1000, "steps": 10, "episodes": 1, "disk_bytes": 1, "free_bytes": 1, "done_parts": 1}
        return Estimate("a/b", Path(), "there", 5, parts=5, **{**values, **changes})

    def test_time_left_comes_from_the_last_seconds(self):
        now = [0.0]
        tally = Tally(self.estimate(), clock=lambda: now[0])
        assert tally.seconds_left is None
        for second in range(1, 5):
            now[0] = float(second)
            tally.update([TaskProgress(1, 10 * second, 100, 25 * second, 0)])
        assert tally.share == pytest.approx(0.4 / 4)
        assert tally.rate == pytest.approx(25)
        assert tally.seconds_left == pytest.approx(36)
        assert tally.describe() == ["100 bytes of 1.00 kB", "25 bytes/s", "about 36 s left"]

    def test_processes_that_start_are_not_measured(self):
        """A minute without any progress, then a tenth of a part a second."""
        now = [0.0]
        tally = Tally(self.estimate(), clock=lambda: now[0])
        for second in (20, 40, 60, 61):
            now[0] = float(second)
            tally.update([TaskProgress(1, 10 * max(0, second - 60), 100, 0, 0)])
        assert tally.seconds_left is None  # one second is not enough
        for second in (62, 63, 64):
            now[0] = float(second)
            tally.update([TaskProgress(1, 10 * (second - 60), 100, 0, 0)])
        assert tally.seconds_left == pytest.approx(36)

    def test_finished_parts_count_whole(self):
        tally = Tally(self.estimate())
        tally.update([TaskProgress(1, 10, 100, 250, 2), TaskProgress(3, 50, 100, 10, 0)])
        tally.finish(1)
        assert [task.index for task in tally.running] == [3]
        assert tally.share == pytest.approx(1.5 / 4)
        assert tally.describe()[-1] == "2 retries"

    def test_parts_are_counted_where_sizes_are_unknown(self):
        assert Tally(self.estimate(fetch_bytes=0)).describe() == ["part 2 of 5"]

    @pytest.mark.parametrize("given, unit", [({"steps": 0, "episodes": 9}, "episodes"), ({"steps": 9}, "steps")])
    def test_the_rate_is_in_what_is_counted(self, given, unit):
        """A recording by number of episodes counts these; how many steps they have is not known."""
        now = [0.0]
        tally = Tally(self.estimate(fetch_bytes=0, **given), clock=lambda: now[0])
        for now[0] in (1.0, 2.0, 3.0):
            tally.update([TaskProgress(1, 10 * int(now[0]), 100, 0, 0)])
        assert f"10 {unit}/s" in tally.describe()


@pytest.mark.parametrize(
    ("parts", "done", "words"),
    [(1, 0, "before a part of my/x was finished"), (4, 0, "before"), (4, 3, "3 of 4 parts"), (1, 1, "all")],
)
def test_ctrl_c_counts_the_parts_that_are_kept(tmp_path, capsys, parts, done, words):
    estimate = Estimate("my/x", tmp_path / "my/x", "here", parts, 0, 9, 1, 9, 9, done, parts)

    def interrupted(listener):
        listener.on_estimate(estimate)
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=words) as caught:
        work("my/x", interrupted)
    assert caught.value.hint.startswith("continue with: " if done else "run it again: ")
