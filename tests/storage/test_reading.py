"""Reading: windows against a plain-Python oracle, indexing, privacy, processes and threads, very large datasets."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_forked
from rbdata.errors import DamagedDatasetError, DatasetNotFoundError, UsageError
from rbdata.storage.checksums import crc32c
from rbdata.storage.computed_rows import ConstantRows
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import EpisodeTable
from rbdata.storage.integrity import verify
from rbdata.storage.leaf import DTYPES
from rbdata.storage.manifest import Manifest, write_manifest
from rbdata.storage.meta import write_meta
from rbdata.storage.schema import Leaf, Schema, ted_flags
from storage_tools import (
    LAYOUTS,
    Episode,
    check_decoding,
    check_reads,
    columns,
    contents,
    in_child,
    make_episodes,
    write_dataset,
)
from tensordict import TensorDict


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def path_of(key) -> str:
    return key if isinstance(key, str) else "/".join(key)


def leaves(td: TensorDict) -> dict[str, torch.Tensor]:
    return {path_of(key): td[key] for key in td.keys(True, True)}


def assert_same(td: TensorDict, truth: dict[str, np.ndarray]) -> None:
    found = leaves(td)
    assert set(found) == set(truth)
    for name, array in truth.items():
        assert found[name].dtype == torch.from_numpy(np.empty(0, array.dtype)).dtype, name
        assert tuple(found[name].shape) == array.shape, name
        assert np.array_equal(found[name].numpy(), array), name


# -- the oracle: one step at a time, in plain Python -----------------------------------------------------------------


def oracle(episodes: list[Episode], layout: str, step: int, offsets: range, pad: str) -> dict[str, np.ndarray]:
    """The window of one step, row by row: ``{key: [extent, ...]}`` with ``mask``."""
    number = 0
    while step >= len(episodes[number]):
        step -= len(episodes[number])
        number += 1
    episode = episodes[number]
    length = len(episode)
    everything = columns([episode])
    result: dict[str, list[np.ndarray]] = {name: [] for name in (*everything, "mask")}
    for offset in offsets:
        at = step + offset
        inside = 0 <= at < length
        result["mask"].append(np.array(inside))
        for name, rows in everything.items():
            root = name.removeprefix("next/")
            if layout in ("raw", "zstd") and root in episode.states:
                states, row = episode.states[root], at + name.startswith("next/")  # a state row, 0..length
            else:
                states, row = rows, at
            if 0 <= row < len(states):
                result[name].append(states[row])
            elif pad == "zero":
                result[name].append(np.zeros_like(states[0]))
            else:
                result[name].append(states[0] if row < 0 else states[-1])
    return {name: np.stack(rows) for name, rows in result.items()}


FEW_OR_MANY = st.integers(0, 2) | st.integers(0, 50)


@settings(max_examples=examples(80), deadline=None)
@given(layout=st.sampled_from(LAYOUTS), data=st.data())
def test_windows(layout, data, tmp_path_factory):
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6), label="lengths")
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 5), (4, 2)]), label="shape")
    dtype = data.draw(st.sampled_from(DTYPES), label="dtype")
    episodes = make_episodes(lengths, shape=shape, dtype=dtype, seed=data.draw(st.integers(0, 3)))
    dataset = Dataset(write_dataset(tmp_path_factory.mktemp("root"), episodes, layout, parts=2))
    for _ in range(8):
        before, after = data.draw(FEW_OR_MANY, label="before"), data.draw(FEW_OR_MANY, label="after")
        length = 1 + data.draw(FEW_OR_MANY, label="length")
        pad = data.draw(st.sampled_from(["zero", "repeat"]), label="pad")
        steps = data.draw(st.lists(st.integers(0, sum(lengths) - 1), max_size=5), label="steps")
        found = dataset.read(steps, before=before, length=length, after=after, pad=pad)
        extent = before + length + after
        assert found.batch_size == (len(steps), extent)
        windows = [oracle(episodes, layout, step, range(-before, length + after), pad) for step in steps]
        for name, tensor in leaves(found).items():
            if windows:
                assert np.array_equal(tensor.numpy(), np.stack([window[name] for window in windows])), name


def test_window_arguments(tmp_path):
    dataset = Dataset(write_dataset(tmp_path, make_episodes([5, 3]), "raw"))
    for options in ({"before": -1}, {"length": 0}, {"after": -1}, {"pad": "mirror"}, {"keys": ["nothing"]}):
        with pytest.raises(UsageError):
            dataset.read([0], **options)
    for steps in ([-1], [8], [0, 100], [[0, 1]], [0.5], torch.zeros(8, dtype=torch.bool)):
        with pytest.raises(UsageError):
            dataset.read(steps)
    assert set(leaves(dataset.read([0], keys=["next/reward"]))) == {"mask", "next/reward"}
    assert set(leaves(dataset.read([0], keys=[("next", "reward")]))) == {"mask", "next/reward"}
    assert set(leaves(dataset.read([0], keys="observation"))) == {"mask", "observation", "next/observation"}
    for steps in (
        torch.tensor([1, 2], dtype=torch.uint8),
        np.array([1, 2], np.int32),
        range(1, 3),
        (1, 2),
        iter([1, 2]),
    ):
        assert torch.equal(dataset.read(steps)["action"], dataset["action"][1:3, None])


# -- indexing --------------------------------------------------------------------------------------------------------

EPISODES = make_episodes([5, 1, 9, 2, 12, 1], shape=(3, 2), dtype="uint8")
TRUTH = columns(EPISODES)
STEPS = len(TRUTH["action"])


@pytest.fixture(scope="module", params=LAYOUTS)
def folder(request, tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp(request.param), EPISODES, request.param, parts=3)


@pytest.fixture
def dataset(folder):
    return Dataset(folder)


def test_whole(dataset):
    assert len(dataset) == STEPS
    assert_same(dataset.to_tensordict(), TRUTH)
    assert dataset.to_tensordict().batch_size == (STEPS,)
    assert repr(dataset).startswith("Dataset('my/test', steps=30, episodes=6, path=")


@pytest.mark.parametrize("step", [0, 1, 4, 5, 6, STEPS - 1, -1, -STEPS, np.int64(7), np.uint8(3)])
def test_one_step(dataset, step):
    found = dataset[step]
    assert found.batch_size == ()
    assert_same(found, {name: array[step] for name, array in TRUTH.items()})


@pytest.mark.parametrize("step", [STEPS, -STEPS - 1, 10**12])
def test_no_such_step(dataset, step):
    with pytest.raises(IndexError):
        dataset[step]
    with pytest.raises(UsageError):
        dataset[[0, step]]


def test_iteration(dataset):
    found = list(dataset)
    assert len(found) == STEPS
    assert_same(torch.stack(found), TRUTH)


@pytest.mark.parametrize("step", [None, 2, 7, 100, -1, -3])
def test_slices(dataset, step):
    for start in (None, 5, STEPS + 9, -6, -STEPS - 4):
        for stop in (None, 6, STEPS + 9, -1):
            chosen = slice(start, stop, step)
            found = dataset[chosen]
            truth = {name: array[chosen] for name, array in TRUTH.items()}
            assert found.batch_size == (len(truth["action"]),)
            assert_same(found, truth)


@pytest.mark.parametrize(
    "index",
    [
        [3, 1, 1, 29, 0],
        [-1, -30, 4],
        [],
        (2, 3),
        np.array([5, -1], np.int8),
        np.array([[1, 2, 3], [4, 5, -6]]),
        torch.tensor([7, 0], dtype=torch.uint8),
        torch.tensor(4),
        np.arange(30) % 3 == 0,
        torch.zeros(30, dtype=torch.bool),
        [True] * 30,
    ],
    ids=str,
)
def test_many_steps(dataset, index):
    array_index = index.numpy() if isinstance(index, torch.Tensor) else np.array(index)
    if not array_index.size:
        array_index = array_index.astype(int)
    truth = {name: array[array_index] for name, array in TRUTH.items()}
    found = dataset[index]
    assert tuple(found.batch_size) == truth["action"].shape
    assert_same(found, truth)


@pytest.mark.parametrize(
    "index", [[0.5], torch.tensor([1.0]), [True, False], torch.ones(31, dtype=torch.bool)], ids=str
)
def test_indices_that_make_no_sense(dataset, index):
    with pytest.raises(UsageError):
        dataset[index]


def test_whole_leaves(dataset):
    for name, array in TRUTH.items():
        for key in (name, tuple(name.split("/"))):
            found = dataset[key]
            assert np.array_equal(found.numpy(), array) and tuple(found.shape) == array.shape
    after = dataset["next"]  # nested keys
    assert all(np.array_equal(after[name[5:]].numpy(), array) for name, array in TRUTH.items() if name[:5] == "next/")
    for key in ("nothing", "next/action", ("next", "next", "observation")):
        with pytest.raises(KeyError):
            dataset[key]


def test_episodes(dataset):
    start = 0
    for number, episode in enumerate(EPISODES):
        stop = start + len(episode)
        for key in (number, number - len(EPISODES)):
            assert_same(dataset.episode(key), {name: array[start:stop] for name, array in TRUTH.items()})
        start = stop
    for number in (6, -7):
        with pytest.raises(UsageError):
            dataset.episode(number)
    steps = torch.tensor([[0, 4, 5], [6, 14, 29]])
    assert dataset.episode_of(steps).tolist() == [[0, 0, 1], [2, 2, 5]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [[1], [7], [1, 1, 1]])
def test_small_datasets(layout, lengths, tmp_path):
    episodes = make_episodes(lengths)
    dataset = Dataset(write_dataset(tmp_path, episodes, layout))
    truth = columns(episodes)
    assert_same(dataset.to_tensordict(), truth)
    assert_same(dataset[-1], {name: array[-1] for name, array in truth.items()})
    assert_same(dataset[0:0], {name: array[:0] for name, array in truth.items()})
    assert_same(dataset.episode(0), {name: array[: lengths[0]] for name, array in truth.items()})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(), (7,)])
def test_dtypes_and_odd_row_sizes(layout, shape, tmp_path):
    """Rows of 1, 7, 14, ... bytes, scalars included, of every dtype side by side, given as big-endian arrays of any order."""
    episodes = make_episodes([3, 2], **{dtype: (shape, dtype) for dtype in DTYPES})
    truth = columns(episodes)
    for episode in episodes:
        for number, (name, states) in enumerate(episode.states.items()):
            states = states.astype(states.dtype.newbyteorder(">"))
            episode.states[name] = (np.asfortranarray(states), states[::-1].copy()[::-1])[number % 2]
    dataset = Dataset(write_dataset(tmp_path, episodes, layout))
    assert_same(dataset.to_tensordict(), truth)
    assert_same(dataset[[4, 0]], {name: array[[4, 0]] for name, array in truth.items()})
    assert_same(dataset[0:2], {name: array[0:2] for name, array in truth.items()})


def test_nested_keys(tmp_path):
    """Levels that hold nothing but deeper ones."""
    episodes = make_episodes(
        [3, 2], observation__arm__joints=((2,), "float64"), observation__arm__deep__er=((), "int8")
    )
    for layout in ("flat", "raw"):
        dataset = Dataset(write_dataset(tmp_path / layout, episodes, layout))
        for found in (dataset.to_tensordict(), dataset[0:5], dataset[list(range(5))], dataset.read(range(5))[:, 0]):
            assert_same(found.exclude("mask"), columns(episodes))


# -- privacy ---------------------------------------------------------------------------------------------------------


def scribble(thing) -> None:
    for tensor in leaves(thing).values() if isinstance(thing, TensorDict) else [thing]:
        tensor.copy_(~tensor if tensor.dtype == torch.bool else 77 - tensor)


READS = {
    "step": lambda ds: ds[3],
    "range": lambda ds: ds[0:9],
    "all": lambda ds: ds[:],
    "stride": lambda ds: ds[::2],
    "list": lambda ds: ds[[1, 1, 2]],
    "read": lambda ds: ds.read([0, 7], before=2, length=3, after=1),
    "whole": lambda ds: ds.to_tensordict(),
    "episode": lambda ds: ds.episode(2),
    "reward": lambda ds: ds["next/reward"],
    "observation": lambda ds: ds["observation"],
    "next observation": lambda ds: ds["next", "observation"],
    "flag": lambda ds: ds["done"],
    "raw rows": lambda ds: ds.rows["next/reward"].windows(torch.tensor([0, 1]), 2),
}


@pytest.mark.parametrize("folder", ["raw", "zstd"], indirect=True)  # both have step leaves, too
@pytest.mark.parametrize("read", READS)
def test_writing_into_what_was_read_reaches_nothing(folder, read):
    before = contents(folder)
    mine, other = Dataset(folder), Dataset(folder)
    other.to_tensordict()
    scribble(READS[read](mine))
    assert_same(mine.to_tensordict(), TRUTH)
    assert_same(other.to_tensordict(), TRUTH)
    assert_same(Dataset(folder).to_tensordict(), TRUTH)
    assert contents(folder) == before


def test_writing_into_the_mapping_itself_does_not_reach_the_file(folder):
    before = contents(folder)
    for rows in Dataset(folder).rows.values():
        scribble(rows.block(0, rows.count))
    assert contents(folder) == before
    assert_same(Dataset(folder).to_tensordict(), TRUTH)


def test_the_episode_table_cannot_be_written(dataset):
    for name in ("starts", "lengths", "returns", "outcomes", "midway"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(dataset.episodes, name)[0] = 1


def test_a_step_and_its_successor_do_not_share_memory(dataset):
    for found in (dataset[3], dataset[0:4], dataset[[0, 1]], dataset.to_tensordict()):
        before = found["next", "observation"].clone()
        found["observation"].fill_(99)
        assert torch.equal(found["next", "observation"], before)


# -- processes and threads --------------------------------------------------------------------------------------------


def test_pickle_and_copy(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    dataset = Dataset(folder.name)
    dataset.to_tensordict()
    data = pickle.dumps(dataset)
    assert len(data) < 500
    monkeypatch.chdir(tmp_path)
    for again in (pickle.loads(data), copy.deepcopy(Dataset(folder))):
        assert_same(again.to_tensordict(), TRUTH)


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("folder", "method", "check"),
    [("raw", "fork", check_reads), ("zstd", "forkserver", check_reads), ("zstd", "fork", check_decoding)],
    indirect=["folder"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_child_processes(dataset, method, check, two_threads):
    """After a fork of a process whose decoders (and their threads) are warm, too."""
    assert check_reads(dataset, EPISODES)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=in_child, args=(queue, check, dataset, EPISODES))
    process.start()
    try:
        assert queue.get(timeout=300)
        process.join()
    finally:
        process.kill()
    assert check_reads(dataset, EPISODES)


@pytest.mark.parametrize("folder", ["raw", "zstd"], indirect=True)
def test_in_threads(dataset):
    """One dataset, many threads at once."""
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check_reads, [dataset] * 4, [EPISODES] * 4))


@pytest.mark.parametrize("folder", ["raw", "zstd"], indirect=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_a_data_loader(dataset):
    dataset[0]
    # Importing torchrl.envs makes spawn the default, and each worker imports all of it; pickled datasets are tested above.
    how = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, collate_fn=torch.stack, **how)
    assert_same(torch.cat(list(loader)), TRUTH)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_no_dataset(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", str(tmp_path)):
        with pytest.raises(DatasetNotFoundError):
            Dataset(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_and_short_files(layout, tmp_path):
    """Whatever file is missing or short: an error that names it, never a crash."""
    folder = write_dataset(tmp_path, EPISODES, layout)
    constants = {leaf.name + ".memmap" for leaf in Dataset(folder).schema if leaf.constant is not None}
    for name, data in contents(folder).items():
        if name.endswith(".json"):
            continue
        for left in (None, data[:-1]):
            if left is None or name.endswith("/dictionary"):  # any length of it opens
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(left)
            if name in constants:
                assert_same(Dataset(folder).to_tensordict(), TRUTH)  # not read at all
            else:
                with pytest.raises(DamagedDatasetError, match=name.rpartition("/")[2]):
                    Dataset(folder)
            (folder / name).write_bytes(data)


def test_damaged_offsets(tmp_path):
    path = write_dataset(tmp_path, EPISODES, "zstd") / "observation" / "offsets"
    whole = np.fromfile(path, "<i8")
    for value in (-1, 0, 2**62, 5):
        for row in (0, 7, -1):
            offsets = whole.copy()
            offsets[row] = value
            if offsets[row] != whole[row]:
                offsets.tofile(path)
                with pytest.raises(DamagedDatasetError):
                    Dataset(path.parent.parent).to_tensordict()


# -- very large datasets ----------------------------------------------------------------------------------------------


def huge_dataset(folder: Path, steps: int, episodes: int, shape: tuple[int, ...], codec: str = "raw") -> Path:
    """A dataset of zeros in files that take no room; episodes of equal length (the last one takes the rest)."""
    length = np.full(episodes, steps // episodes)
    length[-1] += steps - length.sum()
    midway = np.zeros(episodes, bool)
    table = EpisodeTable(np.cumsum(length) - length, length, np.zeros(episodes), np.full(episodes, 2, "uint8"), midway)
    schema = Schema(
        (Leaf("observation", "state", "uint8", shape, codec), Leaf("action", "step", "int64", ()), *ted_flags())
    )
    files = {
        name: [[(folder / name).stat().st_size, crc32c((folder / name).read_bytes())]] for name in table.write(folder)
    }
    manifest = Manifest("my/huge", schema, steps, episodes, {"name": "test"})
    for leaf in schema:
        path = folder.joinpath(*leaf.key[:-1], leaf.key[-1] + ".memmap")
        path.parent.mkdir(exist_ok=True)
        if leaf.codec == "raw":
            with path.open("wb") as file:
                file.truncate(manifest.rows(leaf) * leaf.row_bytes)
    write_meta(folder, "", {leaf.name: (leaf.dtype, leaf.shape) for leaf in schema.steps}, steps)
    manifest.files = files
    write_manifest(folder, manifest)
    return folder


def test_rows_beyond_32_bits(tmp_path):
    """3e9 rows, of which the last are not zero; windows at both ends."""
    steps = 3_000_000_000
    folder = huge_dataset(tmp_path, steps, 3, (3,))
    with (folder / "observation.memmap").open("r+b") as file:
        file.seek((steps + 3 - 4) * 3)
        file.write(bytes(range(12)))
    with (folder / "action.memmap").open("r+b") as file:
        file.seek((steps - 1) * 8)
        file.write(b"\7")
    dataset = Dataset(folder)  # a loop over the rows would take hours
    assert dataset[-1]["observation"].tolist() == [6, 7, 8]
    assert dataset[-1]["next", "observation"].tolist() == [9, 10, 11]
    assert dataset[steps - 2 : steps]["action"].tolist() == [0, 7]
    window = dataset.read([steps - 1, 0, 2**31, steps // 3], before=2, length=1, after=1)
    assert window["observation"][0].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert window["mask"].tolist() == [[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]]


def test_larger_than_memory(tmp_path):
    """A raw leaf of 2 TB: mapping it privately must not need that much memory, or the promise of it."""
    folder = huge_dataset(tmp_path, 300_000_000, 1000, (84, 84))
    dataset = Dataset(folder)
    assert not dataset.read([0, 299_999_999], before=3)["observation"].any()
    assert not dataset[200_000_001:200_000_100]["next", "observation"].any()
    assert not TensorDict.load_memmap(folder)["action"][-3:].any()


OPEN = """
import sys, time
from pathlib import Path
import torch
from rbdata.storage.dataset import Dataset

