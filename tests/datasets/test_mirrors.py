"""A lab's mirror: push, ls and download, to and from a directory, S3 and Google Cloud Storage."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rbdata
from paths import DATA
from rbdata.datasets import acquire
from rbdata.datasets.acquire import download
from rbdata.datasets.fetch import FetchOptions, open_location
from rbdata.datasets.fetch.upload import LocalFile, open_writable, upload
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Estimate, Listener, Outcome, Request
from rbdata.datasets.mirrors import find_held, ls, push, remove
from rbdata.errors import (
    ChecksumError,
    CorruptSourceError,
    DamagedDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    DiskError,
    ForbiddenError,
    ObjectNotFoundError,
    RbdataError,
    UsageError,
)
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.integrity import verify
from rbdata.storage.manifest import read_manifest, write_manifest
from s3_server import S3Server, s3_server
from servers import GcsServer, gcs_server, http_server

HERE = DATA
ID = "atari/Breakout/1"
QUICK = FetchOptions(attempts=2, backoff=0.01)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server("lab") as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with gcs_server() as server:
        server.upload("lab", "marker", b"x")  # makes the bucket
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3: S3Server, gcs: GcsServer) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.host)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a converted dataset, its raw objects, and one that a user made."""
    top = tmp_path_factory.mktemp("root")
    made = download(Request(ID, root=top, mirror=str(HERE / "rl_unplugged"), procs=1, keep_raw=True))
    mine = top / "my" / "team" / "breakout"
    shutil.copytree(made.path, mine)
    write_manifest(mine, replace(read_manifest(mine), id="my/team/breakout"))
    return top


