"""OGBench's files become the transitions that were meant: states, pixels, drawing, buttons, validation, 100 files."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from effort import examples
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st
from ogbench_truth import assert_holds, expected, make, write
from paths import DATA
from rbdata.datasets.convert import convert
from rbdata.datasets.fetch import open_location
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.ogbench.source import COPY, HOME, OgbenchSource, SetName, parse, parse_file, sets
from rbdata.errors import CorruptSourceError, DatasetNotFoundError, ObjectNotFoundError, UsageError
from rbdata.storage.dataset import Dataset
from servers import http_server

OGBENCH = DATA / "ogbench"
SETS = sorted(file.stem for file in OGBENCH.glob("*.npz"))
MAZE = "pointmaze-medium-navigate-v0"


def get(name: str, root: Path, mirror: Path | str = OGBENCH, **options) -> Dataset:
    return Dataset(rbdata.download(f"ogbench/{name}", root=root, mirror=str(mirror), procs=0, **options))


@pytest.mark.parametrize("name", SETS)
def test_the_transitions_that_were_meant(name, tmp_path):
    dataset = get(name, tmp_path)
    with np.load(OGBENCH / "truth" / f"{name}.npz") as truth:
        assert np.array_equal(dataset.episodes.lengths, truth["lengths"])
        for key, wanted in (("observation", "obs"), ("next/observation", "next_obs"), ("action", "action")):
            assert dataset[key].numpy().tobytes() == truth[wanted].tobytes()
        for flag in ("terminated", "truncated"):
            assert np.array_equal(dataset[f"next/{flag}"].numpy()[:, 0], truth[flag])
    assert_holds(dataset, expected(OGBENCH / f"{name}.npz"))
    assert not dataset["next/reward"].any()
    counts = dataset.manifest.counts
    assert counts["steps_without_reward"] == len(dataset) and counts["time_limit_episodes"] == len(dataset.episodes)
    assert any("no rewards" in note for note in dataset.manifest.notes)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    shape=st.sampled_from([(1,), (5,), (4, 4, 3), (20, 20, 3)]),
    dtype=st.sampled_from(["float32", "uint8", "float64", "int32"]),
    action=st.sampled_from([(), (3,), (2, 2)]),
    action_dtype=st.sampled_from(["float32", "int32", "int64"]),
    flags=st.sampled_from(["bool", "int32", "float32"]),
    flagged=st.booleans(),
    packed=st.booleans(),
    has_info=st.booleans(),
    extra=st.booleans(),
)
@rules(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_an_independent_reader_agrees(
    tmp_path_factory, lengths, shape, dtype, action, action_dtype, flags, flagged, packed, has_info, extra
):
    top = tmp_path_factory.mktemp("sets")
    arrays = make(lengths, shape, dtype, **({} if has_info else {"qpos": None, "qvel": None}))
    rows = len(arrays["terminals"])
    arrays["actions"] = (np.arange(rows * int(np.prod(action))).reshape(rows, *action)).astype(action_dtype)
    arrays["terminals"] = arrays["terminals"].astype(flags)
    arrays["terminals"][-1] = flagged
    if extra:
        arrays["button_states"] = np.arange(rows * 4).reshape(rows, 4)
    if not flagged and lengths[-1] == 0 and not any(lengths[:-1]):
        return
    file = write(top / "raw" / f"{MAZE}.npz", arrays, packed)
    assert_holds(get(MAZE, top / "root", file.parent), expected(file))


def test_the_last_row_of_a_file_without_a_flag_is_a_final_state(tmp_path):
    """Trap: ogbench's own reader has one next observation too few here."""
    arrays = make([4, 3])
    arrays["terminals"][-1] = False
    dataset = get(MAZE, tmp_path / "root", write(tmp_path / f"{MAZE}.npz", arrays).parent)
    assert dataset.episodes.lengths.tolist() == [4, 3]
    assert np.array_equal(dataset["next/observation"][-1], arrays["observations"][-1])
    assert dataset.manifest.counts["cut_episodes"] == 1 and dataset["next/truncated"][-1]


