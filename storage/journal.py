"""The journal of an unfinished dataset: what is already done, one JSON object a line.

The first line says what is being made: a fingerprint of everything that decides the resulting bytes. Each later line
records one finished piece of work and is synced before the work counts as done. A line cut short by a crash is the last
one, and is ignored; the next line takes its place. Reading changes nothing: `rbdata list` reads the journal of a
writer at work.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .durable import write_atomically


class Journal:
    """Append-only; ``entries`` are the records after the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fingerprint: str | None = None
        self.entries: list[dict[str, Any]] = []
        self._sound = 0  # bytes of whole, readable lines
        self._read()

    def start(self, fingerprint: str) -> None:
        """Begin anew."""
        self.fingerprint = fingerprint
        self.entries = []
        self._sound = 0
        self._append({"fingerprint": fingerprint})

    def record(self, *entries: dict[str, Any]) -> None:
        """Add finished pieces of work; durable when this returns."""
        try:
            self._append(*entries)
        except BaseException:
            self._read()  # Ctrl-C may come between the sync and here: what is in the file counts
            raise
        self.entries.extend(entries)

    def forget(self, kinds: tuple[str, ...]) -> None:
        """Drop all entries of these kinds: what they record was lost, or is of no use."""
        kept = [entry for entry in self.entries if entry.get("kind") not in kinds]
        if len(kept) < len(self.entries):
            self.entries = kept
            lines = [json.dumps(entry).encode() + b"\n" for entry in ({"fingerprint": self.fingerprint}, *kept)]
            write_atomically(self.path, b"".join(lines))
            self._sound = sum(map(len, lines))

    def find(self, kind: str) -> dict[Any, dict[str, Any]]:
        """Entries of a kind by their number: ``{"kind": "part", "number": 3, ...}``."""
        return {entry.get("number"): entry for entry in self.entries if entry.get("kind") == kind}

    @property
    def command(self) -> str:
        """The command line that continues the work; empty where it was begun in Python."""
        lines = [entry.get("line") for entry in self.entries if entry.get("kind") == "command"]
        return lines[-1] if lines and isinstance(lines[-1], str) else ""

    def record_command(self, line: str) -> None:
        """Set ``command``; nothing to do where the line is empty or the same as before."""
        if line and line != self.command:
            self.record({"kind": "command", "line": line})

    def _read(self) -> None:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        records: list[dict[str, Any]] = []
        self._sound = 0
        for line in lines[:-1]:  # what follows the last line feed was cut short, or is empty
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict):
                break
            records.append(record)
            self._sound += len(line) + 1
        if records:
            self.fingerprint = records[0].get("fingerprint")
            self.entries = records[1:]

    def _append(self, *records: dict[str, Any]) -> None:
        lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(self._sound)
            file.truncate()
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._sound += len(lines)
