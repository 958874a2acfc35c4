"""Workers that are lost, functions that end the process, and errors on the command line."""

from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest
import torch
from preprocess_tools import fails, make_input, run
from rbdata.cli import run as rbdata
from rbdata.errors import FunctionError, WorkerLostError
from rbdata.storage.dataset import Dataset
from storage_tools import contents


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    root = tmp_path_factory.mktemp("bad-input")
    make_input(root)
    make_input(root, "zstd", id="my/frames")
    return root


@pytest.fixture(autouse=True)
def the_input_is_untouched(shared):
    before = contents(shared / "my" / "input")
    yield
    assert contents(shared / "my" / "input") == before


class TestLostWorkers:
    def test_killed_by_the_system(self, shared, tmp_path):
        """As for want of memory: a worker is gone from one moment to the next. The next run goes on."""
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
        with pytest.raises(WorkerLostError, match="worker process was killed") as caught:
            run(shared, f"{tmp_path}/killing.py:fn", **options)
        assert "run the command again" in caught.value.hint
        fatal.unlink()
        dataset = run(shared, f"{tmp_path}/killing.py:fn", **options)
        assert torch.equal(dataset["next/reward"], Dataset(shared / "my" / "input")["next/reward"])

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
        assert "error: mine.py:fn raised KeyError" in told
        assert "rbdata/preprocess" not in told
        assert rbdata([*words, "--json"]) == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "function"
        assert "return td['nothing']" in error["detail"]

    @pytest.mark.parametrize(
        "more",
        [["--procs", "0"], ["--procs", "x"], ["--per", "row"], ["--args", "x"], ["--gamma", "2", "--n-step", "3"]],
    )
    def test_wrong_usage(self, shared, more):
        words = ["preprocess", "my/input", "--fn", "rbdata:to_float", "--dest", "my/bad", "--root", str(shared)]
        assert rbdata([*words, *more]) == 2
