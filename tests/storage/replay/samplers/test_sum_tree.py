"""The tree of sums against plain sums, and its draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SamplingError
from rbdata.storage.replay.samplers.sum_tree import SumTree
from replay_tools import chi_square


@settings(max_examples=50, deadline=None)
@given(
    size=st.sampled_from([1, 2, 15, 16, 17, 1000, 4096, 4097, 65_536, 70_000]),  # one, two, three levels
    rounds=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 99)), max_size=5),
)
def test_the_tree_is_a_list_of_sums(size, rounds):
    tree, plain = SumTree(size), torch.zeros(size, dtype=torch.float64)
    assert tree.total == 0 and tree.smallest == torch.inf
    for count, seed in rounds:
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(size, (count,), generator=generator)
        values = torch.rand(count, dtype=torch.float64, generator=generator)
        values *= torch.rand(count, generator=generator) > 0.2
        tree.update(index.numpy(), values.numpy())
        for place, value in zip(index.tolist(), values.tolist()):
            plain[place] = value
        assert torch.equal(tree.values, plain)
        assert tree.total == pytest.approx(float(plain.sum()), rel=1e-12)
        positive = plain[plain > 0]
        assert tree.smallest == (float(positive.min()) if len(positive) else torch.inf)
        if len(positive):
            running = plain.cumsum(0)
            mass = torch.rand(200, dtype=torch.float64, generator=generator) * running[-1] * (1 - 1e-9)
            found = torch.from_numpy(tree.find(mass.numpy()))
            wanted = torch.searchsorted(running, mass, right=True)
            assert int((found != wanted).sum()) <= 1  # a mass on an edge may fall either way
            assert bool((plain[tree.draw(200, generator)[0]] > 0).all())
    filled = SumTree(size)
    filled.fill(plain)
    assert filled.total == pytest.approx(tree.total) and filled.smallest == tree.smallest


def test_draws_from_a_million():
    """Four levels deep, most of the mass in few places: the draws of every part are as many as they should be."""
    size = 1_200_000
    tree, generator = SumTree(size), torch.Generator().manual_seed(0)
    values = torch.rand(size, dtype=torch.float64, generator=generator) ** 8
    tree.fill(values)
    index = torch.randperm(size, generator=generator)[:5000]
    values[index] = 20 * torch.rand(5000, dtype=torch.float64, generator=generator)
    for part in index.split(100):
        tree.update(part.numpy(), values[part].numpy())
    counts = torch.zeros(1000)
    for _ in range(100):
        found, drawn = tree.draw(2000, generator)
        assert torch.equal(values[found], torch.from_numpy(drawn))
        counts.index_add_(0, torch.from_numpy(found) % 1000, torch.ones(2000))
    expected = torch.zeros(1000, dtype=torch.float64).index_add_(0, torch.arange(size) % 1000, values)
    assert chi_square(counts, expected / expected.sum() * 200_000) < 5
    # Draws are in no order: a part of a batch is a batch.
    assert not bool((torch.from_numpy(found).diff() >= 0).all())


@pytest.mark.parametrize("size", [1, 4096, 4097, 70_000, 1_200_000])
def test_the_whole_mass_by_rounding(size):
    """A number below 1 times the least float there is may be that float: the search goes no further than the last row."""
    tree = SumTree(size)
    tree.update(np.array([0]), np.array([5e-324]))
    assert tree.find(np.array([tree.total]))[0] < -(-size // 16) * 16
    assert set(tree.draw(50, torch.Generator().manual_seed(0))[0].tolist()) == {0}


def test_an_infinite_sum_is_refused():
    tree = SumTree(10)
    tree.update(np.array([0, 1]), np.array([1.7e308, 1.7e308]))
    with pytest.raises(SamplingError, match="larger than a float64"):
        tree.draw(4, torch.Generator())
