"""What people see in Python: texts of objects, tables of notebooks, progress bars, records of verify and inspect."""

from __future__ import annotations

import io
import pydoc
import re
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import rbdata
import torch
from rbdata.cli.failure import explain
from rbdata.datasets.ingest.bar import progress_listener
from rbdata.datasets.ingest.request import Listener
from rbdata.errors import MissingExtraError, UsageError

ID = "gymnasium/CartPole-v1"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("face")
    rbdata.download(ID, root=folder, steps=60)
    return folder


def test_objects_are_shown_on_one_screen(root):
    dataset, buffer = rbdata.open_dataset(ID, root=root), rbdata.load(ID, root=root, batch_size=4)
    ensemble = rbdata.ReplayBufferEnsemble(buffer, rbdata.load(ID, root=root), batch_size=4)
    for shown in (
        dataset,
        buffer,
        ensemble,
        dataset.episodes,
        rbdata.verify(ID, root=root),
        *rbdata.list_datasets(root=root),
    ):
        assert len(repr(shown)) < 1500 and repr(shown).count("\n") < 30
    assert re.match(
        r"EpisodeTable\(episodes \d+, steps 60, length .*, return .* terminated \d+", repr(dataset.episodes)
    )
    assert dataset._ipython_key_completions_() == list(dataset.schema.names)


def test_help_shows_how_preprocess_is_called():
    shown = pydoc.plain(pydoc.render_doc(rbdata.preprocess))
    assert "rbdata.preprocess(dataset_id: " in shown and "dest: 'str'" in shown
    assert "Make the dataset ``dest``" in shown.split("DESCRIPTION")[0]
    assert "A chunk passes through" in shown, "what the package says of itself"


def test_names_of_several_leaves_and_rows_of_episodes(root):
    dataset: Any = rbdata.open_dataset(ID, root=root)
    buffer = rbdata.load(ID, root=root)
    whole = dataset.to_tensordict()
    for found in (dataset["next"], dataset["next",], buffer["next"]):
        assert found.batch_size == (60,) and set(found.keys()) == set(whole["next"].keys())
        assert all(torch.equal(value, whole["next", key]) for key, value in found.items())
    for key in ("nex", ("next", "nothing"), "observation/x"):
        with pytest.raises(rbdata.errors.UnknownKeyError, match="no leaf"):
            dataset[key]
    table = dataset.episodes
    rows = list(table)
    assert len(rows) == len(table) > 3 and rows[:3] == table[:3] and rows[-1] == table[-1]
    assert table[table.lengths > 10] == [row for row in rows if row.length > 10] and table[[1, 0]] == [rows[1], rows[0]]
    for number, row in enumerate(rows):
        episode = dataset.episode(row.number)
        assert (row.number, row.start, row.length) == (number, int(table.starts[number]), len(episode))
        assert row.returns == pytest.approx(float(episode["next", "reward"].sum()))
        assert (row.outcome == "terminated") == bool(episode["next", "terminated"][-1])
    with pytest.raises(IndexError, match="no episode 60"):
        table[60]


def test_records(root):
    report, overview = rbdata.verify(ID, root=root), rbdata.inspect(ID, root=root)
    assert report.ok and report.files and report.bytes
    assert rbdata.verify(root / ID, quick=True).ok
    assert (overview.steps, sum(overview.outcomes.values())) == (60, overview.episodes)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_where_somebody_sees_it(tmp_path, monkeypatch):
    """On a terminal without being asked for; not in pipes, beside a listener, or where nothing is done."""
    made = (
        ("download", lambda **more: rbdata.download(ID, root=tmp_path, steps=40, **more)),
        (
            "preprocess",
            lambda **more: rbdata.preprocess(ID, "rbdata:to_float", dest="my/x", root=tmp_path, procs=1, **more),
        ),
        ("record", lambda **more: rbdata.record("CartPole-v1", name="bar", root=tmp_path, episodes=2, **more)),
        ("factory", lambda **more: rbdata.record(env, name="other", root=tmp_path, episodes=2, version="1", **more)),
    )

    def env():
        return gymnasium.make("CartPole-v1")

    def said(call, stream=Terminal, **options):
        stderr = stream()
        monkeypatch.setattr(sys, "stderr", stderr)
        call(**options)
        return stderr.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    for name, call in made:
        assert "100%" in said(call, force=True), name
        assert said(call) == "", "it is there already"
        assert said(call, io.StringIO, force=True) == ""
        assert said(call, force=True, progress=False) == said(call, force=True, listener=Listener()) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert said(made[0][1], force=True) == ""


def test_progress_is_shown_when_asked_for(tmp_path, monkeypatch):
    heard: list[str] = []
    listener = Listener(on_estimate=lambda plan: heard.append(plan.id))
    for asked in (False, True):
        stderr = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stderr)
        rbdata.download(ID, root=tmp_path, steps=40, force=True, progress=asked, listener=listener)
        assert (ID in stderr.getvalue()) == ("100%" in stderr.getvalue()) == asked
        rbdata.preprocess(ID, "rbdata:to_float", dest="my/x", root=tmp_path, procs=1, force=True, progress=asked)
        assert ("my/x" in stderr.getvalue()) == asked
        for env in ("CartPole-v1", lambda: gymnasium.make("CartPole-v1")):
            rbdata.record(env, name="bar", root=tmp_path, episodes=2, force=True, progress=asked)
            assert ("CartPole-v1@bar" in stderr.getvalue()) == asked
            stderr.truncate(0)
    assert heard == [ID, ID]


