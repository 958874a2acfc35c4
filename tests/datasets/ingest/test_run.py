"""Interrupted downloads: killed at any moment, run again, the same bytes; one writer at a time; nothing half-written seen."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO

import psutil
import pytest
from atari_truth import assert_holds, fed_truth, write_run
from contents import content
from effort import EFFORT
from faulty_proxy import Fault, faulty_proxy
from processes import start_forked
from rbdata.datasets.acquire import download
from rbdata.datasets.convert import convert
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.errors import CorruptSourceError, DatasetBusyError, DatasetExistsError, FetchError
from rbdata.storage.dataset import Dataset
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.integrity import verify
from servers import http_server

LAYOUTS = [{"codec": "raw"}, {"codec": "zstd"}]
each_layout = pytest.mark.parametrize("options", LAYOUTS, ids=["raw", "zstd"])


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """A run of a dozen small shards, with a lost lap and a final dump."""
    top = tmp_path_factory.mktemp("mirror")
    writer = write_run(top / "dqn" / "Qbert" / "2" / "replay_logs", 90, [80, 300, 4, 79, 150, 200, 33, 160])
    assert len(writer.dumps) > 10
    return top, writer


def request(mirror: Path | str, root: Path, **fields) -> Request:
    options = ConvertOptions(**fields.pop("options", {}))
    return Request("Qbert/2", root=root, mirror=str(mirror), options=options, **{"procs": 1, **fields})


def assert_clean(root: Path) -> None:
    """Beside the dataset nothing is left over, except for a lock whose maker was killed over it."""
    names = {path.name for path in (root / "atari" / "Qbert").iterdir()}
    assert {name for name in names if not name.startswith(".2.lock")} == {"2"}


# -- killed --------------------------------------------------------------------------------------------------------

CHILD = """
import json, sys
from pathlib import Path
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.ingest.records import ConvertOptions

mirror, root, procs, options = json.loads(sys.argv[1])

def say(*words):
    print(*words, flush=True)

listener = Listener(on_stage=lambda text: say("stage"), on_planned=lambda *_: say("planned"),
                    on_estimate=lambda _: say("estimate"),
                    on_progress=lambda tasks: say("progress"), on_part_done=lambda index: say("part"))
