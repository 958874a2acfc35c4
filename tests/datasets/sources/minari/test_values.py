"""Minari datasets: every value is what Minari's own reader says, for every space and every format."""

from __future__ import annotations

import copy
import gc
import json
import shutil
import struct
import sys

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hdf5_mutations import sealed
from minari_tools import FIXTURES, compare, convert, truth, with_root, write
from minari_tools import minari as require_minari
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.sources.minari import survey
from rbdata.datasets.sources.minari.files import FILE, DataFiles, MinariHdf5
from rbdata.datasets.sources.minari.reader import part_bounds
from rbdata.errors import CorruptSourceError
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED
from rbdata.storage.integrity import verify

minari = require_minari()

FORMATS = ["hdf5", "arrow", "parquet"]
each_format = pytest.mark.parametrize("data_format", FORMATS)

BOX = spaces.Box(-1, 1, (3,), np.float32)
KINDS = {
    "box": BOX,
    "scalar_box": spaces.Box(-1, 1, (), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 5), np.float32),
    "small_image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "wide_integers": spaces.Box(0, 60_000, (2,), np.uint16),
    "discrete": spaces.Discrete(5),
    "discrete_with_start": spaces.Discrete(4, start=-3),
    "multidiscrete": spaces.MultiDiscrete([3, 9, 200]),
    "multidiscrete_matrix": spaces.MultiDiscrete([[3, 9], [2, 4]]),
    "multibinary": spaces.MultiBinary(6),
    "text": spaces.Text(12, min_length=1, charset="abcé "),
    "dict": spaces.Dict(
        {"a.b": BOX, "deep": spaces.Dict({"x": spaces.Discrete(3), "t": spaces.Text(4, charset="xy")})}
    ),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(2), spaces.Tuple((spaces.MultiBinary(2), BOX)))),
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Minari's, of what a dataset should state as well


@pytest.fixture(autouse=True)
def minari_root(tmp_path, monkeypatch):
    return with_root(monkeypatch, tmp_path / "minari")


# -- the fixtures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["cartpole/random-v0", "cartpole/truncated-v0", "cartpole/dict-v0", "cartpole/arrow-v0", "mujoco/hopper-v0"],
)
def test_recorded_by_the_collector(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(FIXTURES))
    dataset = convert(tmp_path, name)
    episodes = truth(name)
    compare(dataset, episodes)
    if name == "mujoco/hopper-v0":
        for number, episode in enumerate(episodes):
            rows = dataset.episode(number)
            for key, values in episode.infos.items():
                found = rows["info", key].numpy(), rows["next", "info", key].numpy()
                assert np.array_equal(found[0].reshape(values[:-1].shape), values[:-1])
                assert np.array_equal(found[1].reshape(values[1:].shape), values[1:])
    source = dataset.manifest.source
    assert source["metadata"]["author"] == ["rbdata"] and source["metadata"]["minari_version"] == "0.5.4"
    assert source["environment"]["id"] in ("CartPole-v1", "Hopper-v5")
    assert dataset.manifest.spaces["action"]["type"] == ("Box" if "hopper" in name else "Discrete")
    objects = source["objects"]
    assert objects[0]["name"] == "data/metadata.json" and all(entry["crc32c"] for entry in objects)


# -- spaces --------------------------------------------------------------------------------------------------------


def renamed(episodes):
    """Episodes with the key that ``a.b`` becomes."""
    for episode in episodes:
        for values in (episode.observations, episode.actions):
            values["dict"]["a_b"] = values["dict"].pop("a.b")
    return episodes


@each_format
def test_every_space(tmp_path, data_format):
    space = spaces.Dict(KINDS)
    lengths = [3, 1, 5, 2, 4, 2, 6, 1, 3, 2, 4, 7]  # episode 10 must not come after episode 1
    made = write("tests/all-v0", space, copy.deepcopy(space), lengths, data_format=data_format)
    dataset = convert(tmp_path / "root", "tests/all-v0")
    keys = {f"{where}/dict/a_b": f"{where}/dict/a.b" for where in ("observation", "action")}
    assert dataset.manifest.source["keys"] == keys
    compare(dataset, renamed(made))
    compare(dataset, renamed(truth("tests/all-v0")))
    assert dataset.manifest.counts["terminated_episodes"] == dataset.manifest.counts["time_limit_episodes"] == 6


