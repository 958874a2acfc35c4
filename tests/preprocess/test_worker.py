"""Workers that are lost, functions that end the process, and errors on the command line."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap

import pytest
import torch
from preprocess_tools import fails, run
from rbdata.cli import run as rbdata
from rbdata.errors import FunctionError, WorkerLostError
from rbdata.storage.dataset import Dataset


class TestLostWorkers:
    def test_killed_by_the_system(self, shared, tmp_path):
        """As when memory runs out: a worker is gone from one moment to the next. The next run goes on."""
        fatal = tmp_path / "fatal"
        fatal.touch()
        (tmp_path / "killing.py").write_text(
            textwrap.dedent(
                f"""
                import os, pathlib, signal
                def fn(td):
                    if len(td) < 20 and pathlib.Path({str(fatal)!r}).exists():
                        os.kill(os.getpid(), signal.SIGKILL)
                    return td
                """
            )
        )
        options = {"dest": "my/killed", "batch_size": 20, "procs": 2}
        with pytest.raises(
            WorkerLostError, match=r"worked on steps .*killing.py:fn\) was killed \(SIGKILL\)"
        ) as caught:
            run(shared, f"{tmp_path}/killing.py:fn", **options)
        assert "run the command again" in caught.value.hint
        fatal.unlink()
        dataset = run(shared, f"{tmp_path}/killing.py:fn", **options)
        assert torch.equal(dataset["next/reward"], Dataset(shared / "my" / "input")["next/reward"])

    def test_what_functions_print(self, shared, tmp_path, capfd):
        """In workers, in the trial and from C code: whole lines on stderr, and stdout is the result alone."""
        (tmp_path / "talk.py").write_text(
            textwrap.dedent(
                """
                import ctypes, os, sys
                libc = ctypes.CDLL(None)
                def fn(td):
                    print("first", len(td), end="")
                    print("; second")
                    libc.puts(b"from C")
                    os.system("echo from a child")
                    print("no line feed", end="")
                    return td
                """
            )
        )
        words = ["preprocess", "my/input", "--fn", f"{tmp_path}/talk.py:fn", "--root", str(shared), "--json"]
        assert rbdata([*words, "--dest", "my/talk", "--procs", "2", "--batch-size", "50"]) == 0
        out, told = capfd.readouterr()
        assert json.loads(out)["datasets"][0]["action"] == "written"
        assert told.count("; second\n") >= 2
        assert re.search(r"^first \d+; second$", told, re.MULTILINE)
        assert "from C\n" in told
        assert "from a child\n" in told
        assert "no line feed" in told

    def test_ends_itself(self, shared):
        fails(shared, lambda td: sys.exit(3), FunctionError, "raised SystemExit: 3")

        def missing(td):
            return os.path.missing  # type: ignore[attr-defined]

        fails(shared, missing, FunctionError, "raised AttributeError")


class TestOnTheCommandLine:
    def test_a_function_that_raises(self, shared, tmp_path, monkeypatch, capsys):
        (tmp_path / "mine.py").write_text("def fn(td):\n    return td['nothing']\n")
        monkeypatch.chdir(tmp_path)
        words = ["preprocess", "my/input", "--fn", "mine.py:fn", "--dest", "my/bad", "--root", str(shared)]
        assert rbdata(words) == 1
        told = capsys.readouterr().err
        assert "    return td['nothing']" in told
        assert told.index("    return td['nothing']") < told.index("error: mine.py:fn raised KeyError")
        assert f"at {tmp_path}/mine.py:2, for steps 0.." in told
        assert "its input: 32 steps of action int64 []" in told
        assert "rbdata/preprocess" not in told
        assert rbdata([*words, "--json"]) == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "function"
        assert "return td['nothing']" in error["detail"]

    @pytest.mark.parametrize(
        "more",
        [["--procs", "-1"], ["--procs", "x"], ["--per", "row"], ["--args", "x"], ["--gamma", "2", "--n-step", "3"]],
    )
    def test_wrong_usage(self, shared, more):
        words = ["preprocess", "my/input", "--fn", "rbdata:to_float", "--dest", "my/bad", "--root", str(shared)]
        assert rbdata([*words, *more]) == 2