request = Request("Qbert/2", root=Path(root), mirror=mirror, procs=procs, options=ConvertOptions(**options))
say("done", download(request, listener).action)
"""


def start(mirror: Path | str, root: Path, procs: int = 1, options: dict | None = None) -> tuple[ForkServerProcess, IO]:
    """The process, and what it prints."""
    argument = json.dumps([str(mirror), str(root), procs, options or {}])
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        os.mkfifo(said)
        return start_forked(CHILD, argument, output=said), said.open()


def kill_tree(process: ForkServerProcess) -> None:
    """kill -9 of a process and all its children, as a scheduler or the system would."""
    assert process.pid is not None
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.join()
    psutil.wait_procs(family, timeout=5)


@pytest.mark.parametrize("options, procs", [(LAYOUTS[1], 1), (LAYOUTS[0], 2)], ids=str)
def test_killed_processes(options, procs, mirror, tmp_path):
    """kill -9 of the whole family after a random report; then the same bytes as without."""
    top, writer = mirror
    whole = download(request(top, tmp_path / "whole", options=options))
    chance = random.Random(f"{procs}{options}")
    with http_server(top) as server:
        process, said = start(server.url, tmp_path / "root", procs, options)
        wanted = chance.randrange(13, 26)  # the plan reports 12 times
        with said:
            for _, line in zip(range(wanted), said):
                if line.startswith("done"):
                    break
            time.sleep(chance.random() * 0.02)
            kill_tree(process)
        place = DatasetPlace(tmp_path / "root", "atari/Qbert/2")
        assert not place.path.exists() or verify(place.path).ok
        outcome = download(request(server.url, tmp_path / "root", procs=procs, options=options))
    assert content(outcome.path) == content(whole.path)
    assert_clean(tmp_path / "root")
    assert_holds(Dataset(outcome.path), fed_truth(writer))


CRASH = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.link", "os.utime"}


def in_child(wanted: Request, at: int | None) -> tuple[str, int]:
    """Run a download in a forked child that is killed at its ``at``-th touch of the root. Returns how it ended (an
    action, the name of an error, or "killed"), and how often it touched the root."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        touches = itertools.count()
        inside = str(wanted.root)

        def hook(event: str, args: tuple) -> None:
            # Whole trees are removed with names relative to a descriptor.
            relative = event in ("os.remove", "os.rmdir") and args[1] != -1
            if event in CRASH and (relative or str(args[0]).startswith(inside)):
                if event == "open" and isinstance(args[2], int) and not args[2] & (os.O_WRONLY | os.O_RDWR):
                    return
                if next(touches) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            said = download(wanted).action
        except BaseException as error:
            said = type(error).__name__
        os.write(write, f"{said} {next(touches)}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return "killed", -1
    action, count = said.split()
    return action, int(count)


def count_touches(wanted: Request) -> int:
    """How often a download that is left alone touches its root."""
    said, touches = in_child(wanted, None)
    assert said == "written"
    return touches


@pytest.fixture(scope="module")
def small_mirror(tmp_path_factory):
    """Three shards."""
    top = tmp_path_factory.mktemp("small")
    writer = write_run(top / "dqn" / "Qbert" / "2" / "replay_logs", 30, [20, 40, 9])
    assert len(writer.dumps) == 3
    return top, writer


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@each_layout
def test_killed_at_every_touch_of_the_disk(options, small_mirror, tmp_path):
    """Every write, rename and removal is a moment to die at. Afterwards: no dataset or a sound one; and the next run
    ends with the same bytes."""
    top, _ = small_mirror
    reference = content(download(request(top, tmp_path / "whole", options=options)).path)
    touches = count_touches(request(top, tmp_path / "count", options=options))
    assert touches > 40
    for at in sorted(random.Random(str(options)).sample(range(touches), min(touches, 5 * EFFORT))):
        root = tmp_path / f"{at}"
        wanted = request(top, root, options=options)
        assert in_child(wanted, at)[0] == "killed"
        place = DatasetPlace(root, "atari/Qbert/2")
        assert not place.exists() or verify(place.path).ok
        assert content(download(wanted).path) == reference, f"killed at touch {at}"
        assert_clean(root)
        shutil.rmtree(root)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_while_starting_over(small_mirror, tmp_path):
    """Two parts are done; --force is killed while it throws them away; an ordinary run must not believe the journal."""
    (top, _), options = small_mirror, LAYOUTS[1]
    reference = content(download(request(top, tmp_path / "whole", options=options)).path)
    interrupt(request(top, tmp_path / "interrupted", options=options), after_parts=2)
    for at in range(4, 44, 2 if EFFORT > 1 else 8):
        root = shutil.copytree(tmp_path / "interrupted", tmp_path / f"{at}")
        in_child(request(top, root, options=options, force=True), at)
        outcome = download(request(top, root, options=options))
        assert content(outcome.path) == reference, f"killed at touch {at}"
        assert verify(outcome.path).ok
        shutil.rmtree(root)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_replacement_is_killed(small_mirror, tmp_path):
    """--force on a complete dataset: at every moment the old one or the new one is there, or one that recovers."""
    top, _ = small_mirror
    old, new = {"codec": "raw"}, {"codec": "zstd"}
    before = content(download(request(top, tmp_path / "old", options=old)).path)
    after = content(download(request(top, tmp_path / "new", options=new)).path)
    shutil.copytree(tmp_path / "old", tmp_path / "count")
    touches = count_touches(request(top, tmp_path / "count", options=new, force=True))
    last = range(touches - 28, touches, 1 if EFFORT > 1 else 7)
    for at in {*last, *random.Random(5).sample(range(touches), EFFORT)}:
        root = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "old", root)
        assert in_child(request(top, root, options=new, force=True), at)[0] == "killed"
        place = DatasetPlace(root, "atari/Qbert/2")
        if place.exists():
            assert content(place.path) in (before, after)
        with contextlib.suppress(DatasetExistsError):  # the old one is there: refused without --force
            fetched = []
            outcome = download(request(top, root), Listener(on_part_done=fetched.append))
            assert content(outcome.path) in (before, after)
            if not place.working.exists():
                assert not fetched or content(outcome.path) == after
        assert content(download(request(top, root, options=new, force=True)).path) == after
        assert_clean(root)
        shutil.rmtree(root)


def interrupt(wanted: Request, after_parts: int) -> None:
    """Ctrl-C after so many parts."""
    seen = []

    def stop(index: int) -> None:
        seen.append(index)
        if len(seen) >= after_parts:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(wanted, Listener(on_part_done=stop))


def test_what_is_finished_is_not_fetched_again(mirror, tmp_path):
    """After an interruption only the shards that are not done are fetched whole."""
    top, _ = mirror
    with http_server(top) as server:
        wanted = request(server.url, tmp_path, options={"codec": "raw"})
        interrupt(wanted, after_parts=5)
        server.faults.requests.clear()
        estimates = []
        download(wanted, Listener(on_estimate=estimates.append))
        frames = [Path(path).name for path, _ in server.faults.gets() if "observation" in path]
    assert estimates[0].done_parts == 5
    # (After a lost lap the plan looks into a file, to tell padding from data.)
    assert set(frames) == {f"$store$_observation_ckpt.{number}.gz" for number in range(5, estimates[0].parts)}


