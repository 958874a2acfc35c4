"""What goes wrong on the way, against real servers: broken connections, silence, refusals, changes, lies."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rbdata.datasets.fetch import FetchOptions, Location, RemoteObject, Retry, open_location, read_all, retries, stream
from rbdata.datasets.fetch.gcs import may_have_credentials
from rbdata.datasets.fetch.http import HttpLocation
from rbdata.errors import (
    ChecksumError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    TransientFetchError,
)
from servers import (
    Faults,
    FaultyGcs,
    HttpServer,
    closed_port,
    crc32c_base64,
    faulty_gcs,
    gcs_server,
    http_server,
    md5_base64,
)

DATA = random.Random(2).randbytes(2 * 1024 * 1024 + 777)
QUICK = FetchOptions(attempts=4, backoff=0.0)
# Only where the server does fall silent: a busy machine is silent for a moment too.
SILENCE = 1.0


@pytest.fixture
def web(tmp_path: Path) -> Iterator[HttpServer]:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "$store$.gz").write_bytes(DATA)
    with http_server(tmp_path) as server:
        yield server


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyGcs]:
    # No credentials but those a test gives.
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with faulty_gcs() as server:
        server.upload("bucket", "run/$store$.gz", DATA)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
        yield server


class Remote:
    """One transport with faults to switch on."""

    def __init__(self, location: Location, faults: Faults, replace: Callable[[bytes], None]) -> None:
        self.location, self.faults, self.replace = location, faults, replace

    def stat(self) -> RemoteObject:
        return self.location.stat("$store$.gz")

    def stream(self, obj: RemoteObject | None = None, **more: object) -> bytes:
        return b"".join(stream(self.location, obj or self.stat(), **more))


@pytest.fixture(params=["http", "gcs"])
def remote(request: pytest.FixtureRequest) -> Remote:
    if request.param == "http":
        web: HttpServer = request.getfixturevalue("web")

        def write(data: bytes) -> None:
            (web.root / "run" / "$store$.gz").write_bytes(data)

        return Remote(open_location(f"{web.url}/run", options=QUICK), web.faults, write)
    gcs: FaultyGcs = request.getfixturevalue("gcs")

    def upload(data: bytes) -> None:
        gcs.upload("bucket", "run/$store$.gz", data)

    return Remote(open_location("gs://bucket/run", options=QUICK), gcs.faults, upload)


class TestWhatPasses:
    @pytest.mark.parametrize("after", [0, 70_000])
    @pytest.mark.parametrize("reset", [False, True])
    def test_a_broken_connection_continues_where_it_broke(self, remote: Remote, after: int, reset: bool) -> None:
        heard: list[Retry] = []
        got: list[int] = []
        remote.faults.cut(after=after, reset=reset)
        announced: list[str] = []
        with retries.listen(lambda why, seconds: announced.append(why)):
            assert remote.stream(on_retry=heard.append, on_bytes=got.append) == DATA
        assert sum(got) == len(DATA)
        assert len(heard) == len(announced) == 1
        assert "retry 1 of" in announced[0] and remote.location.url not in announced[0]
        assert heard[0].failures == 1
        assert 0 <= heard[0].offset <= after
        if not reset:
            assert heard[0].offset == after
        assert remote.location.url in str(heard[0].error)

    def test_progress_renews_patience(self, remote: Remote) -> None:
        remote.faults.cut(after=100_000, times=12)
        heard: list[Retry] = []
        assert remote.stream(on_retry=heard.append) == DATA
        assert len(heard) == 12
        assert {retry.failures for retry in heard} == {1}
        offsets = [retry.offset for retry in heard]
        assert offsets == sorted(set(offsets))

    def test_no_progress_ends_it(self, remote: Remote) -> None:
        obj = remote.stat()
        heard: list[Retry] = []
        remote.faults.cut(after=0, times=99)
        with pytest.raises(TransientFetchError, match="gave up after 4 attempts") as caught:
            remote.stream(obj, on_retry=heard.append)
        assert [retry.failures for retry in heard] == [1, 2, 3]
        assert obj.url in str(caught.value)
        assert caught.value.hint

    def test_silence_is_a_broken_connection(self, remote: Remote) -> None:
        obj = remote.stat()
        impatient = open_location(remote.location.url, options=replace(QUICK, silence_timeout=SILENCE))
        remote.faults.stall(after=200_000, seconds=600)  # longer than it would be waited for
        heard: list[Retry] = []
        began = time.monotonic()
        assert b"".join(stream(impatient, obj, on_retry=heard.append)) == DATA
        assert time.monotonic() - began > SILENCE * 0.8
        assert "timed out" in str(heard[0].error)

    @pytest.mark.parametrize("status", [408, 429, 500])
    def test_servers_in_trouble_are_asked_again(self, remote: Remote, status: int) -> None:
        obj = remote.stat()
        remote.faults.answer(status, times=3)
        heard: list[Retry] = []
        assert remote.stream(obj, on_retry=heard.append) == DATA
        assert [retry.failures for retry in heard] == [1, 2, 3]
        assert str(status) in str(heard[0].error)

    def test_stat_is_asked_again(self, remote: Remote) -> None:
        remote.faults.answer(503, times=3)
        assert remote.stat().size == len(DATA)
        remote.faults.answer(503, times=4)
        with pytest.raises(TransientFetchError, match="503"):
            remote.stat()

    def test_list_is_asked_again(self, remote: Remote) -> None:
        remote.faults.answer(503, times=2, folders=True)
        assert [obj.name for obj in remote.location.list()] == ["$store$.gz"]

    def test_retry_after_is_honoured(self, remote: Remote) -> None:
        obj = remote.stat()
        remote.faults.answer(429, retry_after="1")
        began = time.monotonic()
        waits: list[float] = []
        with retries.listen(lambda why, seconds: waits.append(seconds)):
            assert remote.stream(obj) == DATA
        assert waits == [1.0]
        assert time.monotonic() - began > 1.0

    def test_a_retry_after_of_an_hour_is_a_closed_door(self, remote: Remote) -> None:
        def wait(why: str, seconds: float) -> None:
            raise AssertionError(f"it would wait {seconds} s")

        obj = remote.stat()
        remote.faults.answer(503, retry_after="3600")
        with retries.listen(wait), pytest.raises(TransientFetchError, match="3600 seconds"):
            remote.stream(obj)


class TestWhatDoesNotPass:
    @pytest.mark.parametrize(
        ("status", "error"),
        [(401, ForbiddenError), (403, ForbiddenError), (404, ObjectNotFoundError), (410, ObjectNotFoundError)],
    )
    def test_closed_doors_fail_at_once(self, remote: Remote, status: int, error: type[FetchError]) -> None:
        obj = remote.stat()
        remote.faults.answer(status, times=9)
        heard: list[Retry] = []
        with pytest.raises(error) as caught:
            remote.stream(obj, on_retry=heard.append)
        assert heard == []
        assert obj.url in str(caught.value)
        assert caught.value.hint

    @pytest.mark.parametrize("size", [len(DATA), 1000])
    def test_an_object_replaced_half_way(self, remote: Remote, size: int) -> None:
        obj = remote.stat()
        pieces = stream(remote.location, obj)
        remote.faults.cut(after=500_000)
        got = next(pieces)
        remote.replace(bytes(size))
        with pytest.raises(ChecksumError, match="replaced") as caught:
            for piece in pieces:
                got += piece
        assert DATA.startswith(got)
        assert caught.value.hint

    def test_an_object_replaced_between_listing_and_reading(self, remote: Remote) -> None:
        obj = remote.stat()
        remote.replace(b"new" + DATA[3:])
        with pytest.raises(ChecksumError):
            remote.stream(obj)

    def test_errors_travel_between_processes(self, remote: Remote) -> None:
        remote.faults.answer(503, retry_after="9", times=99)
        with pytest.raises(TransientFetchError) as caught:
            list(remote.location.open(RemoteObject(url=f"{remote.location.url}/$store$.gz", name="x", size=9)))
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.hint, copy.retry_after) == (str(caught.value), caught.value.hint, 9.0)

    def test_a_host_that_does_not_answer(self) -> None:
        with closed_port() as url:
            with pytest.raises(TransientFetchError, match="gave up after 4 attempts") as caught:
                open_location(f"{url}/data", options=QUICK).list("run")
            assert f"{url}/data/run" in str(caught.value)
            assert "refused" in str(caught.value)

    def test_gcs_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with closed_port() as url:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            with pytest.raises(TransientFetchError, match="gs://bucket/run"):
                open_location("gs://bucket", options=QUICK).list("run")


class TestChecksums:
    def test_gcs_states_crc32c(self, gcs: FaultyGcs) -> None:
        gcs.wrong_crc = True
        location = open_location("gs://bucket/run", options=QUICK)
        with pytest.raises(ChecksumError, match="crc32c") as caught:
            list(stream(location, location.stat("$store$.gz")))
        assert "gs://bucket/run/$store$.gz" in str(caught.value)
        assert caught.value.hint

    @pytest.mark.parametrize(
        "headers",
        [
            {"x-goog-hash": f"crc32c={crc32c_base64(DATA)},md5={md5_base64(DATA)}"},
            {"Content-MD5": md5_base64(DATA)},
            {"x-goog-hash": "crc32c=not base64", "Content-MD5": md5_base64(DATA)},
        ],
    )
    def test_headers_of_web_servers(self, web: HttpServer, headers: dict[str, str]) -> None:
        location = open_location(f"{web.url}/run", options=QUICK)
        web.faults.headers = headers
        obj = location.stat("$store$.gz")
        assert obj.checksums
        assert b"".join(stream(location, obj)) == DATA
        (web.root / "run" / "$store$.gz").write_bytes(DATA[:-1] + b"!")
        with pytest.raises(ChecksumError):
            list(stream(location, location.stat("$store$.gz")))

    def test_an_etag_is_no_md5(self, web: HttpServer) -> None:
        web.faults.etag = '"0123456789abcdef0123456789abcdef"'
        location = open_location(f"{web.url}/run", options=QUICK)
        assert location.stat("$store$.gz").checksums == {}
        assert b"".join(stream(location, location.list()[0])) == DATA

    def test_sizes_that_are_not_true(self, web: HttpServer) -> None:
        web.faults.no_version = web.faults.no_length = True
        location = open_location(f"{web.url}/run", options=QUICK)
        url = location.list()[0].url
        for size in (len(DATA) - 1, 100):
            with pytest.raises(ChecksumError, match="more than"):
                list(stream(location, RemoteObject(url=url, name="x", size=size)))
        web.faults.ignore_range = True
        with pytest.raises(ChecksumError, match=f"{len(DATA)} of {len(DATA) + 9} bytes"):
            list(stream(location, RemoteObject(url=url, name="x", size=len(DATA) + 9)))

    def test_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"hello")
        location = open_location(tmp_path)
        (obj,) = location.list()
        for checksum in ("00000000", "9a71bb4c"):
            stated = RemoteObject(obj.url, obj.name, obj.size, {"crc32c": checksum}, obj.version)
            if checksum == "9a71bb4c":
                assert b"".join(stream(location, stated)) == b"hello"
            else:
                with pytest.raises(ChecksumError):
                    list(stream(location, stated))


class TestWebServers:
    def test_one_that_knows_no_ranges(self, web: HttpServer) -> None:
        web.faults.ignore_range = True
        location = open_location(f"{web.url}/run", options=QUICK)
        obj = location.stat("$store$.gz")
        assert b"".join(location.open(obj, 1_234_567)) == DATA[1_234_567:]
        web.faults.cut(after=300_000)
        web.faults.cut(after=600_000)
        assert b"".join(stream(location, obj)) == DATA

    def test_one_that_knows_no_head(self, web: HttpServer) -> None:
        web.faults.no_head = True
        location = open_location(f"{web.url}/run", options=QUICK)
        obj = location.stat("$store$.gz")
        assert obj.size == len(DATA)
        assert obj.version

    def test_one_connection_serves_several_requests(self, web: HttpServer) -> None:
        """Each new one costs several round trips, most of all with TLS."""
        location = open_location(f"{web.url}/run", options=QUICK)
        for _ in range(3):
            obj = location.stat("$store$.gz")
            assert location.read_range(obj, 10, 20) == DATA[10:30]
        assert b"".join(stream(location, obj)) == DATA
        assert web.faults.connections == 1

    def test_one_that_states_etags_of_get_only(self, web: HttpServer) -> None:
        """HEAD gives a date, GET an ETag as well: the object is the same, also after a lost connection."""
        web.faults.etag_of_get_only = True
        web.faults.cut(after=len(DATA) // 2)
        location = open_location(f"{web.url}/run", options=QUICK)
        obj = location.stat("$store$.gz")
        assert obj.version is not None and not obj.version.startswith('"')
        assert b"".join(stream(location, obj)) == DATA

    def test_one_with_weak_etags(self, web: HttpServer) -> None:
        web.faults.weak_etag = True
        location = open_location(f"{web.url}/run", options=QUICK)
        obj = location.stat("$store$.gz")
        assert obj.version is not None
        assert obj.version.endswith("GMT")
        web.faults.cut(after=300_000)
        assert b"".join(stream(location, obj)) == DATA

    def test_one_that_states_nothing_cannot_be_continued(self, web: HttpServer) -> None:
        web.faults.no_version = web.faults.no_length = True
        location = open_location(f"{web.url}/run", options=QUICK)
        (obj,) = location.list()
        assert b"".join(stream(location, obj)) == DATA
        web.faults.cut(after=500_000, reset=True)
        with pytest.raises(TransientFetchError, match="cannot be resumed"):
            list(stream(location, obj))
        # Before the first byte there is nothing to mix up.
        web.faults.answer(503, times=2)
        assert b"".join(stream(location, obj)) == DATA

    def test_a_body_shorter_than_its_length(self, web: HttpServer) -> None:
        location = open_location(f"{web.url}/run", options=QUICK)
        web.faults.cut(after=1000)
        with pytest.raises(TransientFetchError, match="bytes missing"):
            list(location.open(RemoteObject(location.list()[0].url, "x")))

    def test_an_end_that_nobody_announced(self, web: HttpServer) -> None:
        # Without Content-Length a cut looks like the end; only the size from elsewhere tells.
        location = open_location(f"{web.url}/run", options=QUICK)
        obj = location.stat("$store$.gz")
        web.faults.no_length = True
        web.faults.cut(after=400_000)
        heard: list[Retry] = []
        assert b"".join(stream(location, obj, on_retry=heard.append)) == DATA
        assert [retry.offset for retry in heard] == [400_000]

    def test_a_web_page_is_not_a_file(self, web: HttpServer) -> None:
        location = open_location(f"{web.url}/run", options=QUICK)
        (obj,) = location.list()
        web.faults.html = True
        for call in (lambda: location.stat("$store$.gz"), lambda: list(stream(location, obj))):
            with pytest.raises(FetchError, match="web page") as caught:
                call()
            assert not isinstance(caught.value, TransientFetchError)
            assert caught.value.hint

    def test_a_login_page_by_redirect(self, web: HttpServer) -> None:
        (web.root / "login.html").write_text("<html>")
        location = open_location(f"{web.url}/run", options=QUICK)
        web.faults.folder_redirect = f"{web.url}/login.html"
        with pytest.raises(FetchError, match="login"):
            location.list()

    def test_redirects_to_the_file_are_followed(
        self, web: HttpServer, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        other = tmp_path_factory.mktemp("cdn")
        (other / "blob").write_bytes(DATA)
        with http_server(other) as cdn:
            web.faults.redirect = f"{cdn.url}/blob"
            location = open_location(f"{web.url}/run", options=QUICK)
            obj = location.stat("$store$.gz")
            assert obj.url == f"{web.url}/run/%24store%24.gz"
            cdn.faults.cut(after=100_000)
            assert b"".join(stream(location, obj)) == DATA

    @pytest.mark.parametrize("target", ["http://[x", "http://a:b/", "http://", "x://y"])
    def test_redirects_to_no_address(self, web: HttpServer, target: str) -> None:
        web.faults.folder_redirect = target
        with pytest.raises(FetchError):
            HttpLocation.from_url(web.url, QUICK).list("run")

    def test_redirects_in_circles(self, web: HttpServer) -> None:
        web.faults.redirect = f"{web.url}/run/%24store%24.gz"
        with pytest.raises(FetchError, match="too many redirects"):
            open_location(f"{web.url}/run", options=QUICK).stat("$store$.gz")

    def test_gzip_encoding_is_left_alone(self, web: HttpServer) -> None:
        # Servers that say 'Content-Encoding: gzip' for every .gz file mean the file itself.
        web.faults.encode_gzip = True
        location = open_location(f"{web.url}/run", options=QUICK)
        obj = location.stat("$store$.gz")
        packed = gzip.compress(DATA, mtime=0)
        assert obj.size == len(packed)
        web.faults.cut(after=100_000)
        assert b"".join(stream(location, obj)) == packed

    def test_logins(self, web: HttpServer) -> None:
        web.faults.login = ("user", "p@ss/word")
        with pytest.raises(ForbiddenError):
            open_location(f"{web.url}/run", options=QUICK).list()
        address = web.url.removeprefix("http://")
        location = open_location(f"http://user:p%40ss%2Fword@{address}/run", options=QUICK)
        (obj,) = location.list()
        assert "word" not in obj.url
        assert b"".join(stream(pickle.loads(pickle.dumps(location)), obj)) == DATA

    def test_no_index(self, web: HttpServer) -> None:
        web.index_style("none")
        location = open_location(f"{web.url}/run", options=QUICK)
        with pytest.raises(ForbiddenError):
            location.list()
        assert read_all(location, location.stat("$store$.gz"), limit_bytes=1 << 22) == DATA


class TestGoogle:
    def test_more_than_a_thousand_objects(self, gcs: FaultyGcs) -> None:
        for number in range(2500):
            gcs.objects["bucket", f"many/{number:05}"] = (b"", 1)
        location = open_location("gs://bucket", options=QUICK)
        assert [obj.name for obj in location.list("many")] == [f"{number:05}" for number in range(2500)]

    def test_closed_to_anonymous_readers_without_credentials(self, gcs: FaultyGcs) -> None:
        gcs.closed_to_anonymous = True
        for status in (401, 403):
            gcs.refusal = status
            location = open_location("gs://bucket/run", options=QUICK)
            began = time.monotonic()
            with pytest.raises(ForbiddenError) as caught:
                location.list()
            assert time.monotonic() - began < 20  # asking the metadata server of a cloud machine takes minutes
            assert "gs://bucket/run" in str(caught.value)
            assert "--mirror" in (caught.value.hint or "")
            assert "gcloud auth" in (caught.value.hint or "")

    @pytest.mark.skipif(may_have_credentials(), reason="this machine may have a login to Google")
    def test_no_metadata_server_is_asked_for_credentials(
        self, gcs: FaultyGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """google.auth waits for it, three times for three seconds, and warns: outside Google's cloud there is none."""
        gcs.closed_to_anonymous = True
        with http_server(tmp_path) as metadata:
            monkeypatch.setenv("GCE_METADATA_IP", metadata.url.removeprefix("http://"))
            with pytest.raises(ForbiddenError):
                open_location("gs://bucket/run", options=QUICK).list()
        assert not metadata.faults.requests

    def test_closed_to_anonymous_readers_with_credentials(
        self, gcs: FaultyGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account(tmp_path, gcs.host)))
        gcs.closed_to_anonymous = True
        location = open_location("gs://bucket/run", options=QUICK)
        (obj,) = location.list()
        gcs.faults.cut(after=700_000)
        before = len(gcs.faults.requests)
        assert b"".join(stream(location, obj)) == DATA
        # Let in once, it does not ask anonymously again: one request a range, and one for the cut.
        assert len(gcs.faults.requests) - before == 3
        assert len(gcs.tokens) == 1

    def test_readers_who_pay(self, gcs: FaultyGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gcs.requester_pays = True
        with pytest.raises(ForbiddenError) as caught:
            open_location("gs://bucket/run", options=QUICK).list()
        assert "--user-project" in (caught.value.hint or "")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account(tmp_path, gcs.host)))
        location = open_location("gs://bucket/run", options=FetchOptions(user_project="mine"))
        assert b"".join(stream(location, location.list()[0])) == DATA
        assert gcs.tokens

    def test_an_object_removed_while_reading(self, gcs: FaultyGcs) -> None:
        location = open_location("gs://bucket/run", options=QUICK)
        (obj,) = location.list()
        pieces = stream(location, obj)
        next(pieces)
        del gcs.objects["bucket", "run/$store$.gz"]
        gcs.upload("bucket", "other", b"")
        with pytest.raises(ObjectNotFoundError):
            list(pieces)

    def test_a_server_without_ranges(self, gcs: FaultyGcs) -> None:
        gcs.faults.ignore_range = True
        location = open_location("gs://bucket/run", options=QUICK)
        with pytest.raises(FetchError, match="more"):
            list(stream(location, location.list()[0]))

    def test_gzip_encoded_objects_come_as_stored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        packed = gzip.compress(b"content " * 1000)
        with gcs_server() as server:
            server.upload("bucket", "x.gz", packed, content_encoding="gzip")
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
            location = open_location("gs://bucket", options=QUICK)
            assert read_all(location, location.stat("x.gz"), limit_bytes=10_000) == packed

    def test_the_first_bytes_come_early(self, gcs: FaultyGcs) -> None:
        location = open_location("gs://bucket/run", options=QUICK)
        pieces = location.open(location.list()[0])
        next(pieces)
        assert [span for path, span in gcs.faults.gets() if span] == [f"bytes=0-{(1 << 20) - 1}"]


