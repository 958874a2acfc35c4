"""Whatever is wrong with a source, a mirror or a root: a clear error that names it, a hint, and nothing half-written."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import threading
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import psutil
import pytest
import rbdata
import servers
from atari_truth import assert_holds, fed_truth, file_truth, save_array, save_black, write_run
from effort import EFFORT
from rbdata.datasets import acquire
from rbdata.datasets.acquire import download
from rbdata.datasets.convert import convert
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.sources.source import Source
from rbdata.errors import (
    ChecksumError,
    CorruptSourceError,
    DatasetExistsError,
    DatasetNotFoundError,
    DiskError,
    ForbiddenError,
    ObjectNotFoundError,
    RbdataError,
    TransientFetchError,
    UsageError,
)
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from servers import closed_port, faulty_gcs, gcs_server, http_server

RUN = "dqn/Qbert/2/replay_logs"
FRAMES_1 = "$store$_observation_ckpt.1.gz"
IMPATIENT = FetchOptions(attempts=2, backoff=0.01)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run of three shards, to be copied before it is damaged."""
    top = tmp_path_factory.mktemp("original")
    return top, write_run(top / RUN, 30, [20, 40, 9])


@pytest.fixture
def mirror(original, tmp_path):
    return Path(shutil.copytree(original[0], tmp_path / "mirror"))


def get(mirror: Path | str, root: Path, name: str = "Qbert/2", **fields):
    options = ConvertOptions(**fields.pop("options", {}))
    fields = {"procs": 1, "fetch": IMPATIENT, **fields}
    return download(Request(name, root=root, mirror=str(mirror), options=options, **fields))


def refused(kind: type[RbdataError], words: str, *arguments, **fields) -> RbdataError:
    """The download fails with this error and these words, says what to do, and leaves no dataset behind."""
    root: Path = arguments[1]
    before = set(root.rglob("rbdata.json")) if root.is_dir() else set()
    with pytest.raises(kind, match=words) as caught:
        get(*arguments, **fields)
    error = caught.value
    assert type(error) is kind
    assert error.hint, error.message
    assert len(error.message) < 400
    assert "\n" not in error.message
    if root.is_dir():
        assert set(root.rglob("rbdata.json")) == before
        visible = [path for path in root.rglob("*.memmap") if not any(p.startswith(".") for p in path.parts)]
        assert all(
            (path.parent / "rbdata.json").exists() or path.parent.name in ("next", "episodes") for path in visible
        )
    return error


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, near",
    [
        ("Pnog/5", "atari/Pong/5"),
        ("atari/pong/5", "atari/Pong/5"),
        ("atari/Qbert/6", "atari/Qbert/"),
        ("Qbert", "atari/Qbert/"),
    ],
)
def test_unknown_id(name, near, mirror, tmp_path):
    error = refused(DatasetNotFoundError, re.escape(repr(name)), mirror, tmp_path / "root", name)
    assert near in error.hint


def test_no_such_run(mirror, tmp_path):
    error = refused(ObjectNotFoundError, "no shards and no episodes of Qbert/3", mirror, tmp_path / "root", "Qbert/3")
    assert "Qbert/3/replay_logs" in error.hint


def test_load_downloads_first(mirror, tmp_path):
    """Whole, or the shards that are named; a complete dataset is loaded without a look at the mirror."""
    some = rbdata.load("Qbert/2", root=tmp_path, download={"mirror": str(mirror), "shards": "0-1"}, batch_size=4)
    whole = rbdata.load("Qbert/2", root=tmp_path, download={"mirror": str(mirror)}, batch_size=4)
    assert type(whole.dataset) is Dataset and 0 < len(some) < len(whole)
    shutil.rmtree(mirror)
    again = rbdata.load("Qbert/2", root=tmp_path, download=True, batch_size=4)
    assert len(again) == len(whole) and again.sample().batch_size == (4,)


def test_load_downloads_ids_only(tmp_path):
    with pytest.raises(UsageError, match="download is for ids"):
        rbdata.load("s3://bucket/x", download=True)
    with pytest.raises(UsageError, match="download is for a single id"):
        rbdata.load(["Qbert/2", "Qbert/3"], download=True)
    with pytest.raises(DatasetNotFoundError, match="Nonsense"):
        rbdata.load("Nonsense/2", root=tmp_path, download=True)


