"""A few rounds of each campaign; `make campaign` makes hundreds of kills and thousands of damaged inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import inputs
import kills
import pytest


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_what_was_stopped_ends_with_the_same_bytes(monkeypatch):
    few = ("raw", "delete")  # each is run undisturbed first
    monkeypatch.setattr(kills, "SCENARIOS", {name: kills.SCENARIOS[name] for name in few})
    outcomes, faults = kills.run(4, seed=1)
    assert sum(outcomes.values()) == 4 and faults == []


def test_damaged_inputs_are_refused_or_read_right():
    outcomes, faults = inputs.run(4, seed=1, first=8, names=["minari", "npz"])
    assert sum(outcomes.values()) == 4 and faults == []


def test_a_wrong_result_is_a_fault(monkeypatch):
    """A campaign whose comparison is broken would find nothing."""
    monkeypatch.setattr(inputs, "change", lambda data, rng: data + b"\0")  # behind a zip's end, which NumPy reads
    truth = iter([{"action.memmap": b""}])
    monkeypatch.setattr(inputs, "leaves", lambda root, real=inputs.leaves: next(truth, None) or real(root))
    outcomes, faults = inputs.run(1, seed=0, names=["npz"])
    assert [*outcomes] == ["npz wrong"] and "to other values" in faults[0]
