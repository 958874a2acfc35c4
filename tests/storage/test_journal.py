"""The journal of an unfinished dataset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rbdata.storage.checksums import Crc32c
from rbdata.storage.journal import Journal, seal


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


def test_journal_cut_at_every_byte(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.start("print")
    for number in range(4):
        journal.record({"kind": "part", "number": number, "é": "x" * number})
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for at in range(len(whole) + 1):
        path.write_bytes(whole[:at])
        again = Journal(path)
        lines = sum(end <= at for end in ends)
        assert (again.fingerprint == "print") == (lines > 0)
        assert len(again.entries) == max(0, lines - 1)
        assert path.read_bytes() == whole[:at]  # reading changes nothing
        if lines:
            again.record({"kind": "new"})
            assert [entry["kind"] for entry in Journal(path).entries] == ["part"] * (lines - 1) + ["new"]
            assert Journal(path).entries == again.entries


@pytest.mark.parametrize("line", [b"3", b"null", b"[]", b"{", b"\xff", b'"x"', b""])
def test_journal_ends_at_the_first_bad_line(tmp_path, line):
    path = tmp_path / "journal"
    checksum = Crc32c()
    before = seal([{"fingerprint": "a"}, {"n": 1}], checksum)
    checksum.update(line)
    sealed = checksum.hexdigest().encode() + b" " + line
    for bad in (line, sealed):
        path.write_bytes(before + bad + b"\n" + seal([{"n": 2}], checksum))
        assert Journal(path).entries == [{"n": 1}]
        path.write_bytes(bad + b"\n" + seal([{"n": 2}], Crc32c()))
        assert Journal(path).fingerprint is None


def test_a_journal_is_believed_up_to_the_first_line_that_changed(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.start("print")
    for number in range(4):
        journal.record({"kind": "part", "number": number})
    lines = path.read_bytes().splitlines(keepends=True)
    swapped = [*lines[:2], lines[3], lines[2], lines[4]]
    repeated, lost = [*lines[:2], lines[1], *lines[2:]], [*lines[:2], *lines[3:]]
    flipped = [*lines[:2], lines[2].replace(b"1}", b"7}"), *lines[3:]]
    for changed in (swapped, repeated, lost, flipped):
        path.write_bytes(b"".join(changed))
        assert list(Journal(path).find("part")) == [0]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"number": []}', b'{"number": {}}', b'{"n": 1e999' * 9])
def test_records_that_no_writer_makes_end_the_journal(tmp_path, content):
    checksum = Crc32c()
    checksum.update(b'{"fingerprint": "a"}')
    head = f"{checksum.hexdigest()} ".encode() + b'{"fingerprint": "a"}\n'
    checksum.update(content)
    (tmp_path / "journal").write_bytes(head + f"{checksum.hexdigest()} ".encode() + content + b"\n")
    assert Journal(tmp_path / "journal").entries == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_journal(tmp_path, make):
    make(tmp_path / "journal")
    assert Journal(tmp_path / "journal").fingerprint is None


def test_reading_beside_a_writer_loses_nothing(tmp_path):
    """A reader meets half a line; the writer then completes it."""
    path = tmp_path / "journal"
    writer = Journal(path)
    writer.start("print")
    with path.open("ab") as file:
        line = seal([{"kind": "part", "number": 0}], writer._sum)
        half, rest = line[:20], line[20:]
        file.write(half)
        file.flush()
        assert Journal(path).entries == []
        file.write(rest)
    assert Journal(path).find("part") == {0: {"kind": "part", "number": 0}}
