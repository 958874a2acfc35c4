"""Datasets read where they lie, beside the same dataset on this disk.

    python benchmarks/remote.py                              # 1M steps of frames, made on the first run (a few minutes)
    python benchmarks/remote.py --dataset /data/atari/Pong/5 # a converted dataset of your own

A server on this machine answers after 20 ms and sends 100 MB/s in all. For ``shuffle="blocks"`` and ``"global"``, each with an
empty cache: seconds from the call of ``load`` to the first batch, batches a second in the first seconds, and in the end, when
everything is there; then with a cache_limit of a quarter of the dataset. The same batches from the disk are measured in the
same run. Batches of 256 steps, stacks of 4 frames with their successors, made in the caller's thread.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from harness import machine, table

WORK = Path(".bench") / "remote"
BATCH = 256
CHUNK = 1 << 16


class Link:
    """A link that all connections share: ``rate`` bytes a second, each answer after ``latency`` seconds."""

    def __init__(self, rate: float, latency: float) -> None:
        self.rate, self.latency = rate, latency
        self._free, self._lock = 0.0, threading.Lock()
        self.sent = 0

    def send(self, count: int) -> None:
        """Wait until so many bytes have passed."""
        with self._lock:
            self.sent += count
            self._free = max(self._free, time.monotonic() - 0.005) + count / self.rate
            wait = self._free - time.monotonic()
        if wait > 0:
            time.sleep(wait)


def serve(root: Path, rate: float, latency: float, pipe: Any) -> None:
    """Serve the files under ``root`` with ranges, as much of S3 as readers need; sends its port.

    ``/bucket/folder/file`` is a file, ``/bucket?list-type=2&prefix=folder/`` a listing, ``/sent`` the bytes sent so far.
    """
    link = Link(rate, latency)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # which would hold the first bytes of a body back for 40 ms

        def do_HEAD(self) -> None:
            self.do_GET(body=False)

        def do_GET(self, body: bool = True) -> None:
            if self.path == "/sent":
                self.answer(200, str(link.sent))
                return
            time.sleep(link.latency)
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            path = root / unquote(parts.path).strip("/")
            if "list-type" in query:
                self.answer(200, listing(path, query.get("prefix", ""), query.get("delimiter", "")))
                return
            if path.is_dir():
                names = (one.name + "/" * one.is_dir() for one in sorted(path.iterdir()))
                self.answer(200, "".join(f'<a href="{quote(name)}">{name}</a>\n' for name in names), "text/html")
                return
            if not path.is_file():
                self.answer(404, "")
                return
            size = path.stat().st_size
            start, stop = 0, size
            asked = self.headers.get("Range")
            if asked:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(size, int(last) + 1 if last else size)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
            self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
            self.end_headers()
            if body:
                with path.open("rb") as file:
                    while start < stop:
                        count = min(CHUNK, stop - start)
                        link.send(count)
                        start += os.sendfile(self.connection.fileno(), file.fileno(), start, count)

        def answer(self, status: int, text: str, kind: str = "application/xml") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode() if self.command != "HEAD" else b"")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket.listen(128)  # a client opens more connections at once than the default of 5
    pipe.send(server.server_address[1])
    server.serve_forever()


def listing(bucket: Path, prefix: str, delimiter: str) -> str:
    """A page of S3's ListObjectsV2 with everything below a prefix, or up to the next delimiter."""
    entries, folders = [], set()
    for path in sorted(bucket.rglob("*")):
        key = path.relative_to(bucket).as_posix()
        if path.is_file() and key.startswith(prefix):
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if cut:
                folders.add(f"<CommonPrefixes><Prefix>{prefix}{head}{cut}</Prefix></CommonPrefixes>")
                continue
            found = path.stat()
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.st_mtime))
            tag = f"&quot;{found.st_mtime_ns:x}&quot;"
            what = f"<Key>{key}</Key><Size>{found.st_size}</Size><LastModified>{when}</LastModified><ETag>{tag}</ETag>"
            entries.append(f"<Contents>{what}<StorageClass>STANDARD</StorageClass></Contents>")
    head = f"<Name>{bucket.name}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(entries)}</KeyCount>"
    rest = "<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
    return f"<ListBucketResult>{head}{rest}{''.join(entries)}{''.join(sorted(folders))}</ListBucketResult>"


@contextmanager
def served(root: Path, rate: float, latency: float) -> Iterator[str]:
    """The address of such a server, in its own process."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(root, rate, latency, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def batches(buffer: Any, seconds: float) -> tuple[int, float]:
    """Batches made in about so many seconds, and the seconds."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        buffer.sample()
        count += 1
    return count, time.perf_counter() - began


def measure(url: str, here: Path, shuffle: str, seconds: float, limit: int | None) -> list[str]:
    """A row of the table."""
    import rbdata

    cache = WORK / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    options: dict[str, Any] = {"batch_size": BATCH, "frame_stack": 4, "shuffle": shuffle, "seed": 1}
    local = rbdata.load(here, **options)
    batches(local, seconds / 2)  # into memory, as the cache's files are
    count, took = batches(local, seconds)
    floor = count / took
    began = time.perf_counter()
    dataset: Any = rbdata.open_dataset(url, cache_dir=cache, cache_limit=limit)
    buffer = rbdata.load(dataset, **options)
    buffer.sample()
    first = time.perf_counter() - began
    count, took = batches(buffer, seconds)
    early = count / took
    resident = dataset.cache.resident_bytes
    late = 0.0
    if limit is None:
        dataset.fetch()
        batches(buffer, seconds / 2)
        count, took = batches(buffer, seconds)
        late = count / took
    count, took = batches(local, seconds)
    floor = (floor + count / took) / 2
    name = shuffle if limit is None else f"{shuffle}, limit {limit / 1e6:.0f} MB"
    share = "" if limit else f"{late:.1f} ({late / floor:.0%})"
    return [
        name,
        f"{first:.2f} s",
        f"{floor:.1f}",
        f"{early:.1f} ({early / floor:.0%})",
        f"{resident / 1e6:.0f} MB",
        share,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", type=Path, help="a converted dataset (default: frames made here)")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second, all connections together")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--only", choices=("blocks", "global"), help="one way of shuffling")
    args = parser.parse_args()
    from rbdata.storage.manifest import read_manifest
    from verify import make

    folder = args.dataset or make(WORK, args.steps, 10, "zstd")
    manifest = read_manifest(folder)
    print(machine())
    link = f"{args.latency * 1e3:.0f} ms, {args.rate / 1e6:.0f} MB/s"
    print(f"{manifest.id}: {manifest.steps:,} steps, {manifest.bytes / 1e6:.0f} MB, {link}")
    rows = []
    with served(folder.absolute(), args.rate, args.latency) as url:
        for shuffle in [args.only] if args.only else ["blocks", "global"]:
            # Random batches of a dataset of this size touch nearly all its blocks: a limit is for blocks.
            for limit in (None, manifest.bytes * 3 // 4) if shuffle == "blocks" else (None,):
                rows.append(measure(url, folder, shuffle, args.seconds, limit))
                print("  ".join(rows[-1]), flush=True)
    print(table(["shuffle", "first batch", "local, batches/s", "from the start", "there by then", "all there"], rows))
    shutil.rmtree(WORK / "cache", ignore_errors=True)


if __name__ == "__main__":
    main()