def test_trap_69_a_compact_file_is_the_same_dataset(tmp_path):
    """Two ones at the end of an episode, and ``valids``, as ``load_dataset(compact_dataset=True)`` has them."""
    arrays = make([4, 1, 6])
    write(tmp_path / "plain" / f"{MAZE}.npz", arrays)
    ends = arrays["terminals"].astype(np.float32)
    compact = {**arrays, "valids": 1 - ends, "terminals": np.minimum(ends + np.append(ends[1:], 1), 1)}
    write(tmp_path / "compact" / f"{MAZE}.npz", compact)
    plain, other = (get(MAZE, tmp_path / f"{kind} root", tmp_path / kind) for kind in ("plain", "compact"))
    assert all(torch.equal(plain[key], other[key]) for key in plain.rows) and plain.rows.keys() == other.rows.keys()


def test_trap_70_a_set_of_pixels_is_never_in_memory_as_a_whole(tmp_path):
    """95 MB of frames, which are packed a thousandfold."""
    rows = 121
    frames = np.zeros((rows, 512, 512, 3), np.uint8)
    frames[:, 0, 0, 0] = np.arange(rows)
    arrays = make([rows - 1], (1,), qpos=None, qvel=None) | {"observations": frames}
    file = write(tmp_path / "visual-antmaze-large-navigate-v0.npz", arrays)
    del frames, arrays
    tracemalloc.start()
    dataset = get("visual-antmaze-large-navigate-v0", tmp_path / "root", file.parent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20, peak
    assert dataset["observation"][[0, rows - 2], 0, 0, 0].tolist() == [0, rows - 2]


# -- names and places ----------------------------------------------------------------------------------------------------


def test_the_names_are_those_of_ogbench():
    names = [parse(name) for name in sorted(sets())]
    assert len(names) == len(set(names)) == 85 + 11 and sum(name.large for name in names) == 11
    assert all(parse(str(name)) == name for name in names)
    assert sum(name.environment.startswith(("visual-", "powderworld-")) for name in names) == 17 + 18 + 3
    for text in ("antmaze-giant-explore-v0", "powderworld-easy-play-singletask-v0", "cube-octuple-play-v0", "x-v0"):
        assert parse(text) is None and not OgbenchSource().knows(text)
    for text in (
        "antmaze-large-navigate-singletask-task6-v0",
        "antmaze-large-navigate-v1",
        "visual-pointmaze-medium-navigate-v0",
    ):
        with pytest.raises(DatasetNotFoundError):
            rbdata.download(f"ogbench/{text}", mirror=str(OGBENCH))


@given(st.sampled_from([parse(name) for name in sorted(sets())]), st.sampled_from([None, 0, 1, 5]), st.booleans())
def test_names_and_files_name_each_other(name, task, validation):
    one = replace(name, validation=validation)
    assert {parse_file(path.rpartition("/")[2]) for path in one.files} == {one}
    if not name.environment.startswith("powderworld"):
        assert parse(str(replace(one, task=task))) == SetName(name.environment, name.kind, name.large, task, validation)


def test_places_are_those_of_the_catalogue():
    source = OgbenchSource()
    options = ConvertOptions()
    assert source.places(f"{MAZE}-val", options) == [HOME, COPY]
    assert source.places("visual-scene-play-singletask-task1-v0", options) == [HOME, COPY]
    assert source.places("visual-cube-single-play-v0", options) == [HOME]
    assert source.places("cube-octuple-play-100m-singletask-v0", options) == [HOME]
    entry = rbdata.info("ogbench/cube-single-play-singletask-v0-val")
    assert entry.steps == 100_000 and entry.episodes == 100 and entry.environment == "Cube (UR5e)"
    assert [place.access for place in entry.places] == ["unreliable", "open"] and all(
        place.date for place in entry.places
    )


def test_the_environment_is_that_of_ogbench(tmp_path):
    source = OgbenchSource()
    ids = {
        MAZE: "pointmaze-medium-v0",
        "visual-antmaze-large-stitch-singletask-task3-v0-val": "visual-antmaze-large-singletask-task3-v0",
        "cube-octuple-play-100m-singletask-v0": "cube-octuple-singletask-v0",
    }
    for name, wanted in ids.items():
        known = source.environment({"dataset": name})
        assert known is not None and known.id == wanted
    assert source.environment({"dataset": None}) is None


# -- sets of 100M steps --------------------------------------------------------------------------------------------------

LARGE = "cube-double-play-100m-v0"


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    top = tmp_path_factory.mktemp("hundred")
    for number in range(100):
        for validation in ("", "-val"):
            arrays = make([3, 2], (4,), seed=2 * number + bool(validation), qpos=None, qvel=None)
            write(top / LARGE / f"cube-double-play-v0-{number:03}{validation}.npz", arrays, packed=False)
    return top


@pytest.mark.parametrize("validation", ["", "-val"])
def test_all_of_a_hundred_files_are_found_in_order(validation, hundred):
    with http_server(hundred) as server:
        for place in (hundred, server.url):
            job: Any = OgbenchSource().open(LARGE + validation, open_location(str(place)), ConvertOptions())
            names = [f"{LARGE}/cube-double-play-v0-{number:03}{validation}.npz" for number in range(100)]
            assert [raw.path for raw in job.raw_objects()] == names and len(job.groups) == 100


def test_some_of_a_hundred_files_over_http(hundred, tmp_path):
    with http_server(hundred) as server:
        dataset = get(LARGE, tmp_path, server.url, shards=[3, 97, 98, 99])
    every = [expected(hundred / LARGE / f"cube-double-play-v0-{number:03}.npz") for number in (3, 97, 98, 99)]
    assert_holds(dataset, {key: np.concatenate([one[key] for one in every]) for key in every[0]})


def test_a_server_that_lacks_a_file_is_not_taken_for_whole(hundred, tmp_path):
    for number in (0, 1, 99):
        file = f"{LARGE}/cube-double-play-v0-{number:03}.npz"
        (tmp_path / "some" / LARGE).mkdir(parents=True, exist_ok=True)
        (tmp_path / "some" / file).write_bytes((hundred / file).read_bytes())
    with http_server(tmp_path / "some") as server, pytest.raises(ObjectNotFoundError, match="3 of 100 files") as caught:
        get(LARGE, tmp_path / "root", server.url)
    assert "cube-double-play-v0-002.npz" in str(caught.value.hint)
    assert len(get(LARGE, tmp_path / "root", tmp_path / "some")) == 15  # a folder of this machine is taken as it is


# -- converting files ----------------------------------------------------------------------------------------------------


def test_files_and_folders_are_recognised(tmp_path):
    convert = {"root": tmp_path / "root", "procs": 0}
    made = Dataset(rbdata.convert(OGBENCH / "puzzle-3x3-play-v0.npz", dataset_id="my/puzzle", **convert))
    assert_holds(made, expected(OGBENCH / "puzzle-3x3-play-v0.npz"))
    assert made.manifest.source["set"] == "puzzle-3x3-play-v0"
    for file in OGBENCH.glob("powder*.npz"):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / file.name).write_bytes(file.read_bytes())
    training = rbdata.convert(tmp_path / "raw", dataset_id="my/training", **convert)
    validation = rbdata.convert(
        tmp_path / "raw", dataset_id="my/val", dataset="powderworld-easy-play-v0-val", **convert
    )
    assert [len(Dataset(path)) for path in (training, validation)] == [44, 6]
    with pytest.raises(ObjectNotFoundError, match="not those of one dataset"):
        rbdata.convert(OGBENCH, dataset_id="my/all", source="ogbench", **convert)
    with pytest.raises(UsageError, match="no dataset 'x'"):
        rbdata.convert(tmp_path / "raw", dataset_id="my/x", source="ogbench", dataset="x", **convert)


