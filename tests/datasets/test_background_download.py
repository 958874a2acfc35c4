"""Sampling while a process of its own downloads: from the first shard on, until all is there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import rbdata
from atari_truth import write_run
from rbdata.datasets.background_download import BackgroundDownload, _plain
from rbdata.errors import StoppedError, StoppedWarning, UnknownDatasetError, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.journal import PLAN
from rbdata.storage.partial_dataset import PartialDataset
from rbdata.storage.replay.storages import dataset_storage
from servers import http_server

ID = "atari/Qbert/2"


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    top = tmp_path_factory.mktemp("mirror")
    write_run(top / "dqn" / "Qbert" / "2" / "replay_logs", 90, [20, 40, 35, 60, 150, 50, 33, 60])
    return top


class Gate:
    """Lets the frames of the first shards through, and those of others, once all is planned, when it is opened."""

    def __init__(self, root: Path, shards: int) -> None:
        self.opened, self._plan, self._shards = threading.Event(), root / "atari/Qbert/.2.writing" / PLAN, shards

    def __call__(self, path: Path) -> None:
        name, _, number = path.name.removesuffix(".gz").rpartition(".")
        if "observation" in name and int(number) >= self._shards and self._plan.exists():
            assert self.opened.wait(120)


def test_the_first_batch_comes_before_the_last_shards(tmp_path, mirror, monkeypatch):
    monkeypatch.setattr(dataset_storage, "LOOK_EVERY", 0.0)
    root, gate = tmp_path / "root", Gate(tmp_path / "root", 2)
    events: list[str] = []
    with http_server(mirror) as server:
        server.faults.before = gate
        listener = rbdata.datasets.ingest.request.Listener(on_part_done=lambda index: events.append(f"part {index}"))
        options = {"mirror": server.url, "procs": 1}
        arguments = {"root": root, "batch_size": 8, "seed": 4, "frame_stack": 2}
        buffer = rbdata.load("Qbert/2", download={**options, "listener": listener}, **arguments)
        dataset = buffer.dataset
        assert isinstance(dataset, PartialDataset)
        assert isinstance(dataset.download, BackgroundDownload) and dataset.state == "being written"
        found = [buffer.sample() for _ in range(4)]
        while dataset.finished < 2:
            buffer.refresh(wait=60)
        found += [buffer.sample() for _ in range(4)]
        assert len(buffer) == len(dataset) < dataset.plan.steps and not buffer.refresh()

        # Others read along: this process, and one that wanted to download as well.
        along = rbdata.open_dataset(ID, root=root, partial=True)
        assert len(along) == len(dataset) and along.state == "being written"
        second = rbdata.load("Qbert/2", download=options, **arguments)
        assert len(second) == len(buffer) and getattr(second.dataset, "download", None) is None

        # The program that downloads is killed: its end of the pipe is closed.
        stdin = dataset.download._process.stdin
        assert stdin is not None
        stdin.close()
        with pytest.raises(StoppedError):
            buffer.refresh(wait=60)
        assert isinstance(dataset.download.error, StoppedError) and dataset.state == "interrupted"
        with pytest.raises(StoppedError, match="no longer being written, with 2 of 6 parts"):
            along.refresh(wait=60)
        with pytest.warns(StoppedWarning, match="no more of atari/Qbert/2 will be shown: the download was interrupted"):
            found.append(buffer.sample())

        # Another one goes on with it; all that is open grows.
        third = rbdata.load("Qbert/2", download=options, **arguments)
        gate.opened.set()
        while not third.dataset.complete:
            third.refresh(wait=60)
    assert buffer.refresh()
    found += [buffer.sample() for _ in range(4)]
    assert len(buffer) == len(third) == third.dataset.plan.steps
    assert along.refresh() and along.complete and "part 0" in events
    path = third.dataset.path
    again = rbdata.load(path, growth=buffer.state_dict()["_storage"]["growth"], **{**arguments, "root": None})
    for batch in found:
        assert (again.sample() == batch).all()
    assert (third[:] == Dataset(path)[:]).all()
    # What is there is loaded without a process.
    assert getattr(rbdata.load("Qbert/2", root=root, download=True).dataset, "download", None) is None


def test_wrong_arguments(tmp_path):
    with pytest.raises(UsageError, match="download is for ids"):
        rbdata.load("s3://bucket/x", download=True)
    with pytest.raises(UsageError, match="without check"):
        rbdata.load("Qbert/2", root=tmp_path, check=True, download=True)
    with pytest.raises(UsageError, match="cannot be passed"):
        rbdata.load("Qbert/2", root=tmp_path, download={"policy": object()})


def test_errors_of_the_download(tmp_path):
    with pytest.raises(UnknownDatasetError, match="Nonsense") as caught:
        rbdata.load("Nonsense/2", root=tmp_path, download=True)
    assert caught.value.hint


def test_what_json_lacks():
    assert _plain(Path("/a/b")) == "/a/b"
    assert _plain({3, 1}) == [1, 3]


def test_stop(tmp_path):
    download = BackgroundDownload("time:sleep", {"dataset_id": "x"})
    download.stop()
    assert download.has_ended and isinstance(download.error, StoppedError) and download.path is None
