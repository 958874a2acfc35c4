"""Several processes on one dataset and one root: downloads of one id, readers while it is replaced, grown or deleted, locks of
owners that were killed.

Processes are forked from this one and work on datasets of a few rows, so that a round takes a fraction of a second. What
varies (who comes when, who is killed) follows from the seed, what comes of it from the machine: a fault may need several
rounds of its seed to come again.
"""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rbdata
import torch
from atari_truth import write_run
from rbdata.datasets import local
from rbdata.datasets.cleanup import find_leftovers
from rbdata.errors import DatasetBusyError, DatasetNotFoundError, NotADatasetError, UnknownDatasetError
from rbdata.storage.checksums import Crc32c
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.lock import WriterLock
from report import Report
from storage_tools import LAYOUTS, columns, make_episodes, write_dataset

#: Seconds that any round may take: a hang, whatever else the machine does.
LIMIT = 240
ATARI = "atari/Pong/5"
#: Datasets that replace each other: each has a number of steps of its own.
VARIANTS = [make_episodes([2 + n, 3, 1 + n], seed=n) for n in range(4)]
TRUTH = {sum(map(len, one)): {name: torch.from_numpy(rows) for name, rows in columns(one).items()} for one in VARIANTS}
ABSENT = (DatasetNotFoundError, NotADatasetError, UnknownDatasetError)


