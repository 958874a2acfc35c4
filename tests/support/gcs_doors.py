"""The GCS emulator behind a door that is closed for some buckets, as the public bucket's has been since April 2025.

with gcs_behind_doors({"rl_unplugged": folder}) as doors:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", doors.host)
    doors.closed["atari-replay-datasets"] = 403
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from servers import BACKLOG, GcsServer, gcs_server, running


@dataclass
class Doors:
    host: str
    emulator: GcsServer
    closed: dict[str, int] = field(default_factory=dict)
    """Bucket to the status that everybody gets who asks for it."""
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def gcs_behind_doors(buckets: Mapping[str, Path] | None = None) -> Iterator[Doors]:
    """Passes requests on to the emulator, except for those of closed buckets."""
    with gcs_server(buckets) as emulator:
        doors = Doors("", emulator)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                doors.asked.append(self.path)
                bucket = re.search(r"/b/([^/?]+)", self.path)
                status = doors.closed.get(bucket[1] if bucket else "")
                if status:
                    said = "Anonymous caller does not have storage.objects.list access to the bucket."
                    body = json.dumps({"error": {"code": status, "message": said}}).encode()
                    return self.answer(status, {"Content-Type": "application/json"}, body)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                request = urllib.request.Request(emulator.host + self.path, headers=headers)
                try:
                    with urllib.request.urlopen(request) as response:
                        return self.answer(response.status, dict(response.headers), response.read())
                except urllib.error.HTTPError as error:
                    return self.answer(error.code, dict(error.headers), error.read())

            def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.socket.listen(BACKLOG)
        with running(server) as doors.host:
            yield doors
