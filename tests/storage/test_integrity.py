"""What others see in our folders, TED's invariants, and verify."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rbdata.errors import DamagedDatasetError, DatasetNotFoundError
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import TRUNCATED, EpisodeTable
from rbdata.storage.integrity import verify
from rbdata.storage.leaf import DTYPES
from rbdata.storage.manifest import FILENAME, read_manifest, write_manifest
from rbdata.storage.schema import Schema
from storage_tools import LAYOUTS, columns, contents, make_episodes, names, write_dataset
from ted_rules import check_invariants
from ted_tools import load_plainly
from tensordict import TensorDict

EPISODES = make_episodes([5, 1, 9, 2, 12, 1], shape=(3, 2), dtype="float32")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


# -- plain readers ----------------------------------------------------------------------------------------------------


def as_tensordict(arrays: dict[str, np.ndarray], rows: int) -> TensorDict:
    nested = TensorDict({}, [rows])
    for name, array in arrays.items():
        nested[tuple(name.split("/"))] = torch.from_numpy(array)
    return nested


@pytest.mark.parametrize("layout", ["flat", "ted"])
def test_plain_tensordict_sees_full_ted(layout, tmp_path):
    folder = write_dataset(tmp_path, EPISODES, layout, parts=2)
    found = load_plainly(folder)
    assert found.batch_size == (30,)
    mine = Dataset(folder).to_tensordict()
    assert set(found.keys(True, True)) == set(mine.keys(True, True))
    assert (found == mine).all()
    assert (found == as_tensordict(columns(EPISODES), 30)).all()


@pytest.mark.parametrize("layout", ["raw", "zstd"])
def test_plain_tensordict_sees_the_step_leaves(layout, tmp_path):
    """State leaves have other numbers of rows: they are not in meta.json, the rest opens as ever."""
    folder = write_dataset(tmp_path, EPISODES, layout)
    found = load_plainly(folder)
    truth = {name: array for name, array in columns(EPISODES).items() if not name.endswith("observation")}
    assert (found == as_tensordict(truth, 30)).all()
    assert set(found.keys(True, True)) == {
        key if len(key) > 1 else key[0] for key in (tuple(n.split("/")) for n in truth)
    }


def test_nested_state_leaves_beside_nested_step_leaves(tmp_path):
    episodes = make_episodes(
        [3, 4], camera__rgb=((6,), "uint8"), camera__depth=((2,), "float16"), arm__angle=((), "int32")
    )
    layout = {"camera/rgb": "zstd", "camera/depth": "raw", "arm/angle": "flat"}
    found = load_plainly(write_dataset(tmp_path, episodes, layout))
    assert "camera" not in found
    assert torch.equal(found["arm", "angle"], torch.from_numpy(columns(episodes)["arm/angle"]))


def test_meta_is_what_tensordict_would_write(tmp_path):
    kinds = {f"deep__er__{dtype}{len(shape)}": (shape, dtype) for dtype in DTYPES for shape in ((), (2, 3))}
    episodes = make_episodes([3, 2], **kinds)
    folder = write_dataset(tmp_path / "mine", episodes)
    theirs = tmp_path / "theirs"
    as_tensordict(columns(episodes), 5).memmap(theirs)
    metas = sorted(path.relative_to(theirs) for path in theirs.rglob("meta.json"))
    assert len(metas) == 6
    for path in metas:
        assert json.loads((folder / path).read_text()) == json.loads((theirs / path).read_text()), path
    for path in theirs.rglob("*.memmap"):
        assert (folder / path.relative_to(theirs)).read_bytes() == path.read_bytes()


def test_episode_table_opens_in_tensordict(tmp_path):
    folder = write_dataset(tmp_path, EPISODES)
    found = load_plainly(folder / "episodes")
    assert found["start"].tolist() == [0, 5, 6, 15, 17, 29]
    assert found["length"].sum() == 30
    assert sorted(found.keys()) == ["length", "midway", "outcome", "return", "start"]
    episodes = Dataset(folder).episodes
    assert np.array_equal(found["return"].numpy(), episodes.returns)


@pytest.mark.parametrize("layout", ["flat", "ted"])
@pytest.mark.parametrize("options", [{"end_key": ("next", "done")}, {"traj_key": "traj"}], ids=str)
def test_torchrl_samples_slices(layout, options, tmp_path):
    """TorchRL's own buffer over the plain folder: slices are consecutive steps of one episode."""
    data = pytest.importorskip("torchrl.data")
    episodes = make_episodes([9, 4, 12, 7], shape=(3,))
    folder = write_dataset(tmp_path, episodes, layout)
    content = TensorDict.load_memmap(folder)
    dataset = Dataset(folder)
    if "traj_key" in options:
        content = content.clone()
        content["traj"] = dataset.episode_of(torch.arange(len(dataset)))
    buffer = data.ReplayBuffer(
        storage=data.TensorStorage(content), sampler=data.SliceSampler(slice_len=4, **options), batch_size=64
    )
    for _ in range(5):
        batch, info = buffer.sample(return_info=True)
        index = info["index"]
        index = (index[0] if isinstance(index, tuple) else index).reshape(16, 4)
        assert (index.diff(dim=1) == 1).all()
        episode = dataset.episode_of(index)
        assert (episode == episode[:, :1]).all()
        mine = dataset.read(index[:, 0], length=4)
        assert torch.equal(batch["observation"].view(16, 4, 3), mine["observation"])
        assert torch.equal(batch["next", "observation"].view(16, 4, 3), mine["next", "observation"])
        assert mine["mask"].all()