def run(rounds: int, seed: int) -> Report:
    """So many rounds of each kind."""
    report = Report("concurrency", seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # torch's own do not survive a fork
    before = signal.signal(signal.SIGALRM, _too_long)
    with report.measured(), tempfile.TemporaryDirectory(prefix="concurrency-") as folder:
        references = _references(Path(folder))
        for number in range(rounds):
            for kind in KINDS:
                root = Path(folder, "root")
                round_ = Round(root, random.Random(f"{kind.__name__} {seed + number}"), report, references)
                report.rounds += 1
                try:
                    signal.alarm(LIMIT)
                    kind(round_)
                    found = [f"left: {', '.join(map(str, left))}"] if (left := round_.leftovers()) else []
                except Exception:
                    found = [traceback.format_exc(limit=-4) + round_.end_all()]
                finally:
                    signal.alarm(0)
                report.faults += [f"{kind.__name__}, seed {seed + number}: {one}" for one in found + round_.faults]
                shutil.rmtree(root, ignore_errors=True)
    signal.signal(signal.SIGALRM, before)
    torch.set_num_threads(threads)
    return report


def _too_long(*_: object) -> None:
    raise TimeoutError(f"a round takes longer than {LIMIT} s")


class Round:
    """One round: its root, what is random in it, and the processes that it starts."""

    def __init__(self, root: Path, rng: random.Random, report: Report, references: dict[tuple[int, ...], str]) -> None:
        self.root, self.rng, self.report, self.references = root, rng, report, references
        self.faults: list[str] = []
        self.started: list[int] = []
        root.mkdir()

    def count(self, what: str) -> None:
        self.report.outcomes[what] += 1

    def start(self, work: Callable[[], None], allowed: tuple[type[Exception], ...] = ()) -> int:
        """Do something in a forked process after a moment; its exit status says what came of it."""
        delay = self.rng.random() * self.rng.choice((0, 0.005, 0.05))
        child = os.fork()
        if child:
            self.started.append(child)
            return child
        status = 1
        try:
            signal.alarm(0)
            faulthandler.register(signal.SIGUSR1, (self.root.parent / f"stacks-{os.getpid()}").open("w"))
            time.sleep(delay)
            work()
            status = 0
        except allowed:
            status = 3
        except BaseException:
            (self.root.parent / f"error-{os.getpid()}").write_text(traceback.format_exc(limit=-5))
        finally:
            os._exit(status)

    def end_all(self) -> str:
        """End what still runs, and say where it was."""
        stacks = ""
        for child in self.started:
            with suppress(ChildProcessError, ProcessLookupError):
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    os.kill(child, signal.SIGUSR1)
                    time.sleep(1)
                    stacks += f"\na process that still ran:\n{(self.root.parent / f'stacks-{child}').read_text()}"
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        return stacks

    def kill(self, child: int, within: float) -> None:
        time.sleep(self.rng.random() * within)
        os.kill(child, signal.SIGKILL)

    def wait(self, *children: int) -> None:
        """Wait for processes; what went wrong in them is a fault."""
        for child in children:
            self.note(child, os.waitpid(child, 0)[1])

    def note(self, child: int, status: int) -> None:
        ended = {0: "done", 3: "refused", -signal.SIGKILL: "killed"}.get(os.waitstatus_to_exitcode(status))
        self.count(ended or "failed")
        if ended is None:
            text = self.root.parent / f"error-{child}"
            self.faults.append(text.read_text() if text.exists() else f"a process ended with status {status}")

    @contextmanager
    def beside(self, work: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """A process beside this one; gives whether it still works."""
        child = self.start(work)
        status: list[int] = []

        def running() -> bool:
            if not status:
                pid, code = os.waitpid(child, os.WNOHANG)
                if pid:
                    status.append(code)
            return not status

        try:
            yield running
        finally:
            if not status:
                status.append(os.waitpid(child, 0)[1])
            self.note(child, status[0])

    def leftovers(self) -> list[Path]:
        """Hidden files and folders, which no finished work leaves."""
        return [path.relative_to(self.root) for path in self.root.rglob("*") if path.name.startswith(".")]

    def check_atari(self, shards: tuple[int, ...]) -> None:
        found = fingerprint(self.root / ATARI)
        if found != self.references.get(shards):
            self.faults.append(f"shards {shards} have other bytes than a download that nothing disturbs")


# -- kinds of rounds -------------------------------------------------------------------------------------------------


def same_id(one: Round) -> None:
    """Two downloads of one id at once, of which one may be killed; then a third."""
    shards = one.rng.choice(((0,), (0, 1)))
    works = [one.start(lambda: download(one.root, shards), (DatasetBusyError,)) for _ in range(2)]
    if one.rng.random() < 0.5:
        one.kill(works[0], 0.3)
    one.wait(*works)
    one.wait(one.start(lambda: download(one.root, shards)))
    one.check_atari(shards)


def same_root(one: Round) -> None:
    """A download, another dataset that comes and goes, lists and prunes, all under one root."""

    def come_and_go() -> None:
        for _ in range(3):
            write_dataset(one.root, VARIANTS[0], "flat", id="atari/other")
            rbdata.delete("atari/other", root=one.root)

    def look() -> None:
        for _ in range(10):
            for found in rbdata.list_datasets(root=one.root):
                assert found.state != "damaged", found
            find_leftovers(one.root)

    one.wait(one.start(lambda: download(one.root, (0,))), one.start(come_and_go), one.start(look))
    one.check_atari((0,))


def grown(one: Round) -> None:
    """A reader samples while shards are appended."""
    download(one.root, (0,))

    def grow() -> None:
        for shards in ((0, 1), (0, 1, 2)):
            download(one.root, shards)

    opened: list[tuple[Any, str]] = []
    with one.beside(grow) as works:
        while works():
            buffer = rbdata.load(ATARI, root=one.root, batch_size=8, seed=0)
            storage: Any = buffer.storage
            for dataset in (storage.dataset, rbdata.open_dataset(ATARI, root=one.root)):
                opened.append((dataset, rows_of(dataset)))
                assert opened[-1][1] in one.references.values(), f"{len(dataset)} steps are of no number of shards"
            check_sample(buffer)
            time.sleep(one.rng.random() * 0.02)
            one.count("read while it grew")
    for dataset, rows in opened:
        assert rows_of(dataset) == rows, "a dataset that was opened before it grew has other rows now"
    check_sample(buffer)
    one.check_atari((0, 1, 2))


def replaced(one: Round) -> None:
    """A reader opens, lists, inspects and verifies while the dataset is replaced."""
    layout = one.rng.choice(LAYOUTS)
    folder = write_dataset(one.root, VARIANTS[0], layout)
    others = [one.rng.randrange(len(VARIANTS)) for _ in range(4)]

    def replace() -> None:
        for number in others:
            other = write_dataset(one.root.parent / "aside", VARIANTS[number], one.rng.choice(LAYOUTS))
            place = DatasetPlace(one.root, "my/test")
            with place.lock():
                other.rename(place.working)
                place.install()

    _read_beside(one, folder, replace, ())


def deleted(one: Round) -> None:
    """The same while it is deleted and written again: it may be absent, never damaged."""
    folder = write_dataset(one.root, VARIANTS[0], "raw")

    def delete() -> None:
        for number in (1, 2):
            rbdata.delete("my/test", root=one.root)
            write_dataset(one.root, VARIANTS[number], one.rng.choice(LAYOUTS))

    _read_beside(one, folder, delete, ABSENT)


def _read_beside(one: Round, folder: Path, change: Callable[[], None], allowed: tuple[type[Exception], ...]) -> None:
    readers = [_open, _load, _list, _inspect, _verify]
    opened: list[Dataset] = []
    with one.beside(change) as works:
        while works():
            read = one.rng.choice(readers)
            try:
                dataset = read(one.root)
                one.count(f"{read.__name__.strip('_')} beside a writer")
                if dataset is not None:
                    check_rows(dataset)
                    opened.append(dataset)
            except DatasetBusyError:
                one.count("busy")
            except allowed:
                one.count("absent")
    for dataset in opened[-20:]:
        check_rows(dataset)
    check_rows(Dataset(folder))


def _open(root: Path) -> Dataset:
    return rbdata.open_dataset("my/test", root=root)


def _load(root: Path) -> Dataset:
    buffer = rbdata.load(root / "my" / "test", batch_size=4, seed=0)
    buffer.sample()
    storage: Any = buffer.storage
    dataset: Dataset = storage.dataset
    return dataset


def _list(root: Path) -> None:
    for found in local.list_local(root):
        assert found.state != "damaged", found


def _inspect(root: Path) -> None:
    found = rbdata.inspect("my/test", root=root)
    assert found.steps in TRUTH and found.episodes == 3


def _verify(root: Path) -> None:
    found = rbdata.verify("my/test", root=root)
    assert found.ok, found.problems


def killed_owner(one: Round) -> None:
    """Owners of a lock are killed while others want it: one at a time has it, and it outlives nobody."""
    path, inside = one.root / ".x.lock", one.root / "inside"

    def own() -> None:
        for _ in range(6):
            try:
                with WriterLock(path, "x"):
                    # Whoever was killed left this: it belongs to nobody who lives.
                    held = inside.read_text() if inside.exists() else ""
                    assert not (held and Path(f"/proc/{held}").exists() and not _is_zombie(held)), f"{held} is in too"
                    inside.write_text(str(os.getpid()))
                    time.sleep(0.001)
                    inside.unlink()
            except DatasetBusyError:
                time.sleep(0.001)

    owners = [one.start(own) for _ in range(3)]
    one.kill(owners[0], 0.03)
    if one.rng.random() < 0.5:
        one.kill(owners[1], 0.01)
    one.wait(*owners)
    with WriterLock(path, "x"):
        pass


KINDS = (same_id, same_root, grown, replaced, deleted, killed_owner)


# -- what must hold --------------------------------------------------------------------------------------------------


def download(root: Path, shards: tuple[int, ...]) -> None:
    rbdata.download(ATARI, mirror=str(root.parent / "mirror"), root=root, procs=1, shards=shards, codec="raw")


def check_rows(dataset: Dataset) -> None:
    """All rows are those of one variant."""
    truth = TRUTH[len(dataset)]
    for name, rows in truth.items():
        assert torch.equal(dataset[name], rows), f"{name} of {len(dataset)} steps is not what was written"
    assert len(dataset.episodes) == 3


def check_sample(buffer: Any) -> None:
    """A batch holds the rows of the dataset that the buffer was made of."""
    batch, info = buffer.sample(return_info=True)
    rows = buffer.storage.dataset[info["index"]]
    for key in ("observation", ("next", "observation"), "action", ("next", "reward")):
        assert torch.equal(batch[key], rows[key]), f"{key} is not what the dataset holds"


def rows_of(dataset: Dataset) -> str:
    """A checksum of all rows."""
    total = Crc32c()
    for name in sorted(dataset.rows):
        rows = dataset.rows[name]
        total.update(rows.block(0, rows.count).contiguous().view(torch.uint8).numpy())
    return f"{len(dataset)} steps, {total.hexdigest()}"


def fingerprint(folder: Path) -> str:
    return rows_of(Dataset(folder)) if rbdata.verify(folder).ok else "damaged"


def _references(folder: Path) -> dict[tuple[int, ...], str]:
    write_run(folder / "mirror" / "dqn" / "Pong" / "5", 60, [7, 30, 1, 40, 44, 50])
    found: dict[tuple[int, ...], str] = {}
    for shards in ((0,), (0, 1), (0, 1, 2)):
        download(folder / "reference", shards)
        found[shards] = fingerprint(folder / "reference" / ATARI)
    shutil.rmtree(folder / "reference")
    return found


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True
