"""Batches on devices."""

from __future__ import annotations

import pytest
import rbdata
import torch
from storage_tools import make_episodes, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def test_devices(folder):
    batch = rbdata.load(folder, batch_size=4, device="cpu", pin_memory=True).sample()
    assert batch.device == torch.device("cpu")
    meta = rbdata.load(folder, batch_size=4, device="meta", prefetch=1)
    assert meta.sample()["observation"].device.type == "meta"
    meta.close()
