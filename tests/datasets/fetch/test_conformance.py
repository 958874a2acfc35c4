"""What every transport must do: the same tests over a directory, three kinds of web server and Google Cloud Storage."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from rbdata.datasets.fetch import FetchOptions, Location, RemoteObject, open_location, pin, read_all, resolve, stream
from rbdata.errors import ObjectNotFoundError, UsageError
from servers import crc32c_hex, faulty_gcs, gcs_server, http_server

# Two ranges of GCS and a bit, many pieces of the others.
LARGE = random.Random(1).randbytes(3 * 1024 * 1024 + 12345)

TREE = {
    "top.bin": b"top",
    "Pong/1/replay_logs/$store$_action_ckpt.2.gz": b"two",
    "Pong/1/replay_logs/$store$_action_ckpt.10.gz": b"ten",
    "Pong/1/replay_logs/$store$_action_ckpt.11.gz": b"eleven",
    "Pong/1/replay_logs/add_count_ckpt.2.gz": b"",
    "Pong/3/x": b"3",
    "odd/a name with spaces & 100%.bin": b"odd",
    "odd/größe-日本.bin": b"unicode",
    "odd/a+b;c=d#e?f.bin": b"reserved",
    "large/large.bin": LARGE,
}
KINDS = ["directory", "http-nginx", "http-apache", "gcs-emulator", "gcs-pages"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mirror")
    for name, data in TREE.items():
        path = root / "mirror dir" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "mirror dir" / "empty").mkdir()
    return root


@pytest.fixture(scope="module", params=KINDS)
def location(request: pytest.FixtureRequest, tree: Path) -> Iterator[Location]:
    """Every location's top is the folder 'mirror dir'."""
    kind: str = request.param
    options = FetchOptions(attempts=2, backoff=0.0, silence_timeout=20)
    if kind == "directory":
        yield open_location(tree / "mirror dir", options=options)
    elif kind.startswith("http"):
        with http_server(tree) as server:
            server.index_style(kind.removeprefix("http-"))
            yield open_location(f"{server.url}/mirror dir/", options=options)
    elif kind == "gcs-emulator":
        with gcs_server({"bucket": tree}) as server, pytest.MonkeyPatch.context() as patch:
            # What tools leave behind for a folder without objects.
            server.upload("bucket", "mirror dir/empty/", b"")
            patch.setenv("STORAGE_EMULATOR_HOST", server.host)
            yield open_location("gs://bucket/mirror dir", options=options)
    else:
        with faulty_gcs() as faulty, pytest.MonkeyPatch.context() as patch:
            faulty.page_size = 2
            for name, data in TREE.items():
                faulty.upload("bucket", f"mirror dir/{name}", data)
            faulty.upload("bucket", "mirror dir/empty/", b"")
            patch.setenv("STORAGE_EMULATOR_HOST", faulty.host)
            yield open_location("gs://bucket/mirror dir/", options=options)


