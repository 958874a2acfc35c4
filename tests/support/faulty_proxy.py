"""A web server that passes requests on to another one, and spoils what comes back: faults before any server of the tests.

    with faulty_proxy("http://127.0.0.1:4443") as proxy:             # the emulator of Google Cloud Storage, moto, ...
        proxy.spoil = lambda asked: Fault("reset", 0.5) if asked.number == 3 else None
        ... reads from proxy.url

`KINDS` has every kind of fault. Where a fault depends on a place in the body, `Fault.at` is its share of the bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import urlsplit

from servers import ABORT, Faults, _Handler, _serving

#: How the transfer of a sound answer fails.
BROKEN = ("refuse", "reset", "close", "stall", "drip", "drip-headers", "garbage", "unchunked")
#: Answers that end early, and are whole as far as HTTP is concerned.
SHORT = ("short", "short-without-length", "empty")
#: Answers with other bytes than those that are stored.
WRONG = ("long", "flip", "shifted", "shifted-openly", "whole", "begun-anew", "gzip", "html", "html-as-data", "json")
#: Other answers than the one asked for.
REFUSED = ("408", "416", "425", "429", "500", "502", "503", "504", "403", "404", "401", "circle", "elsewhere", "away")
CHANGED = ("changed",)
KINDS = (*BROKEN, *SHORT, *WRONG, *REFUSED, *CHANGED)

#: What stands in for JSON, and for any answer that has a form.
NONSENSE = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"17",
    b"[[[[",
    b'{"items": 3, "data": 3, "sha": 3}',
    b'{"items": [null], "prefixes": [7], "data": {"dataset": [null]}, "sha": ""}',
    b'[{"type": "file"}, {"type": "file", "path": 3, "size": "x"}, 3]',
    b'{"items": [{"name": "x", "size": "many", "generation": {}}]}',
    b'{"error": {"code": "372", "message": 5}}',
    b"\xff\xfe\x00\x01",
    b"<html><body>Under maintenance</body></html>",
    b"<?xml version='1.0'?><ListBucketResult><Contents><Key>x</Key></Contents></ListBucketResult>",
    b"<?xml version='1.0'?><Unclosed>",
)
RETRY_AFTER = (None, "0", "0.01", "-5", "nan", "soon", "Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 1999 23:59:59 GMT")


@dataclass(frozen=True)
class Fault:
    """One fault; ``at`` (0 to 1) is where in the body, ``choice`` chooses among the forms that a kind has."""

    kind: str
    at: float = 0.5
    choice: int = 0


@dataclass(frozen=True)
class Asked:
    """A request, for `Proxy.spoil` to decide about; ``number`` counts all of them from 0."""

    number: int
    method: str
    path: str
    span: str | None


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Proxy:
    """``spoil`` decides what happens to each answer; ``strangers`` are the headers of requests that came to another host."""

    url: str
    upstream: str
    spoil: Callable[[Asked], Fault | None] = lambda asked: None
    asked: list[Asked] = field(default_factory=list)
    done: list[tuple[Asked, Fault]] = field(default_factory=list)
    strangers: list[Mapping[str, str]] = field(default_factory=list)
    drip_seconds: float = 0.05
    elsewhere: str = ""
    """Another host that has the same content."""


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[Proxy]:
    faults, elsewhere_faults = Faults(), Faults()
    proxy = Proxy("", upstream)
    lock = threading.Lock()

    class Handler(_Handler):
        def answer(self) -> None:
            with lock:
                asked = Asked(len(proxy.asked), self.command, urlsplit(self.path).path, self.headers.get("Range"))
                proxy.asked.append(asked)
            fault = proxy.spoil(asked)
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length) if length else b""
            if fault is not None:
                with lock:
                    proxy.done.append((asked, fault))
            self.respond(fault, sent)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

        def respond(self, fault: Fault | None, sent: bytes) -> None:
            if fault is None:
                return self.send(pass_on(proxy.upstream, self, sent))
            kind = fault.kind
            if kind == "refuse":
                return self.abort()
            if kind == "garbage":
                self.connection.sendall(b"\x00\x01 this is not HTTP\r\n\r\n" * 3)
                self.close_connection = True
                return None
            if kind == "circle":
                return self.send(Answer(302, {"Location": self.path}, b""))
            if kind in ("elsewhere", "away"):
                # The same content on another host; or a host that does not exist, or no web server at all.
                nowhere = (
                    "http://127.0.0.1:1/x",
                    "http://no-such-host.invalid/x",
                    "ftp://127.0.0.1/x",
                    "file:///etc/passwd",
                )
                to = proxy.elsewhere + self.path if kind == "elsewhere" else nowhere[fault.choice % len(nowhere)]
                return self.send(Answer((301, 302, 303, 307, 308)[fault.choice % 5], {"Location": to}, b""))
            if kind.isdigit():
                asked = RETRY_AFTER[fault.choice % len(RETRY_AFTER)]
                headers = {"Content-Type": "text/plain", **({"Retry-After": asked} if asked else {})}
                return self.send(Answer(int(kind), headers, b"a fault made for a test"))
            if kind == "whole":
                del self.headers["Range"]
            return self.send_spoiled(fault, spoiled(fault, pass_on(proxy.upstream, self, sent), self.command))

        def send_spoiled(self, fault: Fault, found: Answer) -> None:
            body = found.body
            at = min(len(body), int(fault.at * (len(body) + 1)))
            if fault.kind in ("reset", "close"):
                self.begin(found, len(body))
                self.write(body[:at])
                self.abort() if fault.kind == "reset" else setattr(self, "close_connection", True)
            elif fault.kind == "stall":
                self.begin(found, len(body))
                self.write(body[:at])
                faults.released.wait(10)
                self.close_connection = True
            elif fault.kind == "drip":
                self.begin(found, len(body))
                self.write(body[:at])
                self.drip(body[at:])
            elif fault.kind == "drip-headers":
                self.connection.sendall(b"HTTP/1.1 200 OK\r\n")
                self.drip(b"X-Slow: " + b"a" * 4000 + b"\r\n\r\n")
            elif fault.kind == "unchunked":
                self.begin(found, None, {"Transfer-Encoding": "chunked"})
                self.write(b"%x\r\n" % max(1, len(body)) + body[:at])
                self.close_connection = True
            elif fault.kind == "short-without-length":
                self.begin(found, None, {"Connection": "close"})
                self.write(body[:at])
                self.close_connection = True
            else:
                self.send(found)

        def send(self, found: Answer) -> None:
            self.begin(found, len(found.body))
            self.write(found.body)

        def begin(self, found: Answer, length: int | None, more: Mapping[str, str] = {}) -> None:
            self.send_response_only(found.status)
            stated = found.headers.get("Content-Length") if self.command == "HEAD" else length
            headers = {**found.headers, **more}
            headers.pop("Content-Length", None)
            if stated is not None:
                headers["Content-Length"] = str(stated)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.flush()

        def write(self, data: bytes) -> None:
            if self.command != "HEAD" and data:
                self.wfile.write(data)
                self.wfile.flush()

        def drip(self, data: bytes) -> None:
            if self.command != "HEAD":
                for index in range(len(data)):
                    self.connection.sendall(data[index : index + 1])
                    if faults.released.wait(proxy.drip_seconds):
                        break
            self.close_connection = True

        def abort(self) -> None:
            time.sleep(0.01)  # long enough for the bytes before it to be read
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            self.close_connection = True

    class Stranger(Handler):
        def answer(self) -> None:
            proxy.strangers.append({name.lower(): value for name, value in self.headers.items()})
            self.send(pass_on(proxy.upstream, self, b""))

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    Handler.faults, Stranger.faults = faults, elsewhere_faults
    with _serving(Handler, faults) as url, _serving(Stranger, elsewhere_faults) as elsewhere:
        proxy.url, proxy.elsewhere = url, elsewhere.replace("127.0.0.1", "localhost")
        yield proxy


_OF_A_HOP = ("connection", "transfer-encoding", "keep-alive")


def pass_on(upstream: str, handler: _Handler, sent: bytes) -> Answer:
    """The answer of the server behind."""
    connection = http.client.HTTPConnection(urlsplit(upstream).netloc, timeout=600)
    headers = {name: value for name, value in handler.headers.items() if name.lower() not in _OF_A_HOP}
    with contextlib.closing(connection):
        connection.request(handler.command, handler.path, sent or None, headers)
        response = connection.getresponse()
        body = response.read()
        # In one spelling, which servers have in several.
        found = {name.title(): value for name, value in response.getheaders() if name.lower() not in _OF_A_HOP}
    return Answer(response.status, found, body)


def spoiled(fault: Fault, found: Answer, method: str) -> Answer:
    """What becomes of a sound answer."""
    body, headers = found.body, dict(found.headers)
    size = int(headers.get("Content-Length") or 0) if method == "HEAD" else len(body)
    at = min(max(0, size - 1), int(fault.at * size))
    if fault.kind in ("short", "empty"):
        at = at if fault.kind == "short" else 0
        headers["Content-Length"] = str(at)
        body = body[:at]
        if "Content-Range" in headers and fault.choice % 2:  # all that there is, as it says
            headers["Content-Range"] = re.sub(
                r"/\d+", lambda match: f"/{_start(headers) + at}", headers["Content-Range"]
            )
    elif fault.kind == "long":
        body += b"\n" if fault.choice % 2 else body[: 1 + at] or b"more"
        headers["Content-Length"] = str(len(body) if method != "HEAD" else size + 1)
    elif fault.kind == "flip" and body:
        body = body[:at] + bytes([body[at] ^ 1 << fault.choice % 8]) + body[at + 1 :]
    elif fault.kind in ("shifted", "shifted-openly") and found.status == 206:
        body = body[1:] + b"\0"
        if fault.kind == "shifted-openly":
            headers["Content-Range"] = re.sub(
                r"\d+", lambda match: str(int(match[0]) + 1), headers["Content-Range"], count=1
            )
    elif fault.kind == "begun-anew" and found.status == 206 and _start(headers):
        # As many bytes as were asked for, of the object from its start: the range is ignored, as the answer says.
        headers = {name: value for name, value in headers.items() if name != "Content-Range"}
        return Answer(200, headers, bytes(size))
    elif fault.kind == "gzip":
        body = gzip.compress(body)
        headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    elif fault.kind in ("html", "html-as-data"):
        body = b"<!DOCTYPE html><html><head><title>Log in</title></head><body>Please log in</body></html>"
        headers |= {"Content-Length": str(len(body))}
        headers["Content-Type"] = "text/html" if fault.kind == "html" else "application/octet-stream"
    elif fault.kind == "json":
        body = NONSENSE[fault.choice % len(NONSENSE)]
        headers["Content-Length"] = str(len(body))
    elif fault.kind == "changed":
        # Another version: its marks, and some of its bytes.
        headers = {name: _other_mark(name, value) for name, value in headers.items()}
        body = re.sub(rb'("generation": *")(\d+)', rb"\g<1>9\2", body) if b"generation" in body else body[::-1]
        if method != "HEAD":
            headers["Content-Length"] = str(len(body))
    else:
        return found
    return Answer(found.status, headers, body)


def _start(headers: Mapping[str, str]) -> int:
    match = re.search(r"(\d+)-", headers["Content-Range"])
    return int(match[1]) if match else 0


def _other_mark(name: str, value: str) -> str:
    if name.lower() == "etag":
        return f'"changed-{abs(hash(value)) % 10_000}"'
    if name.lower() == "last-modified":
        return formatdate(1_000_000_000, usegmt=True)
    return "9" + value if name.lower() == "x-goog-generation" else value
