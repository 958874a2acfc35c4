"""A few rounds of the campaign, and what it must notice."""

from __future__ import annotations

import own_code
import pytest


@pytest.mark.parametrize("kind", dict.fromkeys(own_code.KINDS), ids=lambda kind: kind.__name__)
def test_a_few_rounds(monkeypatch, kind):
    monkeypatch.setattr(own_code, "KINDS", (kind,))
    report = own_code.run(3, 100)
    assert not report.faults, "\n".join(report.faults)
    assert report.rounds == 3


def test_faults_are_noticed(monkeypatch):
    monkeypatch.setattr(own_code, "KINDS", (own_code.functions, own_code.recordings))
    rows = own_code._rows

    def one_row_off(root, dataset_id):
        return {name: values[::-1] for name, values in rows(root, dataset_id).items()}

    monkeypatch.setattr(own_code, "_rows", one_row_off)
    assert len(own_code.run(4, 0).faults) >= 3
