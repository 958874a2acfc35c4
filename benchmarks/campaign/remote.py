"""Datasets read where they lie, over links that fail: batches are those of the dataset on this disk, or there is an error.

A round chooses a store, a dataset, a way to shuffle, room for the cache, and faults (`faulty_proxy.KINDS`). It reads through
them alone, beside a second process, after one that was killed, on a disk that fills up, or while the dataset is replaced.
Whatever comes of that, a reader of the same cache without faults must get every batch right, and complete the dataset.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import rbdata
import torch
from faulty_proxy import Fault, Proxy, faulty_proxy
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.remote import open_remote
from rbdata.errors import (
    CacheError,
    ChecksumError,
    DamagedDatasetError,
    DiskSpaceError,
    FetchError,
    NotADatasetError,
    RbdataError,
)
from rbdata.storage import dataset as dataset_module
from rbdata.storage.dataset import Dataset
from rbdata.storage.remote import cache_folder, remote_dataset
from rbdata.storage.remote.remote_dataset import RemoteDataset
from report import Report
from servers import faulty_gcs, gcs_server, http_server
from storage_tools import add_block_table, contents, make_episodes, write_dataset
from transfers import FETCH, PATIENT, SECRETS, Case, plan

PLACES = ("http", "s3", "gs", "gcs")
#: Bytes of a block, of a group of steps, and of the largest file that is fetched whole: small, as the datasets are.
BLOCK, GROUP, WHOLE = 8 << 10, 24 << 10, 2 << 10
BATCH = 16
#: Seconds that a round may take where others use the machine; most take two.
LIMIT = 180
#: Faults that change bytes without a trace where nothing states a checksum.
UNSEEN = {"flip", "long", "changed", "shifted"}
#: What may stand in the way of an honest reader.
CLEAR = (FetchError, ChecksumError, DamagedDatasetError, NotADatasetError)


@dataclass
class Made:
    """A dataset on this disk, of the first version or the one that replaces it; ``tabled``: it has checksums of blocks."""

    id: str
    folder: Path
    tabled: bool


@dataclass
class Store:
    """A place that holds the datasets, behind a proxy."""

    name: str
    url: str
    proxy: Proxy
    put: Callable[[Made], None]
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: bool = True
    """Whether it tells one version of an object from another."""


@dataclass
class Round:
    """What was chosen, and what came of it."""

    store: Store
    made: Made
    options: dict[str, Any]
    batches: int
    limit: int | None
    cache: Path
    chance: random.Random
    faults: list[str] = field(default_factory=list)
    other: Made | None = None
    forked: bool = False
    disk: Path | None = None
    """A small disk of its own that the cache is on."""

    def new_cache(self) -> None:
        """Use another folder for what is opened from now on; fetches into the other one are not disturbed."""
        self.cache = self.cache.with_name(f"{self.cache.name}+")

    @property
    def url(self) -> str:
        return f"{self.store.url}/{self.made.id}"

    def read(self, fetch: FetchOptions, *, complete: bool = False, also: tuple[type[Exception], ...] = ()) -> str:
        """Read batches beside those of the disk, and name what came of it; faults are noted. ``also``: other clear errors."""
        try:
            dataset = open_remote(self.url, cache_dir=self.cache, cache_limit=self.limit, fetch=fetch)
            # Of a dataset that is replaced now, all batches must be of the one version or all of the other.
            here = [rbdata.load(Dataset(made.folder), **self.options) for made in (self.made, self.other) if made]
            there = rbdata.load(dataset, **self.options)
            try:
                for number in range(self.batches):
                    batch = there.sample()
                    here = [one for one in here if same(one.sample(), batch)]
                    if not here:
                        return f"batch {number} differs"
                if complete and self.limit is None:
                    if isinstance(dataset, RemoteDataset):
                        dataset.fetch()
                    problems = rbdata.verify(dataset.path).problems
                    self.faults += [f"the complete cache is damaged: {problems}"] * bool(problems)
            finally:
                there.close()
        except RbdataError as error:
            if any(secret in f"{error} {error.hint}" for secret in SECRETS):
                self.faults.append(f"a secret in {error!r}")
            if not isinstance(error, CLEAR + also):
                self.faults.append(f"not an error that is expected here: {error!r}, {error.hint}")
            return type(error).__name__
        except Exception:
            self.faults.append(traceback.format_exc(limit=-6))
            return "untyped error"
        return "same batches"

    def in_child(self, work: Callable[[], object]) -> int:
        """Do something in a forked process."""
        child = os.fork()
        if child:
            return child
        status, before = 1, len(self.faults)
        try:
            signal.alarm(0)
            self.forked = True
            SAID.clear()
            work()
            status = 3 if len(self.faults) + len(SAID) > before else 0
        except BaseException:
            self.faults.append(traceback.format_exc(limit=-6))
        finally:
            self.faults += SAID
            (self.cache.parent / f"child-{os.getpid()}").write_text("\n".join(self.faults[before:]))
            os._exit(status)

    def end(self, child: int) -> None:
        """Wait for a forked process; what went wrong in it is a fault, but for a kill."""
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, -signal.SIGKILL):
            text = self.cache.parent / f"child-{child}"
            self.faults.append(f"second process: {text.read_text() if text.exists() else status}")


#: What the event loop of s3fs would have printed: nobody waits for what it closes.
SAID: list[str] = []


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        SAID.append(f"asyncio says: {self.format(record)}")


def same(one: Any, other: Any) -> bool:
    names = set(one.keys(True, True))
    return names == set(other.keys(True, True)) and all(torch.equal(one[name], other[name]) for name in names)


# -- kinds of rounds -------------------------------------------------------------------------------------------------


def alone(one: Round) -> str:
    return one.read(FETCH)


def beside(one: Round) -> str:
    """Two processes on one cache; the second one has its own order."""

    def other() -> None:
        one.options["seed"] += 1
        blame(one, one.read(FETCH))

    child = one.in_child(other)
    outcome = one.read(FETCH)
    one.end(child)
    return outcome


def killed(one: Round) -> str:
    """A reader that is killed, while another one goes on, or before it begins."""
    child = one.in_child(lambda: blame(one, one.read(FETCH)))
    after = one.chance.random() * one.chance.choice((0.1, 0.5))
    if one.chance.random() < 0.5:
        timer = threading.Timer(after, os.kill, (child, signal.SIGKILL))
        timer.start()
        outcome = one.read(FETCH)
        timer.join()
        one.end(child)
        return outcome
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    one.end(child)
    return one.read(FETCH)


def full(one: Round) -> str:
    """The disk of the cache fills up while it is read; then there is room again."""
    size = Dataset(one.made.folder).manifest.bytes
    one.cache.mkdir()
    room = size + (256 << 10)
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={room}", "rbdata-campaign", one.cache],
            capture_output=True,
            check=False,
        ).returncode
    ):
        return "no disk to fill"
    one.disk = one.cache
    leave, after = one.chance.randrange(size), one.chance.random() * 0.3

    def fill() -> None:
        time.sleep(after)
        with suppress(OSError), (one.cache / "filler").open("wb") as file:
            free = os.statvfs(one.cache)
            file.write(bytes(max(0, free.f_bavail * free.f_frsize - leave)))

    filler = threading.Thread(target=fill)
    filler.start()
    outcome = one.read(FETCH, also=(DiskSpaceError,), complete=True)
    filler.join()
    (one.cache / "filler").unlink(missing_ok=True)
    return outcome


def replaced(one: Round) -> str:
    """The dataset gives way to one of the same size in the store, file after file, while it is read."""
    after = one.chance.random() * one.chance.choice((0.1, 0.4))
    other = Made(one.made.id, one.made.folder.parents[2] / "later" / one.made.id, one.made.tabled)

    def replace() -> None:
        time.sleep(after)
        one.store.put(other)

    changer = threading.Thread(target=replace)
    changer.start()
    one.other = other
    outcome = one.read(FETCH)
    changer.join()
    one.store.proxy.spoil = _no_faults
    if outcome == "same batches":  # of either version, or from the cache
        one.read(PATIENT, also=(CacheError,))
    first, one.made, one.other = one.made, other, None
    one.new_cache()
    again = one.read(PATIENT, complete=True)
    if again != "same batches":
        one.faults.append(f"the dataset that replaced it: {again}")
    one.made = first
    one.new_cache()
    return outcome


KINDS: tuple[Callable[[Round], str], ...] = (alone, alone, beside, killed, full, replaced)


def blame(one: Round, outcome: str) -> bool:
    """Note batches that differ, unless nothing could have shown it; whether that was so."""
    if not outcome.endswith("differs"):
        return False
    kinds = {fault.kind for _, fault in one.store.proxy.done}
    if not one.made.tabled and (kinds & UNSEEN or one.forked):  # the proxy's record is the parent's
        return True
    one.faults.append(outcome)
    return False


def run(rounds: int, seed: int, places: Collection[str] = PLACES) -> Report:
    report = Report("remote", seed)
    threads, before = torch.get_num_threads(), signal.signal(signal.SIGALRM, _too_long)
    torch.set_num_threads(1)  # torch's own do not survive a fork
    logging.getLogger("asyncio").addHandler(listener := Listener())
    with (
        tempfile.TemporaryDirectory(prefix="rbdata-remote-", ignore_cleanup_errors=True) as top,
        patch.object(remote_dataset, "BLOCK_BYTES", BLOCK),
        patch.object(cache_folder, "WHOLE", WHOLE),
        patch.object(dataset_module, "GROUP_BYTES", GROUP),
        patch.dict(os.environ),
        ExitStack() as stack,
    ):
        versions = [_make(Path(top, name), number) for number, name in enumerate(("first", "later"))]
        stores = [_open_store(place, versions[0], stack) for place in places]
        with report.measured():
            for number in range(rounds):
                one_round(stores, versions[0], seed + number, Path(top, f"round-{number}"), report)
                report.rounds += 1
    torch.set_num_threads(threads)
    signal.signal(signal.SIGALRM, before)
    logging.getLogger("asyncio").removeHandler(listener)
    return report


def one_round(stores: list[Store], datasets: list[Made], seed: int, folder: Path, report: Report) -> None:
    chance = random.Random(seed)
    store, made = chance.choice(stores), chance.choice(datasets)
    shuffle = chance.choice(("blocks", "blocks", "global", "pass"))
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "frame_stack": chance.choice((None, 3)),
        "prefetch": chance.choice((None, 2)),
        "seed": chance.randrange(1000),
        "shuffle": "blocks" if shuffle == "blocks" else "global",
        "replacement": shuffle == "global",
    }
    kind = chance.choice([one for one in KINDS if one is not replaced or store.versions])
    size = Dataset(made.folder).manifest.bytes
    limit = chance.choice((None, None, size * 3 // 4, size * 9 // 10))
    folder.mkdir()  # of its own: in that of the round before a request that had begun may still be written
    one = Round(store, made, options, chance.choice((3, 8, 20)), limit, folder / "cache", chance)
    if kind is full:
        one.limit = None
    os.environ.update(store.settings)
    proxy = store.proxy
    proxy.spoil = _no_faults
    proxy.asked.clear()
    signal.alarm(LIMIT)
    began, what = time.monotonic(), f"{kind.__name__} {made.id} from {store.name} {shuffle} limit {one.limit}"
    try:
        # Undisturbed, to see what is asked for.
        blame(one, one.read(PATIENT))
        one.new_cache()
        case = Case("", "", None, proxy, asked=list(proxy.asked))
        proxy.asked.clear()
        proxy.done.clear()
        proxy.spoil = _no_faults if kind is replaced and chance.random() < 0.7 else plan(case, chance)
        outcome = kind(one)
        unseen = blame(one, outcome)
        report.outcomes["unseen" if unseen else outcome] += 1
        proxy.spoil = _no_faults
        if kind is replaced:
            store.put(made)
        _go_on(one, outcome)
    except Exception:
        one.faults.append(traceback.format_exc(limit=-6))
        store.put(made)
    finally:
        one.faults += SAID
        SAID.clear()
        signal.alarm(0)
        subprocess.run(["umount", "-l", one.disk], capture_output=True, check=False) if one.disk else None
        shutil.rmtree(folder, ignore_errors=True)
    if time.monotonic() - began > LIMIT:
        one.faults.append(f"took {time.monotonic() - began:.0f} s")
    done = "; ".join(f"{fault} of {asked.method} {asked.path} {asked.span or ''}" for asked, fault in proxy.done[:4])
    report.faults += [f"seed {seed}, {what}: {fault} ({done})" for fault in one.faults]


def _go_on(one: Round, outcome: str) -> None:
    """What the cache that is left gives over a sound link: right batches and a sound dataset."""
    spoiled = {asked.path.rpartition("/")[2] for asked, _ in one.store.proxy.done}
    again = one.read(PATIENT, complete=True, also=(CacheError,))
    if again == "CacheError" and "rbdata.json" in spoiled:
        one.new_cache()  # as the hint says: a manifest that arrived damaged is another one
        again = one.read(PATIENT, complete=True)
    if blame(one, again) or again == "ChecksumError":
        # Without checksums of blocks damage is seen when everything is there, and mended then.
        one.limit = None
        dataset = open_remote(one.url, cache_dir=one.cache, fetch=PATIENT)
        with suppress(ChecksumError):
            if isinstance(dataset, RemoteDataset):
                dataset.fetch()
        again = one.read(PATIENT, complete=True)
    if again != "same batches":
        one.faults.append(f"{outcome}; then without faults: {again}")


def _no_faults(asked: object) -> Fault | None:
    return None


def _too_long(*_: object) -> None:
    raise TimeoutError(f"a round takes longer than {LIMIT} s")


# -- stores ----------------------------------------------------------------------------------------------------------


def _make(root: Path, seed: int) -> list[Made]:
    made = []
    for layout in ("raw", "zstd"):
        for tabled in (True, False):
            episodes = make_episodes([70, 3, 90, 1, 60], shape=(2048,), dtype="uint8", seed=seed)
            name = f"my/{layout}{'' if tabled else '-plain'}"
            folder = write_dataset(root, episodes, layout, id=name, parts=3, dictionary=False)
            if tabled:
                add_block_table(folder, BLOCK)
            made.append(Made(name, folder, tabled))
    return made


def _open_store(place: str, datasets: list[Made], stack: ExitStack) -> Store:
    """A store with the datasets, behind a proxy."""
    open_ = stack.enter_context
    settings: dict[str, str] = {}
    if place == "http":
        top = Path(open_(tempfile.TemporaryDirectory(prefix="rbdata-store-")))
        proxy = open_(faulty_proxy(open_(http_server(top)).url))
        url = proxy.url.replace("://", f"://me:{SECRETS[1]}@")

        def put(key: str, data: bytes) -> None:
            (top / key).parent.mkdir(parents=True, exist_ok=True)
            (top / f"{key}.new").write_bytes(data)
            (top / f"{key}.new").replace(top / key)

    elif place == "s3":
        from s3_server import s3_server  # moto takes its time

        server = open_(s3_server("lab"))
        proxy, url, client = open_(faulty_proxy(server.url)), "s3://lab", server.client
        settings = server.environment | {"AWS_ENDPOINT_URL": proxy.url, "AWS_SECRET_ACCESS_KEY": SECRETS[2]}

        def put(key: str, data: bytes) -> None:
            client.put_object(Bucket="lab", Key=key, Body=data)

    else:
        google: Any = open_(gcs_server() if place == "gs" else faulty_gcs())
        proxy, url = open_(faulty_proxy(google.host)), "gs://lab"
        settings = {"STORAGE_EMULATOR_HOST": proxy.url}

        def put(key: str, data: bytes) -> None:
            google.upload("lab", key, data)

    def put_all(made: Made) -> None:
        for name, data in contents(made.folder).items():
            put(f"{made.id}/{name}", data)

    for made in datasets:
        put_all(made)
    return Store(place, url, proxy, put_all, settings, versions=place != "gs")
