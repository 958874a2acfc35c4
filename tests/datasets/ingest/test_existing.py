"""A second download of a dataset: it may become larger, it never loses finished work unless ``force`` says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from atari_truth import assert_holds, fed_truth, write_run
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Outcome, Request
from rbdata.datasets.local import list_local
from rbdata.errors import DatasetExistsError, ObjectNotFoundError
from rbdata.storage.dataset import Dataset
from servers import http_server

RUN = "dqn/Qbert/2/replay_logs"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four shards, and what was written into it."""
    top = tmp_path_factory.mktemp("run")
    return top, write_run(top / RUN, 30, [20, 40, 9, 30])


def get(mirror: Path | str, root: Path, listener: Listener | None = None, **fields) -> Outcome:
    options = ConvertOptions(**fields.pop("options", {}))
    return download(Request("Qbert/2", root=root, mirror=str(mirror), procs=1, options=options, **fields), listener)


def test_other_shards_are_added_to_those_that_are_there(run, tmp_path):
    """``--shards 0-1``, then ``--shards 2-3``: all four, in the codec of the first, whose frames are not fetched again."""
    top, writer = run
    get(top, tmp_path, options={"parts": (0, 1), "codec": "raw"})
    with http_server(top) as server:
        outcome = get(server.url, tmp_path, options={"parts": (2, 3)})
        fetched = {
            path.rpartition(".gz")[0].rpartition("/")[2] for path, _ in server.faults.gets() if "observation" in path
        }
    assert outcome.manifest.source["shards"] == [0, 1, 2, 3]
    assert outcome.manifest.source["options"]["codec"] == "raw"
    assert {name.rpartition(".")[2] for name in fetched} == {"2", "3"}
    assert_holds(Dataset(outcome.path), fed_truth(writer))


def test_shards_after_others_are_fetched_again(run, tmp_path):
    """``--shards 2-3``, then all: what is there is not what the new dataset begins with."""
    top, writer = run
    get(top, tmp_path, options={"parts": (2, 3)})
    plan = get(top, tmp_path, dry_run=True).estimate
    assert plan is not None and (plan.done_parts, plan.parts) == (0, 4)
    done: list[int] = []
    outcome = get(top, tmp_path, Listener(on_part_done=done.append))
    assert sorted(done) == outcome.manifest.source["shards"] == [0, 1, 2, 3]
    assert (plan.steps, plan.episodes) == (outcome.manifest.steps, outcome.manifest.episodes)
    assert_holds(Dataset(outcome.path), fed_truth(writer))


def test_force_drops_shards_and_says_which(run, tmp_path):
    top, _ = run
    get(top, tmp_path, options={"parts": (0, 1)})
    said: list[str] = []
    outcome = get(top, tmp_path, Listener(on_note=said.append), options={"parts": (2,)}, force=True)
    assert outcome.manifest.source["shards"] == [2]
    assert len(said) == 1 and "drops shards 0-1" in said[0] and "atari/Qbert/2" in said[0]


def test_a_place_without_the_shards_that_are_there_replaces_nothing(run, tmp_path):
    """Neither with its raw files (chosen shards or all there are) nor with a converted copy."""
    top, _ = run
    mirror = tmp_path / "other"
    shutil.copytree(top, mirror)
    for number in (0, 1):
        for path in (mirror / RUN).glob(f"*.{number}.gz"):
            path.unlink()
    root = tmp_path / "root"
    before = get(top, root, options={"parts": (0, 1)})
    with pytest.raises(ObjectNotFoundError, match="no shard 0, 1") as caught:
        get(mirror, root, options={"parts": (2, 3)})
    assert "--force" in str(caught.value.hint)
    with pytest.raises(DatasetExistsError, match=r"lacks: 0-1") as refused:
        get(mirror, root)
    assert "--force" in str(refused.value.hint)
    copied = get(mirror, tmp_path / "copied").path
    assert json.loads((copied / "rbdata.json").read_text())["source"]["all_shards"]
    with pytest.raises(DatasetExistsError, match=r"lacks: 0-1"):
        get(tmp_path / "copied", root)
    assert Dataset(before.path).manifest == before.manifest


def test_a_dry_run_counts_what_is_there(run, tmp_path):
    """Shards of a smaller dataset, and the parts of an interrupted run, are neither fetched nor written again."""
    top, _ = run
    whole = get(top, tmp_path, dry_run=True).estimate
    get(top, tmp_path, options={"parts": (0, 1)})
    grown = get(top, tmp_path, dry_run=True).estimate
    assert whole is not None and grown is not None
    assert (whole.done_parts, grown.done_parts, grown.parts) == (0, 2, 4)
    assert grown.fetch_bytes < whole.fetch_bytes

    def stop(index: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(top, tmp_path, Listener(on_part_done=stop))
    before = sorted(tmp_path.rglob("*"))
    assert get(top, tmp_path, dry_run=True).estimate.done_parts == 3
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_a_manifest_is_not_replaced(run, tmp_path):
    top, _ = run
    path = get(top, tmp_path, options={"parts": (0,)}).path
    (path / "rbdata.json").unlink()
    assert list_local(tmp_path) == []
    for force in (False, True):
        with pytest.raises(DatasetExistsError, match=r"no rbdata\.json") as caught:
            get(top, tmp_path, force=force)
        assert "move it away" in str(caught.value.hint)
    shutil.rmtree(path)
    assert get(top, tmp_path).action == "written"
    assert list_local(tmp_path)[0].state == "complete"
