"""Sampling by age."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import SamplingError, UnknownKeyError, UsageError
from rbdata.storage.replay import LazyTensorStorage, StalenessAwareSampler, TensorDictReplayBuffer
from replay_tools import chi_square, rollout


def aged(sampler: StalenessAwareSampler, versions: torch.Tensor) -> TensorDictReplayBuffer:
    data = rollout([len(versions)])
    data["policy_version"] = versions
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(versions)), sampler=sampler, seed=0)
    buffer.extend(data)
    return buffer


def test_draws_follow_freshness():
    versions = torch.arange(20) % 5
    sampler = StalenessAwareSampler(max_staleness=4)
    buffer = aged(sampler, versions)
    sampler.consumer_version = 5
    counts = torch.zeros(20)
    for _ in range(50):
        batch = buffer.sample(300)
        assert torch.equal(batch["staleness"], 5.0 - versions[batch["index"]])
        counts.index_add_(0, batch["index"], torch.ones(300))
    expected = torch.where(versions > 0, 1 / (6.0 - versions), 0)
    assert counts[versions == 0].sum() == 0
    kept = expected > 0
    assert chi_square(counts[kept], (expected / expected.sum() * 50 * 300)[kept]) < 5
    few = torch.stack([buffer.sample(10)["index"].sort().values for _ in range(400)])
    assert bool((few.diff(dim=1) > 0).all())  # each once, where there are enough
    fresh = (versions[few] == 4).sum() / (versions[few] == 1).sum()
    assert 1.4 < fresh < 2.5  # the weights are as 5 to 2, less for what is drawn already


def test_states_and_errors(tmp_path):
    sampler = StalenessAwareSampler(3, lambda staleness: torch.ones_like(staleness), "age")
    sampler.consumer_version = 41
    sampler.increment_consumer_version()
    other = StalenessAwareSampler()
    other.load_state_dict(sampler.state_dict())
    assert (other.consumer_version, other.max_staleness) == (42, 3)
    sampler.dumps(tmp_path)
    third = StalenessAwareSampler()
    third.loads(tmp_path)
    assert third.state_dict() == sampler.state_dict()
    with pytest.raises(UsageError):
        other.load_state_dict({})
    with pytest.raises(RuntimeError, match="max_staleness=3"):
        aged(other, torch.zeros(5)).sample(2)
    with pytest.raises(UnknownKeyError, match="age"):
        aged(sampler, torch.zeros(5)).sample(2)
    with pytest.raises(SamplingError, match="weights"):
        aged(StalenessAwareSampler(-1, torch.zeros_like), torch.zeros(5)).sample(2)


def test_weights_are_one_for_each_staleness():
    for function in (lambda s: 1 / (s[s < 5] + 1), lambda s: (0.5**s).sum(), lambda s: 1.0):
        sampler = StalenessAwareSampler(staleness_weight_fn=function)
        buffer = aged(sampler, torch.arange(10))
        sampler.consumer_version = 9
        with pytest.raises(UsageError, match="one weight for each"):
            buffer.sample(6)
    sampler = StalenessAwareSampler(staleness_weight_fn=lambda s: (s.numpy() < 5).astype("float32"))  # type: ignore[return-value]
    buffer = aged(sampler, torch.arange(10))
    sampler.consumer_version = 9
    assert set(buffer.sample(200)["policy_version"].tolist()) == {5, 6, 7, 8, 9}


def test_versions_that_count_steps():
    first = 30_000_001
    sampler = StalenessAwareSampler(max_staleness=3)
    buffer = aged(sampler, torch.arange(first, first + 10))
    sampler.consumer_version = first + 9
    batch = buffer.sample(200)
    assert set(batch["policy_version"].tolist()) == set(range(first + 6, first + 10))
    assert torch.equal(batch["staleness"], (first + 9 - batch["policy_version"]).float())
