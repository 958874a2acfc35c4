"""Schedulers beside TorchRL's: the same values after every step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchrl.data as torchrl
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LambdaScheduler,
    LinearScheduler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SchedulerList,
    StepScheduler,
)
from torchrl.data.replay_buffers import scheduler as theirs

CASES: list[tuple[str, dict[str, Any]]] = [
    ("LinearScheduler", {"final_value": 0.1, "num_steps": 7}),
    ("StepScheduler", {"gamma": 0.9, "n_steps": 3, "min_value": 0.3}),
    ("StepScheduler", {"gamma": 0.1, "mode": "additive", "max_value": 0.75}),
    ("LambdaScheduler", {"lambda_fn": lambda step: 1 / (1 + step)}),
]


@pytest.mark.parametrize("name,options", CASES)
@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_values_are_those_of_torchrl(name, options, value):
    sampler = PrioritizedSampler(10, value, 1.0)
    other = torchrl.RandomSampler()
    vars(other)["alpha"] = value
    ours = {"LinearScheduler": LinearScheduler, "StepScheduler": StepScheduler, "LambdaScheduler": LambdaScheduler}
    left, right = (
        ours[name](ReplayBuffer(sampler=sampler), "alpha", **options),
        getattr(theirs, name)(other, "alpha", **options),
    )
    for step in range(12):
        if step == 5:  # from a state, on a sampler that stands where the other one stood
            state = left.state_dict()
            left = ours[name](PrioritizedSampler(10, sampler.alpha, 1.0), "alpha", **options)
            left.load_state_dict(state)
            sampler = left.sampler
        left.step()
        right.step()
        assert float(sampler.alpha) == pytest.approx(float(vars(other)["alpha"]), rel=1e-6)
        assert isinstance(sampler.alpha, torch.Tensor) == isinstance(value, torch.Tensor)


def test_several_and_bad_ones():
    sampler = PrioritizedSampler(10, 0.5, 0.5)
    schedulers = SchedulerList(LinearScheduler(sampler, "beta", 1.0, 2))
    schedulers.append(StepScheduler(sampler, "alpha", 0.5))
    schedulers.step()
    assert (sampler.alpha, sampler.beta) == (0.25, 0.75)
    for make in (
        lambda: LinearScheduler(SimpleNamespace(beta=1), "beta", 1.0, 2),
        lambda: LinearScheduler(RandomSampler(), "beta", 1.0, 2),
        lambda: LinearScheduler(sampler, "beta", 1.0, 0),
        lambda: StepScheduler(sampler, "beta", mode="other"),
        lambda: LinearScheduler(sampler, "beta", 1.0, 2).load_state_dict(schedulers.schedulers[1].state_dict()),
    ):
        with pytest.raises(UsageError):
            make()
