"""A round of each kind of the campaign."""

from __future__ import annotations

from concurrency import KINDS, run


def test_a_round_of_each_kind():
    report = run(1, 0)
    assert not report.faults, "\n".join(report.faults)
    assert report.rounds == len(KINDS) and report.outcomes["done"]