def test_no_such_shard(mirror, tmp_path):
    error = refused(
        ObjectNotFoundError, "Qbert/2 has no shard 7, 9", mirror, tmp_path / "root", options={"parts": (1, 7, 9)}
    )
    assert "0-2" in error.hint


@pytest.mark.parametrize("parts", [(2, 0), (0, 2, 2, 0)])
def test_order_of_the_selection_does_not_matter(parts, original, mirror, tmp_path):
    outcome = get(mirror, tmp_path / "root", options={"parts": parts})
    assert outcome.manifest.source["shards"] == [0, 2]
    assert_holds(Dataset(outcome.path), fed_truth(original[1], [0, 2]))


def test_empty_selection(mirror, tmp_path):
    refused(UsageError, "no shards", mirror, tmp_path / "root", options={"parts": ()})


@pytest.mark.parametrize("limit", [1, -5])
def test_senseless_time_limit(limit, mirror, tmp_path):
    refused(UsageError, f"time limit of {limit}", mirror, tmp_path / "root", options={"time_limit": limit})


# -- mirrors ---------------------------------------------------------------------------------------------------------


def test_mirror_is_missing(tmp_path):
    error = refused(ObjectNotFoundError, re.escape(f"{tmp_path}/nowhere"), tmp_path / "nowhere", tmp_path / "root")
    assert "mirror" in error.hint


def test_mirror_is_empty(tmp_path):
    (tmp_path / "mirror").mkdir()
    refused(
        ObjectNotFoundError, "no shards and no episodes of Qbert/2 at .*/mirror", tmp_path / "mirror", tmp_path / "root"
    )


def test_mirror_holds_something_else(mirror, tmp_path):
    for path in (mirror / RUN).iterdir():
        path.rename(path.with_name(path.name.replace("_ckpt.", "-")))
    refused(ObjectNotFoundError, "no shards and no episodes of Qbert/2", mirror, tmp_path / "root")


@pytest.mark.parametrize("status, kind", [(401, ForbiddenError), (403, ForbiddenError)])
def test_web_mirror_is_forbidden(status, kind, mirror, tmp_path):
    with http_server(mirror) as server:
        server.faults.answer(status, times=50, folders=True)
        refused(kind, rf"{re.escape(server.url)}.* {status}", server.url, tmp_path / "root")
        asked = [(method, path) for method, path, *_ in server.faults.requests]
        assert len(asked) == len(set(asked)) <= 3, "each thing once: a converted dataset first, then the raw objects"


def test_web_mirror_is_down(tmp_path):
    with closed_port() as url:
        refused(TransientFetchError, re.escape(url), url, tmp_path / "root")


def test_bucket_is_closed(original, tmp_path, monkeypatch):
    with faulty_gcs() as server:
        for path in (original[0] / RUN).iterdir():
            server.upload("bucket", f"{RUN}/{path.name}", path.read_bytes())
        server.closed_to_anonymous, server.refusal = True, 403
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
        options = FetchOptions(attempts=2, backoff=0.01)
        refused(ForbiddenError, "gs://bucket", "gs://bucket", tmp_path / "root", fetch=options)


def test_bucket_does_not_exist(monkeypatch, tmp_path):
    with faulty_gcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
        refused(ObjectNotFoundError, "gs://nobody", "gs://nobody", tmp_path / "root")


@pytest.fixture(scope="module")
def reference(original, tmp_path_factory):
    """The manifest of what comes from a folder."""
    return get(original[0], tmp_path_factory.mktemp("reference")).manifest


