"""Infos of every length and kind, older metadata, and everything that can be wrong with a Minari dataset."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from minari_tools import compare, convert, with_root, write
from minari_tools import minari as require_minari
from rbdata.datasets import catalogue
from rbdata.datasets.convert import convert as convert_folder
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.errors import (
    CorruptSourceError,
    DatasetExistsError,
    DatasetNotFoundError,
    ObjectNotFoundError,
    RbdataError,
    UsageError,
)
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT
from rbdata.storage.integrity import verify

minari = require_minari()

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BOX = spaces.Box(-1, 1, (3,), np.float32)


@pytest.fixture(autouse=True)
def minari_root(tmp_path, monkeypatch):
    return with_root(monkeypatch, tmp_path / "minari")


def data_of(name: str) -> Path:
    return minari.storage.get_dataset_path(name) / "data"


def file_of(name: str) -> h5py.File:
    return h5py.File(data_of(name) / "main_data.hdf5", "a")


def plain(name="tests/plain-v0", lengths=(4, 3, 5), **more):
    return write(name, BOX, spaces.Discrete(2), lengths, **more)


def assert_clean(root: Path) -> None:
    assert not [path for path in root.rglob("*") if ".writing" in path.name or path.name == "rbdata.json"]


# -- infos ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_one_more_info_than_steps(tmp_path, data_format):
    def infos(number, n):
        return {
            "speed": np.arange(n + 1.0) + 100 * number,
            "pose": {"q.pos": np.ones((n + 1, 2)) * np.arange(n + 1)[:, None]},
        }

    plain(infos=infos, data_format=data_format)
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    for number, n in enumerate((4, 3, 5)):
        rows = dataset.episode(number)
        speed = infos(number, n)["speed"]
        assert rows["info", "speed"][:, 0].tolist() == speed[:-1].tolist()
        assert rows["next", "info", "speed"][:, 0].tolist() == speed[1:].tolist()
        assert rows["next", "info", "pose", "q_pos"].tolist() == [[i, i] for i in range(1, n + 1)]
    assert dataset.manifest.source["keys"] == {"info/pose/q_pos": "infos/pose/q.pos"}


def test_as_many_infos_as_steps(tmp_path):
    plain(infos=lambda number, n: {"speed": np.arange(n)})
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    assert "info/speed" not in dataset.schema
    assert dataset["next/info/speed"][:, 0].tolist() == [*range(4), *range(3), *range(5)]
    assert "next/info_mask/speed" not in dataset.schema


def test_infos_with_and_without_the_reset(tmp_path):
    plain(infos=lambda number, n: {"speed": np.arange(n) if number == 1 else np.arange(-1, n)})
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    assert dataset["next/info/speed"][:, 0].tolist() == [*range(4), *range(3), *range(5)]
    assert any("info of the reset is dropped" in note and "speed" in note for note in dataset.manifest.notes)


@pytest.mark.parametrize("more", [0, 1])
def test_infos_missing_from_some_episodes(tmp_path, more):
    plain(infos=lambda number, n: {} if number == 1 else {"speed": np.arange(1, n + 1 + more)})
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    prefix = "next/"
    assert dataset[prefix + "info/speed"][:, 0].tolist() == [
        *range(1 + more, 5 + more),
        0,
        0,
        0,
        *range(1 + more, 6 + more),
    ]
    assert dataset[prefix + "info_mask/speed"][:, 0].tolist() == [True] * 4 + [False] * 3 + [True] * 5
    assert ("info_mask/speed" in dataset.schema) == bool(more)
    assert any("Not in every episode" in note for note in dataset.manifest.notes)


def test_an_info_of_another_length_counts_as_missing(tmp_path):
    plain(infos=lambda number, n: {"speed": np.arange(n + (7 if number == 2 else 0))})
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    assert dataset["next/info_mask/speed"][:, 0].tolist() == [True] * 7 + [False] * 5


def test_infos_that_cannot_be_kept(tmp_path):
    def infos(number, n):
        return {
            "shape": np.zeros((n, 2 + number)),
            "words": ["go"] * n,
            "whole": np.arange(n) if number else np.arange(n) / 2,
            "next": np.arange(n),
            "odd.name": np.arange(n),
            "odd_name": np.arange(n),
            "never": np.zeros(n + 5),
            "frames": np.full((n + 1, 40, 40), number, np.uint8),
        }

    plain(infos=infos)
    with file_of("tests/plain-v0") as file:
        for number in range(3):
            file[f"episode_{number}/infos/episode_return"] = 3.0
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    left_out = dataset.manifest.source["left_out"]
    assert "its shape varies: (2,), (3,), (4,)" in left_out["infos/shape"]
    assert "dtype is object" in left_out["infos/words"]
    assert "neither n nor n + 1" in left_out["infos/never"]
    assert "not one row a step" in left_out["infos/episode_return"]
    assert "is taken" in left_out["infos/odd_name"]
    assert dataset["next/info/whole"].dtype.is_floating_point and dataset["next/info/next"].shape == (12, 1)
    assert dataset["next/info/odd_name"].shape == (12, 1)
    # Frames among the infos are stored as frames are.
    assert dataset.schema["info/frames"].kind == "state"
    assert dataset["info/frames"].float().mean((1, 2)).tolist() == [0] * 4 + [1] * 3 + [2] * 5


def test_no_infos_at_all(tmp_path):
    made = plain()
    with file_of("tests/plain-v0") as file:
        for number in range(2):
            del file[f"episode_{number}/infos"]
    compare(convert(tmp_path / "root", "tests/plain-v0"), made)


# -- metadata ------------------------------------------------------------------------------------------------------


def test_what_the_metadata_say_is_in_the_manifest(tmp_path):
    plain(ref_min_score=1.5, ref_max_score=20.0, env="CartPole-v1", description="three of them")
    source = convert(tmp_path / "root", "tests/plain-v0").manifest.source
    assert source["reference_scores"] == [1.5, 20.0]
    assert source["environment"]["id"] == "CartPole-v1"
    about = source["metadata"]
    assert (
        about["author"] == ["tests"] and about["description"] == "three of them" and about["algorithm_name"] == "random"
    )
    assert source["dataset"] == "tests/plain-v0"


@pytest.mark.parametrize("spaces_stated", [True, False])
def test_metadata_of_before_05(tmp_path, spaces_stated):
    """Root attributes of the HDF5 file, no metadata.json; the spaces may have been left to the environment."""
    observation = spaces.Dict({"a": BOX, "pair": spaces.Tuple((BOX, spaces.Text(5, charset="ab")))})
    made = write("tests/old-v0", observation, spaces.Discrete(2), [4, 3])
    folder = data_of("tests/old-v0")
    about = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").unlink()
    with file_of("tests/old-v0") as file:
        for key in ("dataset_id", "author", "algorithm_name", "total_episodes", "total_steps"):
            file.attrs[key] = about[key]
        file.attrs["minari_version"] = "0.4.2"
        file.attrs["env_spec"] = '{"id": "CartPole-v1"}'
        if spaces_stated:
            file.attrs["observation_space"] = about["observation_space"]
            file.attrs["action_space"] = about["action_space"]
    dataset = convert(tmp_path / "root", "tests/old-v0")
    compare(dataset, made)
    source = dataset.manifest.source
    assert source["metadata"]["minari_version"] == "0.4.2" and source["environment"] == {"id": "CartPole-v1"}
    assert [entry["name"] for entry in source["objects"]] == ["data/main_data.hdf5"]
    kind = dataset.manifest.spaces["action"]["type"]
    assert kind == ("Discrete" if spaces_stated else "Box")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda about: "{", CorruptSourceError, "is not JSON"),
        (lambda about: "[]", CorruptSourceError, "not a JSON object"),
        (lambda about: json.dumps({**about, "data_format": "zarr"}), UsageError, "format 'zarr'"),
        (lambda about: json.dumps({**about, "action_space": "{"}), CorruptSourceError, "action_space is not JSON"),
        (lambda about: json.dumps({**about, "action_space": '{"type": "Graph"}'}), UsageError, "a Graph space"),
        (lambda about: json.dumps({**about, "action_space": '{"type": "Box"}'}), CorruptSourceError, "a malformed Box"),
        (
            lambda about: json.dumps({**about, "action_space": '{"type": "Discrete", "n": "many"}'}),
            CorruptSourceError,
            "Discrete",
        ),
    ],
)
def test_metadata_that_cannot_be_used(tmp_path, change, error, said):
    plain()
    path = data_of("tests/plain-v0") / "metadata.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(error, match=said):
        convert(tmp_path / "root", "tests/plain-v0")
    assert_clean(tmp_path / "root")


def test_a_space_that_the_data_are_not_of(tmp_path):
    plain()
    path = data_of("tests/plain-v0") / "metadata.json"
    about = json.loads(path.read_text())
    about["observation_space"] = json.dumps(
        {"type": "Dict", "subspaces": {"x": {"type": "Discrete", "n": 2, "start": 0}}}
    )
    path.write_text(json.dumps(about))
    with pytest.raises(CorruptSourceError, match="episode_0/observations/x is missing"):
        convert(tmp_path / "root", "tests/plain-v0")
    about["observation_space"] = json.dumps(
        {"type": "Box", "shape": [4], "dtype": "float32", "low": [0] * 4, "high": [1] * 4}
    )
    path.write_text(json.dumps(about))
    with pytest.raises(CorruptSourceError, match=r"rows of shape \(3,\), its space says \(4,\)"):
        convert(tmp_path / "root", "tests/plain-v0")
    about["observation_space"] = json.dumps({"type": "Text", "max_length": 1 << 40, "min_length": 0, "charset": "a"})
    path.write_text(json.dumps(about))
    with pytest.raises(UsageError, match="too long to be stored"):
        convert(tmp_path / "root", "tests/plain-v0")
    assert_clean(tmp_path / "root")


# -- episodes that are not as they should be -----------------------------------------------------------------------


def shorten(*episodes: int) -> None:
    """Take the final observation away (Minari issue 199)."""
    with file_of("tests/plain-v0") as file:
        for number in episodes:
            rows = file[f"episode_{number}/observations"][:-1]
            del file[f"episode_{number}/observations"]
            file[f"episode_{number}/observations"] = rows


@pytest.mark.parametrize("unknown_next", ["truncate", "zero"])
def test_episodes_with_as_many_observations_as_steps(tmp_path, unknown_next):
    made = plain(ends=lambda number: (number == 0, number == 1))
    shorten(0, 1, 2)
    dataset = convert(tmp_path / "root", "tests/plain-v0", unknown_next=unknown_next)
    observations = [np.asarray(buffer.observations) for buffer in made]
    assert dataset.episodes.lengths.tolist() == ([4, 2, 4] if unknown_next == "truncate" else [4, 3, 5])
    first, second, third = (dataset.episode(number) for number in range(3))
    # Terminated: the successor is zeros. Not so: the last step is given up, or kept with zeros.
    assert not first["next", "observation"][-1].any() and first["next", "terminated"][-1]
    for rows, states in ((second, observations[1]), (third, observations[2])):
        last = rows["next", "observation"][-1].numpy()
        assert rows["next", "truncated"][-1] and not rows["next", "terminated"][-1]
        assert np.array_equal(last, states[-2] if unknown_next == "truncate" else np.zeros(3))
    assert dataset.episodes.outcomes[2] == CUT
    counts = dataset.manifest.counts
    assert counts["given_up_steps"] == (2 if unknown_next == "truncate" else 0)
    assert counts["blank_successors"] == (1 if unknown_next == "truncate" else 3)
    said = "Dropped" if unknown_next == "truncate" else "lack their final observation"
    assert any(said in note for note in dataset.manifest.notes)


def test_an_episode_of_one_step_without_a_successor_gives_nothing(tmp_path):
    plain(lengths=(1, 3), ends=lambda number: (False, True))
    shorten(0)
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    assert dataset.episodes.lengths.tolist() == [3]
    shutil.rmtree(tmp_path / "root")
    with file_of("tests/plain-v0") as file:
        del file["episode_1"]
    with pytest.raises(CorruptSourceError, match="no step whose successor is known"):
        convert(tmp_path / "root", "tests/plain-v0")
    assert_clean(tmp_path / "root")


def test_episodes_without_steps(tmp_path):
    made = plain(lengths=(3, 4))
    with file_of("tests/plain-v0") as file:
        group = file.create_group("episode_7")
        for key, shape in (("observations", (1, 3)), ("actions", (0,)), ("rewards", (0,))):
            group[key] = np.zeros(shape, np.float32 if key == "observations" else np.int64)
        group["terminations"] = group["truncations"] = np.zeros(0, bool)
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    compare(dataset, made)
    assert dataset.manifest.counts["empty_episodes"] == 1
    assert any("without a step" in note for note in dataset.manifest.notes)


def replace(key: str, values) -> None:
    with file_of("tests/plain-v0") as file:
        del file[f"episode_1/{key}"]
        if values is not None:
            file[f"episode_1/{key}"] = values


def test_integers_that_a_common_dtype_does_not_hold(tmp_path):
    plain()
    replace("actions", np.array([0.0, 1.0, 2**53 + 1]))
    with file_of("tests/plain-v0") as file:
        steps = len(file["episode_0/actions"])
        del file["episode_0/actions"]
        file["episode_0/actions"] = np.arange(steps) + 2**53
    with pytest.raises(
        CorruptSourceError, match="action of episode 0: 9007199254740993 does not fit float64, in row 1"
    ):
        convert(tmp_path / "root", "tests/plain-v0")
    assert_clean(tmp_path / "root")


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("rewards", np.array([0, np.nan, 1]), "episode 1: the reward of step 1 is nan"),
        ("rewards", np.array([0, 1e300, 1]), r"the reward of step 1 is 1e\+300, which float32 does not hold"),
        ("rewards", np.zeros(2), "episode 1 has 3 actions and 2 rewards"),
        ("rewards", None, "episode_1/rewards is missing"),
        ("rewards", 3.0, "not one row a step"),
        ("terminations", np.zeros(5, bool), "5 terminations and 3 steps"),
        ("terminations", np.array([0, np.nan, 1]), "terminations of step 1 is nan"),
        ("terminations", np.array([0, 0, 2]), "terminations of step 2 is 2"),
        ("truncations", np.array([0, 0.5, 0]), "truncations of step 1 is 0.5"),
        ("truncations", None, "episode_1/truncations is missing"),
        ("observations", np.zeros((6, 3), "f4"), "6 observations and 3 steps"),
        ("observations", np.zeros((4, 2), "f4"), r"rows of shape \(2,\), its space says \(3,\)"),
        ("observations", np.array([b"a"] * 4, "S1"), "is not of its space"),
        ("observations", None, "episode_1/observations is missing"),
        ("actions", np.zeros((3, 2), int), r"rows of shape \(2,\), its space says \(\)"),
    ],
)
def test_damaged_episodes(tmp_path, key, values, said):
    plain()
    replace(key, values)
    with pytest.raises(CorruptSourceError, match=said):
        convert(tmp_path / "root", "tests/plain-v0")
    assert_clean(tmp_path / "root")


def test_links_and_lies(tmp_path):
    plain()
    other = tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["secret"] = np.zeros((4, 3), "f4")
    replace("observations", None)
    for link in (h5py.ExternalLink(str(other), "secret"), h5py.SoftLink("/episode_0/observations")):
        with file_of("tests/plain-v0") as file:
            file["episode_1/observations"] = link
        with pytest.raises(CorruptSourceError, match="episode_1/observations is a link to somewhere else"):
            convert(tmp_path / "root", "tests/plain-v0")
        with file_of("tests/plain-v0") as file:
            del file["episode_1/observations"]
    with file_of("tests/plain-v0") as file:
        layout = h5py.VirtualLayout((4, 3), "f4")
        layout[:] = h5py.VirtualSource(str(other), "secret", (4, 3))
        file.create_virtual_dataset("episode_1/observations", layout)
    with pytest.raises(CorruptSourceError, match="kept in another file"):
        convert(tmp_path / "root", "tests/plain-v0")
    with file_of("tests/plain-v0") as file:
        del file["episode_1/observations"]
        file.create_dataset("episode_1/observations", (1 << 40, 3), "f4", chunks=(1024, 3))
    with pytest.raises(CorruptSourceError, match=r"declares \(1099511627776, 3\)"):
        convert(tmp_path / "root", "tests/plain-v0")
    for kind in (h5py.string_dtype(), h5py.vlen_dtype("u1")):  # a row of them would be 16 GB
        with file_of("tests/plain-v0") as file:
            del file["episode_1/observations"]
            file.create_dataset("episode_1/observations", (4, 1 << 31), kind, chunks=(1, 1))
        with pytest.raises(CorruptSourceError, match="is not of its space"):
            convert(tmp_path / "root", "tests/plain-v0")
    assert_clean(tmp_path / "root")


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_arrow_texts_and_names_that_are_none(tmp_path, data_format):
    space = spaces.Dict({"named": spaces.Text(8), "other": BOX})
    for number, (old, new) in enumerate([(b"named", b"na\xffed"), (b"ABCDE", b"AB\xffDE")]):
        write(f"tests/text{number}-v0", space, BOX, [3], data_format=data_format)
        part = data_of(f"tests/text{number}-v0") / "0" / f"part-0.{data_format}"
        table = with_texts(part, ["ABCDE"] * 4)
        assert old in table
        part.write_bytes(table.replace(old, new))
        with pytest.raises(CorruptSourceError, match="the file of episode 0 cannot be read"):
            convert(tmp_path / "root", f"tests/text{number}-v0")
    assert_clean(tmp_path / "root")


def with_texts(part: Path, texts: list[str]) -> bytes:
    """The file again, plain, with these texts as observations."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet = part.suffix == ".parquet"
    table = pq.read_table(part) if parquet else pa.ipc.open_file(part).read_all()
    states = table["observations"].combine_chunks()
    pieces = [pa.array(texts) if field.name == "named" else states.field(field.name) for field in states.type]
    states = pa.StructArray.from_arrays(pieces, [field.name for field in states.type])
    table = table.set_column(table.schema.get_field_index("observations"), "observations", states)
    if parquet:
        pq.write_table(table, part, compression="none", use_dictionary=False, write_statistics=False)
    else:
        with pa.ipc.new_file(part, table.schema) as writer:
            writer.write_table(table)
    return part.read_bytes()


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_arrow_episodes_that_are_not_whole(tmp_path, data_format):
    plain(data_format=data_format)
    folder = data_of("tests/plain-v0")
    (folder / "1" / "metadata.json").write_text('{"total_steps": 9}')
    with pytest.raises(CorruptSourceError, match="episode 1 has 4 rows, its metadata say 9 steps"):
        convert(tmp_path / "root", "tests/plain-v0")
    for path in folder.glob("*/part-0.*"):
        path.unlink()
    with pytest.raises(CorruptSourceError, match="holds no episodes"):
        convert(tmp_path / "root", "tests/plain-v0")
    assert_clean(tmp_path / "root")


