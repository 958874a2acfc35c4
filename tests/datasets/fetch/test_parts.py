"""The small parts of the fetch layer: waits, index pages, checksums, read-ahead, and what importing it costs."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from rbdata.datasets.fetch import FetchOptions, RemoteObject, Verifier, open_location, read_ahead
from rbdata.datasets.fetch.http import accepted_encoding, parse_index
from rbdata.datasets.fetch.location import PerProcess, StoreLocation, hex_of_base64
from rbdata.datasets.fetch.retries import retry_after_seconds, wait_before_retry
from rbdata.errors import ChecksumError, TransientFetchError
from servers import crc32c_hex


class TestWaits:
    OPTIONS = FetchOptions(attempts=9, backoff=0.5)

    def waits(self, jitter: float) -> list[float | None]:
        return [wait_before_retry(n, self.OPTIONS, asked=None, jitter=jitter) for n in range(1, 10)]

    def test_double_up_to_the_cap_and_end(self) -> None:
        assert self.waits(1.0) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]

    def test_are_spread_over_the_upper_half(self) -> None:
        assert self.waits(0.0) == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, None]

    def test_the_server_may_ask_for_more(self) -> None:
        assert wait_before_retry(1, self.OPTIONS, asked=20.0, jitter=0.0) == 20.0
        assert wait_before_retry(1, self.OPTIONS, asked=0.0, jitter=0.0) == 0.25
        assert wait_before_retry(1, self.OPTIONS, asked=3600.0, jitter=0.0) is None

    def test_one_attempt_is_one_attempt(self) -> None:
        assert wait_before_retry(1, FetchOptions(attempts=1), asked=None, jitter=0.0) is None

    def test_retry_after(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert retry_after_seconds({}) is None
        assert retry_after_seconds({"Retry-After": "120"}) == 120.0
        for now, seconds in ((40.0, 60.0), (400.0, 0.0)):
            monkeypatch.setattr(time, "time", lambda now=now: now)
            assert retry_after_seconds({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}) == seconds
        assert retry_after_seconds({"Retry-After": "soon"}) is None


class TestIndexPages:
    URL = "http://host/data/Pong%20x/"

    def parse(self, *links: str, title: str = "Index of /data") -> tuple[tuple[str, ...], tuple[str, ...]]:
        body = "".join(f'<A HREF="{link}">x</a>' for link in links)
        index = parse_index(f"<title>{title}</title>{body}", self.URL)
        assert index.is_index
        return index.files, index.folders

    def test_relative_and_absolute_links(self) -> None:
        links = ("b", "./a", "/data/Pong%20x/c", "http://host/data/Pong%20x/d", "http://host/data/Pong x/e", "sub/")
        assert self.parse(*links) == (("a", "b", "c", "d", "e"), ("sub",))

    def test_plain_names_are_those_that_parsing_gives(self) -> None:
        for name in ("a", "a.b-c_d.0", "9", "_x", "folder/", "a..b"):
            assert self.parse(name) == self.parse(f"./{name}")

    def test_names_are_decoded(self) -> None:
        links = ("$store$_a.gz", "%24store%24_b.gz", "a%20b", "x&amp;y", "%E6%97%A5", "50%25")
        assert self.parse(*links)[0] == ("$store$_a.gz", "$store$_b.gz", "50%", "a b", "x&y", "日")

    def test_everything_else_is_left_out(self) -> None:
        links = ("?C=N;O=D", "../", "/", "/data/", "a/b", "sub/deeper/", "http://other/data/Pong%20x/f", "#top", "./")
        assert self.parse(*links, "mailto:x@y", "javascript:void(0)", "file?download=1", "", "http://[") == ((), ())

    def test_names_that_lead_out_are_left_out(self) -> None:
        assert self.parse("..%2f..%2fetc%2fpasswd", "%2e%2e/", "..%2f", "a%00b", "%2e%2e") == ((), ())

    def test_other_pages_are_no_index(self) -> None:
        page = '<html><title>Welcome</title><a href="/assets/app.js">x</a><script>..</script></html>'
        assert not parse_index(page, self.URL).is_index
        assert not parse_index("", self.URL).is_index
        assert parse_index('<a href="../">../</a>', self.URL).is_index
        assert parse_index("<h1>Directory listing for /x/</h1>", self.URL).is_index


class TestChecksums:
    DATA = b"0123456789" * 1000

    @pytest.mark.parametrize("algorithm", ["crc32c", "sha256", "md5"])
    def test_what_is_stated_is_checked(self, algorithm: str) -> None:
        right = crc32c_hex(self.DATA) if algorithm == "crc32c" else hashlib.new(algorithm, self.DATA).hexdigest()
        for stated in (right, right[::-1]):
            verifier = Verifier(RemoteObject("u", "u", len(self.DATA), {algorithm: stated}))
            for start in range(0, len(self.DATA), 777):
                verifier.update(self.DATA[start : start + 777])
            assert (verifier.algorithm, verifier.checksum, verifier.size) == (algorithm, right, len(self.DATA))
            if stated == right:
                verifier.finish()
            else:
                with pytest.raises(ChecksumError, match=algorithm):
                    verifier.finish()

    def test_the_fastest_is_preferred(self) -> None:
        assert Verifier(RemoteObject("u", "u", 1, {"md5": "", "crc32c": "", "sha256": ""})).algorithm == "crc32c"
        assert Verifier(RemoteObject("u", "u", 1, {"md5": "", "sha256": ""})).algorithm == "sha256"
        assert Verifier(RemoteObject("u", "u", 1, {})).algorithm == "crc32c"

    def test_sizes(self) -> None:
        verifier = Verifier(RemoteObject("u", "u", 3))
        verifier.update(b"ab")
        with pytest.raises(ChecksumError, match="2 of 3"):
            verifier.finish()
        with pytest.raises(ChecksumError, match="more than"):
            verifier.update(b"cd")

    def test_base64(self) -> None:
        assert hex_of_base64("AAECAw==") == "00010203"
        assert hex_of_base64("?") == ""


def test_google_sends_gzip_objects_as_stored_only_to_who_accepts_gzip() -> None:
    assert accepted_encoding("https://storage.googleapis.com/b/k") == "gzip"
    assert accepted_encoding("https://b.storage.googleapis.com/k") == "gzip"
    assert accepted_encoding("https://storage.googleapis.com.evil.example/k") == "identity"
    assert accepted_encoding("https://mirror.example/k") == "identity"


def test_a_value_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    holder: PerProcess[int] = PerProcess()

    def make() -> int:
        made.append(1)
        return len(made)

    assert [holder.get(make), holder.get(make)] == [1, 1]
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork
    assert [holder.get(make), holder.get(make)] == [2, 2]


def test_a_forked_process_does_not_close_the_client_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing goes through the parent's event loop, whose connections would end or hang."""
    s3fs, location = pytest.importorskip("s3fs"), open_location("s3://lab/run")
    closed: list[Any] = []
    monkeypatch.setattr(s3fs.S3FileSystem, "close_session", staticmethod(lambda loop, client: closed.append(client)))
    location._file_system()._open().connect()  # type: ignore[attr-defined]
    child = os.fork()
    if child == 0:
        location._file_system()._open()  # type: ignore[attr-defined]
        gc.collect()
        os._exit(len(closed))
    assert os.waitpid(child, 0)[1] == 0