def test_any_npz_of_this_form_is_read(tmp_path):
    file = write(tmp_path / "mine.npz", make([5]) | {"rewards": np.arange(6.0), "masks": np.ones(6, np.float32)})
    made = Dataset(rbdata.convert(file, dataset_id="my/mine", source="ogbench", root=tmp_path / "root", procs=0))
    assert made["next/reward"].flatten().tolist() == [0, 1, 2, 3, 4] and made["masks"].tolist() == [1.0] * 5


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_file_of_other_arrays_is_refused_by_the_dry_run_too(dry_run, tmp_path):
    np.savez(tmp_path / "own.npz", obs=np.zeros(4), act=np.zeros(4), rew=np.zeros(4), terminated=np.arange(4) == 3)
    with pytest.raises(CorruptSourceError, match=r"own\.npz has no observations, actions, terminals"):
        convert(tmp_path / "own.npz", "ogbench", Request("my/x", root=tmp_path / "root", procs=0, dry_run=dry_run))


def test_the_commands_of_the_page(tmp_path):
    """Everything that is documented for a set works on one."""
    dataset = get(MAZE, tmp_path / "root")
    buffer = rbdata.load(f"ogbench/{MAZE}", root=tmp_path / "root", batch_size=32, seed=0, goals=rbdata.Goals())
    batch = buffer.sample()
    at_goal = (batch["goal"] == batch["observation"]).all(1)
    assert torch.equal(batch["next", "reward"].flatten(), at_goal.float() - 1) and at_goal.any() and not at_goal.all()
    states = {tuple(row) for row in dataset["observation"].tolist()}
    assert all(tuple(goal) in states for goal in batch["goal"].tolist())
    assert json.loads((dataset.path / "rbdata.json").read_text())["source"]["set"] == MAZE


