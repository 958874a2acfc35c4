"""Raw files over several connections: what one failure does to the others, and what a wrong answer leaves to the next run."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import h5py
import pytest
from contents import content
from d4rl_truth import make, write
from faulty_proxy import Asked, Fault, Proxy, faulty_proxy
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.card.overview import state_origin
from rbdata.datasets.fetch import FetchOptions, open_location
from rbdata.datasets.ingest.raw_files import fetch_all
from rbdata.datasets.ingest.records import RawObject
from rbdata.datasets.ingest.request import Request
from rbdata.errors import CorruptSourceError, FetchError, ForbiddenError
from rbdata.storage.manifest import read_manifest
from rbdata.storage.threads import call_in_threads
from servers import http_server

QUICK = FetchOptions(attempts=2, backoff=0.0)
NAME = "d4rl/hopper-medium-v2"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Proxy]:
    write(tmp_path / "files" / "hopper_medium-v2.hdf5", make([30, 20], ["terminal", "timeout"]))
    with http_server(tmp_path / "files") as server, faulty_proxy(server.url) as proxy:
        yield proxy


def get(proxy: Proxy, root: Path, **more: bool) -> Path:
    return download(Request(NAME, root, proxy.url, procs=1, fetch=QUICK, **more)).path


def test_a_failure_ends_the_other_connections(web: Proxy, tmp_path: Path) -> None:
    """What they were writing is free for the next try, and nothing goes on behind the caller's back."""
    data = random.Random(1).randbytes(4_000_000)
    for number in range(6):
        (tmp_path / "files" / str(number)).write_bytes(data)
    location = open_location(web.url, options=QUICK)
    raw = [RawObject(str(number), location.stat(str(number)), location) for number in range(6)]
    web.spoil = lambda asked: Fault("403") if asked.path == "/3" else None
    for _ in range(3):
        with pytest.raises(ForbiddenError):
            fetch_all(tmp_path / "kept", raw, lambda name, done, total: None)
    web.spoil = lambda asked: None
    fetch_all(tmp_path / "kept", raw, lambda name, done, total: None)
    (tmp_path / "kept" / "4").write_bytes(data[:100])  # is fetched again
    fetch_all(tmp_path / "kept", raw, lambda name, done, total: None)
    assert {path.name: path.read_bytes() == data for path in (tmp_path / "kept").iterdir()} == dict.fromkeys(
        "012345", True
    )


def test_a_call_that_fails_ends_the_others() -> None:
    begun, ended = Event(), list[int]()

    def call(item: int, go_on: Callable[[], None]) -> None:
        if item:
            begun.wait()
            raise KeyError(item)
        begun.set()
        try:
            for _ in range(2000):
                go_on()
                time.sleep(0.001)
        except InterruptedError:
            ended.append(item)

    with pytest.raises(KeyError):
        call_in_threads(call, [0, 1], 2, "test")
    assert ended == [0]


@pytest.mark.parametrize("kind", ["short", "long", "html-as-data", "empty"])
def test_a_wrong_size_in_one_answer_is_forgotten(web: Proxy, tmp_path: Path, kind: str) -> None:
    def spoil(asked: Asked) -> Fault | None:
        if not asked.path.endswith(".hdf5"):
            return None
        # The first answer states another size; the body breaks off, so that a part of it is kept.
        return Fault(kind) if asked.method == "HEAD" else Fault("close", 0.3)

    web.spoil = spoil
    with pytest.raises((FetchError, CorruptSourceError)):
        get(web, tmp_path / "root")
    web.spoil = lambda asked: None
    made = get(web, tmp_path / "root")
    assert content(made) == content(get(web, tmp_path / "other"))


def test_a_useless_file_is_fetched_again(web: Proxy, tmp_path: Path) -> None:
    web.spoil = lambda asked: Fault("flip", 0.0) if asked.path.endswith(".hdf5") else None
    with pytest.raises(CorruptSourceError):
        get(web, tmp_path / "root")
    web.spoil = lambda asked: None
    get(web, tmp_path / "root")


@pytest.mark.parametrize("keep_raw", [False, True])
def test_bytes_that_nothing_verified_are_named(web: Proxy, tmp_path: Path, keep_raw: bool) -> None:
    """The web server states no checksum, HDF5 has none; a folder of this machine is no transfer."""
    made = get(web, tmp_path / "root", keep_raw=keep_raw)
    manifest = read_manifest(made)
    path = "gym_mujoco_v2/hopper_medium-v2.hdf5"
    assert manifest.provenance["unverified"] == {"files": 1, "first": path}
    shown = dict(state_origin(manifest, at_home=True))
    assert shown["unverified transfer"] == f"1 of the raw files came without checksums ({path})"
    local = download(Request(NAME, tmp_path / "local", str(tmp_path / "files"), procs=1)).path
    assert "unverified" not in read_manifest(local).provenance
    assert "unverified transfer" not in dict(state_origin(read_manifest(local), at_home=True))


@pytest.mark.parametrize("leaf", ["rewards", "observations"])
def test_damage_that_shows_late(tmp_path: Path, leaf: str) -> None:
    """Found while the file is looked into, or after parts of the dataset were made of it."""
    path = tmp_path / "files" / "hopper_medium-v2.hdf5"
    path.parent.mkdir()
    write(path, make([30, 20], ["terminal", "timeout"]))
    packed = tmp_path / "packed.hdf5"
    with h5py.File(path) as file, h5py.File(packed, "w") as copy:
        for name, values in file.items():
            copy.create_dataset(name, data=values[:], chunks=True, compression="gzip", fletcher32=True)
    packed.replace(path)
    with h5py.File(path) as file:
        place = file[leaf].id.get_chunk_info(0)
        damaged = place.byte_offset + place.size // 2
    sound = path.read_bytes()
    with http_server(path.parent) as server, faulty_proxy(server.url) as web:
        expected = content(get(web, tmp_path / "expected"))
        web.spoil = lambda asked: Fault("flip", (damaged + 0.5) / len(sound)) if asked.method == "GET" else None
        with pytest.raises(CorruptSourceError):
            get(web, tmp_path / "root")
        web.spoil = lambda asked: None
        assert content(get(web, tmp_path / "root")) == expected


def test_damage_that_an_earlier_run_fetched(tmp_path: Path) -> None:
    """Nothing states the checksum of a file that came before the run was ended: it is fetched again, and not blamed."""
    shutil.copytree(DATA / "minari" / "cartpole", tmp_path / "files" / "cartpole")

    def fetch(url: str, root: Path) -> Path:
        return download(Request("minari/cartpole/arrow-v0", root, url, procs=1, fetch=QUICK)).path

    def spoil(asked: Asked) -> Fault | None:
        if asked.method == "GET" and asked.path.endswith("/9/part-0.arrow"):
            return Fault("403")
        return Fault("flip", 1.0) if asked.path.endswith("/0/part-0.arrow") else None

    with http_server(tmp_path / "files") as server, faulty_proxy(server.url) as web:
        web.spoil = spoil
        with pytest.raises(ForbiddenError):
            fetch(web.url, tmp_path / "root")
        assert list((tmp_path / "root").rglob("*part-0.arrow"))
        web.spoil = lambda asked: None
        assert content(fetch(web.url, tmp_path / "root")) == content(fetch(web.url, tmp_path / "expected"))