def test_an_arrow_episode_without_its_final_observation(tmp_path):
    import pyarrow as pa

    made = plain(data_format="arrow", ends=lambda number: (False, True))
    path = data_of("tests/plain-v0") / "1" / "part-0.arrow"
    table = pa.ipc.open_file(path).read_all()
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table.slice(0, 3))
    dataset = convert(tmp_path / "root", "tests/plain-v0")
    assert dataset.episodes.lengths.tolist() == [4, 2, 5]
    assert np.array_equal(dataset.episode(1)["next", "observation"].numpy(), np.asarray(made[1].observations)[1:3])


def test_a_damaged_frame(tmp_path):
    image = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    write("tests/jpeg-v0", image, spaces.Discrete(2), [3, 3])
    with file_of("tests/jpeg-v0") as file:
        rows = file["episode_1/observations"]
        rows[2] = np.frombuffer(b"\xff\xd8\xff" + b"nonsense" * 20, np.uint8)
    with pytest.raises(CorruptSourceError, match=r"observation of episode 1: picture \d is not a valid PNG or JPEG"):
        convert(tmp_path / "root", "tests/jpeg-v0")


# -- options, ids, folders -----------------------------------------------------------------------------------------


def test_options(tmp_path):
    plain()
    for extra, said in (({"text": "words"}, "text is 'words'"), ({"colour": 1}, "no option colour")):
        with pytest.raises(UsageError, match=said):
            convert(tmp_path / "root", "tests/plain-v0", extra=extra)
    with pytest.raises(UsageError, match="shards"):
        convert(tmp_path / "root", "tests/plain-v0", parts=(0,))
    with pytest.raises(UsageError, match="ted"):
        convert(tmp_path / "root", "tests/plain-v0", layout="ted", codec="zstd")
    convert(tmp_path / "root", "tests/plain-v0")
    with pytest.raises(DatasetExistsError, match="text"):
        convert(tmp_path / "root", "tests/plain-v0", extra={"text": "omit"})
    convert(tmp_path / "root", "tests/plain-v0", extra={"text": "omit"}, force=True)