@pytest.fixture(params=["directory", "s3", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty mirror."""
    name = request.node.name.replace("[", "-").strip("]")
    return {"directory": str(tmp_path / "mirror"), "s3": f"s3://lab/{name}", "gcs": f"gs://lab/{name}"}[request.param]


def get(root: Path, place: str, name: str = ID, **fields) -> Outcome:
    return download(Request(name, root=root, mirror=place, procs=1, fetch=QUICK, **fields))


def without_provenance(folder: Path) -> dict:
    manifest = json.loads((folder / "rbdata.json").read_text())
    del manifest["provenance"], manifest["checksum"]
    return manifest


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "rbdata.json")
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# -- the round trip --------------------------------------------------------------------------------------------------


def test_a_labs_round_trip(root: Path, place: str, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    pushed = push(ID, place, root=root, fetch=QUICK, on_progress=lambda *told: seen.append(told))
    assert (pushed.id, pushed.kind, pushed.url) == (ID, "dataset", f"{place}/{ID}")
    assert pushed.sent == pushed.files and pushed.sent_bytes == pushed.bytes
    assert seen[-1][1] == seen[-1][2] == pushed.bytes - (root / ID / "rbdata.json").stat().st_size
    again = push(ID, place, root=root, fetch=QUICK)
    assert (again.files, again.sent, again.sent_bytes) == (pushed.files, 0, 0)

    (entry,) = ls(place, fetch=QUICK)
    manifest = read_manifest(root / ID)
    assert (entry.kind, entry.name, entry.steps, entry.episodes) == ("dataset", ID, manifest.steps, manifest.episodes)
    assert entry.bytes == manifest.bytes

    estimates: list[Estimate] = []
    request = Request(ID, root=tmp_path / "empty", mirror=place, fetch=QUICK)
    outcome = download(request, Listener(on_estimate=estimates.append))
    assert outcome.action == "written" and estimates[0].fetch_bytes == manifest.bytes
    assert verify(outcome.path).ok
    assert hashes(outcome.path) == hashes(root / ID)
    assert without_provenance(outcome.path) == without_provenance(root / ID)
    assert read_manifest(outcome.path).provenance["mirror"] == place
    assert read_manifest(outcome.path).provenance["location"] == manifest.provenance["location"]
    assert [path.name for path in outcome.path.parent.iterdir() if not path.name.endswith(".lock")] == ["1"]
    assert get(tmp_path / "empty", place).action == "complete"


@pytest.mark.parametrize("place", ["gcs"], indirect=True)
def test_raw_objects_are_converted(root: Path, place: str, tmp_path: Path) -> None:
    pushed = push(ID, place, root=root, raw=True, fetch=QUICK)
    assert (pushed.kind, pushed.files, pushed.sent) == ("raw", 2, 2)
    assert push(ID, place, root=root, raw=True, fetch=QUICK).sent == 0
    (entry,) = ls(place, fetch=QUICK)
    folder = ".raw/atari/atari_episodes_ordered/Breakout"
    assert (entry.kind, entry.name, entry.files, entry.bytes) == ("raw", folder, 2, pushed.bytes)
    with pytest.raises(CorruptSourceError, match="has 50 files, and 2-49 are not at"):
        get(tmp_path / "empty", place)
    there = ConvertOptions(parts=(0, 1))
    outcome = get(tmp_path / "empty", place, options=there)
    assert hashes(outcome.path) == hashes(root / ID)
    made, original = without_provenance(outcome.path), without_provenance(root / ID)
    for record in (made, original):
        del record["source"]["all_shards"]  # whether a choice was made
    assert made == original
    # What a dataset was converted with decides whether it is taken: for another, the raw objects are.
    push(ID, place, root=root, fetch=QUICK)
    raw = get(tmp_path / "raw", place, options=replace(there, codec="raw"))
    assert raw.manifest is not None and raw.manifest.schema["observation"].codec == "raw"


def test_what_no_source_knows(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push("my/team/breakout", "gs://lab/mine", root=root, fetch=QUICK)
    outcome = get(tmp_path, "gs://lab/mine", "my/team/breakout")
    assert hashes(outcome.path) == hashes(root / ID)
    with pytest.raises(DatasetNotFoundError, match="gs://lab/mine holds none"):
        get(tmp_path, "gs://lab/mine", "my/team/other")
    with pytest.raises(DatasetNotFoundError):
        download(Request("my/team/other", root=tmp_path))
    monkeypatch.setenv("RBDATA_MIRROR", "gs://lab/mine")
    assert download(Request("my/team/breakout", root=tmp_path / "2")).action == "written"


def test_a_dataset_of_a_mirror_is_not_taken_for_one_of_that_id_made_here(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, rows = (
        str(tmp_path / "mirror"),
        {"observation": np.zeros((4, 1)), "action": np.zeros(4), "done": [0, 0, 0, 1]},
    )
    push("my/team/breakout", place, root=root, fetch=QUICK)
    rbdata.from_arrays({**rows, "reward": np.ones(4)}, "my/team/breakout", root=tmp_path)
    with pytest.raises(DatasetExistsError, match=r"is not the dataset of .*mirror/my/team/breakout"):
        get(tmp_path, place, "my/team/breakout")
    with monkeypatch.context() as patch:
        patch.setattr(acquire, "find_existing", lambda *_: None)  # another process made it in the meantime
        with pytest.raises(DatasetExistsError, match=r"is not the dataset of .*mirror/my/team/breakout"):
            get(tmp_path, place, "my/team/breakout")
    assert get(tmp_path, place, "my/team/breakout", force=True).action == "written"
    assert get(tmp_path, place, "my/team/breakout").action == "complete"
    rbdata.from_arrays({**rows, "reward": np.ones(4)}, "my/other", root=tmp_path)
    with pytest.raises(DatasetExistsError, match="mirror holds none of that name"):
        get(tmp_path, place, "my/other")


def test_a_root_is_a_mirror(root: Path, tmp_path: Path) -> None:
    (root / "atari" / "Breakout" / ".9.writing").mkdir(exist_ok=True)
    assert [(entry.kind, entry.name) for entry in ls(str(root))] == [
        ("dataset", ID),
        ("dataset", "my/team/breakout"),
        ("raw", ".raw/atari/atari_episodes_ordered/Breakout"),
    ]
    assert hashes(get(tmp_path, str(root)).path) == hashes(root / ID)
    with http_server(root) as server:
        assert hashes(get(tmp_path / "2", server.url).path) == hashes(root / ID)
        (entry, *_) = ls(server.url)
        assert entry.name == ID


def test_a_plain_copy_of_a_bucket(tmp_path: Path) -> None:
    (first, second) = ls(str(HERE / "atari"))
    assert (first.kind, first.name) == ("raw", "dqn/Breakout/1/replay_logs")
    assert second.name == "dqn/Pong/5/replay_logs" and second.files == 18


# -- interrupted, damaged, in the way ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["directory", "gcs"], indirect=True)
def test_a_push_goes_on(root: Path, place: str, tmp_path: Path) -> None:
    class Stop(BaseException):  # as Ctrl-C
        pass

    def stop(name: str, done: int, total: int) -> None:
        if done > total // 2:
            raise Stop

    with pytest.raises(Stop):
        push(ID, place, root=root, fetch=QUICK, on_progress=stop)
    # What is not whole is not shown, and not taken.
    assert all(entry.kind == "raw" for entry in ls(place, fetch=QUICK))
    with pytest.raises(ObjectNotFoundError):
        get(tmp_path, place)
    rest = push(ID, place, root=root, fetch=QUICK)
    assert 0 < rest.sent < rest.files
    assert verify(get(tmp_path, place).path).ok


def test_a_copy_goes_on(root: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(tasks: list) -> None:
        if tasks[0].rows > tasks[0].total // 2:
            raise Stop

    request = Request(ID, root=tmp_path, mirror=str(root), fetch=QUICK)
    with pytest.raises(Stop):
        download(request, Listener(on_progress=stop))
    assert not (tmp_path / ID).exists()
    plans: list[Estimate] = []
    seen: list[tuple[int, int, int]] = []
    listener = Listener(
        on_estimate=plans.append,
        on_progress=lambda tasks: seen.extend((task.rows, task.total, task.fetched) for task in tasks),
    )
    assert verify(download(request, listener).path).ok
    left = plans[0].fetch_bytes
    assert 0 < left < read_manifest(root / ID).bytes
    assert {total for _, total, _ in seen} == {left} and all(rows == fetched for rows, _, fetched in seen)
    assert seen[-1] == (left, left, left)


@pytest.mark.parametrize("place", ["directory"], indirect=True)
def test_a_damaged_copy_is_found_and_mended(root: Path, place: str, tmp_path: Path) -> None:
    push(ID, place, root=root, fetch=QUICK)
    there = Path(place, ID, "observation", "blob")
    blob = bytearray(there.read_bytes())
    blob[1000] ^= 1
    there.write_bytes(blob)
    with pytest.raises(ChecksumError, match="observation/blob: checksum mismatch, bytes 0-"):
        get(tmp_path, place)
    assert not (tmp_path / ID).exists()
    there.write_bytes(blob[:-1])
    with pytest.raises(ChecksumError, match="bytes, expected"):
        get(tmp_path, place)
    mended = push(ID, place, root=root, fetch=QUICK)
    assert mended.sent == 1
    assert verify(get(tmp_path, place).path).ok


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_a_copy_is_synced_before_it_is_a_dataset(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    get(tmp_path, str(root))
    files = [str(DatasetPlace(tmp_path, ID).working / name) for name in read_manifest(root / ID).files]
    assert set(files) <= set(synced[: next(number for number, path in enumerate(synced) if "rbdata.json" in path)])


def test_damage_is_not_spread(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / ID, tmp_path / "root" / ID)
    path = tmp_path / "root" / ID / "action.memmap"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedDatasetError, match=r"action\.memmap: checksum mismatch"):
        push(ID, str(tmp_path / "mirror"), root=tmp_path / "root")
    assert not (tmp_path / "mirror").exists(), "a refused push leaves nothing"


@pytest.mark.parametrize("place", ["directory", "s3"], indirect=True)
def test_what_is_removed_is_gone_and_nothing_else(root: Path, place: str, tmp_path: Path) -> None:
    """By its bare name. The manifest goes first."""
    open_writable(place, QUICK).write(root / ID / "action.memmap", "my/other/action.memmap", lambda count: None)
    for name in ("rbdata.json", "action.memmap", "observation/offsets"):
        open_writable(place, QUICK).write(root / ID / name, f"{ID}/{name}", lambda count: None)
    held = find_held("Breakout/1", place, fetch=QUICK)
    assert held.files == tuple(f"{ID}/{name}" for name in ("rbdata.json", "observation/offsets", "action.memmap"))
    remove(held, place, fetch=QUICK)
    assert [entry.name for entry in ls(place, fetch=QUICK)] == ["my/other"]
    if place.startswith("/"):
        assert not Path(place, "atari").exists()
        for name in ("Breakout/1", "my"):
            with pytest.raises(ObjectNotFoundError, match="no dataset and no raw files named"):
                find_held(name, place, fetch=QUICK)


def test_removal_stays_inside_the_mirror(root: Path, tmp_path: Path) -> None:
    """A mirror that others write to may hold links: what they lead to is not removed."""
    place, outside = tmp_path / "mirror", tmp_path / "outside"
    folder = Path(shutil.copytree(root / ID, place / ID))
    (folder / "observation").rename(outside)
    (folder / "observation").symlink_to(outside)
    files = sorted(path.name for path in outside.iterdir())
    with pytest.raises(DiskError, match="behind a link out of the mirror"):
        remove(find_held(ID, str(place)), str(place))
    assert sorted(path.name for path in outside.iterdir()) == files
    (folder / "observation").unlink()
    remove(find_held(ID, str(place)), str(place))  # what an interrupted removal left
    assert list(place.iterdir()) == []


def test_another_dataset_is_not_replaced_unasked(root: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "mirror")
    push(ID, place, root=root, fetch=QUICK)
    other = ConvertOptions(unknown_next="zero")
    download(Request(ID, root=tmp_path, mirror=str(HERE / "rl_unplugged"), procs=1, options=other))
    with pytest.raises(DatasetExistsError, match="already holds a different"):
        push(ID, place, root=tmp_path, fetch=QUICK)
    push(ID, place, root=tmp_path, fetch=QUICK, force=True)
    with pytest.raises(ObjectNotFoundError, match="holds it with unknown_next zero"):
        get(tmp_path / "2", place)
    assert verify(get(tmp_path / "2", place, options=other).path).ok


def test_what_there_is_not(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetNotFoundError):
        push("atari/Pong/5", str(tmp_path), root=root)
    with pytest.raises(DatasetNotFoundError, match="no raw files of atari/Pong/5"):
        push("atari/Pong/5", str(tmp_path), root=root, raw=True)
    with pytest.raises(DatasetNotFoundError) as caught:
        push(ID, str(tmp_path), root=tmp_path, raw=True)
    assert "--keep-raw" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="is read-only"):
        push(ID, "https://host.example/x", root=root)
    with pytest.raises(UsageError, match="is the root that holds"):
        push(ID, str(root), root=root)
    for place in ("s3://no-such-bucket/x", "gs://no-such-bucket/x"):
        with pytest.raises(ObjectNotFoundError) as missing:
            push(ID, place, root=root, fetch=QUICK)
        assert "bucket must exist" in (missing.value.hint or "")
        with pytest.raises(ObjectNotFoundError):
            ls(place, fetch=QUICK)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ForbiddenError) as refused:
        push(ID, "s3://lab/closed", root=root, fetch=QUICK)
    assert "write access" in (refused.value.hint or "")


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "a/../../evil", ".raw/x", "rbdata.json", "a//b", "run.json"]
)
def test_a_hostile_manifest_writes_nowhere_else(root: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / "mirror"
    shutil.copytree(root / ID, place / ID)
    manifest = read_manifest(place / ID)
    write_manifest(place / ID, replace(manifest, files={**manifest.files, name: [[1, "00000000"]]}))
    with pytest.raises(DamagedDatasetError, match="outside its dataset"):
        get(tmp_path / "root", str(place))
    write_manifest(place / ID, replace(manifest, files={**manifest.files, "action.memmap": [["x", None]]}))
    with pytest.raises(DamagedDatasetError, match="malformed"):
        get(tmp_path / "root", str(place))
    write_manifest(place / ID, replace(manifest, id="atari/Pong/1"))
    with pytest.raises(DamagedDatasetError, match="holds the manifest of atari/Pong/1"):
        get(tmp_path / "root", str(place))
    assert not list(tmp_path.rglob("evil")) and not (tmp_path / "root" / ID).exists()


@pytest.mark.parametrize(
    "text, kind", [('{"format": "rbdata", "format_version": 99}', DatasetNotFoundError), ("{", DamagedDatasetError)]
)
def test_a_manifest_that_is_not_read_is_named_by_its_url(
    root: Path, tmp_path: Path, text: str, kind: type[RbdataError]
) -> None:
    place = tmp_path / "mirror"
    shutil.copytree(root / ID, place / ID)
    (place / ID / "rbdata.json").write_text(text)
    with pytest.raises(kind) as refused:
        get(tmp_path / "root", str(place))
    assert refused.value.message.startswith(str(place / ID))


def test_a_dry_run(root: Path, tmp_path: Path) -> None:
    outcome = get(tmp_path, str(root), dry_run=True)
    assert outcome.action == "planned" and outcome.estimate is not None
    assert outcome.estimate.fetch_bytes == read_manifest(root / ID).bytes
    assert list(tmp_path.iterdir()) == []


def test_large_files_go_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    """Stored in pieces, S3 states no MD5; what it does state is worked out here, so nothing is read back."""
    from rbdata.datasets.fetch import fsspec_store

    monkeypatch.setattr(fsspec_store, "S3_PIECE", 5 << 20)
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (41 << 10))
    mirror = open_writable("s3://lab/large", QUICK)
    told: list[int] = []
    assert upload(mirror, LocalFile(path), "large", told.append)
    assert sum(told) == path.stat().st_size
    tag = open_location("s3://lab/large").stat("large").version
    assert tag is not None and tag.endswith("-3") and tag == LocalFile(path).s3_tag(5 << 20)
    assert not upload(mirror, LocalFile(path), "large")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert upload(mirror, LocalFile(path), "large")


def test_gcs_files_larger_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rbdata.datasets.fetch import gcs

    monkeypatch.setattr(gcs, "_PIECE", 1 << 18)
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (5 << 10))
    told: list[int] = []
    mirror = open_writable("gs://lab/large", QUICK)
    assert upload(mirror, LocalFile(path), "large", told.append)
    assert sum(told) == path.stat().st_size
    assert not upload(mirror, LocalFile(path), "large")


def test_a_mirror_is_a_path_or_text(tmp_path):
    """Also for names that only a mirror can know."""
    for name in ("Pong/5", "mujoco/hopper/none-v0"):
        for mirror in (tmp_path, str(tmp_path)):
            with pytest.raises((ObjectNotFoundError, DatasetNotFoundError)):
                rbdata.download(name, root=tmp_path / "root", mirror=mirror)
        with pytest.raises(UsageError, match="mirror is a path or URL, not 5"):
            rbdata.download(name, root=tmp_path / "root", mirror=5)
