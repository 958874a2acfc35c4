"""Places, units and options of LeRobotDatasets; files that are missing, damaged or hostile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import lerobot_tools
import minari_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rbdata
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_tools import ended, episode, write
from rbdata.datasets.fetch import open_location
from rbdata.datasets.formats import arrow
from rbdata.datasets.formats.lerobot import LeRobotInfo
from rbdata.datasets.ingest.episode_files import RawInput
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.sources.lerobot import episodes as lerobot_episodes
from rbdata.datasets.sources.lerobot import reader as lerobot_reader
from rbdata.datasets.sources.lerobot.episodes import _DataFile
from rbdata.datasets.sources.lerobot.source import LerobotSource
from rbdata.errors import ChecksumError, CorruptSourceError, MissingExtraError, ObjectNotFoundError, UsageError
from rbdata.testing import dataset_content

FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def convert(folder, root, name="my/x", **options):
    return rbdata.convert(folder, name, source="lerobot", root=root, progress=False, **{"procs": 0, **options})


@pytest.fixture
def raw(tmp_path):
    """Four episodes in two data files; the cameras' videos end elsewhere."""
    write(
        *(tmp_path / "raw", {number: ended(5 + number, number) for number in range(4)}),
        cameras={FRONT: "h264", WRIST: "h264"},
        data_files=[[0, 1], [2, 3]],
        video_files={FRONT: [[0], [1, 2], [3]], WRIST: [[0, 1, 2], [3]]},
    )
    return tmp_path / "raw"


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(lerobot_reader, "LEAST_UNIT", 1)


# -- places --------------------------------------------------------------------------------------------------------------