@pytest.mark.parametrize("size", [0, 10, 400, 2000])
def test_a_download_that_was_cut_is_an_error_and_the_next_one_works(size, tmp_path):
    whole = (OGBENCH / f"{MAZE}.npz").read_bytes()
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / f"{MAZE}.npz").write_bytes(whole[:size])
    with http_server(tmp_path / "raw") as server:
        with pytest.raises(CorruptSourceError, match=MAZE):
            get(MAZE, tmp_path / "root", server.url)
        assert not (tmp_path / "root" / "ogbench" / MAZE).exists()
        (tmp_path / "raw" / f"{MAZE}.npz").write_bytes(whole)
        assert_holds(get(MAZE, tmp_path / "root", server.url), expected(OGBENCH / f"{MAZE}.npz"))


def bad_arrays():
    whole = make([3, 2])
    rows = len(whole["terminals"])
    yield "no terminals", {**whole, "terminals": None}, "has no terminals"
    yield "no observations", {**whole, "observations": None}, "has no observations"
    yield "fewer actions", {**whole, "actions": whole["actions"][:-1]}, r"actions has the shape \[6, 2\]"
    yield "more qpos", {**whole, "qpos": np.zeros((rows + 1, 2))}, r"qpos has the shape"
    yield "a number", {**whole, "qpos": np.float32(1)}, r"qpos has the shape \[\]"
    yield "one observation", {**whole, "observations": np.float32(1)}, r"observations has the shape \[\]"
    yield "flags", {**whole, "terminals": np.full(rows, 2)}, "terminals of row 0 is 2"
    yield "wide flags", {**whole, "terminals": np.zeros((rows, 2))}, r"terminals has the shape \[7, 2\], not one number"
    yield "texts", {**whole, "actions": np.array(["a"] * rows)}, "actions"
    yield "pickles", {**whole, "actions": np.array([{}] * rows, object)}, "asks for pickle"
    yield "a path", {**whole, "../../x": np.zeros(rows)}, "leads out of it"
    yield "a strange name", {**whole, "a b": np.zeros(rows)}, "holds 'a b'"
    yield "only single rows", make([0, 0, 0]), "no episode with a step"


@pytest.mark.parametrize(
    ("arrays", "problem"), [case[1:] for case in bad_arrays()], ids=[case[0] for case in bad_arrays()]
)
def test_bad_files(arrays, problem, tmp_path):
    file = write(tmp_path / "raw" / f"{MAZE}.npz", {key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(CorruptSourceError, match=problem) as caught:
        get(MAZE, tmp_path / "root", file.parent)
    assert caught.value.code == CorruptSourceError.code
    assert not list((tmp_path / "root").rglob("rbdata.json"))


def test_a_file_unlike_the_first_is_named(hundred, tmp_path):
    folder = tmp_path / LARGE
    write(folder / "cube-double-play-v0-000.npz", make([3], (4,)))
    write(folder / "cube-double-play-v0-001.npz", make([3], (5,)))
    with pytest.raises(CorruptSourceError, match=r"001\.npz"):
        get(LARGE, tmp_path / "root", tmp_path)