class TestEveryTransport:
    def test_reads_ranges(self, location: Location) -> None:
        large = pin(location, location.stat("large/large.bin"))
        for start, length in ((0, 10), (5, 1_100_000), (len(LARGE) - 7, 7), (9, 0)):
            assert location.read_range(large, start, length) == LARGE[start : start + length]

    def test_lists_the_objects_of_a_folder_sorted(self, location: Location) -> None:
        names = [obj.name for obj in location.list("Pong/1/replay_logs")]
        assert names == [
            "$store$_action_ckpt.10.gz",
            "$store$_action_ckpt.11.gz",
            "$store$_action_ckpt.2.gz",
            "add_count_ckpt.2.gz",
        ]
        assert [obj.name for obj in location.list("odd/")] == sorted(
            ["a name with spaces & 100%.bin", "größe-日本.bin", "a+b;c=d#e?f.bin"]
        )

    def test_lists_the_top(self, location: Location) -> None:
        assert [obj.name for obj in location.list("")] == ["top.bin"]
        assert location.folders("") == ["Pong", "empty", "large", "odd"]

    def test_lists_folders(self, location: Location) -> None:
        assert location.folders("Pong") == ["1", "3"]
        assert location.list("Pong") == []
        assert location.folders("Pong/3") == []

    def test_an_empty_folder_is_not_a_missing_one(self, location: Location) -> None:
        assert location.list("empty") == []
        assert location.folders("empty") == []
        for missing in ("missing", "Pong/2", "Pong/1/replay_logs/none", "Pon"):
            with pytest.raises(ObjectNotFoundError, match=missing) as caught:
                location.list(missing)
            assert caught.value.hint
            with pytest.raises(ObjectNotFoundError):
                location.folders(missing)

    def test_states_size_version_and_name(self, location: Location) -> None:
        for path, data in TREE.items():
            obj = location.stat(path)
            assert (obj.name, obj.size) == (path.rpartition("/")[2], len(data))
            assert obj.version
            if location.url.startswith("gs://"):
                assert obj.checksums["crc32c"] == crc32c_hex(data)

    def test_urls_are_unique_and_refresh_is_stat(self, location: Location) -> None:
        listed = location.list("Pong/1/replay_logs") + location.list("odd")
        assert len({obj.url for obj in listed}) == len(listed)
        assert all(obj.url.startswith(location.url + "/") for obj in listed)
        resolved = resolve(location, listed)
        assert resolved == [
            location.stat(f"{folder}/{obj.name}")
            for folder in ("Pong/1/replay_logs", "odd")
            for obj in location.list(folder)
        ]
        assert [location.refresh(obj) for obj in listed] == resolved

    def test_a_missing_object(self, location: Location) -> None:
        for path in ("Pong/3/nothing.gz", "Pong/3", "nowhere/at/all"):
            with pytest.raises(ObjectNotFoundError) as caught:
                location.stat(path)
            assert location.url in str(caught.value)
            assert caught.value.hint
        gone = RemoteObject(url=f"{location.url}/nothing.gz", name="nothing.gz", size=10, version="123")
        with pytest.raises(ObjectNotFoundError, match=r"nothing\.gz"):
            list(location.open(gone))

    def test_no_path_leads_out(self, location: Location) -> None:
        for path in ("../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/\0"):
            for call in (location.list, location.folders, location.stat):
                with pytest.raises(UsageError):
                    call(path)

    def test_opens_at_an_offset(self, location: Location) -> None:
        obj = location.stat("large/large.bin")
        for offset in (1, 1 << 20, len(LARGE) - 1, len(LARGE)):
            pieces = list(location.open(obj, offset))
            assert all(isinstance(piece, bytes) and 0 < len(piece) <= 1 << 20 for piece in pieces)
            assert b"".join(pieces) == LARGE[offset:]

    def test_opens_what_it_listed(self, location: Location) -> None:
        for folder in ("Pong/1/replay_logs", "odd"):
            for obj in location.list(folder):
                assert b"".join(location.open(obj)) == TREE[f"{folder}/{obj.name}"]

    def test_closing_half_way(self, location: Location) -> None:
        obj = location.stat("large/large.bin")
        pieces = location.open(obj)
        next(pieces)
        pieces.close()
        assert read_all(location, location.stat("top.bin"), limit_bytes=10) == b"top"

    def test_streams_and_verifies(self, location: Location) -> None:
        heard: list[int] = []
        obj = pin(location, next(obj for obj in location.list("large")))
        assert b"".join(stream(location, obj, on_bytes=heard.append)) == LARGE
        assert sum(heard) == len(LARGE)
        assert b"".join(stream(location, obj, start=12345)) == LARGE[12345:]

    def test_an_object_of_no_bytes(self, location: Location) -> None:
        obj = location.stat("Pong/1/replay_logs/add_count_ckpt.2.gz")
        assert list(stream(location, obj)) == []

    def test_travels_to_other_processes(self, location: Location) -> None:
        location.list("")  # with a live connection
        copy: Location = pickle.loads(pickle.dumps(location))
        assert (copy.url, copy.options) == (location.url, location.options)
        obj: RemoteObject = pickle.loads(pickle.dumps(copy.stat("top.bin")))
        assert b"".join(copy.open(obj)) == b"top"
        assert obj == location.stat("top.bin")
        assert hash(obj) == hash(location.stat("top.bin"))


class TestMissingPlaces:
    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ObjectNotFoundError, match="not-there"):
            open_location(tmp_path / "not-there").list("")

    def test_web_server(self, tmp_path: Path) -> None:
        with http_server(tmp_path) as server, pytest.raises(ObjectNotFoundError, match="not-there"):
            open_location(f"{server.url}/not-there").list("")

    def test_bucket_and_prefix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with gcs_server() as server:
            server.upload("bucket", "a/b", b"x")
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
            for url in ("gs://no-such-bucket", "gs://no-such-bucket/a", "gs://bucket/no-such-prefix"):
                with pytest.raises(ObjectNotFoundError, match="no-such"):
                    open_location(url).list("")
            assert open_location("gs://bucket").folders() == ["a"]


class TestOpenLocation:
    def test_touches_nothing(self) -> None:
        for url in ("/not/there", "https://unreachable.invalid/x", "gs://no-such-bucket/x"):
            assert open_location(url).url == url

    def test_hides_logins(self) -> None:
        location = open_location("https://user:secret@mirror.example:8443/data/")
        assert location.url == "https://mirror.example:8443/data"
        assert "secret" not in repr(location)

    @pytest.mark.parametrize(
        "url",
        [
            "nosuch://host/x",
            "s3://",
            "file://otherhost/x",
            "",
            "http://",
            "http:///x",
            "https://host/x?token=1",
            "https://user:secret@host:port/x",
            "gs://",
            "gs://user:secret@bucket/x",
            "gs://bucket/../x",
            "s3://key:secret@bucket",
        ],
    )
    def test_refuses_others_with_a_hint(self, url: str) -> None:
        with pytest.raises(UsageError) as caught:
            open_location(url)
        assert caught.value.hint
        assert "secret" not in str(caught.value)

    def test_relative_and_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", "/home/somebody")
        assert open_location("sub/dir").url == f"{tmp_path}/sub/dir"
        assert open_location("~/data").url == "/home/somebody/data"
        assert open_location("FILE:///data").url == "/data"
        assert open_location("file:///my%20data/").url == "/my data"


def test_the_root_directory_is_a_place_too() -> None:
    assert "etc" in open_location("/").folders()
    assert open_location("/").stat("etc/passwd").url == "/etc/passwd"
