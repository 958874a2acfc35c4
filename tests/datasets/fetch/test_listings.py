"""Listings from a server that sends whatever it likes: many pages, names that lead elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from rbdata.datasets.fetch import FetchOptions, open_location
from servers import running

QUICK = FetchOptions(attempts=1, backoff=0.0)
URLS = ["gs://lab/run", "hf://lab/run", "s3://lab/run"]


class Entry:
    """An object as the three stores list it."""

    def __init__(self, key: str, size: Any = 1) -> None:
        self.google = {"name": key, "size": str(size), "generation": "1"}
        self.hub = {"type": "file", "path": key.removeprefix("run/"), "size": size, "oid": "0" * 40}
        escaped = key.replace("&", "&amp;").replace("<", "&lt;")
        self.s3 = f"<Contents><Key>{escaped}</Key><Size>{size}</Size></Contents>"


class Store:
    """Answers every listing with these entries, and with a token that leads on."""

    def __init__(self) -> None:
        self.entries = [Entry("run/a")]
        self.token: Callable[[], str | None] = lambda: None
        self.asked = 0

    def answer(self, path: str, host: str) -> tuple[bytes, str]:
        token = self.token()
        if "/revision/" in path:
            return json.dumps({"sha": "0" * 40}).encode(), ""
        self.asked += 1
        if path.startswith("/api/"):
            body = json.dumps([entry.hub for entry in self.entries]).encode()
            return body, f'<http://{host}{path}?cursor={token}>; rel="next"' if token else ""
        if path.startswith("/storage/"):
            return json.dumps({"items": [entry.google for entry in self.entries], "nextPageToken": token}).encode(), ""
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        found = "".join(entry.s3 for entry in self.entries)
        return f"<ListBucketResult>{found}{more}</ListBucketResult>".encode(), ""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    store = Store()

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True
        wbufsize = 1 << 16

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if "list-type" not in parse_qs(address.query) and not address.path.startswith(("/api", "/storage")):
                self.send_error(404)
                return
            body, link = store.answer(address.path, self.headers["Host"])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Link", link)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with running(server) as url:
        for variable in ("STORAGE_EMULATOR_HOST", "HF_ENDPOINT", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(variable, url)
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(variable, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield store


def names(url: str) -> list[str]:
    return [item.name for item in open_location(url, options=QUICK).list()]


@pytest.mark.parametrize("url", URLS)
class TestEveryStore:
    def test_pages_are_read_to_the_last(self, url: str, store: Store) -> None:
        numbers = count(1)
        store.token = lambda: str(number) if (number := next(numbers)) < 5 else None
        assert set(names(url)) == {"a"}
        assert 3 < store.asked < 6

    def test_names_that_lead_elsewhere(self, url: str, store: Store) -> None:
        keys = ["run/../x", "run/b/../../x", "elsewhere/x", "/etc/passwd", "run//x", "run/.."]
        store.entries = [Entry("run/a"), *map(Entry, keys)]
        found = open_location(url, options=QUICK).list()
        assert {item.url for item in found} <= {f"{url}/a", f"{url}/x"}  # the Hub's `run/x` is inside
