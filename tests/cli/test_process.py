"""The program as a process: start-up, pipes, terminals, Ctrl-C, completion."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from paths import DATA
from processes import RBDATA, start_interruptible
from rbdata.cli import _take_ctrl_c_once
from rbdata.cli import run as cli_run

MIRROR = str(DATA / "atari")


def run(*words: object, **settings) -> subprocess.CompletedProcess:
    return subprocess.run([*RBDATA, *map(str, words)], capture_output=True, text=True, timeout=600, **settings)


def in_terminal(*words: object, answer: str = "", columns: int = 80, **environment: str) -> tuple[int, str]:
    """Run on a pseudo-terminal, all three streams; returns exit code and what appeared."""
    leader, follower = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40", **environment}
    process = subprocess.Popen(
        [*RBDATA, *map(str, words)], stdin=follower, stdout=follower, stderr=follower, env=variables, close_fds=True
    )
    os.close(follower)
    if answer:
        os.write(leader, answer.encode())
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(leader, 65536):
            seen += data
    os.close(leader)
    return process.wait(600), seen.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("cli-process")
    words = ["download", "Pong/5", "--mirror", MIRROR, "--root", str(root), "--shards", "0", "--procs", "0"]
    assert cli_run(words) == 0
    return root


class TestStart:
    @pytest.mark.parametrize(
        ("commands", "allowed"),
        [
            (
                [
                    "--help",
                    "list",
                    "list --local --json",
                    "search maze continuous",
                    "info hopper-medium-v2 --json",
                    "delete -h",
                    "download --help",
                    "convert -h",
                    "config",
                    "--root /nowhere list --local",
                ],
                set(),
            ),
            (["inspect Pong/5 --json", "verify Pong/5"], {"numpy"}),  # which reads the episode table
        ],
        ids=["numpy too", "torch"],
    )
    def test_loads_nothing_heavy(self, commands, allowed, made):
        """One after the other, in one process: what one loads, it is told of."""
        script = (
            "import sys; from rbdata.cli import run\n"
            "heavy = {'torch', 'tensordict', 'requests', 'google', 'zstandard', 'isal', 'h5py', 'rich', 'pyarrow', 'ray'}\n"
            "heavy |= {'pandas', 'matplotlib', 'PIL', 'gymnasium', 'tomlkit', 'loky', 'pydantic', 'numpy'}\n"
            "for words in sys.argv[1:]: code = run(words.split()); print('|', words, code, *sorted(heavy & set(sys.modules)))"
        )
        environment = {**os.environ, "RBDATA_ROOT": str(made)}
        done = subprocess.run(
            [sys.executable, "-c", script, *commands], capture_output=True, text=True, env=environment, timeout=600
        )
        told = [line.removeprefix("| ") for line in done.stdout.splitlines() if line.startswith("| ")]
        assert [
            set(line.split()) - set(words.split()) - allowed for words, line in zip(commands, told, strict=True)
        ] == [{"0"}] * len(commands), (told, done.stderr)


def test_python_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "rbdata", "list", "--nonsense"], capture_output=True, text=True)
    told = run("list", "--nonsense")
    assert (done.returncode, done.stdout, done.stderr) == (2, told.stdout, told.stderr)


class TestCompletion:
    def complete(self, line: str, made: Path) -> list[str]:
        environment = {
            **os.environ,
            "_RBDATA_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
            "RBDATA_ROOT": str(made),
        }
        return run(env=environment).stdout.split()

    def test_commands(self, made):
        assert self.complete("rbdata de", made) == ["delete"]

    def test_ids_of_the_catalogue(self, made):
        assert self.complete("rbdata download atari/Pong/", made) == [f"atari/Pong/{n}" for n in range(1, 6)]
        assert self.complete("rbdata download Zax", made) == [f"Zaxxon/{n}" for n in range(1, 6)]

    def test_ids_on_this_machine(self, made):
        assert self.complete("rbdata inspect ", made) == ["atari/Pong/5"]
        assert self.complete("rbdata inspect --root /nowhere ", made) == []


class TestPipes:
    @pytest.mark.parametrize("words", ["list --local", "search hopper"])
    def test_have_what_a_terminal_shows(self, made, words):
        """Rounded, with units and all columns, without colour; programs have --json."""
        narrow = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "30", "RBDATA_ROOT": str(made)}
        done = run(*words.split(), env=narrow)
        assert "\x1b" not in done.stdout and "\t" not in done.stdout
        code, seen = in_terminal(*words.split(), columns=300, RBDATA_ROOT=str(made), NO_COLOR="1")
        assert code == done.returncode == 0
        assert seen.replace("\x1b[?25h", "").find(done.stdout) >= 0

    def test_have_the_speed_with_its_units(self, made, capsys, monkeypatch):
        monkeypatch.setattr("rbdata.cli.sample.ROUND_SECONDS", 0.02)
        assert cli_run(["sample", "Pong/5", "--bench", "--root", str(made)]) == 0
        shown = capsys.readouterr().out
        assert [line.split("  ")[0] for line in shown.splitlines()] == [
            "batches",
            "transitions",
            "bytes",
            "copy floor",
        ]
        assert all(unit in shown for unit in (" per second", "B/s", "% of "))
        assert not re.search(r"\d{3}\.\d", shown)

    def test_columns_that_a_narrow_terminal_has_no_room_for_are_named(self, made):
        code, seen = in_terminal("list", "--local", columns=40, RBDATA_ROOT=str(made), NO_COLOR="1")
        assert code == 0 and "too narrow for episodes" in " ".join(seen.split())

    def test_an_encoding_without_blocks_gets_question_marks(self, made):
        done = run("inspect", "Pong/5", "--root", made, env={**os.environ, "PYTHONIOENCODING": "latin-1"})
        assert done.returncode == 0 and "distributions" in done.stdout and "?" in done.stdout

    def test_a_reader_that_has_enough_is_no_failure(self):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run([*RBDATA, "list"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600)
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (0, "")

    def test_nobody_reads_the_errors(self):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run([*RBDATA, "inspect", "Nope/1"], stderr=writer, capture_output=False, timeout=600)
        finally:
            os.close(writer)
        assert done.returncode == 2

    def test_no_file_takes_the_place_of_a_closed_stream(self, tmp_path):
        """A file with the number of stderr would get what other programs and libraries write there."""
        script = f"import sys, os; {RBDATA[-1].replace('main()', '')}" + (
            "import rbdata.cli as cli; cli.run = lambda words: open(words[0], 'w').fileno(); main()"
        )
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" 0<&- 2>&-', "sh", sys.executable, "-c", script, str(tmp_path / "file")], timeout=600
        )
        assert done.returncode > 2

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_an_answer_that_cannot_be_written_is_a_failure(self):
        with Path("/dev/full").open("w") as full:
            for words in (["list"], ["list", "--json", "--nonsense"]):
                done = subprocess.run([*RBDATA, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
                if "--nonsense" in words:
                    assert done.returncode == 2 and done.stderr.startswith("error: No such option")
                    continue
                assert done.returncode == 1, words
                assert done.stderr.startswith("error: No space left on device: standard output\n"), words
                assert "what is finished is kept" not in done.stderr


class TestTerminal:
    def test_the_catalogue_fits_on_a_page(self, made):
        for columns in (80, 45):
            code, seen = in_terminal("list", "--root", made, columns=columns, NO_COLOR="1")
            lines = seen.splitlines()
            assert code == 0
            assert len(lines) < 24  # of a terminal; a narrow one says which columns it lacks
            assert lines[1].startswith("atari/Pong/5  complete")
            assert all(len(line) <= columns for line in lines if str(made) not in line)  # a hint stays whole
            assert ("episodes" in lines[0]) == (columns == 80)

    def test_colour_can_be_switched_off(self, made):
        assert "\x1b[1mid" in in_terminal("list", "--root", made)[1]
        assert "atari/Pong/1-4 " in in_terminal("search", "pong", "--root", made)[1]  # and 5, which is here
        assert "\x1b" not in in_terminal("list", "--root", made, NO_COLOR="1")[1]

    def test_a_download_leaves_no_bars_behind(self, tmp_path):
        code, seen = in_terminal("download", "Pong/5", "--shards", "0", "--mirror", MIRROR, "--root", tmp_path)
        assert code == 0
        assert "\x1b[?25l" in seen  # something was drawn
        assert seen.rstrip().endswith(f"next: rbdata inspect atari/Pong/5 --root {tmp_path}".split()[-1])
        assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h")  # the cursor is shown again

    def test_a_dumb_terminal_gets_lines(self, tmp_path):
        words = ("download", "Pong/5", "--shards", "0", "--mirror", MIRROR, "--root", tmp_path)
        code, seen = in_terminal(*words, TERM="dumb")
        assert code == 0
        assert "\x1b" not in seen

    def test_inspect_shows_a_tree(self, made):
        _, seen = in_terminal("inspect", "Pong/5", "--root", made, NO_COLOR="1")
        assert "\nnext\n  done " in seen
        assert "always false" in seen

    @pytest.mark.parametrize(("answer", "code"), [("\n", 1), ("y\n", 0)])
    def test_delete_asks(self, answer, code, tmp_path):
        folder = tmp_path / "my/thing"
        folder.mkdir(parents=True)
        (folder / "rbdata.json").write_text("{}")
        status, seen = in_terminal("delete", "my/thing", "--root", tmp_path, answer=answer)
        assert f"my/thing  {' ' * 0}" in seen
        assert "[y/N]" in seen
        assert status == code
        assert folder.exists() == (code == 1)


class _Gate(SimpleHTTPRequestHandler):
    """A mirror that stops in the middle of the last shard's frames, once they have been looked at, until told to go on."""

    opened = threading.Event()
    seen = 0

    def log_message(self, *_: object) -> None:
        pass

    def copyfile(self, source, outputfile) -> None:
        with contextlib.suppress(OSError):
            if "observation_ckpt.3" in self.path:
                type(self).seen += 1
                if self.seen > 1 and not self.opened.is_set():
                    outputfile.write(source.read(1000))
                    outputfile.flush()
                    self.opened.wait(600)
            super().copyfile(source, outputfile)


