"""Seeds and generators: the same order of batches, also when drawn ahead."""

from __future__ import annotations

import pytest
import rbdata
import torch
from replay_tools import equal
from storage_tools import make_episodes, write_dataset

LENGTHS = [10, 100, 3, 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("samplers"), make_episodes(LENGTHS))


@pytest.mark.parametrize(
    "options", [{}, {"slice_len": 4}, {"replacement": False}, {"alpha": 0.7, "beta": 0.5}], ids=str
)
def test_one_seed_repeats_everything(folder, options):
    first, second = (rbdata.load(folder, batch_size=8, seed=7, **options) for _ in range(2))
    other = rbdata.load(folder, batch_size=8, seed=8, **options)
    ours, theirs, others = ([buffer.sample() for _ in range(30)] for buffer in (first, second, other))
    assert all(map(equal, ours, theirs))
    assert not all(map(equal, ours, others))


def test_the_global_seed_counts_without_one(folder):
    torch.manual_seed(5)
    first = rbdata.load(folder, batch_size=8).sample()
    torch.manual_seed(5)
    assert equal(first, rbdata.load(folder, batch_size=8).sample())


def test_a_generator_of_your_own(folder):
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    buffers = [rbdata.load(folder, batch_size=8, generator=generator) for generator in generators]
    assert all(equal(buffers[0].sample(), buffers[1].sample()) for _ in range(20))