# -- invariants -------------------------------------------------------------------------------------------------------


def edit(folder: Path, name: str, step: int, value) -> None:
    dataset = Dataset(folder)
    leaf = dataset.schema[name]
    path = folder / (name + ".memmap")
    array = np.fromfile(path, leaf.np_dtype).reshape(-1, *leaf.shape)
    array[step] = value
    path.write_bytes(array.tobytes())


def edit_episodes(folder: Path, **change) -> None:
    """Replace columns of the episode table, whatever the result means."""
    episodes = Dataset(folder).episodes
    values = {name: getattr(episodes, name).copy() for name in ("starts", "lengths", "returns", "outcomes", "midway")}
    for name, value in change.items():
        values[name][: len(value)] = value
    table = EpisodeTable(**values)
    for column, array in zip(("start", "length", "return", "outcome", "midway"), values.values()):
        (folder / "episodes" / f"{column}.memmap").write_bytes(array.tobytes())
    assert len(table) == len(episodes)


def edit_manifest(folder: Path, **change) -> None:
    manifest = read_manifest(folder)
    for name, value in change.items():
        setattr(manifest, name, value)
    write_manifest(folder, manifest)


VIOLATIONS = {
    "done differs from terminated | truncated (step 2)": lambda f: edit(f, "next/truncated", 2, True),
    "an episode does not end with done, or goes on after it (step 5)": lambda f: (
        edit(f, "next/done", 5, False),
        edit(f, "next/truncated", 5, False),
    ),
    "root done is set (step 17)": lambda f: edit(f, "done", 17, True),
    "episode returns are not the sums of the rewards": lambda f: edit(f, "next/reward", 7, 1e6),
    "the episode table says terminated, the flags do not (or the reverse) (step 4)": lambda f: edit_episodes(
        f, outcomes=[TRUNCATED]
    ),
    "next/observation is not the following observation (step 10)": lambda f: edit(f, "next/observation", 10, 1000),
    "the episode table leaves gaps": lambda f: edit_episodes(f, starts=[0, 6]),
    "the episode table covers 38 steps, the dataset has 30": lambda f: edit_episodes(f, lengths=[5, 1, 9, 2, 12, 9]),
}


@pytest.mark.parametrize("expected", VIOLATIONS)
def test_every_violation_is_found(expected, tmp_path):
    """By what conversions are held to (`ted_rules`), and by opening the episode table."""
    folder = write_dataset(tmp_path, EPISODES)
    if "root" in expected:  # no constant any more: the file is read
        leaves = (type(one)(one.name, one.kind, one.dtype, one.shape) for one in read_manifest(folder).schema)
        edit_manifest(folder, schema=Schema(tuple(leaves)))
    assert check_invariants(folder, read_manifest(folder), 3) == []
    VIOLATIONS[expected](folder)
    if "episode table leaves" in expected or "table covers" in expected:
        with pytest.raises(DamagedDatasetError, match=expected):
            check_invariants(folder, read_manifest(folder))
        return
    (found,) = check_invariants(folder, read_manifest(folder), 3)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"next/done": None}, "next/done is missing"),
        ({"done": None}, "done is missing"),
        ({"next/truncated": {"dtype": "uint8"}}, "next/truncated is missing, or not bool [1]"),
        ({"next/terminated": {"shape": []}}, "next/terminated is missing, or not bool [1]"),
        ({"next/reward": None}, "next/reward is missing"),
        ({"next/reward": {"dtype": "float64"}}, "next/reward is missing, or not float32 [1]"),
        ({"next/reward": {"shape": [1, 1]}}, "next/reward is missing, or not float32 [1]"),
        ({"action": {"name": "reward"}}, "a reward at the root: rewards belong under next"),
    ],
    ids=str,
)
def test_keys_dtypes_and_shapes(change, expected, tmp_path):
    folder = write_dataset(tmp_path, EPISODES)
    records = [leaf.to_json() for leaf in read_manifest(folder).schema]
    (name, update), *_ = change.items()
    records = [{**record, **(update or {})} if record["name"] == name else record for record in records]
    if update is None:
        records = [record for record in records if record["name"] != name]
    schema = Schema(tuple(type(read_manifest(folder).schema.leaves[0]).from_json(record) for record in records))
    edit_manifest(folder, schema=schema)
    if "root" in expected:
        (folder / "action.memmap").rename(folder / "reward.memmap")
        assert [problem.startswith(expected) for problem in check_invariants(folder, read_manifest(folder))] == [True]
        return
    with pytest.raises(DamagedDatasetError, match=re.escape(expected)):
        Dataset(folder)


