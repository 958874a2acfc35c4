"""Another process is writing the dataset: it is waited for, or the call fails at once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import rbdata
from gymnasium.envs.classic_control import CartPoleEnv
from paths import DATA
from processes import RBDATA, start_forked, start_interruptible, wait_until
from rbdata.cli import run
from rbdata.datasets.ingest.request import Listener
from rbdata.errors import DatasetBusyError, DatasetExistsError
from rbdata.storage.folder import DatasetPlace

HOLD = """
import sys
from contextlib import ExitStack
from pathlib import Path
from rbdata.storage.folder import DatasetPlace
with ExitStack() as locks:
    for dataset_id in sys.argv[2:]:
        locks.enter_context(DatasetPlace(Path(sys.argv[1]), dataset_id).lock())
    print("held", flush=True)
    sys.stdin.readline()
"""

#: What makes a dataset, and its id.
VERBS: dict[str, tuple[str, Callable[..., Path]]] = {
    "download": (
        "gymnasium/CartPole-v1",
        lambda root, **more: rbdata.download("gymnasium/CartPole-v1", root=root, steps=60, **more),
    ),
    "convert": (
        "my/pong",
        lambda root, **more: rbdata.convert(
            DATA / "atari/dqn/Pong/5/replay_logs", "my/pong", source="atari", root=root, shards="0", codec="raw", **more
        ),
    ),
    "preprocess": (
        "my/small",
        lambda root, **more: rbdata.preprocess(
            DATA / "frozen/folders/low", "rbdata:clip_rewards", dest="my/small", root=root, procs=1, **more
        ),
    ),
    "record": (
        "my/mine",
        lambda root, **more: rbdata.record(CartPoleEnv, lambda seen: 1, name="mine", steps=60, root=root, **more),
    ),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("rbdata.storage.lock._POLL", 0.01)


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that holds the locks of datasets until it gets a line, or is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*dataset_ids: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path), *dataset_ids]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("verb", "ends"), [*zip(VERBS, cycle(["finishes", "is killed"]))])
def test_the_other_process_is_waited_for(verb, ends, hold, tmp_path):
    dataset_id, make = VERBS[verb]
    other = hold(dataset_id)
    with pytest.raises(DatasetBusyError, match=f"{dataset_id} is being written by process {other.pid} on "):
        make(tmp_path, wait=False)
    notes: list[str] = []
    made: list[Path] = []
    thread = threading.Thread(
        target=lambda: made.append(make(tmp_path, listener=Listener(on_note=notes.append))), daemon=True
    )
    thread.start()
    wait_until(lambda: bool(notes))
    assert f"{dataset_id} is being written by process {other.pid} on " in notes[0] and "waiting" in notes[0]
    assert not made
    if ends == "is killed":
        other.kill()
    else:
        other.communicate("\n")
    thread.join(600)
    assert made == [tmp_path / dataset_id] and len(notes) == 1
    assert rbdata.verify(made[0]).ok


def test_what_the_other_process_made_is_complete(hold, tmp_path):
    """The finished dataset appears while the lock is held, as when another process commits it."""
    other = hold("gymnasium/CartPole-v1")
    done = rbdata.download("gymnasium/CartPole-v1", root=tmp_path / "other", steps=60)
    notes: list[str] = []
    download = VERBS["download"][1]
    paths: list[Path] = []
    thread = threading.Thread(
        target=lambda: paths.append(download(tmp_path, listener=Listener(on_note=notes.append))), daemon=True
    )
    thread.start()
    wait_until(lambda: bool(notes))
    shutil.copytree(done, tmp_path / "gymnasium/CartPole-v1")
    before = (done / "rbdata.json").read_bytes()
    other.communicate("\n")
    thread.join(600)
    assert (paths[0] / "rbdata.json").read_bytes() == before


def test_what_the_other_process_made_with_other_options_is_refused(hold, tmp_path):
    other = hold("my/mine")
    notes: list[str] = []
    failures: list[BaseException] = []

    def record() -> None:
        try:
            VERBS["record"][1](tmp_path, listener=Listener(on_note=notes.append), episodes=3)
        except DatasetExistsError as error:
            failures.append(error)

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    wait_until(lambda: bool(notes))
    made = rbdata.record(CartPoleEnv, lambda seen: 1, name="mine", steps=61, root=tmp_path / "other")
    shutil.copytree(made, tmp_path / "my/mine")
    other.communicate("\n")
    thread.join(600)
    assert failures


def test_many_at_once(tmp_path):
    """An array of jobs on one root: one writes, the others find the dataset complete, and nobody fails."""
    code = f"""
import rbdata
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.ingest.records import ConvertOptions
options = ConvertOptions(extra={{"steps": 3000}})
print(download(Request("gymnasium/CartPole-v1", root=__import__("pathlib").Path({str(tmp_path)!r}), options=options,
                       wait=True)).action)
"""
    outputs = [tmp_path / f"said.{number}" for number in range(4)]
    started = [start_forked(code, output=output) for output in outputs]
    for process in started:
        process.join()
    said = sorted(output.read_text().strip() for output in outputs)
    assert said == ["complete"] * 3 + ["written"]


def test_who_has_the_lock_does_not_wait_for_itself(tmp_path):
    with DatasetPlace(tmp_path, "gymnasium/CartPole-v1").lock(), pytest.raises(DatasetBusyError):
        VERBS["download"][1](tmp_path)


def command(*words: object, **settings: Any) -> subprocess.Popen[str]:
    return start_interruptible([*RBDATA, *map(str, words)], stdout=-1, stderr=-1, **settings)


LINES = {
    "gymnasium/CartPole-v1": ("download", "gymnasium/CartPole-v1", "--steps", 60),
    "my/pong": ("convert", DATA / "atari/dqn/Pong/5/replay_logs", "--source", "atari", "--name", "my/pong"),
    "my/small": ("preprocess", DATA / "frozen/folders/low", "--fn", "rbdata:clip_rewards", "--dest", "my/small"),
}


def test_no_wait(hold, tmp_path, capsys):
    hold(*LINES)
    for words in LINES.values():
        assert run([*map(str, words), "--root", str(tmp_path), "--no-wait", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "busy"


def test_on_the_command_line(hold, tmp_path):
    other = hold("gymnasium/CartPole-v1")
    line = (*LINES["gymnasium/CartPole-v1"], "--root", tmp_path)
    stopped = command(*line)
    assert stopped.stderr is not None
    while "waiting" not in (said := stopped.stderr.readline()):
        assert said
    assert f"process {other.pid} on " in said
    stopped.send_signal(signal.SIGINT)
    _, rest = stopped.communicate(timeout=600)
    assert stopped.returncode == 130 and "interrupted while waiting" in rest and "Traceback" not in rest
    waits = command(*line, "--json")
    assert waits.stderr is not None
    while "waiting" not in (said := waits.stderr.readline()):
        assert said
    other.communicate("\n")
    out, _ = waits.communicate(timeout=600)
    assert waits.returncode == 0 and json.loads(out)["datasets"][0]["action"] == "written"
