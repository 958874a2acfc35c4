"""Minari datasets from somewhere else: the Hub, buckets, web servers and folders; interrupted, resumed, offline; listings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from minari_hub import hub
from minari_tools import FIXTURES, compare, convert, truth, with_root
from rbdata.datasets import catalogue
from rbdata.datasets.acquire import download
from rbdata.datasets.fetch import FetchOptions, open_location, read_all
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.minari.source import HOME, MinariSource, local_names
from rbdata.errors import (
    ChecksumError,
    CorruptSourceError,
    DatasetNotFoundError,
    FetchError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from servers import closed_port, gcs_server, http_server

FAST = FetchOptions(attempts=3, backoff=0.01)
ONCE = FetchOptions(attempts=1, backoff=0.01)
DATASETS = ["cartpole/random-v0", "cartpole/arrow-v0"]


@pytest.fixture(autouse=True)
def minari_root(tmp_path, monkeypatch):
    """An empty root of Minari's, no remote but the Foundation's, and no token of the developer's."""
    for name in ("HF_ENDPOINT", "HF_TOKEN", "RBDATA_MINARI_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    return with_root(monkeypatch, tmp_path / "minari")


@pytest.fixture(scope="module")
def expected():
    """What Minari's own reader says of the fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(FIXTURES))
        return {name: truth(name) for name in DATASETS}


@pytest.fixture
def server(monkeypatch):
    with hub({"farama-minari": FIXTURES, "somebody": FIXTURES}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def get(root: Path, text: str, *, mirror=None, fetch=FAST, **fields) -> Dataset:
    outcome = download(Request(text, root=root, mirror=mirror, fetch=fetch, **fields))
    assert verify(outcome.path).ok
    return Dataset(outcome.path)


# -- places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("page_size", [2, 1000])
def test_from_the_hub(tmp_path, server, expected, name, page_size):
    server.page_size = page_size
    dataset = get(tmp_path, f"minari/{name}")
    compare(dataset, expected[name])
    assert dataset.manifest.provenance["location"] == HOME
    objects = dataset.manifest.source["objects"]
    assert objects[0]["name"] == "data/metadata.json"
    if name.endswith("random-v0"):
        assert len(objects[1]["sha256"]) == 64 and objects[1]["crc32c"]
    else:
        assert len(objects) == 1 + 20


def test_from_an_address(tmp_path, server, expected):
    dataset = get(tmp_path, "hf://somebody/cartpole/random-v0")
    assert dataset.id == "minari/cartpole/random-v0"
    assert dataset.manifest.provenance["location"] == "hf://somebody"
    compare(dataset, expected["cartpole/random-v0"])


def test_the_remote_that_minari_itself_would_use(tmp_path, server, monkeypatch, expected):
    monkeypatch.setenv("MINARI_REMOTE", "hf://somebody")
    dataset = get(tmp_path, "minari/cartpole/random-v0")
    assert dataset.manifest.provenance["location"] == "hf://somebody"
    monkeypatch.setenv("MINARI_REMOTE", "gcp://bucket")
    assert MinariSource().home == "gs://bucket"
    assert MinariSource().split_address("gcp://bucket/a/b-v0") == ("a/b-v0", "gs://bucket")
    assert MinariSource().split_address("s3://bucket/a/b-v0") is None


@pytest.mark.parametrize("name", DATASETS)
def test_from_a_bucket(tmp_path, monkeypatch, expected, name):
    with gcs_server() as running:
        running.upload_folder("minari-remote", FIXTURES / name, f"{name}/")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.host)
        monkeypatch.setenv("MINARI_REMOTE", "gcp://minari-remote")
        compare(get(tmp_path, f"minari/{name}"), expected[name])


@pytest.mark.parametrize("name", DATASETS)
def test_from_a_mirror_on_the_web_or_in_a_folder(tmp_path, expected, name):
    with http_server(FIXTURES) as running:
        compare(get(tmp_path / "web", f"minari/{name}", mirror=running.url), expected[name])
    dataset = get(tmp_path / "folder", f"minari/{name}", mirror=str(FIXTURES))
    compare(dataset, expected[name])
    with pytest.raises(DatasetNotFoundError):  # a mirror is not searched for the source of a name
        get(tmp_path / "bare", name, mirror=str(FIXTURES))


def test_the_local_root_comes_first_but_after_a_mirror(tmp_path, minari_root, server):
    shutil.copytree(FIXTURES / "cartpole" / "truncated-v0", minari_root / "cartpole" / "random-v0")
    assert local_names() == ["cartpole/random-v0"]
    here = get(tmp_path / "a", "minari/cartpole/random-v0")
    assert here.manifest.provenance["location"] == str(minari_root)
    assert "Minari's own root" in here.manifest.provenance["why"] and len(here) == 135
    assert server.faults.requests == []
    there = get(tmp_path / "b", "minari/cartpole/random-v0", mirror="hf://farama-minari")
    assert len(there) == 443


def test_raw_files_are_kept_as_a_mirror(tmp_path, server, expected):
    name = "cartpole/arrow-v0"
    get(tmp_path, f"minari/{name}", keep_raw=True)
    kept = tmp_path / ".raw" / "minari"
    assert (kept / name / "data" / "3" / "part-0.arrow").read_bytes() == (
        FIXTURES / name / "data" / "3" / "part-0.arrow"
    ).read_bytes()
    compare(get(tmp_path / "again", f"minari/{name}", mirror=str(kept)), expected[name])


# -- what goes wrong -----------------------------------------------------------------------------------------------


def test_an_interrupted_download_goes_on_where_it_stopped(tmp_path, server, expected):
    size = (FIXTURES / "cartpole/random-v0/data/main_data.hdf5").stat().st_size
    server.faults.cut(after=200_000)
    with pytest.raises(TransientFetchError):
        get(tmp_path, "minari/cartpole/random-v0", fetch=ONCE)
    assert not (tmp_path / "minari" / "cartpole" / "random-v0").exists()
    begun = len(server.faults.requests)
    compare(get(tmp_path, "minari/cartpole/random-v0"), expected["cartpole/random-v0"])
    spans = [span for path, span in server.faults.gets()[begun:] if path.startswith("/store/")]
    assert len(spans) == 1 and spans[0] is not None
    assert 0 < int(spans[0].removeprefix("bytes=").removesuffix("-")) < size


def test_wrong_bytes_are_refused(tmp_path, server):
    server.wrong_sha = True
    with pytest.raises(ChecksumError, match="sha256"):
        get(tmp_path, "minari/cartpole/random-v0")
    assert not (tmp_path / "minari" / "cartpole" / "random-v0").exists()


def test_one_that_is_not_there(tmp_path, server):
    with pytest.raises(ObjectNotFoundError, match="nowhere/random-v0/data holds no Minari dataset") as caught:
        get(tmp_path, "minari/nowhere/random-v0")
    assert "HF_TOKEN" in (caught.value.hint or "")
    with pytest.raises(ObjectNotFoundError) as caught:
        get(tmp_path, "minari/cartpole/random-v7")
    assert "minari/cartpole/random-v0" in (caught.value.hint or "")
    assert not [path for path in tmp_path.rglob("*") if ".writing" in path.name]


def test_a_private_repository(tmp_path, server, monkeypatch, expected):
    server.private.add("farama-minari/cartpole")
    with pytest.raises(ObjectNotFoundError) as caught:
        get(tmp_path, "minari/cartpole/random-v0")
    assert "HF_TOKEN" in (caught.value.hint or "")
    monkeypatch.setenv("HF_TOKEN", "ses\name")
    with pytest.raises(UsageError) as refused:
        get(tmp_path, "minari/cartpole/random-v0")
    assert "name" not in str(refused.value)
    monkeypatch.setenv("HF_TOKEN", "sesame\n")  # as it is read from a file
    compare(get(tmp_path, "minari/cartpole/random-v0"), expected["cartpole/random-v0"])
    # The token goes to the Hub, not to the store that it sends us to.
    sent = {path.split("/")[1]: token for path, token in server.seen_tokens}
    assert sent["api"] == "Bearer sesame" and sent["store"] is None


def test_a_hub_that_says_nonsense(tmp_path, monkeypatch):
    (tmp_path / "www" / "api").mkdir(parents=True)
    (tmp_path / "www" / "api" / "datasets").write_text("<html>maintenance</html>")
    with http_server(tmp_path / "www") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        with pytest.raises(FetchError, match="malformed"):
            open_location("hf://farama-minari", options=ONCE).folders()
    for wrong in ("hf://", "hf://a@b/c"):
        with pytest.raises(UsageError):
            open_location(wrong)


def test_nobody_listens(tmp_path, monkeypatch):
    with closed_port() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(TransientFetchError, match=r"farama-minari/cartpole.*Connection refused"):
            get(tmp_path, "minari/cartpole/random-v0", fetch=ONCE)
    assert not [path for path in tmp_path.rglob("*") if ".writing" in path.name]


def test_the_hub_as_a_place(server):
    top = open_location("hf://farama-minari", options=FAST)
    assert top.list() == [] and top.folders() == ["cartpole", "mujoco"]
    assert top.folders("cartpole") == ["arrow-v0", "dict-v0", "random-v0", "truncated-v0"]
    assert [item.name for item in top.list("cartpole/random-v0/data")] == ["main_data.hdf5", "metadata.json"]
    item = top.stat("cartpole/random-v0/data/metadata.json")
    data = read_all(top, item, limit_bytes=1 << 20)
    assert data == (FIXTURES / "cartpole/random-v0/data/metadata.json").read_bytes()
    assert b"".join(top.open(item, 100)) == data[100:]
    large = top.stat("cartpole/random-v0/data/main_data.hdf5")
    assert (
        b"".join(top.open(large, 300_000))
        == (FIXTURES / "cartpole/random-v0/data/main_data.hdf5").read_bytes()[300_000:]
    )
    inner = open_location("hf://farama-minari/cartpole/random-v0")
    assert inner.refresh(inner.stat("data/metadata.json")).size == len(data)
    with pytest.raises(ObjectNotFoundError):
        top.stat("cartpole/random-v0/data/absent")
    with pytest.raises(UsageError):
        top.list("../elsewhere")


# -- listings ------------------------------------------------------------------------------------------------------


def test_what_a_remote_holds_is_kept_and_can_be_looked_at_offline(tmp_path, server, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    before = catalogue.known_ids("minari")
    assert "minari/cartpole/dict-v0" not in before
    source = MinariSource()
    assert source.cached_listing() is None
    listing = source.refresh_listing(fetch=FAST)
    assert listing.remote == HOME and listing.date.endswith("Z")
    found = {dataset.name: dataset for dataset in listing.datasets}
    assert sorted(found) == [
        "cartpole/arrow-v0",
        "cartpole/dict-v0",
        "cartpole/random-v0",
        "cartpole/truncated-v0",
        "mujoco/hopper-v0",
    ]
    random = found["cartpole/random-v0"]
    folder = FIXTURES / "cartpole" / "random-v0"
    assert (random.episodes, random.steps) == (20, 443)
    assert random.bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert "minari/cartpole/dict-v0" in catalogue.known_ids("minari")
    asked = len(server.faults.requests)
    with closed_port() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert source.cached_listing() == listing
        with pytest.raises(TransientFetchError):
            source.refresh_listing(fetch=ONCE)
        assert source.cached_listing() == listing
        monkeypatch.setenv("MINARI_REMOTE", "hf://somebody")
        assert source.cached_listing() is None  # another remote, which was not asked yet
    assert len(server.faults.requests) == asked


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 9, "remote": "hf://farama-minari"}'])
def test_a_cache_that_is_damaged_is_as_none(tmp_path, server, text):
    source = MinariSource()
    source.refresh_listing(tmp_path, FAST)
    (path,) = (tmp_path / ".remote").iterdir()
    path.write_text(text)
    assert source.cached_listing(tmp_path) is None
    listing = source.refresh_listing(tmp_path, FAST)
    assert source.cached_listing(tmp_path) == listing
    assert json.loads(path.read_text())["remote"] == HOME


def test_a_folder_as_a_remote(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_REMOTE", str(FIXTURES))
    listing = MinariSource().refresh_listing(tmp_path)
    assert len(listing.datasets) == 5
    assert {dataset.name: dataset.steps for dataset in listing.datasets}["cartpole/arrow-v0"] == 210
    with http_server(FIXTURES) as running:
        monkeypatch.setenv("MINARI_REMOTE", running.url)
        again = MinariSource().refresh_listing(tmp_path, FAST)
    assert [dataset.name for dataset in again.datasets] == [dataset.name for dataset in listing.datasets]


def test_conversion_is_the_same_wherever_it_comes_from(tmp_path, server, minari_root):
    """But for what the places state of the objects."""
    name = "cartpole/random-v0"
    one = get(tmp_path / "one", f"minari/{name}")
    two = convert(tmp_path / "two", name, mirror=str(FIXTURES))
    assert one.manifest.files == two.manifest.files


@pytest.mark.parametrize("name", DATASETS)
def test_counts_of_the_metadata_must_agree_with_what_came(tmp_path, name):
    """A listing or a file that ends early but cleanly; a folder of this machine is taken as it is, with a note."""
    shutil.copytree(FIXTURES / name, tmp_path / "files" / name)
    about = tmp_path / "files" / name / "data" / "metadata.json"
    record = json.loads(about.read_text())
    for key in ("total_episodes", "total_steps"):
        about.write_text(json.dumps({**record, key: record[key] + 1}))
        wrong = f"state {record[key] + 1} {key[6:]}, .* hold {record[key]}"
        with http_server(tmp_path / "files") as server, pytest.raises(CorruptSourceError, match=wrong):
            convert(tmp_path / key, name, mirror=server.url)
        dataset = convert(tmp_path / f"local {key}", name, mirror=str(tmp_path / "files"))
        assert any(f"state {record[key] + 1}" in note for note in dataset.manifest.notes)


def test_a_file_without_its_metadata_is_not_an_old_dataset(tmp_path):
    """Without metadata.json its spaces would be guessed, where an answer of 404 is all that is wrong."""
    name = "cartpole/random-v0"
    shutil.copytree(FIXTURES / name, tmp_path / "files" / name)
    (tmp_path / "files" / name / "data" / "metadata.json").unlink()
    with http_server(tmp_path / "files") as server, pytest.raises(CorruptSourceError, match=r"no metadata\.json"):
        convert(tmp_path / "root", name, mirror=server.url)