@pytest.mark.parametrize("place", ["directory", "nginx", "gcs", "faulty gcs"])
def test_every_place_gives_the_same(place, original, reference, tmp_path, monkeypatch):
    top, _ = original
    if place == "directory":
        found = get(f"file://{top}", tmp_path / "root").manifest
    elif place == "gcs":
        with gcs_server({"bucket": top}) as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
            found = get("gs://bucket/dqn", tmp_path / "root").manifest
    elif place == "faulty gcs":
        with faulty_gcs() as server:
            server.page_size = 4
            for path in (top / RUN).iterdir():
                server.upload("bucket", f"{RUN}/{path.name}", path.read_bytes())
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
            server.faults.answer(503, times=2)
            server.faults.cut(after=900, times=3)
            patient = FetchOptions(attempts=6, backoff=0.01)
            found = get("gs://bucket", tmp_path / "root", fetch=patient).manifest
    else:
        with http_server(top) as server:
            server.index_style(place)
            found = get(f"{server.url}/dqn", tmp_path / "root").manifest
    assert found.files == reference.files
    assert found.source == reference.source


# -- objects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("array", ["observation", "reward", "add_count"])
def test_missing_array(array, mirror, tmp_path):
    next((mirror / RUN).glob(f"*{array}_ckpt.1.gz")).unlink()
    error = refused(CorruptSourceError, f"shard 1 of Qbert/2 lacks {array}", mirror, tmp_path / "root")
    assert "--shards" in error.hint


@pytest.mark.parametrize("chosen", [(0,), (0, 2), (2,)])
def test_incomplete_shard_left_out(chosen, original, mirror, tmp_path):
    """The hint of the test above is true: the other shards can be had."""
    next((mirror / RUN).glob("*reward_ckpt.1.gz")).unlink()
    outcome = get(mirror, tmp_path / "root", options={"parts": chosen})
    assert_holds(Dataset(outcome.path), fed_truth(original[1], list(chosen), [0, 2]))


def test_damaged_neighbour_left_out(mirror, tmp_path):
    """A shard that is not wanted, and is damaged, does not stand in the way of the one after it."""
    path = next((mirror / RUN).glob("*terminal_ckpt.1.gz"))
    path.write_bytes(path.read_bytes()[:40])
    outcome = get(mirror, tmp_path / "root", options={"parts": (2,)})
    assert outcome.manifest.source["shards"] == [2]


def test_truncated_object_over_the_web(mirror, tmp_path):
    path = mirror / RUN / FRAMES_1
    path.write_bytes(path.read_bytes()[:-50])
    with http_server(mirror) as server:
        error = refused(CorruptSourceError, r"observation_ckpt\.1\.gz is cut short", server.url, tmp_path / "root")
    assert "another mirror" in error.hint


def test_wrong_crc32c(original, tmp_path, monkeypatch):
    with faulty_gcs() as server:
        for path in (original[0] / RUN).iterdir():
            server.upload("bucket", f"{RUN}/{path.name}", path.read_bytes())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
        server.wrong_crc = True
        refused(ChecksumError, r"ckpt\.\d+\.gz: checksum mismatch, crc32c is", "gs://bucket", tmp_path / "root")


def test_frames_with_a_wrong_crc32c(original, tmp_path, monkeypatch):
    """Right length, sound gzip: only the checksum that the bucket states tells. The part does not count as done."""
    key = ("bucket", f"{RUN}/{FRAMES_1}")
    with faulty_gcs() as server:
        for path in (original[0] / RUN).iterdir():
            server.upload("bucket", f"{RUN}/{path.name}", path.read_bytes())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
        true, generation = server.objects[key]
        frames = np.load(io.BytesIO(gzip.decompress(true)))
        frames[5, 40, 40] ^= 255
        false = packed(frames)

        def swap(data: bytes) -> None:
            server.objects[key] = (data, generation)

        stated = servers.crc32c_base64
        monkeypatch.setattr(servers, "crc32c_base64", lambda data: stated(true if data == false else data))
        swap(false)
        words = rf"{re.escape(FRAMES_1)}: checksum mismatch, crc32c is [0-9a-f]{{8}}, expected [0-9a-f]{{8}}"
        refused(ChecksumError, words, "gs://bucket", tmp_path / "root", options={"codec": "raw"})
        assert not (tmp_path / "root" / "atari" / "Qbert" / "2").exists()


def packed(array: np.ndarray, **how) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **how)
    return gzip.compress(stream.getvalue(), 1)