def test_the_number_of_processes_does_not_show(mirror, tmp_path):
    """One and three processes, and a change between them, write the same bytes."""
    top, _ = mirror
    one, three = (content(download(request(top, tmp_path / f"{procs}", procs=procs)).path) for procs in (1, 3))
    mixed = request(top, tmp_path / "mixed", procs=2)
    interrupt(mixed, after_parts=3)
    assert one == three == content(download(request(top, mixed.root, procs=1)).path)


# -- one writer ----------------------------------------------------------------------------------------------------


def test_lock_of_a_dead_process_is_taken_over(small_mirror, tmp_path):
    top, _ = small_mirror
    process, said = start(top, tmp_path)
    with said:
        said.readline()
        kill_tree(process)
    place = DatasetPlace(tmp_path, "atari/Qbert/2")
    place.path.parent.mkdir(parents=True, exist_ok=True)
    lock = place.path.with_name(".2.lock")
    if not lock.exists():  # killed before it took it
        lock.write_text("process 1 on elsewhere")
    assert download(request(top, tmp_path)).action == "written"
    assert_clean(tmp_path)


def test_a_living_writer_is_left_alone(small_mirror, tmp_path):
    top, _ = small_mirror
    place = DatasetPlace(tmp_path, "atari/Qbert/2")
    with (
        place.lock(),
        pytest.raises(DatasetBusyError, match=rf"atari/Qbert/2 is being written by process {os.getpid()}") as caught,
    ):
        download(request(top, tmp_path))
    assert caught.value.hint
    assert isinstance(caught.value, BlockingIOError)
    assert download(request(top, tmp_path)).action == "written"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_several_at_once(kind, mirror, tmp_path):
    """Of downloads begun together one writes; the others say that it does, or find the dataset complete."""
    top, writer = mirror
    found: list[str] = []

    def run() -> None:
        if kind == "processes":
            found.append(in_child(request(top, tmp_path), None)[0])
            return
        try:
            found.append(download(request(top, tmp_path)).action)
        except Exception as error:
            found.append(type(error).__name__)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count("written") == 1, found
    assert set(found) <= {"written", "complete", "DatasetBusyError"}
    assert_holds(Dataset(tmp_path / "atari" / "Qbert" / "2"), fed_truth(writer))


# -- other options, other sources ----------------------------------------------------------------------------------


def test_unfinished_work_with_other_options(small_mirror, tmp_path):
    """What was begun otherwise is neither used nor thrown away without --force."""
    top, _ = small_mirror
    interrupt(request(top, tmp_path, options={"codec": "raw"}), after_parts=1)
    raw = {"codec": "raw"}
    for other in (
        {"codec": "zstd"},
        {**raw, "unknown_next": "zero"},
        {**raw, "time_limit": 40},
        {**raw, "parts": (0, 1)},
        {"layout": "ted"},
    ):
        with pytest.raises(DatasetExistsError, match="unfinished atari/Qbert/2") as caught:
            download(request(top, tmp_path, options=other))
        assert "--force" in caught.value.hint
    assert download(request(top, tmp_path, options={"codec": "raw"})).action == "written"


def test_force_starts_over(small_mirror, tmp_path):
    top, _ = small_mirror
    interrupt(request(top, tmp_path, options={"codec": "raw"}), after_parts=1)
    estimates = []
    wanted = request(top, tmp_path, options={"codec": "zstd"}, force=True)
    assert download(wanted, Listener(on_estimate=estimates.append)).action == "written"
    assert estimates[0].done_parts == 0
    assert_clean(tmp_path)


def test_a_source_that_changed_in_between(small_mirror, tmp_path):
    """Parts of one version of the files are never mixed with those of another."""
    top = tmp_path / "mirror"
    shutil.copytree(small_mirror[0], top)
    interrupt(request(top, tmp_path / "root"), after_parts=1)
    write_run(top / "dqn" / "Qbert" / "2" / "replay_logs", 30, [20, 40, 9], seed=8)
    with pytest.raises(DatasetExistsError, match=r"the source files of the unfinished atari/Qbert/2 have changed"):
        download(request(top, tmp_path / "root"))
    outcome = download(request(top, tmp_path / "root", force=True))
    assert content(outcome.path) == content(download(request(top, tmp_path / "fresh")).path)


