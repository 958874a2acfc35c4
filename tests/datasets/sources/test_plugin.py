"""The example of docs/new_source.md, installed beside rbdata as its users would, through all that the program does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import DATA
from servers import http_server

EXAMPLE = DATA.parents[1] / "examples" / "source_plugin"

LOG = """\
episode,observation_0,observation_1,action,reward,terminated
0,0.5,1,1,0.25,0
0,1.5,2,0,1,1
0,2.5,3,,,
7,3.5,4,1,2,0
7,4.5,5,,,
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example is installed in; pip writes beside the project, so it gets a copy."""
    top = tmp_path_factory.mktemp("plugin")
    project = shutil.copytree(EXAMPLE, top / "project")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    target = top / "site"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", target, project], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def python(installed, tmp_path):
    """Run Python with the example installed; datasets lie under ``tmp_path/root``."""

    def run(*words: object, code: int = 0) -> subprocess.CompletedProcess:
        path = os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, "PYTHONPATH": path, "RBDATA_ROOT": str(tmp_path / "root")}
        done = subprocess.run(
            [sys.executable, *map(str, words)], capture_output=True, text=True, env=variables, timeout=120
        )
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture
def rbdata(python):
    return lambda *words, code=0: python("-m", "rbdata", *words, code=code)


def test_from_list_to_delete(rbdata, python, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.csv").write_text(LOG)
    assert "csvlog/cartpole      3  vector" in rbdata("list", "--source", "csvlog").stdout  # from its catalogue.json
    found = rbdata("search", "--source", "csvlog").stdout.splitlines()
    assert found[1].split()[:3] == ["csvlog/cartpole", "3", "vector"]
    assert found[2].split()[:3] == ["csvlog/pendulum", "-", "-"]  # an id is enough
    help_text = " ".join(rbdata("download", "--help").stdout.split())
    assert "Options of csvlog: --actions <discrete|continuous> What the column action holds" in help_text

    with http_server(tmp_path / "logs") as server:
        words = ["download", "csvlog/mine", "--mirror", server.url]
        refused = rbdata(*words, "--actions", "both", code=2)
        assert "is not one of" in refused.stderr
        rbdata(*words, "--actions", "continuous", "--keep-raw")
        assert "with different options: actions" in rbdata(*words, "--actions", "discrete", code=1).stderr

    shown = json.loads(rbdata("inspect", "csvlog/mine", "--json").stdout)
    assert (shown["steps"], shown["episodes"]) == (3, 2)
    rbdata("verify", "csvlog/mine")
    script = (
        "import rbdata; dataset = rbdata.open_dataset('csvlog/mine'); td = dataset[:]; "
        "print(dataset.manifest.source['options'], td['action'].dtype, td['observation'].tolist(), "
        "td['next', 'observation'].tolist(), td['next', 'reward'].flatten().tolist(), "
        "td['next', 'terminated'].flatten().tolist(), td['next', 'truncated'].flatten().tolist(), sep='\\n'); "
        "assert rbdata.load('csvlog/mine', batch_size=4).sample()['observation'].shape == (4, 2)"
    )
    assert python("-c", script).stdout.splitlines() == [
        "{'actions': 'continuous'}",
        "torch.float32",
        "[[0.5, 1.0], [1.5, 2.0], [3.5, 4.0]]",
        "[[1.5, 2.0], [2.5, 3.0], [4.5, 5.0]]",
        "[0.25, 1.0, 2.0]",
        "[False, True, False]",
        "[False, False, True]",
    ]

    mirror = tmp_path / "mirror"
    rbdata("mirror", "push", "csvlog/mine", mirror)
    rbdata("mirror", "push", "csvlog/mine", mirror, "--raw")
    rbdata("delete", "csvlog/mine", "--yes")
    rbdata("download", "csvlog/mine", "--mirror", mirror)  # as it is there
    rbdata("delete", "csvlog/mine", "--yes")
    shutil.rmtree(mirror / "csvlog")
    rbdata("download", "csvlog/mine", "--mirror", mirror)  # from the raw file
    rbdata("convert", tmp_path / "logs", "--source", "csvlog", "--name", "my/log")
    listed = json.loads(rbdata("list", "--local", "--json").stdout)["datasets"]
    assert [(one["id"], one["steps"]) for one in listed] == [("csvlog/mine", 3), ("my/log", 3)]
    action = tmp_path / "root" / "my" / "log" / "action.memmap"
    assert np.fromfile(action, np.int64).tolist() == [1, 0, 1]


def test_its_mirror_can_be_set(rbdata, tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.csv").write_text(LOG)
    monkeypatch.setenv("RBDATA_CSVLOG_MIRROR", str(tmp_path / "logs"))
    rbdata("download", "csvlog/mine")
    monkeypatch.setenv("RBDATA_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[mirrors]\ncsvlog = "/nowhere"\n')
    monkeypatch.delenv("RBDATA_CSVLOG_MIRROR")
    assert json.loads(rbdata("config", "--json").stdout)["mirrors.csvlog"]["value"] == "/nowhere"


REFUSED = [
    ("", "is not a table|lacks one of"),
    (LOG.replace("reward", "score"), "lacks one of"),
    (LOG.replace("7,4.5,5,,,\n", ""), "not every episode ends"),
    (LOG.replace("7,3.5,4,1,2,0\n", ""), "episode 7 has no step"),
    (LOG.replace("1.5,2,0,1,1", "1.5,,0,1,1"), "is not a number"),
    (LOG.replace("1.5,2,0,1,1", "1.5,2,0,,1"), "the reward of step 1 is nan"),
    (LOG.replace("1.5,2,0,1,1", "1.5,2,0.5,1,1"), "not all actions are whole numbers"),
    (LOG.replace("1.5,2,0,1,1", "1.5,2"), "is not a table"),
]


def test_files_that_are_refused(python, tmp_path):
    """All in one process, which has the example installed."""
    folders = [tmp_path / f"logs{number}" for number in range(len(REFUSED))]
    for folder, (log, _) in zip(folders, REFUSED):
        folder.mkdir()
        (folder / "mine.csv").write_text(log)
    script = (
        "import sys; from rbdata.cli import run\n"
        "for folder in sys.argv[1:]:\n"
        "    code = run(['download', 'csvlog/mine', '--mirror', folder])\n"
        "    print('exit code', code, file=sys.stderr)\n"
    )
    *answers, rest = python("-c", script, *folders).stderr.split("exit code 1\n")
    assert len(answers) == len(REFUSED) and not rest
    for told, (_, words) in zip(answers, REFUSED):
        assert re.search(words, " ".join(told.split())), told