# -- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_verify_good(layout, tmp_path):
    folder = write_dataset(tmp_path, EPISODES, layout, parts=3)
    heard = []
    report = verify(folder, on_progress=lambda done, total: heard.append((done, total)))
    size = sum(len(data) for path, data in contents(folder).items() if path != FILENAME)
    assert report.ok and report.bytes == size and report.files == len(contents(folder)) - 1
    assert heard[-1] == (size, size) and heard == sorted(heard)
    assert verify(folder, quick=True).ok


def test_verify_names_the_damaged_file(tmp_path):
    folder = write_dataset(tmp_path, EPISODES, "zstd", parts=2)
    rng = np.random.default_rng(0)
    for path, data in contents(folder).items():
        if path == FILENAME or not data:
            continue
        at = int(rng.integers(len(data)))
        damages = {
            "flipped": (data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], "checksum mismatch"),
            "truncated": (data[:-1], f"has {len(data) - 1} bytes instead of {len(data)}"),
            "extra bytes": (data + b"\0", f"has {len(data) + 1} bytes instead of {len(data)}"),
            "empty": (b"", f"has 0 bytes instead of {len(data)}"),
            "missing": (None, "is missing"),
        }
        for name, (damaged, what) in damages.items():
            if damaged is None:
                (folder / path).unlink()
            else:
                (folder / path).write_bytes(damaged)
            report = verify(folder)
            assert [problem.path for problem in report.problems] == [path], name
            assert what in report.problems[0].what
            quick = verify(folder, quick=True)
            assert quick.ok == (name == "flipped")
            assert [problem.path for problem in quick.problems] == ([] if quick.ok else [path])
            (folder / path).write_bytes(data)


def test_verify_names_the_part(tmp_path):
    folder = write_dataset(tmp_path, EPISODES, "zstd", parts=3)
    ranges = read_manifest(folder).files["observation/blob"]
    blob = folder / "observation" / "blob"
    data = bytearray(blob.read_bytes())
    data[ranges[0][0] + 1] ^= 1
    blob.write_bytes(data)
    begin, end = ranges[0][0], ranges[0][0] + ranges[1][0]
    what = f"checksum mismatch, bytes {begin}-{end} (part 1)"
    assert [problem.what for problem in verify(folder).problems] == [what]


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "next/../../outside", ".."])
def test_verify_looks_at_nothing_outside(path, tmp_path):
    folder = write_dataset(tmp_path, EPISODES)
    (folder.parent / "outside").write_bytes(b"x")
    edit_manifest(folder, files={path: [[1, "00000000"]]})
    with pytest.raises(DamagedDatasetError, match="outside its dataset"):
        verify(folder)


def test_verify_a_folder_in_the_place_of_a_file(tmp_path):
    folder = write_dataset(tmp_path, EPISODES)
    (folder / "action.memmap").unlink()
    (folder / "action.memmap").mkdir()
    assert [problem.path for problem in verify(folder).problems] == ["action.memmap"]


def test_verify_on_a_failing_disk(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path, EPISODES)
    real = Path.open

    def fail(path, *arguments, **options):
        if path.name == "action.memmap":
            raise OSError(5, "Input/output error")
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)
    problems = verify(folder).problems
    assert [problem.path for problem in problems] == ["action.memmap"]
    assert "Input/output error" in problems[0].what


def test_verify_without_a_usable_manifest(tmp_path):
    with pytest.raises(DatasetNotFoundError):
        verify(tmp_path)
    folder = write_dataset(tmp_path, EPISODES)
    (folder / FILENAME).write_text("{")
    with pytest.raises(DamagedDatasetError):
        verify(folder)


def test_nothing_else_is_in_the_folder(tmp_path):
    """No pickles, no leftovers."""
    folder = write_dataset(tmp_path, EPISODES, "zstd", parts=2)
    assert names(folder) == [
        *("action.memmap", "done.memmap", "episodes", "meta.json", "next", "observation", FILENAME),
        *("terminated.memmap", "truncated.memmap"),
    ]
    assert names(folder / "observation") == ["blob", "dictionary", "offsets"]