@each_format
@pytest.mark.parametrize("kind", ["text", "scalar_box", "multidiscrete_matrix"])
def test_a_space_that_is_no_part_of_another(tmp_path, data_format, kind):
    write("tests/top-v0", KINDS[kind], KINDS[kind], [3, 1], data_format=data_format)
    compare(convert(tmp_path / "root", "tests/top-v0"), truth("tests/top-v0"))


def test_discrete_start_is_in_the_manifest(tmp_path):
    write("tests/start-v0", KINDS["discrete_with_start"], KINDS["discrete_with_start"], [5])
    dataset = convert(tmp_path / "root", "tests/start-v0")
    assert dataset.manifest.spaces["action"] == {"type": "Discrete", "n": 4, "start": -3}
    assert dataset["action"].min() >= -3 and dataset["action"].max() <= 0


@each_format
def test_text_left_out(tmp_path, data_format):
    made = write("tests/text-v0", KINDS["dict"], BOX, [3, 4], data_format=data_format)
    dataset = convert(tmp_path / "root", "tests/text-v0", extra={"text": "omit"})
    assert "observation/deep/t" not in dataset.schema and "observation/deep/x" in dataset.schema
    assert dataset.manifest.source["left_out"] == {"observation/deep/t": "text, left out as asked"}
    assert dataset.manifest.source["options"]["text"] == "omit"
    assert any("Left out" in note for note in dataset.manifest.notes)
    assert len(dataset) == sum(len(buffer.rewards) for buffer in made)


# -- frames --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format, shape", [(kind, (40, 48, 3)) for kind in FORMATS] + [("hdf5", (36, 36))])
def test_jpeg_frames(tmp_path, data_format, shape):
    image = spaces.Box(0, 255, shape, np.uint8)
    write("tests/jpeg-v0", image, spaces.Discrete(2), [4, 3, 5], data_format=data_format)
    dataset = convert(tmp_path / "root", "tests/jpeg-v0")
    compare(dataset, truth("tests/jpeg-v0"))
    leaf = dataset.schema["observation"]
    assert (leaf.kind, leaf.codec, leaf.shape) == ("state", "zstd", shape)
    assert any("JPEG, which is lossy" in note for note in dataset.manifest.notes)


@pytest.mark.parametrize(
    "data_format, options",
    [("hdf5", {}), ("arrow", {}), ("parquet", {}), ("hdf5", {"codec": "raw"}), ("arrow", {"layout": "ted"})],
)
def test_raw_frames(tmp_path, data_format, options):
    """As before 0.5.3: no flag in the metadata, and no JPEG either; the current reader would take them for some."""
    image = spaces.Dict({"camera": spaces.Box(0, 255, (40, 32, 3), np.uint8), "pose": BOX})
    made = write("tests/raw-v0", image, BOX, [4, 3, 5], data_format=data_format, jpeg_encoding=False)
    place = minari.storage.get_dataset_path("tests/raw-v0") / "data" / "metadata.json"
    about = json.loads(place.read_text())
    del about["jpeg_encoding"]
    place.write_text(json.dumps(about))
    dataset = convert(tmp_path / "root", "tests/raw-v0", **options)
    compare(dataset, made)
    assert not any("JPEG" in note for note in dataset.manifest.notes)


def test_jpeg_rows_of_one_length(tmp_path):
    """All frames the same: Minari stores their bytes as a plain array."""
    image = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    write("tests/same-v0", image, spaces.Discrete(2), [3])
    path = minari.storage.get_dataset_path("tests/same-v0") / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        first = np.asarray(file["episode_0/observations"][0])
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.stack([first] * 4)
    dataset = convert(tmp_path / "root", "tests/same-v0")
    compare(dataset, truth("tests/same-v0"))