BLANK = np.zeros((30, 84, 84), np.uint8)
UNPACKED = gzip.decompress(packed(BLANK))
BAD_FRAMES = {
    "not gzip": (b"<html>log in</html>", "is not gzip although named so: it begins with b'<html>"),
    "unpacked": (UNPACKED, r"is not gzip although named so: it holds an unpacked \.npy file"),
    "empty": (b"", "is empty"),
    "not npy": (gzip.compress(b"hello, world"), r"is not a \.npy array"),
    "dtype": (
        packed(np.zeros((30, 84, 84), np.float32)),
        r"holds float32 \[30, 84, 84\]; expected uint8 \[any, 84, 84\]",
    ),
    "shape": (packed(np.zeros((30, 84, 80), np.uint8)), r"holds uint8 \[30, 84, 80\]"),
    "colour": (packed(np.zeros((30, 84, 84, 1), np.uint8)), r"holds uint8 \[30, 84, 84, 1\]"),
    "fortran": (packed(np.zeros((84, 84, 30), np.uint8).T), r"holds uint8 \[30, 84, 84\] in Fortran order"),
    "rows": (packed(np.zeros((29, 84, 84), np.uint8)), r"has 29 frames; the other arrays have 30 rows"),
    "pickle": (gzip.compress(pickle.dumps({"weights": 1})), r"is not a \.npy array"),
    "objects": (packed(np.array([{}], object), allow_pickle=True), r"asks for pickle \(dtype object\)"),
    "tail": (packed(BLANK) + b"more", r"is cut short, or has something after the end of its gzip stream"),
    "damaged": (packed(BLANK)[:-8] + b"\0" * 8, r"is a damaged gzip file"),
}


@pytest.mark.parametrize("kind", BAD_FRAMES)
def test_frames_that_are_something_else(kind, mirror, tmp_path):
    data, words = BAD_FRAMES[kind]
    (mirror / RUN / FRAMES_1).write_bytes(data)
    refused(CorruptSourceError, f"{re.escape(FRAMES_1)} {words}", mirror, tmp_path / "root")


def test_small_array_of_another_length(mirror, tmp_path):
    save_array(mirror / RUN, "reward", 1, np.zeros(29, np.float32))
    refused(
        CorruptSourceError, "shard 1 of Qbert/2: 30 actions, 29 rewards and 30 terminals", mirror, tmp_path / "root"
    )


@pytest.mark.parametrize("count", [-1, 17, 61, 1 << 40])
def test_add_count_that_fits_no_lap(count, mirror, tmp_path):
    save_array(mirror / RUN, "add_count", 1, np.array(count, np.int64))
    if count == 17:  # a cursor in the middle of the run: taken for a final dump, with a gap after it
        assert get(mirror, tmp_path / "root").manifest.counts["gaps"]
    else:
        refused(CorruptSourceError, f"shard 1 of Qbert/2: add_count {count} fits no lap", mirror, tmp_path / "root")


def test_values_that_cannot_be(mirror, tmp_path):
    folder = mirror / RUN
    action = np.load(io.BytesIO(gzip.decompress((folder / "$store$_action_ckpt.1.gz").read_bytes())))
    for row, value in ((9, 18), (9, -1), (9, 1 << 30)):
        changed = action.copy()
        changed[row] = value
        save_array(folder, "action", 1, changed)
        refused(CorruptSourceError, rf"shard 1 of Qbert/2: row 9 has action {value}", mirror, tmp_path / f"{value}")


def test_another_runs_file(mirror, tmp_path):
    """One observation file of another run among the right ones: its padding is in the wrong places."""
    write_run(tmp_path / "other", 30, [17, 45, 9], seed=4)
    name = "$store$_observation_ckpt.0.gz"
    shutil.copy(tmp_path / "other" / name, mirror / RUN / name)
    words = r"shard 0 of Qbert/2: the frame of row 2\d should be blank padding, but is not"
    error = refused(CorruptSourceError, words, mirror, tmp_path / "root")
    assert "damaged" in error.hint