def service_account(folder: Path, host: str) -> Path:
    """A key file whose tokens the faulty GCS hands out."""
    path = folder / "key.json"
    content = {
        "type": "service_account",
        "project_id": "test",
        "private_key_id": "1",
        "private_key": private_key(),
        "client_email": "test@test.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{host}/token",
    }
    path.write_text(json.dumps(content))
    return path


@cache
def private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(*form, serialization.NoEncryption()).decode()


class TestDirectories:
    def test_a_file_that_is_still_being_written(self, tmp_path: Path) -> None:
        path = tmp_path / "growing"
        path.write_bytes(DATA)
        location = open_location(tmp_path)
        (obj,) = location.list()
        pieces = stream(location, obj)
        next(pieces)
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(ChecksumError, match="growing") as caught:
            list(pieces)
        assert caught.value.hint

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_one_that_may_not_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "closed").mkdir(mode=0o000)
        with pytest.raises(ForbiddenError):
            open_location(tmp_path).list("closed")

    def test_links(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("file")
        (tmp_path / "linked-folder").symlink_to("folder")
        (tmp_path / "nowhere").symlink_to("missing")
        os.mkfifo(tmp_path / "pipe")
        location = open_location(tmp_path)
        assert [obj.name for obj in location.list()] == ["file", "link"]
        assert location.folders() == ["folder", "linked-folder"]
        with pytest.raises(ObjectNotFoundError):
            location.stat("pipe")

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(ObjectNotFoundError):
            open_location(tmp_path).list("file")
        with pytest.raises(ObjectNotFoundError):
            open_location(tmp_path / "file").list()


def test_read_all_refuses_what_is_too_large(web: HttpServer) -> None:
    location = open_location(f"{web.url}/run", options=QUICK)
    with pytest.raises(FetchError, match="larger") as caught:
        read_all(location, location.list()[0], limit_bytes=len(DATA) - 1)
    assert caught.value.hint
    web.faults.no_length = web.faults.no_version = True
    with pytest.raises(FetchError, match="larger"):
        read_all(location, location.list()[0], limit_bytes=len(DATA) - 1)
    assert read_all(location, location.list()[0], limit_bytes=len(DATA)) == DATA


class TestNamesThatDoNotResolve:
    @pytest.fixture
    def lookups(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Every host name that is looked up; only those in ``known`` resolve."""
        asked: list[str] = []

        def look_up(host: str, *rest: Any, **more: Any) -> Any:
            asked.append(host)
            if host in self.known:
                return real("127.0.0.1", *rest, **more)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        real = socket.getaddrinfo
        self.known: set[str] = set()
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return asked

    @pytest.mark.parametrize("ask", [lambda place: place.stat("x"), lambda place: place.list("")])
    @pytest.mark.parametrize("url", ["https://nowhere.example:88/data", "hf://nobody/data"])
    def test_are_given_up_soon(self, lookups: list[str], url: str, ask: Callable[[Location], object]) -> None:
        location = open_location(url, options=FetchOptions(backoff=0.0))
        with pytest.raises(TransientFetchError, match=r"Name or service not known.*after 3 attempts"):
            ask(location)
        assert len(lookups) == 3

    def test_of_a_bucket(self, lookups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        with pytest.raises(TransientFetchError, match="after 3 attempts"):
            open_location("gs://nobodys-bucket", options=FetchOptions(backoff=0.0)).list("")

    def test_one_attempt_stays_one(self, lookups: list[str]) -> None:
        with pytest.raises(TransientFetchError, match=r"after 1 attempt\n"):
            open_location("http://nowhere.example", options=FetchOptions(attempts=1)).stat("x")

    def test_a_host_that_was_reached_is_asked_as_often_as_others(self, lookups: list[str], web: HttpServer) -> None:
        """The network is down for a while: names that were known a minute ago are unknown."""
        self.known = {"127.0.0.1", "somewhere.example"}
        url = web.url.replace("127.0.0.1", "somewhere.example")
        options = FetchOptions(backoff=0.0)
        location = open_location(url, options=options)
        item = location.stat("run/$store$.gz")
        self.known = set()
        again = open_location(url, options=options)  # without the connection that is open
        for ask in (lambda: again.stat("run/$store$.gz"), lambda: read_all(again, item, limit_bytes=1 << 30)):
            with pytest.raises(TransientFetchError, match="after 6 attempts"):
                ask()
