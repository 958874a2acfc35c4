"""TorchRL's dataset classes: each from the provider's files to batches, and against TorchRL's own where it reads them."""

from __future__ import annotations

import shutil
from itertools import pairwise

import numpy as np
import pytest
import rbdata
import rlds_tools
import torch
from atari_truth import write_run
from d4rl_truth import make, write
from minari_tools import with_root
from minari_tools import write as write_minari
from openml_server import openml_server
from paths import DATA
from rbdata import ReplayBufferEnsemble, SamplerWithoutReplacement, SliceSampler
from rbdata.datasets import (
    AtariDQNExperienceReplay,
    BaseDatasetExperienceReplay,
    D4RLExperienceReplay,
    GenDGRLExperienceReplay,
    MinariExperienceReplay,
    OpenMLExperienceReplay,
    OpenXExperienceReplay,
    load_dataset,
)
from rbdata.errors import DatasetExistsError, DatasetNotFoundError, ReadOnlyError, UsageError
from servers import http_server
from tensordict.base import TensorDictBase

GAMES, HOPPER, DOOR = ("Pong/5", "Asterix/5"), "hopper-medium-replay-v2", "door/test-v0"
FLAGS = ("done", "terminated", "truncated")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Everything downloaded once, below one root; raw files beside it."""
    top = tmp_path_factory.mktemp("home")
    for name in GAMES:
        write_run(top / "dqn" / name / "replay_logs", 30, [20, 40])
    arrays = make([5, 6, 4], ["terminal", "timeout", "timeout"], width=3)
    arrays["infos/qpos"] = np.arange(30.0).reshape(15, 2)
    write(top / "d4rl" / "gym_mujoco_v2" / "hopper_medium_replay-v2.hdf5", arrays)
    return top


@pytest.fixture(autouse=True)
def places(home, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(home / "root"))
    monkeypatch.setenv("RBDATA_ATARI_MIRROR", str(home / "dqn"))
    monkeypatch.setenv("RBDATA_D4RL_MIRROR", str(home / "d4rl"))
    monkeypatch.setenv("RBDATA_PROCS", "1")


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A Minari dataset in Minari's own folder: nested observations, infos, episodes of 4, 6 and 3 steps."""
    from gymnasium import spaces

    with_root(monkeypatch, tmp_path / "minari")
    nested = spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Box(0, 255, (2, 2), np.uint8)})
    write_minari(DOOR, nested, spaces.Box(-1, 1, (2,)), [4, 6, 3], infos=lambda number, n: {"q": np.ones((n + 1, 2))})
    return tmp_path


def leaves(data: TensorDictBase) -> dict:
    return dict(data.items(include_nested=True, leaves_only=True))


# -- Atari -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_slices", "slice_len"), [(None, None), (None, 8), (2, None)])
def test_atari(num_slices, slice_len):
    data = AtariDQNExperienceReplay("Pong/5", num_slices=num_slices, slice_len=slice_len, strict_len=False)
    assert isinstance(data, BaseDatasetExperienceReplay)
    sample = data.sample(16)
    for place in (sample, sample["next"]):
        assert place["observation"].dtype == torch.uint8
        assert place["observation"].shape[1:] == (84, 84)
        assert all(place[flag].shape == (len(sample), 1) for flag in FLAGS)
    assert sample["action"].shape == sample["index"].shape == (len(sample),)
    assert sample["next", "reward"].dtype == torch.float32
    assert data["observation"].shape == (len(data), 84, 84)
    assert data.data_path == data.dataset_path == data.dataset.path


