"""Real servers on this machine for tests: a web server with faults, the GCS emulator, a GCS of our own with faults.

    with http_server(tmp_path) as server:
        server.url                      # http://127.0.0.1:<port>
        server.faults.cut(after=1000)   # the next response breaks off after 1000 bytes of its body

    with gcs_server({"bucket": tmp_path}) as server:
        server.upload("bucket", "folder/name", b"...")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)

    with faulty_gcs() as server:        # speaks the JSON API: pages, generations, error bodies; has `faults` too

All listen on 127.0.0.1 at a port the system chooses, and are gone when the `with` block ends.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import html
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cached_property, partial
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import google_crc32c


def crc32c_base64(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def crc32c_hex(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def md5_base64(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


# -- faults ----------------------------------------------------------------------------------------------------------


@dataclass
class Faults:
    """What goes wrong, for requests of files (folders have faults only by `answer(..., folders=True)`).

    `requests` logs every request as (method, path, Range header or None).
    """

    ignore_range: bool = False
    no_head: bool = False
    no_length: bool = False
    """No Content-Length: the end of the connection is the end of the body."""
    no_version: bool = False
    """Neither ETag nor Last-Modified."""
    weak_etag: bool = False
    etag_of_get_only: bool = False
    """HEAD states Last-Modified alone."""
    html: bool = False
    """A login page where the file should be."""
    redirect: str | None = None
    """Send every request for a file there (a URL)."""
    folder_redirect: str | None = None
    encode_gzip: bool = False
    """Content-Encoding: gzip, whatever the client accepts."""
    etag: str | None = None
    login: tuple[str, str] | None = None
    """Basic authentication that is asked for."""
    headers: dict[str, str] = field(default_factory=dict)
    """More headers on every file, on top of the ordinary ones."""
    before: Callable[[Path], object] = lambda path: None
    """Called before a file is sent: it may wait."""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    connections: int = 0
    """Accepted so far."""
    released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answers: list[tuple[int, dict[str, str], bool]] = field(default_factory=list)
    _cuts: list[tuple[int, bool]] = field(default_factory=list)
    _stalls: list[tuple[int, float]] = field(default_factory=list)

    def answer(self, status: int, *, times: int = 1, retry_after: str | None = None, folders: bool = False) -> None:
        """Answer the next `times` requests (of GET and HEAD) with this status."""
        headers = {"Retry-After": retry_after} if retry_after is not None else {}
        with self._lock:
            self._answers += [(status, headers, folders)] * times

    def cut(self, *, after: int, times: int = 1, reset: bool = False) -> None:
        """Break off the next `times` bodies after so many bytes, by closing, or by a reset."""
        with self._lock:
            self._cuts += [(after, reset)] * times

    def stall(self, *, after: int, seconds: float = 30.0, times: int = 1) -> None:
        """Fall silent after so many bytes of the next `times` bodies."""
        with self._lock:
            self._stalls += [(after, seconds)] * times

    def take_answer(self, *, folder: bool) -> tuple[int, dict[str, str]] | None:
        with self._lock:
            if self._answers and (not folder or self._answers[0][2]):
                status, headers, _ = self._answers.pop(0)
                return status, headers
        return None

    def take_cut(self) -> tuple[int, bool] | None:
        with self._lock:
            return self._cuts.pop(0) if self._cuts else None

    def take_stall(self) -> tuple[int, float] | None:
        with self._lock:
            return self._stalls.pop(0) if self._stalls else None

    def gets(self) -> list[tuple[str, str | None]]:
        """Path and Range of the GET requests so far."""
        return [(path, span) for method, path, span in self.requests if method == "GET"]


# SO_LINGER on, zero seconds: closing sends a reset.
ABORT = struct.pack("ii", 1, 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    faults: Faults

    def setup(self) -> None:
        with self.faults._lock:
            self.faults.connections += 1
        super().setup()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def log_request_of_client(self) -> None:
        self.faults.requests.append((self.command, unquote(urlsplit(self.path).path), self.headers.get("Range")))

    def send_small(self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_data(self, data: bytes | memoryview, status: int, headers: Mapping[str, str]) -> None:
        """Headers and body, with the faults of the body."""
        cut, stall = (self.faults.take_cut(), self.faults.take_stall()) if self.command != "HEAD" else (None, None)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.faults.no_length:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if stall is not None:
            after, seconds = stall
            self.wfile.write(data[:after])
            self.wfile.flush()
            self.faults.released.wait(seconds)
            self.close_connection = True
            return
        if cut is not None:
            after, reset = cut
            self.wfile.write(data[:after])
            self.wfile.flush()
            if reset:
                # Long enough for the bytes to be read before the reset discards them.
                time.sleep(0.05)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            self.close_connection = True
            return
        self.wfile.write(data)

    def asked_range(self, size: int) -> tuple[int, int] | None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if match is None or self.faults.ignore_range:
            return None
        return int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)


#: Connections that may wait: the default of 5 is fewer than a client opens at once, and one that is refused tries again
#: after a second.
BACKLOG = 128


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        # An orderly shutdown would send FIN first, and the reset that was asked for would pass for a clean end.
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == ABORT:
            request.close()
        else:
            super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that goes away is part of the tests


@contextlib.contextmanager
def running(server: BaseServer) -> Iterator[str]:
    """Answers in a thread; gives the server's URL. `serve_forever` would see after half a second that it is to end."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _serving(handler: type[_Handler], faults: Faults) -> Iterator[str]:
    with running(_Server(("127.0.0.1", 0), handler)) as url:
        try:
            yield url
        finally:
            faults.released.set()