@pytest.fixture
def gate() -> Iterator[tuple[str, Any]]:
    handler: Any = type("Gate", (_Gate,), {"opened": threading.Event(), "seen": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=MIRROR))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        handler.opened.set()
        server.shutdown()
        server.server_close()


def _parts_done(root: Path) -> int:
    return len(list((root / "atari/Breakout/.1.writing/.parts").glob("0*/part.json")))


def _session_ends(leader: int) -> bool:
    """Whether all processes of a session end (zombies nobody waits for count as gone)."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        listed = subprocess.run(["ps", "-A", "-o", "sid=,stat="], capture_output=True, text=True).stdout
        if not any(int(sid) == leader and stat[0] != "Z" for sid, stat in map(str.split, listed.splitlines())):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("procs", [1, 2])
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(procs, gate, tmp_path, capsys):
    url, handler = gate
    root = tmp_path / "root"
    words = ["download", "Breakout/1", "--mirror", url, "--root", str(root), "--procs", str(procs)]
    answer, notes = tmp_path / "stdout", tmp_path / "stderr"  # files, as a worker left behind would keep pipes open
    with answer.open("w") as stdout, notes.open("w") as stderr:
        process = start_interruptible([*RBDATA, *words], stdout=stdout, stderr=stderr, start_new_session=True)
    deadline = time.monotonic() + 600
    while _parts_done(root) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    try:
        for _ in range(3):  # people press it until something happens
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all processes of the group get it
            time.sleep(0.05)
        assert process.wait(600) == 130, notes.read_text()
        assert _session_ends(process.pid), "a worker process was left behind"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert answer.read_text() == ""
    assert "interrupted: 3 of 4 parts of atari/Breakout/1 are kept" in notes.read_text()
    assert "Traceback" not in notes.read_text()

    assert cli_run(["list", "--local", "--root", str(root), "--json"]) == 0
    (dataset,) = json.loads(capsys.readouterr().out)["datasets"]
    assert (dataset["state"], dataset["done"]) == ("partial", 0.75)
    assert cli_run(["inspect", "Breakout/1", "--root", str(root)]) == 2
    hint = capsys.readouterr().err.splitlines()[-1].removeprefix("hint: continue it with ")

    handler.opened.set()
    command = shlex.split(notes.read_text().splitlines()[-1].removeprefix("hint: continue with: "))
    assert command == ["rbdata", *words] == shlex.split(hint.strip("`"))
    assert cli_run([*command[1:-1], "0"]) == 0
    assert "continuing: 3 of 4 parts are done" in capsys.readouterr().err
    assert cli_run(["verify", "Breakout/1", "--root", str(root)]) == 0


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as the program takes it, in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _take_ctrl_c_once()
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_waits_until_a_module_is_imported(ctrl_c, tmp_path, monkeypatch):
    """Modules of torch swallow what is raised while they are imported, or end the process."""
    text = "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n    pass\n"
    (tmp_path / "swallows_interrupts.py").write_text(f"{text}whole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("swallows_interrupts")
    with pytest.raises(KeyboardInterrupt):
        time.sleep(10)
    assert module.whole


def test_ignored_interrupts_stay_ignored():
    """A shell script that runs it in the background starts it so; Ctrl-C is meant for the script alone."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "import atexit; atexit.register(lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN));"
        f"import sys; sys.argv = ['rbdata', 'list', '--local']; {RBDATA[-1]}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "True")