def resident():  # without the pages of mapped files, which are the system's cache
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

before = resident()
begin = time.process_time()  # a busy machine does not count
dataset = Dataset(sys.argv[1])
first = dataset[12_345_678]
seconds = time.process_time() - begin
batch = dataset.read(torch.arange(0, 50_000_000, 195_313), before=3, keys=["observation"])
assert len(batch) == 256 and resident() - before < 50e6
assert seconds < 2, seconds  # about 0.01; a look at each step: minutes
"""


def test_opening_50_million_steps(tmp_path):
    assert run_forked(OPEN, str(huge_dataset(tmp_path, 50_000_000, 50_000, (84, 84)))) == 0


def test_constant_leaves_are_not_read(tmp_path):
    folder = write_dataset(tmp_path, EPISODES)
    (folder / "done.memmap").unlink()
    dataset = Dataset(folder)
    assert isinstance(dataset.rows["done"], ConstantRows)
    assert not dataset["done"].any()
    leaf = Leaf("x", "step", "float32", (2,), constant=1.5)
    assert torch.equal(ConstantRows(leaf, 9).windows(torch.tensor([0, 3]), 4), torch.full((2, 4, 2), 1.5))
    assert torch.equal(ConstantRows(leaf, 9).block(2, 5), torch.full((3, 2), 1.5))


def test_want_of_descriptors_is_no_damage(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([5]), "raw")
    for use in (Dataset, verify):
        use(folder)  # imports what it needs
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(lowest := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(OSError, match="Too many open files") as caught:
                use(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not isinstance(caught.value, DamagedDatasetError)
