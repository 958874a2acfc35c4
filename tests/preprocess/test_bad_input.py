"""What goes wrong, and what is said about it: functions, what they return, places, options."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import textwrap
from typing import Any

import pytest
import torch
from preprocess_tools import double_rewards, make_input, run
from rbdata.cli import run as rbdata
from rbdata.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    DiskSpaceError,
    FunctionError,
    FunctionNotFoundError,
    ResultError,
    UnknownDatasetError,
    UsageError,
    WorkerLostError,
)
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from storage_tools import contents
from tensordict import TensorDict


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


def fails(shared, fn, error, match=None, *, kept=False, **options) -> Any:
    """The error, which leaves nothing behind, unless chunks were finished before it (``kept``)."""
    with pytest.raises(error, match=match) as caught:
        run(shared, fn, dest="my/bad", **options)
    left = [path for path in (shared / "my").iterdir() if "bad" in path.name]
    assert [path.name for path in left] == ([".bad.writing"] if kept else [])
    for path in left:
        shutil.rmtree(path)
    return caught.value


class TestFindingFunctions:
    @pytest.fixture(autouse=True)
    def user_code(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine.py").write_text("value = 3\ndef relabel(td, factor=1): return td\nclass Some: pass\n")
        (tmp_path / "broken.py").write_text("import not_there_at_all\ndef fn(td): return td\n")
        (tmp_path / "datasets.py").write_text("def fn(td): return td\n")
        yield
        for name in ("mine", "broken", "datasets"):
            sys.modules.pop(name, None)
        sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]

    def test_no_such_module(self, shared, tmp_path):
        error = fails(shared, "mime:relabel", FunctionNotFoundError, "no module 'mime'")
        assert str(tmp_path) in str(error)
        assert "mine:relabel" in error.hint

    def test_no_such_file(self, shared, tmp_path):
        error = fails(shared, "mime.py:relabel", FunctionNotFoundError, str(tmp_path / "mime.py"))
        assert "mine.py" in error.hint

    @pytest.mark.parametrize("where", ["mine", "mine.py", "./mine.py"])
    def test_no_such_function(self, shared, where):
        error = fails(shared, f"{where}:relable", FunctionNotFoundError, "there is no 'relable' in .*mine.py")
        assert error.hint == "there are relabel"

    def test_no_such_builtin_function(self, shared):
        error = fails(shared, "rbdata:to_flaot", FunctionNotFoundError, "to_flaot")
        assert "to_float" in error.hint

    def test_not_callable(self, shared):
        fails(shared, "mine:value", UsageError, "of type int and cannot be called")
        fails(shared, 3, UsageError, "int")

    def test_no_name(self, shared):
        for text in ("mine", "mine:", ":relabel", ""):
            fails(shared, text, UsageError, "names no function")

    def test_a_module_that_fails(self, shared):
        error = fails(shared, "broken:fn", FunctionError, "ModuleNotFoundError.*not_there_at_all")
        assert "broken.py" in error.detail

    def test_the_current_directory_comes_last(self, shared):
        """A file called datasets.py, as in any project, must not be taken for something else, nor the reverse."""
        run(shared, "datasets.py:fn", dest="my/found", force=True)

    def test_unknown_argument(self, shared):
        error = fails(shared, "mine:relabel", UsageError, "takes no argument 'fcator'", args={"fcator": 2})
        assert error.hint == "did you mean factor?"
        fails(shared, "mine:relabel", UsageError, "no --fn called 'other'", args={"other.factor": 2})

    def test_missing_argument(self, shared):
        fails(shared, lambda td, factor: td, UsageError, "cannot be called .*factor")

    def test_cannot_be_sent(self, shared, tmp_path):
        with (tmp_path / "open").open("w") as file:
            fails(shared, lambda td: file.name and td, UsageError, "cannot be sent to worker processes")


def raises(td):
    if len(td) != 7:  # the last batch
        raise ValueError("something\nwent wrong")
    return td


class TestResults:
    def test_raises(self, shared):
        error = fails(
            shared, raises, FunctionError, "raised ValueError: something went wrong", batch_size=7, procs=2, kept=True
        )
        last = len(Dataset(shared / "my" / "input"))
        assert f"steps {last // 7 * 7}..{last - 1}" in str(error)
        assert "my/input" in str(error)
        lines = error.detail.splitlines()
        assert lines[0].startswith("Traceback")
        assert [line for line in lines if line.startswith("  File")] == [lines[1]]  # theirs, and nothing of ours
        assert "in raises" in lines[1]

    @pytest.mark.parametrize(
        ("fn", "match"),
        [
            (lambda td: None, "returned None for steps 0"),
            (lambda td: {"observation": 1}, "returned a dict, not a TensorDict"),
            (lambda td: td[:-1], r"batch size \[\d+\] instead of \[\d+\]"),
            (lambda td: td.reshape(-1, 1).squeeze(0)[:0], "instead of"),
            (lambda td: td.set("x", torch.zeros(len(td), dtype=torch.bfloat16)), "'x' with dtype bfloat16"),
            (lambda td: td.set("x", torch.zeros(len(td), dtype=torch.complex64)), "'x' with dtype complex64"),
            (lambda td: td.set("x", torch.zeros(len(td), device="meta")), "'x' on the device meta"),
            (lambda td: td.set("x", torch.zeros(len(td), 0)), "'x' with an empty row"),
            (lambda td: td.set("mask", torch.zeros(len(td))), "reserved"),
            (lambda td: td.set("a b", torch.zeros(len(td))), "letters, digits and underscores"),
            (lambda td: td.set("a/b", torch.zeros(len(td))), "key that cannot be stored"),
            (lambda td: td.set_non_tensor("name", "text"), "'name' as a"),
            (lambda td: td.set("reward", torch.zeros(len(td), 1)), "reward at the root"),
            (lambda td: td.set(("next", "reward"), td["next", "reward"].double()), "float64"),
            (lambda td: td.set(("next", "reward"), td["next", "reward"].squeeze(1)), r"float32 \[\d+\]"),
            (lambda td: td.set(("next", "reward"), td["next", "reward"] / 0), "a reward that is"),
            (lambda td: td.set("done", ~td["done"]), "set 'done' at the root"),
            (lambda td: td.set(("next", "done"), ~td["next", "done"]), "not terminated | truncated"),
        ],
    )
    def test_cannot_be_stored(self, shared, fn, match):
        error = fails(shared, fn, ResultError, match)
        assert "steps 0.." in str(error)
        assert "my/input" in str(error)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda td: td.set("x", torch.zeros(len(td))), "with a new key 'x'"),
            (lambda td: td.exclude("action"), "without 'action'"),
            (lambda td: td.set("action", td["action"].float()), "'action' as float32 .* before as int64"),
            (lambda td: td.set("action", td["action"][:, None]), r"'action' as int64 \[1\], and before as int64 \[\]"),
        ],
    )
    def test_must_be_like_the_first(self, shared, change, match):
        """The first two batches look alike; the chunk that they are in is told apart by its rows."""
        calls = []

        def fn(td):
            calls.append(1)
            return change(td) if len(calls) > 3 else td

        error = fails(shared, fn, ResultError, match, batch_size=50, procs=1)
        assert "steps" in str(error)

    def test_samples_must_be_alike(self, shared):
        def fn(td):
            return td.set("x", torch.zeros(2 if td["next", "done"] else 1))

        fails(shared, fn, ResultError, "different shapes", per="sample")
        fails(shared, lambda td: td.unsqueeze(0), ResultError, "instead of one step", per="sample")

    def test_episodes_without_steps(self, shared):
        fails(shared, lambda td: td[:0], ResultError, "at least one step", per="episode")
        fails(shared, lambda td: None, ResultError, "dropped every episode", per="episode")
        shorter = lambda td: td[:1].exclude(("next", "reward"))  # noqa: E731
        fails(shared, shorter, ResultError, r"without 'next/reward'", per="episode")

    def test_a_successor_that_breaks_later(self, shared):
        """Stored once for each state, as the first result allows; then it turns out that this is not the whole truth."""

        def fn(td):
            if len(td) != 100:  # the last batch
                td["next", "observation"] = td["next", "observation"] + 1
            return td

        error = fails(shared, fn, ResultError, "'next/observation' other than", source="my/frames", batch_size=100)
        assert "--layout ted" in error.hint


class TestNotANuisance:
    """What looks suspicious and is all right, or is only told."""

    def test_views_of_the_input(self, shared):
        dataset = run(shared, lambda td: td.set("again", td["observation"][:, :2]), dest="my/views", force=True)
        assert torch.equal(dataset["again"], Dataset(shared / "my" / "input")["observation"][:, :2])

    def test_expanded_tensors(self, shared):
        dataset = run(shared, lambda td: td.set("one", torch.ones(1).expand(len(td))), dest="my/expanded", force=True)
        assert dataset["one"].tolist() == [1.0] * len(dataset)

    def test_nans_are_counted(self, shared):
        def fn(td):
            td["observation"][::10, 0] = torch.nan
            return td

        dataset = run(shared, fn, dest="my/nans", batch_size=100, force=True)
        rows = sum(-(-min(100, len(dataset) - low) // 10) for low in range(0, len(dataset), 100))
        assert dataset.manifest.counts["nans"] == {"observation": rows}
        assert f"NaN values that were not in the input: {rows} in observation" in dataset.manifest.notes[-1]
        again = run(shared, lambda td: td, source="my/nans", dest="my/nans2", force=True)
        assert again.manifest.counts["nans"] == {}  # those were there before

    def test_dropped_bookkeeping_is_taken_over(self, shared):
        dataset = run(shared, lambda td: td.select("observation"), dest="my/selected", force=True)
        before = Dataset(shared / "my" / "input")
        assert torch.equal(dataset["next/reward"], before["next/reward"])
        assert verify(dataset.path).ok

    def test_callables_of_all_kinds(self, shared):
        class Scale:
            def __init__(self, factor):
                self.factor = factor

            def __call__(self, td):
                return td.set(("next", "reward"), td["next", "reward"] * self.factor)

            def method(self, td):
                return self(td)

        wanted = Dataset(shared / "my" / "input")["next/reward"] * 2
        kinds = [
            Scale(2),
            Scale(2).method,
            functools.partial(lambda td, by: td.set(("next", "reward"), td["next", "reward"] * by), by=2),
            torch.nn.Identity(),
        ]
        for number, fn in enumerate(kinds):
            dataset = run(shared, fn, dest=f"my/kind{number}", force=True)
            expected = wanted if number < 3 else wanted / 2
            assert torch.equal(dataset["next/reward"], expected)


class TestPlaces:
    def test_input_is_missing(self, shared):
        fails(shared, double_rewards, UnknownDatasetError, source="my/nothing")
        fails(shared, double_rewards, DatasetNotFoundError, source="gymnasium/CartPole-v1")

    def test_dest_is_the_input(self, shared, tmp_path):
        for source in ("my/input", shared / "my" / "input"):
            with pytest.raises(UsageError, match="is the input"):
                run(shared, double_rewards, dest="my/input", source=source, force=True)
        (tmp_path / "link").symlink_to(shared / "my" / "input")
        with pytest.raises(UsageError, match="is the input"):
            run(shared, double_rewards, dest="my/input", source=tmp_path / "link")

    def test_dest_is_inside_the_input(self, shared):
        with pytest.raises(DatasetExistsError, match="inside another dataset"):
            run(shared, double_rewards, dest="my/input/more")

    @pytest.mark.parametrize("dest", ["bad", "", "../bad", "my/../bad", "my/.bad", "/my/bad", "my//bad"])
    def test_dest_is_no_id(self, shared, dest):
        with pytest.raises(UsageError, match="not a dataset id"):
            run(shared, double_rewards, dest=dest)

    def test_dest_exists(self, shared):
        first = run(shared, double_rewards, dest="my/there", force=True)
        made = contents(first.path)
        run(shared, double_rewards, dest="my/there")  # the same again: nothing to do
        assert contents(first.path) == made
        for other in ({"seed": 1}, {"num_frames": 9}, {"batch_size": 9}, {"codec": "raw"}):
            with pytest.raises(DatasetExistsError, match="made with another request") as caught:
                run(shared, double_rewards, dest="my/there", **other)
            assert "--force" in caught.value.hint
        with pytest.raises(DatasetExistsError):
            run(shared, lambda td: td, dest="my/there")
        assert contents(first.path) == made
        assert len(run(shared, lambda td: td, dest="my/there", num_frames=9, force=True)) == 9

    def test_something_else_is_in_the_way(self, shared):
        (shared / "my" / "occupied").mkdir(exist_ok=True)
        (shared / "my" / "occupied" / "thesis.tex").touch()
        with pytest.raises(DatasetExistsError, match="in the way"):
            run(shared, double_rewards, dest="my/occupied", force=True)
        assert (shared / "my" / "occupied" / "thesis.tex").exists()

    def test_disk_too_small(self, shared, monkeypatch):
        import rbdata.storage.folder as folder

        monkeypatch.setattr(folder, "free_bytes", lambda path: 1000)
        fails(shared, double_rewards, DiskSpaceError, "my/bad needs about")

    def test_a_changed_function_does_not_continue(self, shared):
        def fails_late(td):
            if len(td) < 20:
                raise RuntimeError("late")
            return td

        for _ in range(2):
            with pytest.raises(FunctionError, match="late"):
                run(shared, fails_late, dest="my/half", batch_size=20, procs=1)
        assert (shared / "my" / ".half.writing").is_dir()
        with pytest.raises(DatasetExistsError, match="begun with another function"):
            run(shared, double_rewards, dest="my/half", batch_size=20, procs=1)
        run(shared, double_rewards, dest="my/half", batch_size=20, procs=1, force=True)
        assert not (shared / "my" / ".half.writing").exists()


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"procs": 0},
            {"procs": -1},
            {"batch_size": 0},
            {"batch_size": 1.5},
            {"num_frames": 0},
            {"seed": -1},
            {"seed": "x"},
            {"per": "row"},
            {"codec": "gzip"},
            {"layout": "flat"},
            {"layout": "ted", "codec": "zstd"},
            {"engine": "spark"},
            {"address": "auto"},
        ],
    )
    def test_make_no_sense(self, shared, options):
        fails(shared, double_rewards, UsageError, **options)

    def test_no_function(self, shared):
        fails(shared, [], UsageError, "no function")

    def test_what_functions_need(self, shared):
        for per in ("batch", "sample"):
            fails(shared, "rbdata:returns_to_go", UsageError, "needs whole episodes", per=per)


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


def test_tensordict_of_no_tensors(shared):
    fails(shared, lambda td: TensorDict({}, [len(td) + 1]), ResultError, "instead of")
