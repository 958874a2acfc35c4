"""`fetch_to_file`: continued across processes, verified, whole or not there."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rbdata.datasets.fetch import FetchOptions, Location, RemoteObject, fetch_to_file, open_location, reading
from rbdata.datasets.fetch.reading import resumable_bytes
from rbdata.errors import ChecksumError, DatasetBusyError, DiskError, TransientFetchError
from servers import FaultyGcs, HttpServer, crc32c_hex, faulty_gcs, http_server

DATA = random.Random(3).randbytes(5 * 1024 * 1024 + 99)
QUICK = FetchOptions(attempts=2, backoff=0.0)
NAME = "$store$_observation_ckpt.0.gz"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[HttpServer]:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / NAME).write_bytes(DATA)
    with http_server(tmp_path / "mirror") as server:
        yield server


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyGcs]:
    with faulty_gcs() as server:
        server.upload("bucket", NAME, DATA)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
        yield server


def interrupted(location: Location, target: Path, faults: object, after: int) -> None:
    """Leave a part of at most `after` bytes."""
    faults.cut(after=after)  # type: ignore[attr-defined]
    faults.cut(after=0, times=2)  # type: ignore[attr-defined]
    with pytest.raises(TransientFetchError):
        fetch_to_file(location, location.stat(NAME), target)
    assert not target.exists()
    assert target.with_name(target.name + ".part").stat().st_size == after
    # What a GCS fault left over belongs to nobody.
    faults._cuts.clear()  # type: ignore[attr-defined]


def only(target: Path) -> bool:
    return [path.name for path in target.parent.iterdir() if path.name.startswith(target.name)] == [target.name]


def test_whole_and_described(web: HttpServer, tmp_path: Path) -> None:
    location = open_location(web.url, options=QUICK)
    (obj,) = location.list()
    target = tmp_path / NAME
    target.write_bytes(b"an older one")
    found = fetch_to_file(location, obj, target)
    assert target.read_bytes() == DATA
    assert (found.size, found.checksums) == (len(DATA), {"crc32c": crc32c_hex(DATA)})
    assert found.version
    assert only(target)


def test_continues_over_http(web: HttpServer, tmp_path: Path) -> None:
    location, target = open_location(web.url, options=QUICK), tmp_path / "x"
    interrupted(location, target, web.faults, 2_000_000)
    resumed: list[int] = []
    heard: list[int] = []
    web.faults.requests.clear()
    fetch_to_file(location, location.stat(NAME), target, on_resume=resumed.append, on_bytes=heard.append)
    assert target.read_bytes() == DATA
    assert resumed == [2_000_000]
    assert sum(heard) == len(DATA) - 2_000_000
    assert web.faults.gets() == [(f"/{NAME}", "bytes=2000000-")]
    assert only(target)


def test_continues_over_gcs(gcs: FaultyGcs, tmp_path: Path) -> None:
    location, target = open_location("gs://bucket", options=QUICK), tmp_path / "x"
    interrupted(location, target, gcs.faults, 700_000)
    resumed: list[int] = []
    fetch_to_file(location, location.stat(NAME), target, on_resume=resumed.append)
    assert target.read_bytes() == DATA
    assert resumed == [700_000]


def test_a_complete_part_only_needs_its_name(gcs: FaultyGcs, tmp_path: Path) -> None:
    location, target = open_location("gs://bucket", options=QUICK), tmp_path / "x"
    interrupted(location, target, gcs.faults, 700_000)
    with (tmp_path / "x.part").open("ab") as file:
        file.write(DATA[700_000:])
    heard: list[int] = []
    fetch_to_file(location, location.stat(NAME), target, on_bytes=heard.append)
    assert target.read_bytes() == DATA
    assert heard == []


@pytest.mark.parametrize("damage", ["flipped", "record", "zeroed", "longer"])
def test_a_part_that_changed_is_fetched_anew_where_no_checksum_is_stated(
    web: HttpServer, tmp_path: Path, damage: str
) -> None:
    location, target = open_location(web.url, options=QUICK), tmp_path / "x"
    interrupted(location, target, web.faults, 1_000_000)
    part, record = tmp_path / "x.part", tmp_path / "x.part.json"
    data = part.read_bytes()
    if damage == "record":
        record.write_text(record.read_text().replace('"kept": 1', '"kept": 9'))
    else:
        middle = len(data) // 2
        changed = {"flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], "longer": data + b"more"}
        part.write_bytes(changed.get(damage, bytes(len(data))))
    resumed: list[int] = []
    fetch_to_file(location, location.stat(NAME), target, on_resume=resumed.append)
    assert target.read_bytes() == DATA
    assert resumed == ([1_000_000] if damage == "longer" else [])
    assert only(target)


def test_nothing_is_written_through_links(web: HttpServer, tmp_path: Path) -> None:
    location, target, outside = open_location(web.url, options=QUICK), tmp_path / "x", tmp_path / "outside"
    outside.write_bytes(b"precious")
    for name in ("x.part", "x.part.json"):
        (tmp_path / name).symlink_to(outside)
    fetch_to_file(location, location.stat(NAME), target)
    assert target.read_bytes() == DATA and outside.read_bytes() == b"precious"
    assert only(target)


def test_an_object_replaced_in_the_meantime_is_fetched_anew(web: HttpServer, tmp_path: Path) -> None:
    location, target = open_location(web.url, options=QUICK), tmp_path / "x"
    interrupted(location, target, web.faults, 1_000_000)
    new = DATA[::-1]
    (web.root / NAME).write_bytes(new)
    resumed: list[int] = []
    fetch_to_file(location, location.stat(NAME), target, on_resume=resumed.append)
    assert target.read_bytes() == new
    assert resumed == []


def test_an_object_replaced_while_fetching(web: HttpServer, tmp_path: Path) -> None:
    location, target = open_location(web.url, options=QUICK), tmp_path / "x"
    obj = location.stat(NAME)
    (web.root / NAME).write_bytes(DATA[::-1])
    with pytest.raises(ChecksumError):
        fetch_to_file(location, obj, target)
    assert not target.exists()


def test_a_damaged_part_is_thrown_away(gcs: FaultyGcs, tmp_path: Path) -> None:
    location, target = open_location("gs://bucket", options=QUICK), tmp_path / "x"
    interrupted(location, target, gcs.faults, 700_000)
    with (tmp_path / "x.part").open("r+b") as file:
        file.write(b"damage")
    resumed: list[int] = []
    fetch_to_file(location, location.stat(NAME), target, on_resume=resumed.append)
    assert target.read_bytes() == DATA
    assert resumed == [700_000]
    assert only(target)


def test_a_wrong_checksum_leaves_nothing(gcs: FaultyGcs, tmp_path: Path) -> None:
    gcs.wrong_crc = True
    location, target = open_location("gs://bucket", options=QUICK), tmp_path / "x"
    with pytest.raises(ChecksumError):
        fetch_to_file(location, location.stat(NAME), target)
    assert list(tmp_path.glob("x*")) == []


def test_killed_and_continued(web: HttpServer, tmp_path: Path) -> None:
    target = tmp_path / "x"
    program = (
        "import sys; from rbdata.datasets.fetch import *; location = open_location(sys.argv[1]);"
        "from rbdata.datasets.fetch import reading; reading.RECORD_BYTES = 1 << 18;"
        "fetch_to_file(location, location.list()[0], sys.argv[2])"
    )
    for after in (1_500_000, 3_500_000):
        already = (tmp_path / "x.part").stat().st_size if (tmp_path / "x.part").exists() else 0
        web.faults.stall(after=after - already, seconds=600)
        child = subprocess.Popen([sys.executable, "-c", program, web.url, str(target)], cwd=tmp_path)
        try:
            deadline = time.monotonic() + 600
            while time.monotonic() < deadline and child.poll() is None:
                if (tmp_path / "x.part").exists() and (tmp_path / "x.part").stat().st_size > after - (1 << 18):
                    break
                time.sleep(0.01)
            # It is alive and holds the part: nobody else may write it.
            with pytest.raises(DatasetBusyError, match=r"/x is being written by process \d+"):
                fetch_to_file(open_location(web.url), open_location(web.url).stat(NAME), target)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        assert not target.exists()
    kept = (tmp_path / "x.part").stat().st_size
    assert kept > 3_000_000
    location = open_location(web.url, options=QUICK)
    resumed: list[int] = []
    heard: list[int] = []
    fetch_to_file(location, location.list()[0], target, on_resume=resumed.append, on_bytes=heard.append)
    assert target.read_bytes() == DATA
    assert kept - (1 << 19) <= resumed[0] <= kept
    assert sum(heard) == len(DATA) - resumed[0]
    assert only(target)


def test_a_full_disk(web: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    location, target = open_location(web.url, options=QUICK), tmp_path / "x"
    obj = location.stat(NAME)
    monkeypatch.setattr(reading, "_open_part", lambda part: full.open("r+b", buffering=0))
    with pytest.raises(DiskError, match="disk is full") as caught:
        fetch_to_file(location, obj, target)
    assert caught.value.hint


class TestWhatCanBeContinued:
    OBJ = RemoteObject("http://a/x", "x", 100, {"crc32c": "0a"}, "v1")
    RECORD = {"format": 1, "url": "http://a/x", "size": 100, "version": "v1", "checksums": {"crc32c": "0a"}}

    def test_the_same(self) -> None:
        assert resumable_bytes(self.RECORD, self.OBJ, 60) == 60
        assert resumable_bytes({**self.RECORD, "checksums": {}}, self.OBJ, 60) == 60
        assert resumable_bytes(self.RECORD, self.OBJ, 100) == 100

    def test_the_same_bytes_on_another_mirror(self) -> None:
        assert resumable_bytes({**self.RECORD, "url": "gs://b/x", "version": "7"}, self.OBJ, 60) == 60

    @pytest.mark.parametrize(
        "change",
        [
            {"version": "v2", "checksums": {}},
            {"version": None, "checksums": {}},
            {"url": "http://b/x", "checksums": {}},
            {"url": "http://b/x", "checksums": {"crc32c": "0b"}},
            {"url": "http://b/x", "checksums": {"md5": "0a"}},
            {"size": 99},
            {"format": 2},
            {"checksums": [], "version": None},
        ],
    )
    def test_another(self, change: dict[str, object]) -> None:
        assert resumable_bytes({**self.RECORD, **change}, self.OBJ, 60) == 0

    def test_nothing_known(self) -> None:
        assert resumable_bytes({}, self.OBJ, 60) == 0
        assert resumable_bytes(self.RECORD, self.OBJ, 101) == 0
        unversioned = RemoteObject("http://a/x", "x", 100)
        record = {**self.RECORD, "version": None, "checksums": {}}
        assert resumable_bytes(record, unversioned, 60) == 0

    def test_a_garbled_record(self, web: HttpServer, tmp_path: Path) -> None:
        location, target = open_location(web.url, options=QUICK), tmp_path / "x"
        for record in ("{", "[]", json.dumps({"format": 1})):
            (tmp_path / "x.part").write_bytes(b"rubbish")
            (tmp_path / "x.part.json").write_text(record)
            fetch_to_file(location, location.stat(NAME), target)
            assert target.read_bytes() == DATA
            target.unlink()
