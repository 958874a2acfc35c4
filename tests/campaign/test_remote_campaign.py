"""A few rounds of the campaign of remote datasets, without those that depend on the moment; `make campaign` makes 200."""

from __future__ import annotations

import pytest
import remote


def test_a_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "KINDS", (remote.alone,))
    report = remote.run(2, 8, places=("http",))
    assert not report.faults, "\n".join(report.faults)
    assert report.rounds == 2
