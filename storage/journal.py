"""The journal of an unfinished dataset: what is already done, one JSON object a line.

The first line says what is being made: a fingerprint of everything that decides the resulting bytes. Each later line
records one finished piece of work and is synced before the work counts as done. A line cut short by a crash is the last
one, and is ignored.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Append-only; ``entries`` are the records after the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fingerprint: str | None = None
        self.entries: list[dict[str, Any]] = []
        self._read()

    def start(self, fingerprint: str) -> None:
        """Begin anew."""
        self.fingerprint = fingerprint
        self.entries = []
        self.path.unlink(missing_ok=True)
        self._append({"fingerprint": fingerprint})

    def record(self, entry: dict[str, Any]) -> None:
        """Add a finished piece of work; durable when this returns."""
        self._append(entry)
        self.entries.append(entry)

    def find(self, kind: str) -> dict[Any, dict[str, Any]]:
        """Entries of a kind by their number: ``{"kind": "part", "number": 3, ...}``."""
        return {entry.get("number"): entry for entry in self.entries if entry.get("kind") == kind}

    def _read(self) -> None:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        whole = lines[:-1]  # what follows the last line feed was cut short, or is empty
        records = []
        for line in whole:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        if not records:
            return
        self.fingerprint = records[0].get("fingerprint")
        self.entries = records[1:]
        # Write the sound part again, so that the next line does not follow half a one.
        if lines[-1] or len(records) < len(whole):
            sound = b"".join(json.dumps(record).encode() + b"\n" for record in records)
            temporary = self.path.with_name(self.path.name + ".tmp")
            temporary.write_bytes(sound)
            temporary.replace(self.path)

    def _append(self, record: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
