"""Two datasets that are used together."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
from planted import play


@pytest.fixture
def train(tmp_path):
    return play(seed=0).write(tmp_path, "my/train")


def test_other_episodes_of_the_same_task_have_no_findings(tmp_path, train):
    report = rbdata.audit([train, play(20, seed=1).write(tmp_path, "my/val")])
    assert report.findings == () and [one.id for one in report.datasets] == ["my/train", "my/val"]


def test_shared_episodes(tmp_path, train):
    whole = play(seed=0)
    val = whole.take([3, 4, 5])
    other = play(20, seed=1)
    val.rows = {name: np.concatenate([val.rows[name], other.rows[name]]) for name in val.rows}
    val.lengths, val.outcomes = val.lengths + other.lengths, val.outcomes + other.outcomes
    (finding,) = rbdata.audit([train, val.write(tmp_path, "my/val")]).findings
    assert (finding.code, finding.severity, finding.dataset, finding.other) == (
        "episode_shared",
        "warning",
        "my/val",
        "my/train",
    )
    assert (finding.count, finding.total, finding.first) == (3, 23, (0, 1, 2))


def test_shared_transitions(tmp_path, train):
    """Views, without the first steps of the episodes."""
    whole = rbdata.open_dataset(train.path)
    starts = whole.episodes.starts
    steps = np.setdiff1d(np.arange(int(starts[10])), starts)
    report = rbdata.audit([whole, whole.select(steps=steps)])
    (finding,) = [finding for finding in report.findings if finding.severity != "note"]
    assert (finding.code, finding.count, finding.total) == ("transition_shared", len(steps), len(steps))


def test_other_leaves_are_a_note(tmp_path, train):
    val = play(20, seed=1)
    val["observation/extra"] = val.rows.pop("observation")
    val["next/observation/extra"] = val.rows.pop("next/observation")
    report = rbdata.audit([train, val.write(tmp_path, "my/val")])
    assert report.ok and [finding.code for finding in report.findings] == ["leaves_differ"]
    assert "observation (float32 [4] and missing)" in report.findings[0].what


def test_datasets_of_different_tasks_are_not_compared(tmp_path, train):
    val = play(20, seed=1)
    for name in ("observation", "next/observation", "action"):
        val[name] = np.repeat(val.rows[name], 2, axis=1)
    val.spaces = {}
    assert rbdata.audit([train, val.write(tmp_path, "my/val")]).findings == ()