def test_shard_of_another_ring(mirror, tmp_path):
    write_run(tmp_path / "other", 40, [17, 45, 50], seed=4)
    for path in (tmp_path / "other").glob("*_ckpt.1.gz"):
        shutil.copy(path, mirror / RUN)
    words = "shard 1 of Qbert/2 has 40 rows, shard 0 of Qbert/2 has 30"
    assert "mixed" in refused(CorruptSourceError, words, mirror, tmp_path / "root").hint


def test_shards_with_their_numbers_swapped(tmp_path):
    folder = tmp_path / "mirror" / RUN
    write_run(folder, 30, [200], still_open=True, final=False)
    for old, new in ((1, "x"), (2, 1), ("x", 2)):
        for path in folder.glob(f"*_ckpt.{old}.gz"):
            path.rename(path.with_name(path.name.replace(f"ckpt.{old}.", f"ckpt.{new}.")))
    words = "shard 2 of Qbert/2 is of lap 1, the file before it of lap 2"
    assert "mixed" in refused(CorruptSourceError, words, tmp_path / "mirror", tmp_path / "root").hint


def test_frames_unpack_to_more_than_declared(mirror, tmp_path):
    """A small file that would unpack to gigabytes: refused when the declared rows are over."""
    save_black(mirror / RUN, 1, 30_000, declared=30)
    refused(CorruptSourceError, re.escape(FRAMES_1), mirror, tmp_path / "root")


def test_random_damage(original, tmp_path):
    """Flipped, dropped and doubled bytes anywhere: an error of ours or (where nothing shows) a sound dataset."""
    chance = random.Random(7)
    top, _ = original
    kinds = ["observation", "action", "reward", "terminal", "add_count"]
    for number in range(12 * EFFORT):
        folder = Path(shutil.copytree(top, tmp_path / f"{number}")) / RUN
        path = next(folder.glob(f"*{chance.choice(kinds)}_ckpt.{chance.randrange(3)}.gz"))
        data = bytearray(path.read_bytes())
        packed_again = chance.random() < 0.5
        if packed_again:
            data = bytearray(gzip.decompress(data))
        at = chance.randrange(len(data) if chance.random() < 0.5 else min(len(data), 130))
        how = chance.randrange(3)
        if how == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            del data[at : at + chance.randrange(1, 9)]
        else:
            data[at:at] = data[at : at + chance.randrange(1, 9)]
        path.write_bytes(gzip.compress(data, 1) if packed_again else data)
        try:
            outcome = get(tmp_path / f"{number}", tmp_path / f"{number}", options={"codec": "raw"})
        except RbdataError as error:
            assert error.hint, error
            assert not (tmp_path / f"{number}" / "atari" / "Qbert" / "2").exists()
        else:
            assert verify(outcome.path).ok
        shutil.rmtree(tmp_path / f"{number}")


# -- connections -----------------------------------------------------------------------------------------------------


def test_connections_that_break_are_continued(original, reference, tmp_path):
    top, writer = original
    with http_server(top) as server:
        server.faults.cut(after=60, times=5)
        server.faults.answer(503, times=2)
        outcome = get(server.url, tmp_path / "root", fetch=FetchOptions(attempts=6, backoff=0.01))
        resumed = [span for _, span in server.faults.gets() if span]
    assert resumed
    assert_holds(Dataset(outcome.path), fed_truth(writer))
    assert outcome.manifest.files == reference.files


def test_connection_that_never_comes_back(original, tmp_path):
    """What was finished before stays for the next run."""
    top, writer = original
    with http_server(top) as server:
        request = Request("Qbert/2", root=tmp_path, mirror=server.url, procs=1, fetch=IMPATIENT)
        first = Listener(on_part_done=lambda index: server.faults.answer(503, times=100))
        with pytest.raises(TransientFetchError, match=r"observation_ckpt\.1\.gz.*gave up after 2 attempts") as caught:
            download(request, first)
        assert caught.value.hint
        assert not (tmp_path / "atari" / "Qbert" / "2").exists()
        server.faults._answers.clear()
        estimates = []
        outcome = download(request, Listener(on_estimate=estimates.append))
    assert estimates[0].done_parts == 1
    assert_holds(Dataset(outcome.path), fed_truth(writer))