def test_ids(minari_root):
    plain("tests/mine-v3")
    plain("flat-v0")
    ids = catalogue.known_ids("minari")
    assert {"minari/tests/mine-v3", "minari/flat-v0", "minari/D4RL/door/human-v2"} <= set(ids)
    assert catalogue.resolve("tests/mine-v3")[0] == "minari/tests/mine-v3"
    assert catalogue.resolve("D4RL/door/human-v2")[0] == "minari/D4RL/door/human-v2"
    assert catalogue.resolve("minari/any/thing-v7")[0] == "minari/any/thing-v7"
    assert catalogue.resolve("hf://somebody/D4RL/door/human-v2")[0] == "minari/D4RL/door/human-v2"
    for wrong in ("minari/thing", "minari/a//b-v0", "minari/../b-v0"):
        with pytest.raises(RbdataError):
            catalogue.resolve(wrong)
    with pytest.raises(UsageError, match="not the address of a Minari dataset"):
        catalogue.resolve("hf://somebody/D4RL")
    with pytest.raises(DatasetNotFoundError):
        catalogue.resolve("any/thing-v7")  # without its source, only what is known


def test_one_that_is_not_there_names_its_neighbours(tmp_path):
    plain("tests/mine-v3")
    with pytest.raises(ObjectNotFoundError, match="holds no Minari dataset") as caught:
        convert(tmp_path / "root", "tests/mine-v2", mirror=os.environ["MINARI_DATASETS_PATH"])
    assert "minari/tests/mine-v3" in (caught.value.hint or "")
    assert_clean(tmp_path / "root")


