"""Orders in blocks: every place once, whatever the sizes; how even they are."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.storage import dataset as datasets
from rbdata.storage.replay.samplers.uniform import BlockOrder, BlockSampler
from storage_tools import make_episodes, write_dataset


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 9), st.integers(0, 1 << 62))
def test_every_step_once(size, group, pool, seed):
    order = BlockOrder(size, seed, group, pool)
    steps = order(np.arange(size))
    assert sorted(steps.tolist()) == list(range(size))
    pools = order.pool_of(np.arange(size))
    assert (np.diff(pools) >= 0).all() and (not size or pools[-1] == order.pools - 1)
    for number in range(order.pools):
        expected = sorted(step for low, high in order.ranges(number) for step in range(low, high))
        assert sorted(steps[pools == number].tolist()) == expected
    assert order.ranges(order.pools) == []


def test_any_places_in_any_order():
    order = BlockOrder(1000, 7, 30, 4)
    places = np.random.default_rng(0).permutation(1000)
    assert (order(places) == order(np.arange(1000))[places]).all()


def test_evenness():
    """Where a step comes, over many seeds: chi-square over 10 x 10 cells is that of uniform numbers."""
    size, seeds = 200, 120
    counts = np.zeros((10, 10))
    for seed in range(seeds):
        steps = BlockOrder(size, seed, 7, 5)(np.arange(size))
        np.add.at(counts, (np.arange(size) * 10 // size, steps * 10 // size), 1)
    expected = size * seeds / 100
    chi = ((counts - expected) ** 2 / expected).sum()
    # Steps of a group move together, so that a cell varies more than by its count: by the steps a group has in it.
    assert chi / 81 < 7 and abs(counts - expected).max() < 6 * np.sqrt(7 * expected)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_what_it_costs(share):
    """The variance of the mean of a batch, as docs/remote.md states it, for a share of variance between groups."""
    rng = np.random.default_rng(1)
    groups, group, pool, batch = 400, 50, 8, 40
    values = np.repeat(rng.standard_normal(groups), group) * np.sqrt(share)
    values += rng.standard_normal(groups * group) * np.sqrt(1 - share)
    means = []
    for seed in range(6):
        steps = BlockOrder(len(values), seed, group, pool)(np.arange(len(values)))
        means.append(values[steps].reshape(-1, batch).mean(1))
    assert np.var(means) == pytest.approx((1 - share) / batch + share / pool, rel=0.2)


@pytest.mark.parametrize("batch_size", [8, 33])
def test_a_pass_of_a_buffer(tmp_path, monkeypatch, batch_size):
    monkeypatch.setattr(datasets, "GROUP_BYTES", 400)
    path = write_dataset(tmp_path, make_episodes([50, 7, 90]), "raw")
    buffer = rbdata.load(path, batch_size=batch_size, shuffle="blocks", seed=3, prefetch=2)
    assert isinstance(buffer.sampler, BlockSampler) and buffer.sampler.group < 30
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