def test_file_replaced_while_it_is_read(original, mirror, tmp_path):
    """A mirror that is being written to: the error says so."""

    def touch(index: int) -> None:
        if index == 0:
            path = mirror / RUN / FRAMES_1
            path.write_bytes(path.read_bytes())
            os.utime(path, ns=(1, 1))

    request = Request("Qbert/2", root=tmp_path / "root", mirror=str(mirror), procs=1)
    with pytest.raises(RbdataError, match=re.escape(FRAMES_1) + " was changed") as caught:
        download(request, Listener(on_part_done=touch))
    assert caught.value.hint


def workers() -> list[psutil.Process]:
    """Processes of ours that do the work of others."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            forked = (
                "forkserver" in " ".join(child.cmdline()) and child.ppid() != os.getpid()
            )  # else it is their server
            if child.status() != psutil.STATUS_ZOMBIE and (forked or "--process-name" in child.cmdline()):
                found.append(child)
    return found


def test_worker_is_killed(original, tmp_path):
    """By the system, for want of memory: a clear error, finished parts kept, no process left behind."""
    top, _ = original
    with http_server(top) as server:
        options = ConvertOptions(codec="raw")
        request = Request("Qbert/2", root=tmp_path, mirror=server.url, procs=2, options=options)
        planned, done = threading.Event(), threading.Event()

        def strike() -> None:
            """Once a worker sits in a read that hangs."""
            planned.wait(600)
            while not done.is_set():
                if any("observation" in path for path, _ in server.faults.gets()) and workers():
                    time.sleep(0.1)
                    for worker in workers()[:1]:
                        worker.kill()
                    return
                time.sleep(0.01)

        def arm(_: object) -> None:
            server.faults.requests.clear()
            server.faults.stall(after=50, times=3)
            planned.set()

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            with pytest.raises(RbdataError, match=r"the process that worked on shard \d was killed") as caught:
                download(request, Listener(on_estimate=arm))
        finally:
            done.set()
            planned.set()
            striker.join()
        assert "run the command again" in caught.value.hint
        assert not (tmp_path / "atari" / "Qbert" / "2").exists()
        deadline = time.time() + 60
        while workers() and time.time() < deadline:
            time.sleep(0.02)
        assert not workers()
        server.faults._stalls.clear()
        server.faults.released.set()
        outcome = download(request)
    assert verify(outcome.path).ok
    assert outcome.manifest.files == get(top, tmp_path / "reference", options={"codec": "raw"}).manifest.files


# -- roots -----------------------------------------------------------------------------------------------------------


def test_disk_is_too_small(mirror, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 30, (1 << 30) - (1 << 20), 1 << 20))
    error = refused(DiskError, r"atari/Qbert/2 needs about .* kB on .* 1\.05 MB are free", mirror, tmp_path / "root")
    assert "--root" in error.hint


def test_root_is_a_file(mirror, tmp_path):
    (tmp_path / "root").write_text("mine")
    error = refused(DiskError, f"{tmp_path}/root is not a folder", mirror, tmp_path / "root")
    assert "RBDATA_ROOT" in error.hint
    refused(DiskError, f"{tmp_path}/root/deeper", mirror, tmp_path / "root" / "deeper")
    assert (tmp_path / "root").read_text() == "mine"


@pytest.mark.skipif(os.name != "posix", reason="users")
def test_root_is_not_writable(original, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o555)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            # Folders of pytest are closed to others, so nothing is looked up below them: a root in one that is open.
            os._exit(0 if _refuses_unwritable("/proc/rbdata-root") and _refuses_unwritable("/usr") else 2)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _refuses_unwritable(root: str) -> bool:
    from rbdata.storage.folder import make_writable

    try:
        make_writable(Path(root))
    except DiskError as error:
        return root in str(error) and "--root" in (error.hint or "")
    return False


def test_something_is_in_the_way(mirror, tmp_path):
    """A folder or file of the user's where the dataset should be: never touched."""
    place = tmp_path / "root" / "atari" / "Qbert" / "2"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("mine")
    error = refused(DatasetExistsError, f"{place} exists and is not", mirror, tmp_path / "root")
    assert "move it away" in error.hint
    assert (place / "thesis.txt").read_text() == "mine"
    shutil.rmtree(place)
    place.write_text("mine")
    refused(DatasetExistsError, f"{place} exists and is not", mirror, tmp_path / "root")
    assert place.read_text() == "mine"
    place.unlink()
    place.mkdir()
    assert get(mirror, tmp_path / "root").action == "written", "an empty folder is in nobody's way"