# -- a web server ----------------------------------------------------------------------------------------------------


@dataclass
class HttpServer:
    url: str
    root: Path
    faults: Faults
    style: list[str]

    def index_style(self, style: str) -> None:
        """'python', 'nginx', 'apache', or 'none' (403, as servers without indexes do)."""
        self.style[0] = style


@contextlib.contextmanager
def http_server(root: Path) -> Iterator[HttpServer]:
    """Serves the files under `root`, with ranges, ETag, If-Range and directory indexes."""
    faults, style = Faults(), ["python"]

    class Handler(_Handler):
        def do_GET(self) -> None:
            self.log_request_of_client()
            raw = urlsplit(self.path).path
            path = root.joinpath(*[unquote(part) for part in raw.split("/") if part])
            if faults.login is not None:
                expected = "Basic " + base64.b64encode(":".join(faults.login).encode()).decode()
                if self.headers.get("Authorization") != expected:
                    return self.send_small(401, b"who?", "text/plain", {"WWW-Authenticate": "Basic"})
            answer = faults.take_answer(folder=path.is_dir())
            if answer is not None:
                return self.send_small(answer[0], b"no", "text/plain", answer[1])
            if self.command == "HEAD" and faults.no_head:
                return self.send_small(405, b"", "text/plain")
            if path.is_dir():
                return self.send_folder(path, raw)
            if not path.is_file() or raw.endswith("/"):
                return self.send_small(404, b"<html>not here</html>", "text/html")
            return self.send_file(path)

        do_HEAD = do_GET

        def send_folder(self, path: Path, raw: str) -> None:
            if faults.folder_redirect is not None:
                return self.send_small(302, b"", "text/plain", {"Location": faults.folder_redirect})
            if not raw.endswith("/"):
                return self.send_small(301, b"", "text/plain", {"Location": raw + "/"})
            if style[0] == "none":
                return self.send_small(403, b"no listing", "text/html")
            return self.send_small(200, index_page(path, raw, style[0]).encode(), "text/html;charset=utf-8")

        def send_file(self, path: Path) -> None:
            if self.command == "GET":
                faults.before(path)
            if faults.redirect is not None:
                return self.send_small(302, b"", "text/plain", {"Location": faults.redirect})
            if faults.html:
                return self.send_small(200, b"<html><title>Log in</title></html>", "text/html")
            data, found = path.read_bytes(), path.stat()
            etag = faults.etag or f'"{found.st_mtime_ns:x}-{found.st_size:x}"'
            headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
            if not faults.no_version:
                if not (faults.etag_of_get_only and self.command == "HEAD"):
                    headers["ETag"] = f"W/{etag}" if faults.weak_etag else etag
                headers["Last-Modified"] = formatdate(found.st_mtime, usegmt=True)
            if faults.encode_gzip:
                data = gzip.compress(data, mtime=0)
                headers["Content-Encoding"] = "gzip"
            headers.update(faults.headers)
            asked = self.asked_range(len(data))
            condition = self.headers.get("If-Range")
            if asked is not None and condition not in (None, headers.get("ETag"), headers.get("Last-Modified")):
                asked = None
            if asked is None:
                return self.send_data(data, 200, headers)
            start, end = asked
            if start >= len(data):
                return self.send_small(416, b"", "text/plain", {"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            return self.send_data(memoryview(data)[start:end], 206, headers)

    Handler.faults = faults
    with _serving(Handler, faults) as url:
        yield HttpServer(url, Path(root), faults, style)


def index_page(path: Path, url_path: str, style: str) -> str:
    """A directory index as the real servers write it, their sort links and parents included."""
    entries = sorted(path.iterdir(), key=lambda entry: (entry.is_file(), entry.name))
    names = [entry.name + ("/" if entry.is_dir() else "") for entry in entries]
    title = html.escape(unquote(url_path))
    rows = []
    if style == "nginx":
        if url_path != "/":
            rows.append('<a href="../">../</a>')
        # nginx leaves '$' as it is, and cuts long names in what it shows.
        rows += [f'<a href="{quote(name, safe="/$")}">{html.escape(name[:20])}..&gt;</a> 1K' for name in names]
        head = f"<html><head><title>Index of {title}</title></head><body><h1>Index of {title}</h1><hr>"
        return head + "<pre>" + "\n".join(rows) + "</pre></body></html>"
    if style == "apache":
        rows += [f'<tr><th><a href="?C={column};O=D">{column}</a></th></tr>' for column in "NMSD"]
        parent = url_path.rstrip("/").rpartition("/")[0] + "/"
        rows.append(f'<tr><td><img src="/icons/back.gif"></td><td><a href="{parent}">Parent Directory</a></td></tr>')
        for name in names:
            link = quote(name, safe="/$&").replace("&", "&amp;")
            rows.append(f'<tr><td><a href="{link}"><img src="/icons/x.gif"></a></td>')
            rows.append(f'<td><a href="{link}">{html.escape(name)}</a></td><td align="right">1.0M</td></tr>')
        head = f'<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN"><html><head><title>Index of {title}</title>'
        return head + "</head><body><table>" + "\n".join(rows) + "</table><address>Apache</address></body></html>"
    rows += [f'<li><a href="{quote(name)}">{html.escape(name)}</a></li>' for name in names]
    head = f'<!DOCTYPE HTML><html lang="en"><head><title>Directory listing for {title}</title></head>'
    return f"{head}<body><h1>Directory listing for {title}</h1><hr><ul>{''.join(rows)}</ul><hr></body></html>"


# -- Google Cloud Storage: the emulator ------------------------------------------------------------------------------


@dataclass
class GcsServer:
    host: str
    """What STORAGE_EMULATOR_HOST must be."""

    def upload(self, bucket: str, key: str, data: bytes, *, content_encoding: str | None = None) -> None:
        """Put an object into a bucket, which is made when missing; with the real client."""
        if bucket not in [found.name for found in self.client.list_buckets()]:
            self.client.create_bucket(bucket)
        blob = self.client.bucket(bucket).blob(key)
        blob.content_encoding = content_encoding
        blob.upload_from_string(data, content_type="application/octet-stream")

    @cached_property
    def client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        options = {"api_endpoint": self.host}
        client = storage.Client(project="test", credentials=AnonymousCredentials(), client_options=options)
        client._bucket_metadata_cache = None
        return client

    def upload_folder(self, bucket: str, folder: Path, prefix: str = "") -> None:
        """Put every file under the folder into the bucket, keys relative to the folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.upload(bucket, prefix + path.relative_to(folder).as_posix(), path.read_bytes())


@contextlib.contextmanager
def gcs_server(buckets: Mapping[str, Path] | None = None) -> Iterator[GcsServer]:
    """gcp-storage-emulator in memory, with these folders uploaded. It knows no generations, pages or faults."""
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    server = HTTPServer(("127.0.0.1", 0), partial(RequestHandler, Storage(use_memory_fs=True)))
    server.socket.listen(BACKLOG)
    with running(server) as url:
        handle = GcsServer(url)
        for bucket, folder in (buckets or {}).items():
            handle.upload_folder(bucket, folder)
        yield handle


# -- Google Cloud Storage: one with faults ---------------------------------------------------------------------------


@dataclass
class FaultyGcs:
    host: str
    faults: Faults
    objects: dict[tuple[str, str], tuple[bytes, int]]
    """(bucket, key) to (bytes, generation)."""
    page_size: int = 1000
    closed_to_anonymous: bool = False
    refusal: int = 401
    """The status for who is not let in."""
    requester_pays: bool = False
    wrong_crc: bool = False
    tokens: list[str] = field(default_factory=list)
    """Grants handed out at /token, for a service account whose token_uri is host + '/token'."""

    def upload(self, bucket: str, key: str, data: bytes) -> None:
        _, generation = self.objects.get((bucket, key), (b"", 1000))
        self.objects[bucket, key] = (data, generation + 1)


@contextlib.contextmanager
def faulty_gcs() -> Iterator[FaultyGcs]:
    """The part of the JSON API that readers use."""
    faults = Faults()
    handle = FaultyGcs("", faults, {})

    class Handler(_Handler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path != "/token":
                return self.send_error_body(404, "no such page")
            handle.tokens.append("granted")
            body = json.dumps({"access_token": "let-me-in", "expires_in": 3600, "token_type": "Bearer"})
            return self.send_small(200, body.encode(), "application/json")

        def do_GET(self) -> None:
            self.log_request_of_client()
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            answer = faults.take_answer(folder=False)
            if answer is not None:
                return self.send_error_body(answer[0], "a fault made for a test", answer[1])
            if handle.closed_to_anonymous and self.headers.get("Authorization") != "Bearer let-me-in":
                return self.send_error_body(
                    handle.refusal, "Anonymous caller does not have storage.objects.list access"
                )
            if handle.requester_pays and "userProject" not in query:
                return self.send_error_body(400, "Bucket is a requester pays bucket but no user project provided.")
            match = re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?", parts.path)
            if match is None or not any(bucket == match[1] for bucket, _ in handle.objects):
                return self.send_error_body(404, "The specified bucket does not exist.")
            if match[2] is None:
                return self.send_list(match[1], query)
            return self.send_object(match[1], unquote(match[2]), query)

        def send_list(self, bucket: str, query: dict[str, str]) -> None:
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
            found: dict[str, bool] = {}
            for name in sorted(key for owner, key in handle.objects if owner == bucket and key.startswith(prefix)):
                head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                found[prefix + head + cut if cut else name] = bool(cut)
            first = int(query.get("pageToken", "0"))
            size = min(handle.page_size, int(query.get("maxResults", "1000")))
            page = [*found.items()][first : first + size]
            body: dict[str, object] = {
                "items": [self.described(bucket, name) for name, is_prefix in page if not is_prefix],
                "prefixes": [name for name, is_prefix in page if is_prefix],
            }
            if first + size < len(found):
                body["nextPageToken"] = str(first + size)
            return self.send_small(200, json.dumps(body).encode(), "application/json")

        def send_object(self, bucket: str, key: str, query: dict[str, str]) -> None:
            data, generation = handle.objects.get((bucket, key), (b"", -1))
            if generation < 0 or query.get("generation", str(generation)) != str(generation):
                return self.send_error_body(404, f"No such object: {bucket}/{key}")
            if query.get("alt") != "media":
                body = json.dumps(self.described(bucket, key)).encode()
                return self.send_small(200, body, "application/json")
            start, end = self.asked_range(len(data)) or (0, len(data))
            headers = {"Content-Type": "application/octet-stream", "X-Goog-Generation": str(generation)}
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            return self.send_data(memoryview(data)[start:end], 206, headers)

        def described(self, bucket: str, key: str) -> dict[str, str]:
            data, generation = handle.objects[bucket, key]
            crc = crc32c_base64(data + b"!" if handle.wrong_crc else data)
            return {"name": key, "bucket": bucket, "size": str(len(data)), "generation": str(generation), "crc32c": crc}

        def send_error_body(self, status: int, message: str, headers: Mapping[str, str] = {}) -> None:
            reason = [{"domain": "global", "reason": "test", "message": message}]
            body = {"error": {"code": status, "message": message, "errors": reason}}
            return self.send_small(status, json.dumps(body).encode(), "application/json", headers)

    Handler.faults = faults
    with _serving(Handler, faults) as url:
        handle.host = url
        yield handle


@contextlib.contextmanager
def closed_port() -> Iterator[str]:
    """A URL where nobody listens, and nobody will: the port is taken but not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
