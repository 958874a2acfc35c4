"""The journal of an unfinished dataset, which records finished work.

``journal.jsonl`` has one JSON object per line. The first line is a fingerprint of everything that decides the resulting bytes.
Each later line records one finished piece of work and is synced before the work counts as done. Every line starts with the
crc32c (8 hex digits) of all records up to and including its own, so that the journal ends before a line that was changed, moved
or lost. A crash can truncate the last line; it is ignored too, and overwritten by the next one. Reading changes nothing:
`rbdata list` reads the journal of a running writer.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .checksums import Crc32c
from .durable import open_plain, write_atomically
from .untrusted_json import parse_json

_SEAL = 9  # characters: the checksum and a space


class Journal:
    """Append-only; ``entries`` are the records after the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fingerprint: str | None = None
        self.entries: list[dict[str, Any]] = []
        self._sound = 0  # bytes of whole, readable lines
        self._sum = Crc32c()  # of their records
        self._read()

    def start(self, fingerprint: str) -> None:
        """Start an empty journal."""
        self.fingerprint = fingerprint
        self.entries = []
        self._sound, self._sum = 0, Crc32c()
        self._append({"fingerprint": fingerprint})

    def record(self, *entries: dict[str, Any]) -> None:
        """Add finished pieces of work; durable when this returns."""
        try:
            self._append(*entries)
        except BaseException:
            self._read()  # Ctrl-C may arrive after the sync: the file decides
            raise
        self.entries.extend(entries)

    def forget(self, is_lost: Callable[[dict[str, Any]], bool]) -> None:
        """Drop entries whose work is lost or useless."""
        kept = [entry for entry in self.entries if not is_lost(entry)]
        if len(kept) < len(self.entries):
            self.entries, self._sum = kept, Crc32c()
            lines = seal(({"fingerprint": self.fingerprint}, *kept), self._sum)
            write_atomically(self.path, lines)
            self._sound = len(lines)

    def find(self, kind: str) -> dict[Any, dict[str, Any]]:
        """Entries of a kind by their number: ``{"kind": "part", "number": 3, ...}``."""
        return {entry.get("number"): entry for entry in self.entries if entry.get("kind") == kind}

    @property
    def command(self) -> str:
        """The command line that resumes the work; '' if Python code started it."""
        lines = [entry.get("line") for entry in self.entries if entry.get("kind") == "command"]
        return lines[-1] if lines and isinstance(lines[-1], str) and lines[-1].isprintable() else ""

    def record_command(self, line: str) -> None:
        """Set ``command``, unless the line is empty or the same as before."""
        if line and line != self.command:
            self.record({"kind": "command", "line": line})

    def _read(self) -> None:
        self.fingerprint, self.entries, self._sound, self._sum = None, [], 0, Crc32c()
        try:
            with open_plain(self.path, "rb") as file:
                lines = file.read().split(b"\n")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO):
                return  # no journal, or a link, a pipe or a folder in its place
            raise
        records: list[dict[str, Any]] = []
        checksum = Crc32c()
        for line in lines[:-1]:  # after the last line feed comes a truncated line, or nothing
            checksum.update(line[_SEAL:])
            record = _parse(line[_SEAL:]) if line[:_SEAL] == f"{checksum.hexdigest()} ".encode() else None
            if record is None:
                break
            records.append(record)
            self._sound += len(line) + 1
            self._sum.update(line[_SEAL:])
        if records:
            found = records[0].get("fingerprint")
            self.fingerprint = found if isinstance(found, str) else None
            self.entries = records[1:]

    def _append(self, *records: dict[str, Any]) -> None:
        checksum = self._sum.copy()
        lines = seal(records, checksum)
        with open_plain(self.path, "r+b" if os.path.lexists(self.path) else "wb") as file:
            file.seek(self._sound)
            file.truncate()
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._sound += len(lines)
        self._sum = checksum


def seal(records: Iterable[dict[str, Any]], checksum: Crc32c) -> bytes:
    """The lines of records; ``checksum`` covers the records before them, and is updated."""
    lines = []
    for record in records:
        data = json.dumps(record).encode()
        checksum.update(data)
        lines.append(f"{checksum.hexdigest()} ".encode() + data + b"\n")
    return b"".join(lines)


def _parse(data: bytes) -> dict[str, Any] | None:
    """A record; None for an invalid line."""
    try:
        record = parse_json(data)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("number"), (int, str, type(None))):
        return None
    return record
