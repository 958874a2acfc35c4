"""The example of docs/new_source.md, installed beside rbdata as its users would, through all that the program does."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import numpy as np
import pytest
from paths import DATA
from processes import start_forked
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
    """Run code with the example installed; datasets lie under ``tmp_path/root``. Returns what it prints."""

    def run(code: str, *words: str) -> str:
        code, output = f"import sys; sys.path.insert(0, {str(installed)!r})\n{code}", tmp_path / "printed"
        done = start_forked(code, *words, output=output, RBDATA_ROOT=str(tmp_path / "root"))
        done.join()
        assert done.exitcode == 0
        return output.read_text()

    return run


@pytest.fixture
def rbdata(python):
    """Run command lines one after the other in one process; returns what each prints, or its errors where it fails."""
    script = (
        "import contextlib, io, json; from rbdata.cli import run\n"
        "answers = []\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:\n"
        "        code = run(words)\n"
        "    answers.append((code, out.getvalue() if code == 0 else errors.getvalue()))\n"
        "print(json.dumps(answers))"
    )

    def run(*lines: str, codes: Set[int] = frozenset({0}), **names: object) -> list[str]:
        words = [[word.format(**names) for word in shlex.split(line)] for line in lines]
        answers = json.loads(python(script, json.dumps(words)))
        assert {code for code, _ in answers} == codes, answers
        return [text for _, text in answers]

    return run


def test_from_list_to_delete(rbdata, python, tmp_path):
    mirror = tmp_path / "mirror"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.csv").write_text(LOG)
    with http_server(tmp_path / "logs") as server:
        listed, found, help_text, wrong, _, other, shown, *_ = rbdata(
            "list csvlog",
            "search --source csvlog",
            "download --help",
            "download csvlog/mine --mirror {url} --actions both",
            "download csvlog/mine --mirror {url} --actions continuous --keep-raw",
            "download csvlog/mine --mirror {url} --actions discrete",
            "inspect csvlog/mine --json",
            "verify csvlog/mine",
            "mirror push csvlog/mine {mirror}",
            "mirror push csvlog/mine {mirror} --raw",
            codes={0, 1, 2},  # both refusals
            url=server.url,
            mirror=mirror,
        )
    assert "csvlog/cartpole      3  vector" in listed  # from its catalogue.json
    assert found.splitlines()[1].split()[:3] == ["csvlog/cartpole", "3", "vector"]
    assert found.splitlines()[2].split()[:3] == ["csvlog/pendulum", "-", "-"]  # an id is enough
    assert "--actions <discrete|continuous> csvlog: what the column action holds" in " ".join(help_text.split())
    assert "must be one of" in wrong and "with different options: actions" in other
    assert (json.loads(shown)["steps"], json.loads(shown)["episodes"]) == (3, 2)

    script = (
        "import rbdata; dataset = rbdata.open_dataset('csvlog/mine'); td = dataset[:]; "
        "print(dataset.manifest.source['options'], td['action'].dtype, td['observation'].tolist(), "
        "td['next', 'observation'].tolist(), td['next', 'reward'].flatten().tolist(), "
        "td['next', 'terminated'].flatten().tolist(), td['next', 'truncated'].flatten().tolist(), sep='\\n'); "
        "assert rbdata.load('csvlog/mine', batch_size=4).sample()['observation'].shape == (4, 2)"
    )
    assert python(script).splitlines() == [
        "{'actions': 'continuous'}",
        "torch.float32",
        "[[0.5, 1.0], [1.5, 2.0], [3.5, 4.0]]",
        "[[1.5, 2.0], [2.5, 3.0], [4.5, 5.0]]",
        "[0.25, 1.0, 2.0]",
        "[False, True, False]",
        "[False, False, True]",
    ]

    rbdata(
        "delete csvlog/mine --yes",
        "download csvlog/mine --mirror {mirror}",  # as it is there
        "delete csvlog/mine --yes",
        mirror=mirror,
    )
    shutil.rmtree(mirror / "csvlog")
    *_, answer = rbdata(
        "download csvlog/mine --mirror {mirror}",  # from the raw file
        "convert {logs} --source csvlog --name my/log",
        "list --local --json",
        mirror=mirror,
        logs=tmp_path / "logs",
    )
    listed = json.loads(answer)["datasets"]
    assert [(one["id"], one["steps"]) for one in listed] == [("csvlog/mine", 3), ("my/log", 3)]
    action = tmp_path / "root" / "my" / "log" / "action.memmap"
    assert np.fromfile(action, np.int64).tolist() == [1, 0, 1]


def test_its_mirror_can_be_set(rbdata, tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.csv").write_text(LOG)
    monkeypatch.setenv("RBDATA_CSVLOG_MIRROR", str(tmp_path / "logs"))
    rbdata("download csvlog/mine")
    monkeypatch.setenv("RBDATA_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[mirrors]\ncsvlog = "/nowhere"\n')
    monkeypatch.delenv("RBDATA_CSVLOG_MIRROR")
    assert json.loads(rbdata("config --json")[0])["mirrors.csvlog"]["value"] == "/nowhere"


REFUSED_FILES = [
    ("", "is not a table|lacks one of"),
    (LOG.replace("reward", "score"), "lacks one of"),
    (LOG.replace("7,4.5,5,,,\n", ""), "not every episode ends"),
    (LOG.replace("7,3.5,4,1,2,0\n", ""), "episode 7 has no step"),
    (LOG.replace("1.5,2,0,1,1", "1.5,,0,1,1"), "is not a number"),
    (LOG.replace("1.5,2,0,1,1", "1.5,2,0,,1"), "the reward of step 1 is nan"),
    (LOG.replace("1.5,2,0,1,1", "1.5,2,0.5,1,1"), "not all actions are whole numbers"),
    (LOG.replace("1.5,2,0,1,1", "1.5,2"), "is not a table"),
]


def test_files_that_are_refused(rbdata, tmp_path):
    for number, (log, _) in enumerate(REFUSED_FILES):
        (tmp_path / f"logs{number}").mkdir()
        (tmp_path / f"logs{number}" / "mine.csv").write_text(log)
    lines = [f"download csvlog/mine --mirror {tmp_path / f'logs{number}'}" for number in range(len(REFUSED_FILES))]
    answers = rbdata(*lines, codes={1})
    for told, (_, words) in zip(answers, REFUSED_FILES, strict=True):
        assert re.search(words, " ".join(told.split())), told
