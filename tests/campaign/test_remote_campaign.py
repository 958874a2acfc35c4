"""A few rounds of the campaign of remote datasets; `make campaign` makes 200."""

from __future__ import annotations

from remote import run


def test_a_few_rounds() -> None:
    report = run(2, 8, places=("http",))
    assert not report.faults, "\n".join(report.faults)
    assert report.rounds == 2
