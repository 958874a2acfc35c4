"""A few rounds of the campaign, and what it must notice."""

from __future__ import annotations

from folders import run


def test_a_few_rounds():
    report = run(30, 1)
    assert not report.faults, "\n".join(report.faults)
    assert report.rounds == 30 and sum(report.outcomes.values()) == 90


def test_faults_are_noticed(monkeypatch):
    def careless(bench, folder, rng):
        (bench.top / "outside" / "precious").unlink(missing_ok=True)
        raise KeyError(folder)

    monkeypatch.setattr("folders.AT_ROOT", [careless] * 3)
    monkeypatch.setattr("folders.AT_MIRROR", [careless] * 3)
    report = run(1, 0)
    assert any("KeyError" in fault for fault in report.faults)
    assert any("outside" in fault for fault in report.faults)