def test_channel_first_frames(tmp_path):
    image = spaces.Box(0, 255, (3, 40, 40), np.uint8)
    made = write("tests/first-v0", image, spaces.Discrete(2), [4, 2])
    compare(convert(tmp_path / "root", "tests/first-v0"), made)


def test_interrupted_while_frames_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rbdata.datasets.sources.minari.reader.part_bounds", lambda states, row: part_bounds(states, row, 5 * row)
    )
    made = write("tests/stop-v0", spaces.Box(0, 255, (40, 32, 3), np.uint8), BOX, [4, 3, 9, 1, 2], jpeg_encoding=False)

    def stop(index):
        if index == 1:
            raise KeyboardInterrupt

    def request(root):
        return Request("minari/tests/stop-v0", root=root, procs=0)

    with pytest.raises(KeyboardInterrupt):
        download(request(tmp_path / "root"), Listener(on_part_done=stop))
    assert not (tmp_path / "root" / "minari" / "tests" / "stop-v0").exists()
    done = []
    download(request(tmp_path / "root"), Listener(on_part_done=done.append))
    assert done and 0 not in done  # what was finished is not done again
    fresh = convert(tmp_path / "fresh", "tests/stop-v0")
    again = Dataset(tmp_path / "root" / "minari" / "tests" / "stop-v0")
    assert verify(again.path).ok and again.manifest.files == fresh.manifest.files
    compare(again, made)


# -- episodes of all sorts -----------------------------------------------------------------------------------------


@each_format
def test_one_episode(tmp_path, data_format):
    made = write("tests/one-v0", BOX, BOX, [9], data_format=data_format)
    compare(convert(tmp_path / "root", "tests/one-v0"), made)


def test_an_arrow_episode_of_several_record_batches(tmp_path):
    """Minari's reader pairs batches with episodes, and loses the end of a long one; here it is whole."""
    made = write("tests/long-v0", BOX, spaces.Discrete(3), [33_000, 10], data_format="arrow")
    assert len(next(iter(minari.load_dataset("tests/long-v0").iterate_episodes())).rewards) < 33_000
    compare(convert(tmp_path / "root", "tests/long-v0"), made)


def test_arrow_episodes_in_several_files(tmp_path):
    import pyarrow as pa

    made = write("tests/split-v0", BOX, BOX, [30, 5], data_format="arrow")
    place = minari.storage.get_dataset_path("tests/split-v0") / "data" / "0"
    table = pa.ipc.open_file(place / "part-0.arrow").read_all()
    for number, (low, length) in enumerate([(0, 4), (4, 3), (7, 24)]):
        name = {0: 0, 1: 2, 2: 10}[number]  # by number: 0, 2, 10
        with pa.ipc.new_file(place / f"part-{name}.arrow", table.schema) as writer:
            writer.write_table(table.slice(low, length))
    compare(convert(tmp_path / "root", "tests/split-v0"), made)


@each_format
def test_gaps_in_the_numbers(tmp_path, data_format):
    made = write("tests/gap-v0", BOX, BOX, [3] * 12, data_format=data_format)
    folder = minari.storage.get_dataset_path("tests/gap-v0") / "data"
    if data_format == "hdf5":
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            del file["episode_4"]
    else:
        shutil.rmtree(folder / "4")
    dataset = convert(tmp_path / "root", "tests/gap-v0")
    compare(dataset, made[:4] + made[5:])
    assert any("12 episodes, the files hold 11" in note for note in dataset.manifest.notes)


@pytest.mark.parametrize(
    "data_format, flags",
    [("hdf5", (True, True)), ("arrow", (False, False)), ("parquet", (True, False)), ("hdf5", (False, True))],
)
def test_how_episodes_end(tmp_path, data_format, flags):
    made = write("tests/ends-v0", BOX, BOX, [3, 4], data_format=data_format, ends=lambda number: flags)
    dataset = convert(tmp_path / "root", "tests/ends-v0")
    compare(dataset, made)
    expected = TERMINATED if flags[0] else TRUNCATED if flags[1] else CUT
    assert dataset.episodes.outcomes.tolist() == [expected] * 2
    assert any("neither" in note for note in dataset.manifest.notes) == (expected == CUT)


