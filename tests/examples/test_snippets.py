"""Every snippet of the README and the documents runs, on small data that stand in for the downloads."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rbdata
import torch
from beside_jax import beside_jax
from openml_server import openml_server
from paths import DATA
from snippets import Page, blocks, check_output, indented_commands

TOP = DATA.parents[1]
OTHERS = {"cookbook.md"}  # tests/preprocess/test_cookbook.py runs it
PAGES = sorted(p for p in [TOP / "README.md", *(TOP / "docs").rglob("*.md")] if p.name not in OTHERS)

#: Blocks of all pages that carry the comment "not run": they need a network, a cluster, or minutes.
MOST_NOT_RUN = 25

#: Pages that begin with a download: nothing is there yet.
FROM_NOTHING = {"README.md", "quickstart.md", "gymnasium.md"}

#: What stands for long work: (page, text of the page, text that is run).
SMALLER = [
    ("quickstart.md", "for update in range(3000):", "for update in range(300):"),
    ("quickstart.md", "for episode in range(20):", "for episode in range(3):"),
    ("quickstart.md", "--steps 20000", "--steps 4000"),
    ("gymnasium.md", "gymnasium/CartPole-v1\n", "gymnasium/CartPole-v1 --steps 500\n"),
    ("README.md", "--steps 20000", "--steps 4000"),
    ("preprocess.md", "--codec zstd:19", "--codec zstd:5"),
]


@pytest.fixture(scope="module")
def providers(tmp_path_factory) -> Iterator[dict[str, str]]:
    """Mirrors of all providers: their settings."""
    top = tmp_path_factory.mktemp("providers")
    (top / "d4rl").mkdir()
    for name in ("hopper_medium-v2", "walker2d_medium-v2", "halfcheetah_medium-v2"):
        shutil.copy(DATA / "d4rl/gym_mujoco_v2/hopper_full_replay-v2.hdf5", top / f"d4rl/{name}.hdf5")
    for run in (3, 4, 5):
        shutil.copytree(DATA / "atari/dqn/Pong/5", top / f"atari/dqn/Pong/{run}")
    shutil.copytree(DATA / "atari/dqn/Breakout", top / "atari/dqn/Breakout")
    shutil.copytree(DATA / "minari", top / "minari")
    shutil.copytree(DATA / "minari/mujoco/hopper-v0", top / "minari/D4RL/door/human-v2")
    metadata = top / "minari/D4RL/door/human-v2/data/metadata.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"dataset_id": "D4RL/door/human-v2"}))
    with openml_server() as openml:
        yield {
            "RBDATA_ATARI_MIRROR": str(top / "atari"),
            "RBDATA_D4RL_MIRROR": str(top / "d4rl"),
            "RBDATA_MINARI_MIRROR": str(top / "minari"),
            "RBDATA_OPENML_MIRROR": openml.url,
        }


def in_colour(td):
    """Three channels of one frame."""
    for part in (td, td["next"]):
        part["observation"] = part["observation"].unsqueeze(-1).repeat(1, 1, 1, 3)
    return td


@pytest.fixture(scope="module")
def root(providers, tmp_path_factory) -> Path:
    """A root with the datasets that pages use without downloading them."""
    root = tmp_path_factory.mktemp("root")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in providers.items():
            patch.setenv(name, value)
        for dataset in ("Breakout/1", "d4rl/hopper-medium-v2", "D4RL/door/human-v2", "openml/61"):
            rbdata.download(dataset, root=root, procs=0)
        rbdata.download("Pong/5", root=root, shards="0", procs=0)
        rbdata.download("gymnasium/CartPole-v1", root=root, steps=2000)
        for copy in ("d4rl/antmaze-umaze-v2", "d4rl/hopper-medium-replay-v2", "my/maze"):
            shutil.copytree(root / "d4rl/hopper-medium-v2", root / copy)
        first = rbdata.open_dataset("Pong/5", root=root).select(steps=slice(0, 2000))
        rbdata.preprocess(first, in_colour, dest="my/colour", root=root, procs=0)
    return root


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """Raw files as a reader may have them, in ``~/raw``."""
    raw = tmp_path_factory.mktemp("raw")
    shutil.copytree(DATA / "atari/dqn/Pong/5", raw / "Pong/5")
    (raw / "hopper").mkdir()
    shutil.copy(DATA / "d4rl/gym_mujoco_v2/hopper_full_replay-v2.hdf5", raw / "hopper/hopper_medium-v2.hdf5")
    shutil.copytree(DATA / "minari/mujoco/hopper-v0", raw / "door")
    (raw / "iris").mkdir()
    (raw / "iris/iris.arff").write_bytes(gzip.decompress((DATA / "openml/id_61/data-v1-dl-61.arff.gz").read_bytes()))
    return raw


@pytest.fixture
def page_folder(request, providers, raw, root, tmp_path, monkeypatch) -> Iterator[Path]:
    """The current folder of a page's commands, its home folder, and the root with datasets."""
    for name, value in providers.items():
        monkeypatch.setenv(name, value)
    here = tmp_path / "here"
    if request.node.callspec.params["page"].name in FROM_NOTHING:
        here.mkdir()
    else:
        shutil.copytree(root, here / "root")
    shutil.copytree(raw, here / "raw")
    monkeypatch.setenv("RBDATA_ROOT", str(here / "root"))
    monkeypatch.setenv("RBDATA_PROCS", "0")
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other are slow where other tests run beside them
    yield here
    torch.set_num_threads(threads)


