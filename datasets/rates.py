"""Measures how fast a dataset delivers batches from its location, and what limits the rate.

    for rate in measure("s3://lab/rbdata/atari/Pong/5", seconds=15).rates: print(rate)

The link is measured first: the latency of small requests, then plain reads of blocks by as many connections as a dataset uses.
Every access pattern begins with an empty temporary cache, for the time to the first batch and the rate while blocks arrive.
Then the same batches are read again from cached blocks, for the rate that processor and decoding allow.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import settings
from ..errors import CacheError, UsageError
from ..storage.scratch import ScratchFolder
from .fetch import FetchOptions
from .fetch.location import CONNECTIONS, is_remote, without_login
from .remote import CACHE, open_remote

if TYPE_CHECKING:
    from ..storage.dataset import Dataset
    from ..storage.remote.block_cache import RemoteFiles
    from ..storage.remote.remote_dataset import RemoteDataset
    from ..storage.replay.tensordict_buffer import TensorDictReplayBuffer

Bound = Literal["link", "requests", "decoding", "processor"]

#: Name of a pattern, and the options of a buffer that make it.
PATTERNS: dict[str, dict[str, Any]] = {
    "transitions, global": {},
    "stacks of 4, global": {"frame_stack": 4},
    "slices of 16, global": {"slice_len": 16, "strict_length": False, "pad_output": True},
    "transitions, blocks": {"shuffle": "blocks"},
    "stacks of 4, blocks": {"frame_stack": 4, "shuffle": "blocks"},
}
LEAST_SECONDS = 0.5
#: Shares of the time: of all of it for the link, and of a pattern's time for reading the batches again.
LINK_SHARE, AGAIN_SHARE = 0.2, 0.3
PINGS, PING_BYTES = 12, 1024
#: Bytes of the dataset that a pattern's cache may keep.
CACHE_BYTES = 4 << 30
PROBE_BYTES = 256 << 10
#: If a first batch would take this many times the seconds of its pattern, the rates are calculated.
TOO_LONG = 3.0
#: Whatever takes this share of a batch's time is its limit.
MOSTLY = 0.5


@dataclass(frozen=True)
class Link:
    """Plain requests: latency of one of 1 KiB in seconds (median, and the slowest of ten), and blocks by ``connections``."""

    latency: float
    slow_latency: float
    connections: int
    block_bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class Rate:
    """One pattern. Rates are steps per second: ``steps_per_second`` while blocks arrive (for a dataset on this machine: from
    its files), ``again_per_second`` for the same batches from cached blocks, ``link_per_second`` what the link allows at the
    same bytes per step. ``calculated``: no batch was drawn, because one would take longer than the time for it.
    """

    pattern: str
    batch_size: int
    first_batch: float
    steps_per_second: float
    again_per_second: float | None = None
    link_per_second: float | None = None
    bytes_per_step: float = 0.0
    requests_per_batch: float = 0.0
    bound: Bound | None = None
    calculated: bool = False


@dataclass
class Measurement:
    """The measurements of a dataset; ``link`` is None for a dataset on this machine."""

    place: str
    id: str
    steps: int
    bytes: int
    link: Link | None = None
    rates: list[Rate] = field(default_factory=list)


@dataclass
class CountedFiles:
    """Remote files that count the requests and bytes read; used by several threads."""

    files: RemoteFiles
    requests: int = 0
    received: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.files.url

    def read(self, path: str, start: int, stop: int) -> bytes:
        data = self.files.read(path, start, stop)
        with self.lock:
            self.requests, self.received = self.requests + 1, self.received + len(data)
        return data

    def check(self) -> None:
        self.files.check()


def usual_batch(dataset: Dataset, most: int) -> int:
    """Steps of a batch if no size is given: as many as fit into 64 MiB, at most ``most`` and at least one.

    Rows are as large as the dataset states, and compressed ones may be a thousandth of that on disk.
    """
    step_bytes = sum(leaf.row_bytes * (2 if leaf.kind == "state" else 1) for leaf in dataset.manifest.schema)
    return max(1, min(most, (64 << 20) // max(1, step_bytes)))


def _batch_size(dataset: Dataset, pattern: str) -> int:
    slice_len = PATTERNS[pattern].get("slice_len", 1)
    return max(1, usual_batch(dataset, 256) // slice_len) * slice_len


def measure(
    id_or_url: str | os.PathLike[str],
    *,
    seconds: float = 15.0,
    batch_size: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    fetch: FetchOptions | None = None,
    on_progress: Callable[[str, float], None] = lambda what, share: None,
) -> Measurement:
    """Measure a dataset, given by id, folder or URL, for about this many seconds; ``on_progress(next phase, share done)``.

    Without a ``batch_size`` batches have 256 steps, fewer where rows are large (`usual_batch`).
    At a URL, a temporary folder below ``cache_dir`` (default: ``.remote`` under the root) takes up to 4 GiB of it.
    Raises UsageError for less than half a second, and as `open_dataset` and the reading of rows do.
    """
    if not seconds >= LEAST_SECONDS or (batch_size is not None and batch_size < 1):
        raise UsageError(f"seconds must be at least {LEAST_SECONDS} and batch_size at least 1")
    if not is_remote(id_or_url):
        from . import local

        dataset = local.open_dataset(id_or_url, root)
        found = Measurement(str(dataset.path), dataset.id, len(dataset), dataset.manifest.bytes)
        for number, pattern in enumerate(PATTERNS):
            on_progress(pattern, number / len(PATTERNS))
            size = batch_size or _batch_size(dataset, pattern)
            found.rates.append(_local_rate(dataset, pattern, size, seconds / len(PATTERNS)))
        return found
    top = settings.root(root) / CACHE if cache_dir is None else settings.expanded(cache_dir)
    with _opened(str(id_or_url), top, fetch, CACHE_BYTES) as dataset:
        found = Measurement(without_login(str(id_or_url)), dataset.id, len(dataset), dataset.manifest.bytes)
        on_progress("the link", 0.0)
        link = found.link = _measure_link(dataset, LINK_SHARE * seconds)
    share, limit = seconds * (1 - LINK_SHARE) / len(PATTERNS), CACHE_BYTES if found.bytes > CACHE_BYTES else None
    for number, pattern in enumerate(PATTERNS):
        on_progress(pattern, LINK_SHARE + (1 - LINK_SHARE) * number / len(PATTERNS))
        began = time.perf_counter()
        with _opened(str(id_or_url), top, fetch, limit) as dataset:
            size = batch_size or _batch_size(dataset, pattern)
            rate = _calculated(dataset, pattern, size, link, share)
            found.rates.append(rate or _remote_rate(dataset, pattern, size, link, share, began))
    return found


@contextmanager
def _opened(url: str, top: Path, fetch: FetchOptions | None, limit: int | None) -> Iterator[RemoteDataset]:
    """The dataset at a URL with an empty cache, which is removed afterwards."""
    from ..storage.remote.remote_dataset import RemoteDataset

    try:
        top.mkdir(parents=True, exist_ok=True)
        scratch = ScratchFolder(top, ".bench-")
    except OSError as error:
        message = f"the cache folder {top} cannot be written: {error.strerror}"
        raise CacheError(message, hint="choose another one with cache_dir") from error
    with scratch as folder:
        dataset = open_remote(url, cache_dir=folder, cache_limit=limit, fetch=fetch)
        assert isinstance(dataset, RemoteDataset)
        dataset.cache.files = CountedFiles(dataset.files)
        try:
            yield dataset
        finally:
            dataset.cache.close(wait=True)


def _measure_link(dataset: RemoteDataset, seconds: float) -> Link:
    layout, files = dataset.cache.layout, dataset.files
    path = max(layout.paths, key=lambda path: layout.sizes[path])
    size, chance = layout.sizes[path], random.Random(0)

    def read(length: int) -> int:
        length = min(length, size)
        start = chance.randrange(size - length + 1)
        return len(files.read(path, start, start + length))

    def timed(length: int) -> float:
        began = time.perf_counter()
        read(length)
        return time.perf_counter() - began

    timed(PING_BYTES)  # opens a connection
    pings = sorted(timed(PING_BYTES) for _ in range(PINGS))
    # Smaller pieces on a slow link, so that this ends in time.
    probe = PROBE_BYTES / timed(PROBE_BYTES)
    length = int(min(layout.block_bytes, max(PROBE_BYTES, probe * seconds / CONNECTIONS)))
    began = time.perf_counter()

    def work(_: int) -> int:
        count = read(length)
        while time.perf_counter() - began < seconds / 2:
            count += read(length)
        return count

    with ThreadPoolExecutor(CONNECTIONS, "rbdata-bench") as pool:
        received = sum(pool.map(work, range(CONNECTIONS)))
    rate = received / (time.perf_counter() - began)
    return Link(statistics.median(pings), pings[-2], CONNECTIONS, min(length, size), rate)


def _calculated(dataset: RemoteDataset, pattern: str, batch_size: int, link: Link, seconds: float) -> Rate | None:
    """The calculated rates of a pattern whose first batch alone would take several times its time; None for other patterns."""
    from ..storage.dataset import GROUP_BYTES
    from ..storage.replay.samplers.uniform import POOL

    layout, options = dataset.cache.layout, PATTERNS[pattern]
    blocks, evictable = int(layout.evictable.sum()), int(layout.lengths[layout.evictable].sum())
    if options.get("shuffle") == "blocks":
        first = min(evictable, POOL * GROUP_BYTES)
        later = batch_size * evictable / len(dataset)
    else:
        touched = batch_size / options.get("slice_len", 1)
        first = later = evictable * (1 - (1 - 1 / max(1, blocks)) ** touched)
    if first <= TOO_LONG * seconds * link.bytes_per_second:
        return None
    return Rate(
        pattern,
        batch_size,
        first_batch=(layout.whole_bytes + first) / link.bytes_per_second,
        steps_per_second=batch_size * link.bytes_per_second / later,
        link_per_second=batch_size * link.bytes_per_second / later,
        bytes_per_step=later / batch_size,
        requests_per_batch=later / layout.block_bytes,
        bound=_of_link(link),
        calculated=True,
    )


def _remote_rate(
    dataset: RemoteDataset, pattern: str, batch_size: int, link: Link, seconds: float, began: float
) -> Rate:
    files = dataset.cache.files
    assert isinstance(files, CountedFiles)
    buffer = _buffer(dataset, pattern, batch_size)
    buffer.sample()
    first = time.perf_counter() - began
    requests, received = files.requests, files.received
    count, took = _batches(buffer, seconds * (1 - AGAIN_SHARE))
    requests, received = files.requests - requests, files.received - received
    dataset.cache.close(wait=True)
    again, spent = _batches(_buffer(dataset, pattern, batch_size), seconds * AGAIN_SHARE, most=count + 1)
    steps = count * batch_size
    local = _bound(dataset, pattern, buffer, spent / again)
    return Rate(
        pattern,
        batch_size,
        first,
        steps / took,
        again * batch_size / spent,
        link.bytes_per_second * steps / received if received else None,
        received / steps,
        requests / count,
        local if spent / again >= MOSTLY * took / count else _of_link(link),
    )


def _local_rate(dataset: Dataset, pattern: str, batch_size: int, seconds: float) -> Rate:
    began = time.perf_counter()
    buffer = _buffer(dataset, pattern, batch_size)
    buffer.sample()
    first = time.perf_counter() - began
    count, took = _batches(buffer, seconds)
    bound = _bound(dataset, pattern, buffer, took / count)
    return Rate(pattern, batch_size, first, count * batch_size / took, bound=bound)


def _buffer(dataset: Dataset, pattern: str, batch_size: int) -> TensorDictReplayBuffer:
    from ..storage.replay.loading import load_buffer

    return load_buffer(dataset, batch_size=batch_size, seed=1, **PATTERNS[pattern])


def _batches(buffer: TensorDictReplayBuffer, seconds: float, most: int | None = None) -> tuple[int, float]:
    """How many batches were drawn in this many seconds, at least one, and the seconds that they took."""
    began, count = time.perf_counter(), 0
    while not count or (time.perf_counter() - began < seconds and count != most):
        buffer.sample()
        count += 1
    return count, time.perf_counter() - began


def _bound(dataset: Dataset, pattern: str, buffer: TensorDictReplayBuffer, batch_seconds: float) -> Bound:
    """What limits batches from cached blocks: decoding, if most of their time goes into compressed rows."""
    from ..storage.codecs import codec_of

    compressed = []
    for leaf in dataset.manifest.schema:
        if leaf.constant is None:
            stored = dataset.manifest.size_of(codec_of(leaf).path("blob"))
            compressed += [leaf.name] * (stored < leaf.row_bytes * dataset.manifest.rows(leaf))
    if not compressed:
        return "processor"
    steps = buffer.sample()["index"].reshape(-1)
    before = PATTERNS[pattern].get("frame_stack", 1) - 1
    times = []
    for _ in range(3):
        began = time.perf_counter()
        dataset.read(steps, before=before, keys=compressed)
        times.append(time.perf_counter() - began)
    return "decoding" if min(times[1:]) >= MOSTLY * batch_seconds else "processor"


def _of_link(link: Link) -> Bound:
    """Whether a block's request spends its time on waiting or on transfer."""
    request = link.block_bytes * link.connections / link.bytes_per_second
    return "requests" if link.latency > request / 2 else "link"