def test_a_part_of_a_file_of_another_size(small_mirror, tmp_path):
    """It is made again: what it was made of is compared, though no checksum is stated, and the small files are the same."""
    top = tmp_path / "mirror"
    shutil.copytree(small_mirror[0], top)
    with http_server(top) as server:
        interrupt(request(server.url, tmp_path / "root"), after_parts=1)
        (shard,) = top.rglob("$store$_observation_ckpt.0.gz")
        shard.write_bytes(gzip.compress(gzip.decompress(shard.read_bytes()), 1, mtime=0) + gzip.compress(b""))
        done = []
        made = download(request(server.url, tmp_path / "root"), Listener(on_part_done=done.append))
        assert sorted(done) == [0, 1, 2]
        assert content(made.path) == content(download(request(server.url, tmp_path / "fresh")).path)


@pytest.mark.parametrize("kind", ["short", "long"])
def test_a_wrong_size_does_not_stand_in_the_way(small_mirror, tmp_path, kind):
    """A shard that is finished, and one that the server says to be larger or smaller than it is: the next run goes on."""
    top, _ = small_mirror
    with http_server(top) as server, faulty_proxy(server.url) as web:
        wanted = request(web.url, tmp_path / "root", fetch=FetchOptions(attempts=1, backoff=0.0))
        web.spoil = lambda asked: Fault(kind, 1.0) if asked.path.endswith("observation_ckpt.2.gz") else None
        with pytest.raises((CorruptSourceError, FetchError)):
            download(wanted)
        web.spoil = lambda asked: None
        done = []
        made = download(wanted, Listener(on_part_done=done.append)).path
        assert done == [
            0,
            1,
            2,
        ]  # in so small files it is noticed while frames are sampled, before the first is written
        assert content(made) == content(download(request(web.url, tmp_path / "expected")).path)


def test_nothing_kept_when_nothing_was_finished(small_mirror, tmp_path):
    """A run that failed before its first part does not stand in the way of another with other options."""
    top, _ = small_mirror

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    for stage in ("on_planned", "on_estimate"):
        with pytest.raises(KeyboardInterrupt):
            download(request(top, tmp_path), Listener(**{stage: lambda *_: stop(None)}))
    assert download(request(top, tmp_path, options={"codec": "raw"})).action == "written"


def test_complete_is_complete(small_mirror, tmp_path):
    """Asked again, nothing is fetched and nothing written; other options are refused; force replaces."""
    top, _ = small_mirror
    first = download(request(top, tmp_path))
    stamps = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    again = download(request("/no/such/mirror", tmp_path))
    assert again.action == "complete"
    assert again.manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == stamps
    with pytest.raises(DatasetExistsError, match="made with different options: codec"):
        download(request(top, tmp_path, options={"codec": "raw"}))
    replaced = download(request(top, tmp_path, options={"codec": "raw"}, force=True))
    assert replaced.manifest.source["options"]["codec"] == "raw"
    assert_clean(tmp_path)


@each_layout
def test_growing_a_dataset(options, small_mirror, tmp_path):
    """More shards asked for later: what is there is taken over, and the rows are those of a fresh conversion."""
    top, writer = small_mirror
    download(request(top, tmp_path, options={**options, "parts": (0, 1)}))
    with http_server(top) as server:
        interrupt(request(server.url, tmp_path, options=options), after_parts=1)
        assert Dataset(tmp_path / "atari" / "Qbert" / "2").manifest.source["shards"] == [0, 1]
        outcome = download(request(server.url, tmp_path, options=options))
    assert outcome.manifest.source["shards"] == [0, 1, 2]
    assert verify(outcome.path).ok
    assert_holds(Dataset(outcome.path), fed_truth(writer))
    assert_clean(tmp_path)


def test_nothing_half_written_is_seen(mirror, tmp_path):
    """Looked at all the time while it is made, a dataset is not there, or complete and sound."""
    top, _ = mirror
    place = DatasetPlace(tmp_path / "root", "atari/Qbert/2")
    stop, seen = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            there = place.path.exists()
            if there:
                seen.append(verify(place.path).problems)
                return
            assert not (place.path / "rbdata.json").exists()
            time.sleep(0.001)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    listener = Listener(on_part_done=lambda index: seen.append(place.path.exists()))
    try:
        download(request(top, tmp_path / "root"), listener)
        watcher.join(600)  # it sees the dataset
    finally:
        stop.set()
        watcher.join()
    assert seen[-1] == []
    assert set(map(str, seen[:-1])) == {"False"}


def test_interrupted_conversion_of_a_folder(small_mirror, tmp_path):
    """``convert`` goes on like ``download``, and the folder of raw files stays as it is."""
    top, writer = small_mirror
    folder = top / "dqn" / "Qbert" / "2" / "replay_logs"
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    wanted = Request("my/copy", root=tmp_path, procs=1)

    def stop(index: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, "atari", wanted, Listener(on_part_done=stop))
    estimates = []
    outcome = convert(folder, "atari", wanted, Listener(on_estimate=estimates.append))
    assert estimates[0].done_parts == 1
    assert_holds(Dataset(outcome.path), fed_truth(writer))
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