def test_a_flag_inside_an_episode_ends_one(tmp_path):
    made = write("tests/inside-v0", BOX, BOX, [6])
    path = minari.storage.get_dataset_path("tests/inside-v0") / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        file["episode_0/terminations"][1] = True
        file["episode_0/truncations"][2] = True
    dataset = convert(tmp_path / "root", "tests/inside-v0")
    assert dataset.episodes.lengths.tolist() == [2, 1, 3]
    assert dataset.episodes.outcomes.tolist() == [TERMINATED, TRUNCATED, TERMINATED]
    observations = np.asarray(made[0].observations)
    assert np.array_equal(dataset["observation"].numpy(), observations[:-1])
    assert np.array_equal(dataset["next/observation"].numpy(), observations[1:])
    assert dataset.manifest.counts["split_episodes"] == 2


@pytest.mark.parametrize(
    ("data_format", "space"),
    [*((kind, BOX) for kind in FORMATS), ("hdf5", spaces.Box(0, 255, (40, 40, 3), np.uint8))],
    ids=[*FORMATS, "pictures"],
)
def test_an_episode_of_many_ends_is_read_in_blocks(tmp_path, monkeypatch, data_format, space):
    ends = np.array([np.arange(90) % 3 == 0, np.arange(90) % 3 == 2])
    made = write(
        "tests/ends-v0", space, BOX, [90], data_format=data_format, jpeg_encoding=False, ends=lambda number: ends
    )
    reads, read = [], survey.ColumnSource.read
    monkeypatch.setattr(survey.ColumnSource, "read", lambda *given: reads.append(given) or read(*given))
    dataset = convert(tmp_path / "root", "tests/ends-v0")
    assert dataset.episodes.lengths.tolist() == [1, *[2, 1] * 29, 2]
    sampled = [
        given for given in reads if given[5] - given[4] == 1
    ]  # rows to train a dictionary on; a run has two states
    assert len(reads) - len(sampled) < 5
    observations = np.asarray(made[0].observations)
    assert np.array_equal(dataset["observation"].numpy(), observations[:-1])
    assert np.array_equal(dataset["next/observation"].numpy(), observations[1:])


def test_data_in_another_dtype_than_the_space_says(tmp_path):
    write("tests/wide-v0", BOX, BOX, [4, 3])
    path = minari.storage.get_dataset_path("tests/wide-v0") / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        doubles = np.asarray(file["episode_0/observations"]).astype(">f8") + 1e-9
        del file["episode_0/observations"]
        file["episode_0/observations"] = doubles
    dataset = convert(tmp_path / "root", "tests/wide-v0")
    found = dataset["observation"].numpy()
    assert found.dtype == np.float64 and np.array_equal(found[:4], doubles[:-1])
    assert any("float64, and kept as they are" in note for note in dataset.manifest.notes)


# -- read by others ------------------------------------------------------------------------------------------------


def test_a_file_that_hdf5_cannot_close(tmp_path, monkeypatch):
    """It keeps in its cache what led to damage: closing fails, and h5py would print that, where nobody can catch it."""
    path, printed = tmp_path / FILE, []
    with h5py.File(path, "w", libver="latest", track_order=True) as file:
        file.create_group("episode_0")
        for number in range(14):
            file.attrs[f"text-{number}"] = "some text" * number
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, data.index(b"FRHP") + 22, (1 << 64) - (1 << 32) + 7)
    path.write_bytes(sealed(data))
    monkeypatch.setattr(sys, "unraisablehook", lambda error: printed.append(str(error.exc_value)))
    with pytest.raises(CorruptSourceError, match="is not a whole HDF5 file"):
        MinariHdf5(DataFiles("hdf5", "x", {FILE: path})).metadata()
    gc.collect()
    assert not printed
