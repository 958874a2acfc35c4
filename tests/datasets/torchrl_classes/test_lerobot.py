"""`LeRobotExperienceReplay`: TorchRL's keys over a download, and its documented example with the import changed."""

from __future__ import annotations

import lerobot_tools
import torch
from lerobot_tools import episode, texts, write
from rbdata.datasets import LeRobotExperienceReplay


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