def test_force_spares_what_is_not_a_dataset(mirror, tmp_path):
    """--force replaces datasets, not a user's folder."""
    place = tmp_path / "root" / "atari" / "Qbert" / "2"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("mine")
    refused(DatasetExistsError, f"{place} exists and is not", mirror, tmp_path / "root", force=True)
    assert (place / "thesis.txt").read_text() == "mine"


def test_force_spares_a_file(mirror, tmp_path):
    """Nor a user's file."""
    place = tmp_path / "root" / "atari" / "Qbert" / "2"
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    refused(DatasetExistsError, f"{place} exists and is not", mirror, tmp_path / "root", force=True)
    assert place.read_text() == "mine"


def edit_manifest(path: Path, **changes) -> None:
    manifest = json.loads((path / "rbdata.json").read_text())
    (path / "rbdata.json").write_text(json.dumps({**manifest, **changes}))


def test_manifest_of_a_newer_version(mirror, tmp_path):
    """It is a dataset, only not one for this version: said so, and left alone."""
    outcome = get(mirror, tmp_path / "root")
    edit_manifest(outcome.path, format_version=2)
    with pytest.raises(DatasetNotFoundError, match="format version 2") as caught:
        Dataset(outcome.path)
    assert "upgrade" in caught.value.hint
    error = refused(DatasetNotFoundError, "format version 2", mirror, tmp_path / "root")
    assert "upgrade" in error.hint


def test_damaged_manifest(mirror, tmp_path):
    outcome = get(mirror, tmp_path / "root")
    edit_manifest(outcome.path, steps=5)
    with pytest.raises(RbdataError, match="does not match its own checksum") as caught:
        get(mirror, tmp_path / "root")
    assert "--force" in caught.value.hint
    assert get(mirror, tmp_path / "root", force=True).action == "written"


@pytest.mark.parametrize("keep_raw", [False, True])
def test_what_another_process_finished_meanwhile_is_compared_with_the_request(keep_raw, mirror, tmp_path, monkeypatch):
    get(mirror, tmp_path / "root")
    monkeypatch.setattr(acquire, "find_existing", lambda *_: None)  # it was not there at first

    def another(self, manifest, options):
        raise DatasetExistsError("made from other data")

    monkeypatch.setattr(Source, "check_existing", another)
    with pytest.raises(DatasetExistsError, match="other data"):
        get(mirror, tmp_path / "root", keep_raw=keep_raw)


def test_convert_of_what_is_no_run(tmp_path):
    request = Request("my/run", root=tmp_path / "root", procs=1)
    with pytest.raises(ObjectNotFoundError, match="no such file or folder") as caught:
        convert(tmp_path / "nowhere", "atari", request)
    assert caught.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectNotFoundError, match="holds no DQN Replay shards") as caught:
        convert(tmp_path / "empty", "atari", request)
    assert "observation_ckpt.0.gz" in caught.value.hint
    with pytest.raises(DatasetNotFoundError, match="no source 'atary'") as caught:
        convert(tmp_path / "empty", "atary", request)
    assert "atari" in caught.value.hint


def test_convert_takes_the_folder_or_the_one_above(original, tmp_path):
    top, writer = original
    for number, folder in enumerate((top / RUN, (top / RUN).parent)):
        outcome = convert(folder, "atari", Request(f"my/run{number}", root=tmp_path, procs=1))
        assert_holds(Dataset(outcome.path), fed_truth(writer))
    assert_holds(Dataset(outcome.path), file_truth(top / RUN), top / RUN)
