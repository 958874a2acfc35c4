"""`LeRobotExperienceReplay`: TorchRL's keys over a download, and its documented example with the import changed."""

from __future__ import annotations

import lerobot_tools
import numpy as np
import pytest
import rbdata
import torch
from lerobot_tools import episode, texts, write
from rbdata.datasets import LeRobotExperienceReplay
from rbdata.errors import UsageError

COLUMNS = {
    "observation.state": torch.arange(56.0).reshape(8, 7),
    "action": torch.zeros(8, 7),
    "episode_index": torch.arange(2).repeat_interleave(4),
    "task": ["pick"] * 7 + ["place"],
}


def test_a_download_has_the_keys_of_torchrl(tmp_path):
    mirror = tmp_path / "mirror"
    write(mirror / "some" / "toy", {0: episode(6), 1: episode(9, 1)}, cameras={"observation.images.front": "h264"})
    data = LeRobotExperienceReplay(
        "some/toy", batch_size=8, slice_len=4, size="24x16", mirror=str(mirror), root=tmp_path / "root"
    )
    batch = data.sample()
    assert batch["observation", "image", "front"].shape == (8, 16, 24, 3)
    assert batch["next", "observation", "image", "front"].dtype == torch.uint8
    assert batch["observation", "state"].shape == batch["next", "observation", "state"].shape == (8, 3)
    assert batch["action"].shape == (8, 2)
    assert batch["episode"].tolist()[0] in (0, 1)
    assert set(texts(batch["language_instruction"])) <= set(lerobot_tools.TASKS)
    assert (len(data), data.repo_id) == (5 + 8, "some/toy")
    assert "lerobot/pusht" in LeRobotExperienceReplay.available_datasets


def test_the_documented_example_of_torchrl():
    buffer = rbdata.LeRobotExperienceReplay.from_columns(COLUMNS, slice_len=4, batch_size=8)
    sample = buffer.sample()
    assert sample["action"].shape == torch.Size([8, 7])
    assert set(texts(sample["language_instruction"])) <= {"pick", "place"}
    buffer = rbdata.LeRobotExperienceReplay.from_columns(COLUMNS, slice_len=4, batch_size=8, rehydrate=True)
    sample = buffer.sample()
    assert sample["next", "observation", "state"].shape == torch.Size([8, 7])
    moved = (sample["next", "observation", "state"] - sample["observation", "state"])[:, 0]
    last = sample["next", "truncated"][:, 0]
    assert np.array_equal(moved, np.where(last, 0, 7)) and last.sum() == 2


def test_columns_that_do_not_fit_together_are_refused():
    with pytest.raises(UsageError, match="the columns have 3, 8 rows"):
        LeRobotExperienceReplay.from_columns({**COLUMNS, "action": torch.zeros(3, 7)})
    with pytest.raises(UsageError, match="no column episode_index"):
        LeRobotExperienceReplay.from_columns({"action": torch.zeros(3, 7)}, rehydrate=True)