def test_what_workers_print_is_printed_once_beside_a_bar(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_listener("a bar", None, True) as listener:
        listener.on_output("said by a worker")
    assert stderr.getvalue().count("said by a worker") == 1


def test_missing_extras_name_what_to_install(root, monkeypatch):
    for module in ("matplotlib", "pyarrow", "ray", "ale_py", "torchrl"):
        monkeypatch.setitem(sys.modules, module, None)
        for loaded in [name for name in sys.modules if name.startswith(module + ".")]:
            monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(MissingExtraError, match="torchrl"):
        rbdata.open_dataset(ID, root=root).spec.to_torchrl()
    with pytest.raises(MissingExtraError, match=r"rbdata\[ray\]"):
        rbdata.preprocess(ID, "rbdata:to_float", dest="my/x", root=root, engine="ray")
    with pytest.raises(MissingExtraError, match=r"rbdata\[atari\]"):
        rbdata.download("gymnasium/ALE/Pong-v5", root=root, steps=5)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda **more: rbdata.download(ID, steps=70, **more), "replace it with --force"),
        (
            lambda **more: rbdata.preprocess(ID, "rbdata:resize_frames", dest="my/y", **more),
            "--args height=... --args width=...",
        ),
        (
            lambda **more: rbdata.download("gymnasium/CartPole-v1", engine="local", address="auto", **more),
            "--engine ray, or leave --address out",
        ),
    ],
)
def test_errors_read_the_same_in_python_and_in_a_shell(root, call, hint):
    with pytest.raises(rbdata.RbdataError) as refused:
        call(root=root)
    failure = explain(refused.value)
    assert hint in failure.hint and str(refused.value) == f"{failure.message}\nhint: {failure.hint}"


@pytest.mark.parametrize(
    "call",
    [
        lambda path, root: rbdata.from_arrays({"reward": torch.zeros(3)}, path, root=root),
        lambda path, root: rbdata.preprocess(ID, lambda batch: batch, dest=path, root=root),
        lambda path, root: rbdata.open_dataset(ID, root=root).select(episodes=[0]).save(path, root=root),
        lambda path, root: rbdata.download(path, root=root),
        lambda path, root: rbdata.delete(path, root=root),
    ],
)
def test_an_id_is_a_text(root, call):
    with pytest.raises(UsageError, match="an id is a text, not a PosixPath"):
        call(Path("my/x"), root)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("root", lambda: rbdata.list_datasets(root="")),
        ("mirror", lambda: rbdata.download("my/x", mirror="")),
        ("path", lambda: rbdata.convert("", "my/x")),
        ("path", lambda: rbdata.convert(path="", dataset_id="my/x")),
        ("environment", lambda: rbdata.from_arrays({}, "my/x", environment="")),
        ("identity", lambda: rbdata.from_episodes([], "my/x", identity="")),
    ],
)
def test_an_empty_text_is_not_an_argument_left_out(name, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{name} is empty"):
        use()
    assert not list(tmp_path.iterdir())


def test_numbered_columns_are_named_by_a_pattern(tmp_path):
    columns = {name: torch.zeros(4) for name in ("x_0", "x_1", "action", "reward", "done")}
    with pytest.raises(UsageError) as refused:
        rbdata.from_arrays(columns, "my/x", root=tmp_path)
    assert "--map observation=obs_*" in str(refused.value)
    path = rbdata.from_arrays(columns, "my/x", map={"observation": "x_*"}, root=tmp_path)
    assert rbdata.open_dataset(path)["observation"].shape[1:] == (2,)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "gpu", 3.5])
def test_devices_that_are_not_there(root, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for make in (
        lambda: rbdata.load(ID, root=root, batch_size=4, device=device),
        lambda: rbdata.ReplayBuffer(storage=rbdata.ListStorage(4), device=device),
        lambda: rbdata.LazyTensorStorage(4, device=device),
        lambda: rbdata.ListStorage(4, device=device),
    ):
        with pytest.raises(rbdata.errors.UsageError, match="device") as refused:
            make()
        assert str(device) in str(refused.value) and refused.value.hint


def test_bars_in_a_notebook(tmp_path, monkeypatch):
    """Which shows what is written to a terminal, and cannot say that it is one."""
    kernel, stderr = types.SimpleNamespace(kernel=None), io.StringIO()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setattr(sys, "stderr", stderr)
    rbdata.download(ID, root=tmp_path, steps=40)
    drawn = stderr.getvalue().split("\r")
    assert len(drawn) > 1 and "100%" in drawn[-1]


def test_a_bar_says_what_stopped(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with pytest.raises(KeyboardInterrupt), progress_listener("a bar", None, True) as listener:
        listener.on_stage("looking")
        raise KeyboardInterrupt
    assert "a bar: stopped" in stderr.getvalue()
