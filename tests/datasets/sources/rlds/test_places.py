"""Where datasets are: the providers' buckets, mirrors, the root of TensorFlow Datasets; names, versions, splits, the list."""

from __future__ import annotations

import shutil

import pytest
from gcs_doors import gcs_behind_doors
from rbdata import api
from rbdata.datasets import catalogue
from rbdata.datasets.acquire import download
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.rlds.source import OpenxSource, RldsSource
from rbdata.errors import DatasetNotFoundError, ForbiddenError, ObjectNotFoundError, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rlds_tools import FIXTURES, compare, fixture, rows_of, several, steps, tensor, write_folder
from servers import http_server

FAST = FetchOptions(attempts=2, backoff=0.01)


@pytest.fixture(autouse=True)
def no_root_of_tfds(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path / "tfds"


def get(root, name, extra=None, **fields) -> Dataset:
    options = ConvertOptions(extra=extra or {})
    outcome = download(Request(name, root=root, procs=0, fetch=FAST, options=options, **fields))
    assert verify(outcome.path).ok
    return Dataset(outcome.path)


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    """The two public buckets: one with the robot fixture in the places of two names, one with the other fixture."""
    top = tmp_path_factory.mktemp("buckets")
    for place in ("bridge_data_v2/0.0.1", "droid_100/1.0.0"):
        shutil.copytree(FIXTURES / "toy_robot/0.1.0", top / "gresearch/robotics" / place)
    shutil.copytree(FIXTURES / "toy_spec/0.1.0", top / "tfds-data/datasets/d4rl_mujoco_hopper/v2-medium/1.2.0")
    with gcs_behind_doors({name: top / name for name in ("gresearch", "tfds-data")}) as doors:
        yield doors


@pytest.fixture
def doors(buckets, monkeypatch, tmp_path):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", buckets.host)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    yield buckets
    buckets.closed.clear()


def test_open_x_from_its_bucket(doors, tmp_path):
    """By the default place; `bridge` lies under another name there."""
    dataset = get(tmp_path, "openx/bridge")
    compare(dataset, fixture("toy_robot", "step"))
    record = dataset.manifest
    assert record.provenance["location"] == "gs://gresearch/robotics" and record.licence == "CC-BY-4.0"
    assert all(one["name"].startswith("bridge_data_v2/0.0.1/") for one in record.source["objects"])
    assert get(tmp_path, "droid_100").id == "openx/droid_100"
    doors.closed["gresearch"] = 403
    with pytest.raises(ForbiddenError, match="gs://gresearch"):
        get(tmp_path / "2", "openx/bridge")


def test_open_x_from_a_root_of_tfds(tmp_path):
    """There, its own name and another version."""
    shutil.copytree(FIXTURES / "toy_robot/0.1.0", tmp_path / "mirror/bridge/0.1.0")
    assert len(get(tmp_path, "openx/bridge", mirror=str(tmp_path / "mirror"))) == 50


def test_tfds_from_its_bucket(doors, tmp_path):
    dataset = get(tmp_path, "rlds/d4rl_mujoco_hopper/v2-medium")
    compare(dataset, fixture("toy_spec", "observation"))
    assert dataset.manifest.provenance["location"] == "gs://tfds-data/datasets"


def test_an_address(doors, tmp_path):
    dataset = get(tmp_path, "gs://gresearch/robotics/droid_100/1.0.0")
    assert dataset.id == "rlds/droid_100/1.0.0" and len(dataset) == 50
    assert RldsSource().split_address("gs://bucket/folder/name") is None


def test_what_is_on_this_machine_needs_no_network(tmp_path, no_root_of_tfds):
    shutil.copytree(FIXTURES / "toy_spec", no_root_of_tfds / "toy_spec")
    dataset = get(tmp_path, "rlds/toy_spec")
    assert dataset.manifest.provenance["location"] == str(no_root_of_tfds)


def test_the_newest_version_and_configurations(tmp_path):
    features = {"steps": steps(observation=several(x=tensor("float32")), action=tensor("int64"))}
    for version, count in (("0.9.0", 3), ("0.10.0", 5)):
        rows = rows_of(count, observation__x=[1.0] * count, action=[0] * count)
        write_folder(tmp_path / "mirror/made/config" / version, features, [({}, rows)])
    mirror = str(tmp_path / "mirror")
    assert len(get(tmp_path, "rlds/made/config", mirror=mirror)) == 4
    assert len(get(tmp_path / "2", "rlds/made/config/0.9.0", mirror=mirror)) == 2
    with pytest.raises(ObjectNotFoundError) as caught:
        get(tmp_path / "3", "rlds/made", mirror=mirror)
    assert "made/config" in caught.value.hint
    with pytest.raises(ObjectNotFoundError, match="no dataset of TensorFlow Datasets in other"):
        get(tmp_path, "rlds/other", mirror=mirror)


def test_splits_are_datasets_of_their_own(tmp_path):
    features = {"steps": steps(observation=several(x=tensor("float32")), action=tensor("int64"))}
    folder = tmp_path / "mirror/made/1.0.0"
    infos = []
    for split, count in (("train", 3), ("val", 6)):
        rows = rows_of(count, observation__x=[1.0] * count, action=[0] * count)
        write_folder(folder, features, [({}, rows)], split=split)
        infos.append((folder / "dataset_info.json").read_text())
    both = infos[1].replace(
        '"splits": [', '"splits": [' + infos[0].partition('"splits": [')[2].rpartition("]}")[0] + ", "
    )
    (folder / "dataset_info.json").write_text(both)
    mirror = str(tmp_path / "mirror")
    assert len(get(tmp_path, "rlds/made", mirror=mirror)) == 2
    val = get(tmp_path, "rlds/made", {"split": "val"}, mirror=mirror)
    assert val.id == "rlds/made@val" and len(val) == 5
    assert len(get(tmp_path, "rlds/made@train+val", mirror=mirror)) == 7
    with pytest.raises(UsageError, match="names a split already"):
        get(tmp_path, "rlds/made@val", {"split": "train"}, mirror=mirror)


def test_shards_and_a_web_server(tmp_path):
    with http_server(FIXTURES) as server:
        assert get(tmp_path, "rlds/toy_robot/0.1.0", mirror=server.url).episodes.lengths.tolist() == [
            1,
            10,
            9,
            11,
            12,
            7,
        ]
    options = ConvertOptions(parts=(1,))
    outcome = download(Request("rlds/toy_robot", root=tmp_path / "3", mirror=str(FIXTURES), options=options))
    assert outcome.manifest.episodes == 3


def test_raw_files_that_are_kept_are_a_mirror(tmp_path, doors):
    kept = download(Request("openx/bridge", root=tmp_path, keep_raw=True, fetch=FAST, procs=0))
    assert (tmp_path / ".raw/openx/bridge_data_v2/0.0.1/features.json").is_file()
    again = get(tmp_path / "2", "openx/bridge", mirror=str(tmp_path / ".raw/openx"))
    assert again.manifest.steps == kept.manifest.steps


# -- the lists ---------------------------------------------------------------------------------------------------------


def test_the_lists():
    openx, rlds = OpenxSource(), RldsSource()
    assert len(openx.names()) >= 64 + 4
    assert {"fractal20220817_data", "bridge", "spoc_robot", "droid_100", "language_table"} <= set(openx.names())
    assert openx.folders("bridge")[0] == "bridge_data_v2/0.0.1" and openx.folders("bc_z")[0] == "bc_z/0.1.0"
    assert "d4rl_mujoco_hopper/v2-medium" in rlds.names()
    entry = catalogue.describe("openx/fractal20220817_data")
    assert entry.places[0].url == "gs://gresearch/robotics" and entry.places[0].date and entry.citation
    assert [one.id for one in api.search("franka kitchen openx")]
    with pytest.raises(DatasetNotFoundError, match="fractal"):
        catalogue.resolve("openx/fractal")


def test_a_path_is_recognised(tmp_path):
    assert catalogue.recognise(FIXTURES / "toy_robot") == catalogue.recognise(FIXTURES / "toy_spec/0.1.0") == "rlds"
    with pytest.raises(UsageError):
        catalogue.recognise(tmp_path)