def test_atari_slices_by_its_episodes():
    """The ids that the class gives name the dataset's own episodes, also where frames are stored once a state."""
    data = AtariDQNExperienceReplay("Pong/5", batch_size=8)
    assert data.dataset.schema.states
    ends = data["next", "done"].squeeze(1)
    assert torch.equal(data.episodes[1:] != data.episodes[:-1], ends[:-1])
    data.set_sampler(SliceSampler(slice_len=4, trajectories=data.episodes))
    index = data.sample()["index"].reshape(2, 4)
    assert all(b - a == 1 for row in index.tolist() for a, b in pairwise(row))
    data.set_sampler(SliceSampler(slice_len=4, trajectories=torch.arange(len(data)) // 7))
    with pytest.raises(UsageError, match="episodes are the only ones"):
        data.sample()


def test_atari_composed():
    members = [AtariDQNExperienceReplay(name, slice_len=8, strict_length=False, num_procs=1) for name in GAMES]
    sample = ReplayBufferEnsemble(*members, batch_size=16, sample_from_all=True, collate_fn=list).sample()
    assert [len(part) for part in sample] == [8, 8]
    members = [AtariDQNExperienceReplay(name, batch_size=8) for name in GAMES]
    sample = ReplayBufferEnsemble(*members, batch_size=16, sample_from_all=True).sample()
    assert sample.shape == (2, 8)
    assert sample["index", "buffer_ids"].tolist() == [[0] * 8, [1] * 8]


def test_atari_options(tmp_path):
    """Arguments of TorchRL's that change nothing, and ours that do."""
    data = AtariDQNExperienceReplay(
        "Pong/5",
        batch_size=5,
        root=tmp_path,
        writer=rbdata.ImmutableDatasetWriter,
        transform=lambda batch: batch.set("seen", torch.ones(len(batch))),
        replacement=False,
        mp_start_method="spawn",
        pin_memory=False,
        prefetch=1,
        frame_stack=4,
        codec="zstd",
        shards=[0],
    )
    assert data.dataset.manifest.source["shards"] == [0]
    batches = list(data)
    assert sum(map(len, batches)) == len(data)
    assert batches[0]["observation"].shape == (5, 4, 84, 84)
    assert "seen" in batches[0].keys()  # noqa: SIM118
    with pytest.raises(ReadOnlyError):
        data.extend(batches[0])
    data.delete()
    assert not data.data_path.exists()


def test_what_is_not_there(tmp_path, door):
    for cls, name in (
        (AtariDQNExperienceReplay, "Qbert/1"),
        (D4RLExperienceReplay, "hopper-medium-v2"),
        (MinariExperienceReplay, "D4RL/door/human-v2"),
        (GenDGRLExperienceReplay, "bigfish-1M_E"),
        (OpenMLExperienceReplay, "magic"),
        (OpenXExperienceReplay, "cmu_stretch"),
    ):
        assert name in cls.available_datasets
        with pytest.raises(DatasetNotFoundError, match="is not under"):
            cls(name, batch_size=2, root=tmp_path, download=False)
    with pytest.raises(DatasetNotFoundError):
        AtariDQNExperienceReplay("Pong/6", root=tmp_path)
    with pytest.raises(UsageError, match="download is"):
        AtariDQNExperienceReplay("Pong/5", root=tmp_path, download="yes")
    with pytest.raises(FileNotFoundError):
        MinariExperienceReplay("door/other-v0", batch_size=2, root=tmp_path, load_from_local_minari=True)


# -- D4RL ------------------------------------------------------------------------------------------------------------


def their_d4rl(home, monkeypatch, root, **options):
    theirs = pytest.importorskip("torchrl.data.datasets.d4rl")
    file = home / "d4rl" / "gym_mujoco_v2" / "hopper_medium_replay-v2.hdf5"
    monkeypatch.setitem(theirs.D4RL_DATASETS, HOPPER, f"file://{file}")
    return theirs.D4RLExperienceReplay(HOPPER, 4, root=root, direct_download=True, **options)


def test_d4rl_against_torchrl(home, tmp_path, monkeypatch):
    """All steps are kept, as there; the last one of the file, which TorchRL leaves out, too."""
    ours = D4RLExperienceReplay(HOPPER, 4, root=tmp_path / "ours", direct_download=True, terminate_on_end=True)
    theirs = their_d4rl(home, monkeypatch, tmp_path / "theirs")
    assert len(ours) == len(theirs) + 1 == 15
    found, expected = leaves(ours[:-1]), leaves(theirs[:])
    assert found.keys() == expected.keys()
    first = ours.dataset.episode_starts[1:-1].tolist()
    for key, values in expected.items():
        wanted = values.clone()
        if key in ("reward", "done", "terminated", "truncated"):
            wanted[first] = 0  # where TorchRL gives those of the episode before
        elif key == ("next", "info", "qpos"):
            wanted[[step - 1 for step in first]] = 0  # where TorchRL gives that of the episode after
        assert found[key].dtype == values.dtype
        assert torch.equal(found[key], wanted), key


def test_d4rl_split_and_flags(home, tmp_path, monkeypatch):
    ours = D4RLExperienceReplay(HOPPER, 2, split_trajs=True, terminate_on_end=True, root=tmp_path / "ours")
    theirs = their_d4rl(home, monkeypatch, tmp_path / "theirs", split_trajs=True)[:]
    assert len(ours) == len(theirs) == 3
    whole = ours[:]
    assert leaves(whole).keys() == leaves(theirs).keys()
    for key in ("mask", "traj_ids", "action", "observation", ("next", "reward")):
        assert torch.equal(whole[key][:2], theirs[key][:2]), key  # without the episode that TorchRL cuts
    assert ours.sample()["index"].shape == (2, 6)
    assert ours[2]["mask"].tolist() == whole[[0, 2]]["mask"][1].tolist() == [True] * 4 + [False] * 2
    assert torch.equal(ours["action"], whole["action"])
    terminal = D4RLExperienceReplay(HOPPER, 2, use_truncated_as_done=False, root=tmp_path / "ours")
    assert terminal["next", "done"].squeeze(1).nonzero().tolist() == [[4]]


def test_d4rl_one_pass():
    data = D4RLExperienceReplay(HOPPER, 3, from_env=False, sampler=SamplerWithoutReplacement(drop_last=True))
    assert len(data) // sum(1 for _ in data) == 3
    assert len(data) == 13  # two steps without a known successor are left out
    with pytest.raises(DatasetExistsError, match="unknown_next"):
        D4RLExperienceReplay(HOPPER, 3, terminate_on_end=True)
    assert len(D4RLExperienceReplay(HOPPER, 3, terminate_on_end=False)) == 13
    assert load_dataset(f"d4rl:{HOPPER}", batch_size=4, slice_len=2).sample().shape == (4,)


# -- Minari ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_minari_against_torchrl(split, door, monkeypatch):
    theirs = pytest.importorskip("torchrl.data.datasets")
    # TorchRL 0.14.1 returns zeros: it saves `memmap_like`, which makes room and copies nothing.
    monkeypatch.setattr(TensorDictBase, "memmap_like", lambda self, *path, **more: self.memmap(*path))
    their = theirs.MinariExperienceReplay(
        DOOR, batch_size=4, root=door / "theirs", load_from_local_minari=True, split_trajs=split
    )
    expected = their[:]
    ours = MinariExperienceReplay(
        DOOR, batch_size=4, load_from_local_minari=True, split_trajs=split, root=door / "ours"
    )
    found = ours[:]
    assert found.shape == expected.shape == ((3, 6) if split else (13,))
    assert set(leaves(found)) - set(leaves(expected)) == set(FLAGS)
    for key, values in leaves(expected).items():
        assert torch.equal(found[key], values.to(found[key].dtype)), key
    sample = ours.sample()
    assert sample["index"].shape == ((4, 6) if split else (4,))
    differ = {"data_path", "observation_space", "action_space", "combined_datasets"}
    for name in their.metadata.keys() - differ:
        assert ours.metadata[name] == their.metadata[name], name
    for name in ("observation", "action"):
        assert ours.metadata[f"{name}_space"].is_in(sample[name])


def test_minari_local_is_read_anew(door):
    from gymnasium import spaces

    first = MinariExperienceReplay(DOOR, batch_size=4, load_from_local_minari=True, root=door / "root")
    shutil.rmtree(door / "minari" / "door")
    write_minari(DOOR, spaces.Box(-1, 1, (5,)), spaces.Discrete(3), [7])
    again = MinariExperienceReplay(DOOR, batch_size=4, load_from_local_minari=True, root=door / "root", slice_len=2)
    assert (len(first), len(again)) == (13, 7)
    assert len(MinariExperienceReplay(DOOR, batch_size=4, root=door / "root", download=False)) == 7
    again.set_sampler(SliceSampler(slice_len=2, traj_key="episode"))
    assert again.sample()["episode"].tolist() == [0] * 4


# -- Gen-DGRL --------------------------------------------------------------------------------------------------------


def test_gen_dgrl_against_torchrl(tmp_path, monkeypatch):
    """TorchRL's documented example, with the import changed, and the values of its own class over the same archive."""
    theirs = pytest.importorskip("torchrl.data.datasets").GenDGRLExperienceReplay
    layout = tmp_path / "mirror" / "Procgen" / "Datasets" / "Compressed"
    shutil.copytree(DATA / "gen_dgrl" / "1M" / "expert", layout / "1M" / "level_200" / "expert")
    torch.manual_seed(0)
    with http_server(tmp_path / "mirror") as server:
        d = GenDGRLExperienceReplay("chaser-1M_E", batch_size=32, root=tmp_path / "root", mirror=server.url)
        monkeypatch.setattr(theirs, "BASE_URL", f"{server.url}/Procgen/Datasets/Compressed")
        monkeypatch.setattr(theirs, "_get_category_len", classmethod(lambda cls, name: len(d)))
        (tmp_path / "theirs").mkdir()
        other = theirs("chaser-1M_E", batch_size=32, root=tmp_path / "theirs")[:]
    for batch in d:  # noqa: B007
        break
    assert batch["observation"].shape == (32, 3, 64, 64) and batch["observation"].dtype == torch.uint8
    mine = d[:]
    assert "chaser-1M_E" in GenDGRLExperienceReplay.available_datasets and d.episodes.max() == 2
    assert torch.equal(mine["observation"], other["observation"])
    assert torch.equal(mine["action"][:, None], other["action"])
    for key in ("reward", "done", "terminated"):
        assert torch.equal(mine["next", key], other["next", key])
    inside = ~mine["next", "done"][:, 0]
    assert torch.equal(mine["next", "observation"][inside], other["next", "observation"][inside])
    assert not mine["next", "observation"][~inside].any()  # theirs are another episode's


# -- OpenML ----------------------------------------------------------------------------------------------------------


def test_openml(tmp_path):
    """The table's rows come once each, in batches of ``X`` and ``y``; TorchRL's transforms rename them."""
    transforms = pytest.importorskip("torchrl.envs")
    rows = "".join(f"{i},{i * i},{'gh'[i % 2]}\n" for i in range(50))
    arff = f"@relation t\n@attribute a numeric\n@attribute b numeric\n@attribute class {{g,h}}\n@data\n{rows}"
    with openml_server() as server:
        server.table(1120, arff, default_target_attribute="class")
        data = OpenMLExperienceReplay(
            "magic",
            20,
            tmp_path,
            mirror=server.url,
            transform=transforms.RenameTransform(["X"], ["observation"]),
        )
    batches = list(data)
    assert [len(batch) for batch in batches] == [20, 20, 10]
    seen = torch.cat([batch["y"] for batch in batches])
    order = torch.cat([batch["index"] for batch in batches])
    assert torch.equal(seen, order % 2)
    assert set(batches[0].keys()) == {"observation", "y", "index"}
    assert data.max_outcome_val == 1
    column = OpenMLExperienceReplay("magic", 20, tmp_path)["X"]
    expected = torch.stack([torch.arange(50.0), torch.arange(50.0) ** 2], 1)
    expected = (expected - expected.mean(0)) / expected.std(0, correction=0)
    torch.testing.assert_close(column, expected)


# -- Open X-Embodiment -----------------------------------------------------------------------------------------------------


def test_open_x_as_torchrl_documents_it(tmp_path):
    """Its two examples, with the imports changed; the fixture stands for cmu_stretch."""
    shutil.copytree(rlds_tools.FIXTURES / "toy_robot/0.1.0", tmp_path / "mirror/cmu_stretch/0.1.0")
    where = {"root": tmp_path / "root", "mirror": str(tmp_path / "mirror")}
    num_slices = 2
    dataset = OpenXExperienceReplay(
        "cmu_stretch", batch_size=12, num_slices=num_slices, download=True, streaming=False, seed=0, **where
    )
    for batch in dataset:
        shaped = batch.reshape(num_slices, -1)
        assert shaped["episode"].unique(dim=1).shape == (2, 1) and shaped["observation", "image"].shape == (
            2,
            6,
            32,
            40,
            3,
        )
        assert {"discount", "language_instruction", "action", "next", "observation"} <= set(batch.keys())
        break
    dataset = OpenXExperienceReplay("cmu_stretch", num_slices=num_slices, download=False, streaming=True, **where)
    assert [len(data) for data in dataset] == [1, 10, 9, 11, 12, 7]
    assert dataset.sample(8).shape == (8,)
    assert "bridge" in OpenXExperienceReplay.available_datasets
    words = bytes(dataset[1]["language_instruction"].numpy()).rstrip(b"\0").decode()
    assert words == "pick up the red block"
