"""The journal of an unfinished dataset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rbdata.storage.journal import Journal


def test_ctrl_c_during_the_sync_keeps_what_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever catches the interrupt decides by the entries whether there is anything to keep."""
    journal = Journal(tmp_path / "journal.jsonl")
    journal.start("fingerprint")
    sync = os.fsync

    def interrupted(descriptor: int) -> None:
        sync(descriptor)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.record({"kind": "part", "number": 0})
    monkeypatch.undo()
    assert journal.find("part") == {0: {"kind": "part", "number": 0}}
    journal.record({"kind": "part", "number": 1})
    assert list(Journal(journal.path).find("part")) == [0, 1]


def test_a_failed_write_is_not_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.start("fingerprint")
    monkeypatch.setattr(Journal, "_append", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(OSError, match="no space"):
        journal.record({"kind": "part", "number": 0})
    monkeypatch.undo()
    assert journal.find("part") == {}
    journal.record({"kind": "part", "number": 0})
    assert list(Journal(journal.path).find("part")) == [0]