@pytest.mark.parametrize("inside", ["", "data"])
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_folder_anywhere(tmp_path, inside, data_format):
    made = plain(data_format=data_format)
    folder = tmp_path / "elsewhere"
    shutil.copytree(data_of("tests/plain-v0").parent, folder)
    request = Request("my/plain", root=tmp_path / "root", options=ConvertOptions(extra={"text": "bytes"}))
    outcome = convert_folder(folder / inside, "minari", request)
    assert verify(outcome.path).ok
    compare(Dataset(outcome.path), made)
    assert Dataset(outcome.path).manifest.source["dataset"] == "tests/plain-v0"


def test_a_dtype_that_numpy_takes_for_a_program(tmp_path):
    from rbdata.datasets.sources.minari.metadata import parse_metadata

    space = {"type": "Box", "shape": [2], "low": 0, "high": 1, "dtype": "9" * 5000}
    with pytest.raises(CorruptSourceError, match="malformed Box"):
        parse_metadata(json.dumps({"observation_space": space, "action_space": space}).encode(), "x")


def test_lists_of_nothing_in_arrow(tmp_path):
    import pyarrow as pa

    plain(data_format="arrow", lengths=[3])
    part = data_of("tests/plain-v0") / "0" / "part-0.arrow"
    table = pa.ipc.open_file(part).read_all()
    nothing = pa.nulls(len(table), pa.list_(pa.null(), 3))
    table = table.set_column(table.schema.get_field_index("observations"), "observations", nothing)
    with pa.ipc.new_file(part, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CorruptSourceError):
        convert(tmp_path / "root", "tests/plain-v0")
