"""TorchRL's classes of V-D4RL and RoboSet: its documented examples with the imports changed, and its transforms' values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paths import DATA
from rbdata.datasets import RobosetExperienceReplay, VD4RLExperienceReplay, load_dataset
from rbdata.errors import UsageError

KITCHEN = "FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("root")


@pytest.fixture(autouse=True)
def places(root, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(root))
    monkeypatch.setenv("RBDATA_VD4RL_MIRROR", str(DATA / "vd4rl"))
    monkeypatch.setenv("RBDATA_ROBOSET_MIRROR", str(DATA / "roboset"))
    monkeypatch.setenv("RBDATA_PROCS", "1")


def test_the_example_of_vd4rl():
    torch.manual_seed(0)
    d = VD4RLExperienceReplay("main/walker_walk/expert/64px", batch_size=32, image_size=50)
    batch = next(iter(d))
    assert batch["pixels"].shape == batch["next", "pixels"].shape == (32, 3, 50, 50)
    assert batch["pixels"].dtype == torch.float32 and batch["pixels"].min() >= 0 and batch["pixels"].max() <= 1
    assert batch["action"].shape == (32, 6) and batch["is_init"].shape == batch["discount"].shape == (32,)
    for key in ("done", "terminated", "truncated"):
        assert batch[key].shape == batch["next", key].shape == (32, 1)
    assert batch["next", "reward"].dtype == torch.float32
    assert "main/walker_walk/expert/64px" in VD4RLExperienceReplay.available_datasets


def test_pixels_are_those_of_the_step(root):
    """Trap 79, in TorchRL's keys; frames as its transforms make them."""
    from PIL import Image
    from torchrl.envs.transforms import ToTensorImage

    truth = np.load(DATA / "vd4rl/truth/walker_walk-expert-64px.npz")
    plain = VD4RLExperienceReplay("walker_walk-expert-64px", 8, totensor=False)[:]
    assert np.array_equal(plain["pixels"], truth["obs"]) and np.array_equal(plain["next", "pixels"], truth["next_obs"])
    assert plain["is_init"].nonzero().flatten().tolist() == [0, *np.cumsum(truth["lengths"])[:-1]]
    keys = ["pixels", ("next", "pixels")]
    wanted = ToTensorImage(in_keys=keys)(plain.clone())
    found = VD4RLExperienceReplay("walker_walk-expert-64px", 8)[:]
    assert all(torch.equal(found[key], wanted[key]) for key in keys)
    resized = VD4RLExperienceReplay("walker_walk-expert-64px", 8, image_size=50)[:3]["pixels"]
    for frame, stored in zip(resized, truth["obs"]):
        pillow = np.asarray(Image.fromarray(stored).resize((50, 50), Image.Resampling.BILINEAR))
        assert np.abs(frame.movedim(0, -1).numpy() * 255 - pillow).max() <= 1
    small = VD4RLExperienceReplay("walker_walk-expert-64px", 8, totensor=False, image_size=(20, 30))[:]
    assert small["pixels"].shape[1:] == (20, 30, 3) and small["pixels"].dtype == torch.uint8


def test_shards_have_their_channels_first_already():
    d = VD4RLExperienceReplay("main/cheetah_run/medium/84px", batch_size=4)
    assert d.sample()["pixels"].shape == (4, 3, 84, 84)
    truth = np.load(DATA / "vd4rl/truth/cheetah_run-medium-84px.npz")
    assert np.allclose(d[:]["pixels"], truth["obs"] / np.float32(255))


def test_the_example_of_roboset():
    from torchrl.envs.transforms import ExcludeTransform

    torch.manual_seed(0)
    d = RobosetExperienceReplay(KITCHEN, batch_size=32, transform=ExcludeTransform("info", ("next", "info")))
    batch = next(iter(d))
    assert batch["seed"].dtype == batch["episode"].dtype == torch.int64 and set(batch["seed"].tolist()) <= {0, 1}
    assert not {"info", ("next", "info")} & set(batch.keys(True))
    assert batch["observation"].dtype == batch["action"].dtype == torch.float64
    assert {"action", "done", "episode", "index", "next", "observation", "seed", "time"} <= set(batch.keys())
    assert KITCHEN in RobosetExperienceReplay.available_datasets


def test_rewards_of_roboset_are_those_of_the_step():
    """Trap 86, in TorchRL's keys."""
    truth = np.load(DATA / f"roboset/truth/{KITCHEN.replace('/', '_')}.npz")
    whole = RobosetExperienceReplay(KITCHEN, 4)[:]
    assert np.array_equal(whole["next", "reward"][:, 0], truth["reward"].astype(np.float32))
    assert np.array_equal(whole["next", "done"][:, 0], truth["terminated"] | truth["truncated"])
    assert not whole["action"].isnan().any()
    episodes = RobosetExperienceReplay(KITCHEN, 4, split_trajs=True)
    assert len(episodes) == len(truth["lengths"])


def test_prefixes_and_arguments():
    assert isinstance(load_dataset("vd4rl:walker_walk-expert-64px", batch_size=2), VD4RLExperienceReplay)
    assert isinstance(load_dataset(f"roboset:{KITCHEN}", batch_size=2), RobosetExperienceReplay)
    for size in ((1, 2, 3), 0, "x"):
        with pytest.raises(UsageError, match="image_size"):
            VD4RLExperienceReplay("walker_walk-expert-64px", 8, image_size=size)
