"""Passes in blocks: every step once a pass, over all processes, and a pass goes on after a checkpoint."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.storage import dataset as datasets
from storage_tools import make_episodes, write_dataset


@pytest.mark.parametrize("batch_size", [8, 33])
def test_a_pass_of_a_buffer(tmp_path, monkeypatch, batch_size):
    monkeypatch.setattr(datasets, "GROUP_BYTES", 400)
    path = write_dataset(tmp_path, make_episodes([50, 7, 90]), "raw")
    buffer = rbdata.load(path, batch_size=batch_size, shuffle="blocks", seed=3, prefetch=2)
    for _ in range(2):
        drawn = torch.cat([batch["index"] for batch in buffer])
        assert sorted(drawn.tolist()) == list(range(147))
    again = rbdata.load(path, batch_size=batch_size, shuffle="blocks", seed=3)
    again.sample()
    state = again.state_dict()
    rest = [again.sample()["index"] for _ in range(4)]
    again.load_state_dict(state)
    assert all(torch.equal(again.sample()["index"], one) for one in rest)
    shares = [rbdata.load(path, batch_size=8, shuffle="blocks", seed=3, rank=r, world_size=2) for r in range(2)]
    assert sorted(step for one in shares for batch in one for step in batch["index"].tolist()) == list(range(147))


def test_what_makes_no_sense(tmp_path):
    path = write_dataset(tmp_path, make_episodes([5]), "raw")
    with pytest.raises(rbdata.errors.UsageError, match="no slices"):
        rbdata.load(path, batch_size=4, slice_len=2, shuffle="blocks")
    with pytest.raises(rbdata.errors.UsageError, match="'global' or 'blocks'"):
        rbdata.load(path, batch_size=4, shuffle="shards")