def standins(folder: Path, providers: dict[str, str]) -> dict[str, str]:
    """Local folders in the place of addresses, and this process in the place of many."""
    d4rl = providers["RBDATA_D4RL_MIRROR"]
    return {
        "/data/dqn_replay": providers["RBDATA_ATARI_MIRROR"],
        "gs://my-lab/dqn": providers["RBDATA_ATARI_MIRROR"],
        "s3://lab/rbdata": str(folder / "mirror"),
        "https://huggingface.co/datasets/imone/D4RL/resolve/main": d4rl,
        "~/.d4rl/datasets": d4rl,
        "--procs 8": "--procs 0",
        "procs=8": "procs=0",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_page_runs(page, page_folder, providers, monkeypatch):
    replaced = standins(page_folder, providers)
    replaced |= {text: run for name, text, run in SMALLER if name == page.name}
    np.random.seed(0)
    with beside_jax():
        Page(page, page_folder, replaced, monkeypatch).run()


def test_commands_are_in_fenced_blocks():
    """Indented blocks are not run."""
    indented = {page.name: lines for page in PAGES if (lines := indented_commands(page.read_text()))}
    assert indented == {}


def test_parts_of_files_are_in_them():
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.part_of:
                lines = {line.split("#")[0].strip() for line in (TOP / block.part_of).read_text().splitlines()}
                missing = {line.strip() for line in block.lines} - lines - {"", "..."}
                assert not missing, f"{page.name}:{block.line}: not in {block.part_of}: {missing}"


def test_few_blocks_are_not_run():
    reasons = [block.not_run for page in PAGES for block in blocks(page.read_text()) if block.not_run]
    assert len(reasons) <= MOST_NOT_RUN, reasons


@pytest.mark.parametrize("name, text", [(name, text) for name, text, _ in SMALLER])
def test_what_is_made_smaller_is_on_its_page(name, text):
    assert text in next(page for page in PAGES if page.name == name).read_text()


def test_output_is_compared():
    """The check itself: numbers may differ, words may not."""
    check_output("here", "steps  20,000 (1.02 MB)\nmore\n", "steps 2,000 (976 kB)\n")
    check_output("here", "one\ntwo\nthree\n", "one\n...\nthree\n")
    with pytest.raises(AssertionError, match="the page shows 'episodes 3'"):
        check_output("here", "steps 3\n", "episodes 3\n")