def test_download_from_the_hub_reads_one_commit_and_says_where(raw, tmp_path, monkeypatch):
    shutil.copytree(raw, tmp_path / "hub" / "some" / "toy-set_1.0")
    with minari_hub.hub({"some": tmp_path / "hub" / "some"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        folder = rbdata.download("lerobot/some/toy-set_1.0", root=tmp_path / "root", progress=False)
        manifest = rbdata.open_dataset(folder).manifest
        assert manifest.provenance["location"] == f"hf://datasets/some/toy-set_1.0@{minari_hub.COMMIT}"
        with pytest.raises(ObjectNotFoundError, match="some/other"):
            rbdata.download("lerobot/some/other", root=tmp_path / "root", progress=False)
        with pytest.raises(ChecksumError):
            server.wrong_sha = True
            rbdata.download("lerobot/some/toy-set_1.0", root=tmp_path / "again", progress=False)
    convert(raw, tmp_path / "root")
    here, there = rbdata.open_dataset("my/x", root=tmp_path / "root"), rbdata.open_dataset(folder)
    assert dataset_content(here.path).keys() == dataset_content(there.path).keys()
    assert np.array_equal(here["observation", "images", "front"], there["observation", "images", "front"])
    names = {record["name"] for record in manifest.source["objects"]}
    assert {"some/toy-set_1.0/meta/info.json", "some/toy-set_1.0/data/chunk-000/file-001.parquet"} <= names


def test_a_mirror_and_a_path_are_recognised(raw, tmp_path):
    shutil.copytree(raw, tmp_path / "mirror" / "some" / "toy")
    rbdata.download("lerobot/some/toy", mirror=str(tmp_path / "mirror"), root=tmp_path / "root", progress=False)
    rbdata.convert(raw, "my/x", root=tmp_path / "root", progress=False)
    assert len(rbdata.open_dataset("lerobot/some/toy", root=tmp_path / "root")) == 5 + 6 + 7 + 8


def test_names_are_repositories():
    source = rbdata.datasets.catalogue.load_source("lerobot")
    assert source.knows("lerobot/pusht") and source.knows("a/droid_1.0.1")
    assert not any(map(source.knows, ["pusht", "a/b/c", "../x", "a/..", ".a/b", "a/b@main"]))
    assert rbdata.info("lerobot/lerobot/pusht").places


# -- units ---------------------------------------------------------------------------------------------------------------


def test_units_share_files_and_processes_change_nothing(raw, tmp_path, small_units):
    one, two = convert(raw, tmp_path / "one", procs=1), convert(raw, tmp_path / "two", procs=2)
    assert dataset_content(one) == dataset_content(two)
    manifest = rbdata.open_dataset(one).manifest
    assert [part["name"] for part in manifest.parts] == ["episodes 0", "episodes 1-2", "episodes 3"]
    names = [record["name"] for record in manifest.source["objects"]]
    assert len(set(names)) == len(names)
    lerobot_reader.LEAST_UNIT = 1 << 30
    whole = rbdata.open_dataset(convert(raw, tmp_path / "whole"))
    for key in (("observation", "images", "front"), ("observation", "images", "wrist"), "action"):
        assert np.array_equal(whole[key], rbdata.open_dataset(one)[key])


def test_a_data_file_of_a_download_is_opened_once(raw, tmp_path, monkeypatch):
    """Its name in a mirror begins with that of the dataset; episodes name it from there on."""
    opened = []
    monkeypatch.setattr(lerobot_episodes, "_DataFile", lambda raw: opened.append(raw.name) or _DataFile(raw))
    shutil.copytree(raw, tmp_path / "some" / "toy")
    job: Any = LerobotSource().open("some/toy", open_location(str(tmp_path)), ConvertOptions())
    for group in job.groups:
        raws = [RawInput(one.path, Path(one.item.url), None) for one in group.objects]
        assert len(list(group.reader.group_episodes(raws))) == 4
    assert opened == [f"some/toy/data/chunk-000/file-00{number}.parquet" for number in (0, 1)]


def test_the_size_is_said_before(raw, tmp_path):
    from rbdata.datasets.convert import convert as run
    from rbdata.datasets.ingest.request import Listener, make_request

    def expected(codec="auto", **extra):
        request = make_request("my/x", tmp_path / "root", extra, codec=codec, dry_run=True)
        return run(raw, "lerobot", request, Listener()).estimate

    full, small = expected(), expected(size="16x16")
    frames = (5 + 6 + 7 + 8 + 4) * 2 * 32 * 48 * 3
    assert (full.steps, full.episodes) == (26, 4)
    assert expected(codec="raw").disk_bytes == pytest.approx(frames, rel=0.25)
    assert small.disk_bytes < full.disk_bytes / 2 < frames / 2
    assert not (tmp_path / "root").exists()


# -- what is missing or damaged ------------------------------------------------------------------------------------------


def test_after_an_error_nothing_is_left_and_a_rerun_goes_on(raw, tmp_path, small_units):
    video = raw / f"videos/{FRONT}/chunk-000/file-002.mp4"
    data = video.read_bytes()
    video.write_bytes(data[:-100])
    with pytest.raises(CorruptSourceError, match=r"file-002\.mp4"):
        convert(raw, tmp_path / "root", procs=0)
    assert not (tmp_path / "root" / "my" / "x").exists()
    video.write_bytes(data)
    again = convert(raw, tmp_path / "root", procs=0)
    assert dataset_content(again) == dataset_content(convert(raw, tmp_path / "other"))


@pytest.mark.parametrize(
    "path",
    [
        "meta/info.json",
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-001.parquet",
        f"videos/{WRIST}/chunk-000/file-001.mp4",
    ],
)
def test_a_missing_file_is_named_before_anything_is_decoded(raw, tmp_path, path):
    (raw / path).unlink()
    with pytest.raises((ObjectNotFoundError, CorruptSourceError), match=path.rpartition("/")[2] + "|0 are|list 0"):
        convert(raw, tmp_path / "root")
    assert not (tmp_path / "root" / "my").exists()


def test_fewer_episodes_than_stated_are_an_error_that_says_how_to_take_them(raw, tmp_path):
    lerobot_tools.write_episodes(raw, lerobot_tools.read_episodes(raw)[:2])
    with pytest.raises(CorruptSourceError, match="states 4 episodes, and the metadata list 2") as caught:
        convert(raw, tmp_path / "root")
    assert "0-1" in caught.value.hint
    assert len(rbdata.open_dataset(convert(raw, tmp_path / "root", episodes="0-1")).episodes) == 2


def _changed(raw, path, edit):
    record = json.loads((raw / path).read_text())
    edit(record)
    (raw / path).write_text(json.dumps(record))


@pytest.mark.parametrize(
    "edit, error, message",
    [
        (lambda info: info.update(data_path="../{chunk_index}/{file_index}.parquet"), CorruptSourceError, "leads to"),
        (lambda info: info.update(data_path="/etc/passwd"), CorruptSourceError, "leads to"),
        (lambda info: info.update(video_path="{video_key.__class__}/x.mp4"), ObjectNotFoundError, "has no"),
        (lambda info: info.update(video_path="{chunk_index:0999999999d}.mp4"), ObjectNotFoundError, "has no"),
        (lambda info: info.update(video_path="{secret}.mp4"), CorruptSourceError, "asks for secret"),
        (lambda info: info.update(video_path=None), CorruptSourceError, "has no video_path"),
        (lambda info: info.update(fps=0), CorruptSourceError, "0.0 frames a second"),
        (lambda info: info.update(fps="fast"), CorruptSourceError, "not that of a LeRobotDataset"),
        (lambda info: info.update(features=[1]), CorruptSourceError, "not that of a LeRobotDataset"),
        (lambda info: info["features"].update(x={"dtype": "float32"}), CorruptSourceError, "LeRobotDataset"),
        (lambda info: info["features"]["action"].update(shape=[7]), CorruptSourceError, r"action .* \[7\] values"),
        (
            lambda info: info["features"].update({"observation.x": {"dtype": "float32", "shape": [2]}}),
            CorruptSourceError,
            "there is no column observation.x",
        ),
        (lambda info: info.update(codebase_version="v1.6"), UsageError, "the layout is v1.6"),
        (lambda info: info.update(storage_format="lance"), UsageError, "lance"),
        (lambda info: info.update(total_episodes=1 << 60), CorruptSourceError, "states 1152921504606846976 episodes"),
    ],
)
def test_metadata_that_cannot_be_are_refused_by_name(raw, tmp_path, edit, error, message):
    _changed(raw, "meta/info.json", edit)
    with pytest.raises(error, match=message):
        convert(raw, tmp_path / "root")
    assert not (tmp_path / "root" / "my").exists()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"length": 1 << 50}, "states 26 frames"),
        ({"length": -1}, "malformed"),
        ({"episode_index": 0}, "lists episode 0 twice"),
        ({"data/file_index": 1 << 61}, "has no"),
        ({f"videos/{FRONT}/from_timestamp": float("nan")}, "malformed"),
        ({f"videos/{FRONT}/from_timestamp": 1e300}, "malformed"),
        ({f"videos/{FRONT}/from_timestamp": None}, "malformed"),
    ],
)
def test_listed_episodes_that_cannot_be_are_refused(raw, tmp_path, values, message):
    listed = lerobot_tools.read_episodes(raw)
    listed[1].update(values)
    lerobot_tools.write_episodes(raw, listed)
    with pytest.raises((CorruptSourceError, ObjectNotFoundError), match=message):
        convert(raw, tmp_path / "root")