class Source:
    """An iterator that notes what is done to it."""

    def __init__(self, count: int, *, fail_at: int | None = None, wait: threading.Event | None = None) -> None:
        self.count, self.fail_at, self.wait = count, fail_at, wait
        self.made = 0
        self.closed_by: str | None = None

    def __iter__(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                if number == self.fail_at:
                    message = "broken"
                    raise ValueError(message)
                if self.wait is not None:
                    self.wait.wait(100)
                self.made += 1
                yield number
        finally:
            self.closed_by = threading.current_thread().name

    def has_made(self, count: int) -> bool:
        return self.made >= count


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("rbdata-readahead")]


class TestReadAhead:
    @pytest.mark.parametrize("depth", [1, 100])
    def test_the_same_items_in_order(self, depth: int) -> None:
        assert list(read_ahead(Source(300), depth)) == list(range(300))
        wait_until(lambda: not threads())

    def test_nothing(self) -> None:
        assert list(read_ahead([], 3)) == []

    def test_never_more_than_depth_ahead(self) -> None:
        source = Source(100)
        with closing(read_ahead(source, 3)) as ahead:
            assert next(ahead) == 0
            wait_until(lambda: source.made == 4)
            time.sleep(0.05)
            assert source.made == 4
            assert next(ahead) == 1
            wait_until(lambda: source.made == 5)

    def test_works_while_the_consumer_does(self) -> None:
        source = Source(10)
        for number in read_ahead(source, 2):
            wait_until(partial(source.has_made, min(10, number + 3)))

    def test_errors_come_where_the_item_would_have(self) -> None:
        ahead = read_ahead(Source(10, fail_at=3), 2)
        assert [next(ahead) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="broken"):
            next(ahead)
        assert list(ahead) == []
        wait_until(lambda: not threads())

    def test_closing_stops_the_thread_and_closes_the_source(self) -> None:
        source = Source(10**9)
        ahead = read_ahead(source, 2)
        assert next(ahead) == 0
        ahead.close()
        ahead.close()
        wait_until(lambda: source.closed_by is not None and not threads())
        assert list(ahead) == []

    def test_closing_does_not_wait_for_a_silent_source(self) -> None:
        event = threading.Event()
        source = Source(10, wait=event)
        ahead = read_ahead(source, 2)
        threading.Timer(0.1, event.set).start()
        assert next(ahead) == 0
        event.clear()
        began = time.monotonic()
        ahead.close()
        assert time.monotonic() - began < 50
        event.set()
        wait_until(lambda: source.closed_by is not None and not threads())

    def test_a_forgotten_one_ends_its_thread(self) -> None:
        source = Source(10**9)
        ahead = read_ahead(source, 2)
        next(ahead)
        del ahead
        gc.collect()
        wait_until(lambda: source.closed_by is not None and not threads())


def test_importing_costs_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; import rbdata.datasets.fetch as fetch; fetch.open_location('/x'); fetch.open_location('gs://b');"
        "fetch.open_location('https://h/x');"
        "heavy = {'requests', 'google', 'urllib3', 'fsspec', 'ssl', 'torch', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_a_store_that_states_no_size():
    """Google's store describes an object by JSON: the size may be missing, or none."""

    class Store(StoreLocation):
        def _describe(self, obj: RemoteObject) -> RemoteObject:
            return obj

    with pytest.raises(TransientFetchError, match="states no size"):
        next(Store("gs://bucket").open(RemoteObject("gs://bucket/x", "x")))