@pytest.mark.parametrize("kind", ["image", "h264"])
def test_an_episode_without_a_row_is_left_out(tmp_path, kind):
    """A recording that was stopped at once; pictures have no size there."""
    raw = tmp_path / "raw"
    write(raw, {1: episode(5)}, cameras={FRONT: kind}, edit=lambda info: info.update(total_episodes=2))
    records = lerobot_tools.read_episodes(raw)
    if kind == "h264":
        records[0][f"videos/{FRONT}/from_timestamp"] = 0.0
    empty = {**records[0], "episode_index": 0, "length": 0}
    empty.update({key: 0.0 for key in empty if key.endswith("to_timestamp")})
    lerobot_tools.write_episodes(raw, [empty, *records])
    dataset = rbdata.open_dataset(convert(raw, tmp_path / "root"))
    assert dataset.episodes.lengths.tolist() == [4]
    assert dataset.manifest.counts["empty_episodes"] == 1 and dataset.manifest.counts["steps_without_reward"] == 4
    lerobot_tools.write_episodes(raw, [{**empty, "episode_index": 1}])
    with pytest.raises(CorruptSourceError, match="has 5 rows, and 0 are listed"):
        convert(raw, tmp_path / "other", episodes="1")


def test_cells_that_are_empty_and_unknown_tasks_are_refused(tmp_path):
    write(tmp_path / "raw", {0: episode(4), 1: episode(4, 1)})
    file = tmp_path / "raw" / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)

    def refused(name, column, message):
        pq.write_table(table.set_column(table.schema.get_field_index(name), name, column), file)
        with pytest.raises(CorruptSourceError, match=message):
            convert(tmp_path / "raw", tmp_path / "root")

    refused("task_index", pa.array([0, 1, 2, 0, 0, 0, 0, 0]), "episode 0: task 2 is not among the tasks")
    refused("task_index", pa.array([0, None] * 4), "task_index has empty cells")
    refused("action", pa.array([[0.0, None]] * 8, pa.list_(pa.float32(), 2)), "action has empty cells")
    refused("action", pa.array(["x"] * 8), "not numbers")
    refused("episode_index", pa.array([0] * 8), "episode 0 has 8 rows, and 4 are listed")


def test_pictures_that_are_damaged_or_elsewhere_are_refused(tmp_path):
    write(tmp_path / "raw", {0: episode(4)}, cameras={FRONT: "image"})
    file = tmp_path / "raw" / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    kind, rows = table.schema.field(FRONT).type, table[FRONT].to_pylist()
    for data, message in (
        (b"no picture", "is not a valid PNG or JPEG or TIFF"),
        (rows[0]["bytes"][:60], "is damaged"),
        (None, "a picture is not in the file"),
    ):
        broken = pa.array([*rows[:2], {"bytes": data, "path": "x.png"}, rows[3]], kind)
        pq.write_table(table.set_column(table.schema.get_field_index(FRONT), FRONT, broken), file)
        with pytest.raises(CorruptSourceError, match=message):
            convert(tmp_path / "raw", tmp_path / "root")


@pytest.mark.parametrize("module, extra", [("av", "video"), ("pyarrow", "parquet")])
def test_without_a_library_the_error_says_how_to_install_it(raw, tmp_path, monkeypatch, module, extra):
    from importlib import util

    real = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))
    monkeypatch.setattr(arrow, "find_spec", util.find_spec)
    with pytest.raises(MissingExtraError, match="not installed") as caught:
        convert(raw, tmp_path / "root")
    assert f"rbdata[{extra}]" in caught.value.hint


@settings(max_examples=examples(100))
@given(st.text(max_size=40), st.text(max_size=10))
def test_templates_of_paths_never_lead_out(template, key):
    info = LeRobotInfo("x", 3, 10.0, (), {"data_path": template})
    try:
        path = info.path("data_path", video_key=key, chunk_index=1, file_index=2)
    except CorruptSourceError:
        return
    assert path and not path.startswith("/") and ".." not in path.split("/")
