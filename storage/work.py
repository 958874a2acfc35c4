"""The working folder of a dataset that is being made: what it belongs to, and whether a run can go on with it.

    run.json     the fingerprint of all that decides the resulting bytes, the command that continues the work, and what
                 else the next run must know; written as a whole each time
    .parts/      the work itself: a part that is there is done
    join.json    a join has begun (`join`)

Reading changes nothing: `rbdata list` reads the folder of a running writer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DatasetExistsError
from .checksums import crc32c
from .durable import is_about_reader, write_atomically
from .folder import RAW, RUN, DatasetPlace, holds_files

#: The folder of the parts: a name that no leaf can have. Each part is a folder ``<unit>.<number>``, with a record in it.
PARTS, PART_RECORD = ".parts", "part.json"
#: The record of a join that has begun (`join`).
JOIN = "join.json"


class Work:
    """Use it with the place's lock held.

    ``restart``: discard unfinished work, unless an earlier restart with the same fingerprint began it. ``continues``: whether
    another run can continue this one's work; otherwise the next one discards it (and ``discarded`` is set). Raises
    DatasetExistsError for unfinished work of another fingerprint.
    """

    def __init__(
        self, place: DatasetPlace, fingerprint: str, *, restart: bool = False, command: str = "", continues: bool = True
    ) -> None:
        self.place, self.folder = place, place.working
        place.check_free()
        self._run = read_run(self.folder)
        self.discarded = bool(self._run.get("once"))
        if not self.belongs(place, fingerprint, restart=restart):
            if not restart and self.holds_work():
                raise self._refusal(fingerprint, command)
            place.discard_working()
            self.folder.mkdir(parents=True)
            self._run = {"restart": restart, "once": not continues, "command": command}
            self.remember("fingerprint", fingerprint)
        elif command and command != self._run.get("command"):
            self.remember("command", command)

    @staticmethod
    def belongs(place: DatasetPlace, fingerprint: str, *, restart: bool) -> bool:
        """Return whether the next run with this fingerprint will go on with what is there; it starts over otherwise."""
        run = read_run(place.working)
        return run.get("fingerprint") == fingerprint and (not restart or bool(run.get("restart")))

    def _refusal(self, fingerprint: str, asked: str) -> DatasetExistsError:
        message = f"an unfinished {self.place.id} exists, started with other options, shards or source files"
        command = command_of(self.folder)
        how = f"continue it with `{command}`" if command else "continue it with the options it was started with"
        if command and command == asked:  # the same words: what they name has changed
            how = "undo what was changed since (a file that it reads, or its code) to continue"
        return DatasetExistsError(message, hint=f"{how}, or start over with --force", unfinished=True)

    def remember(self, name: str, content: Any) -> None:
        """Record something for the next run; durable when this returns."""
        run = {**self._run, name: content}
        write_sealed(self.folder / RUN, run)
        self._run = run

    def remembered(self, name: str) -> Any:
        """Return what was recorded; None for nothing."""
        return self._run.get(name)

    def holds_work(self) -> bool:
        """Whether the next run can go on with anything: parts (a lead is read again every time), raw files, a join, a log, a
        copy of a dataset."""
        if self._run.get("once") or "fingerprint" not in self._run:
            return False
        if self._run.get("log") or self._run.get("copy"):
            return True
        return bool(self.part_folders()) or holds_files(self.folder / RAW) or (self.folder / JOIN).exists()

    def part_folders(self) -> list[Path]:
        """Return the folders of finished parts, without that of the lead."""
        return sorted(path.parent for path in _part_records(self.folder))


def _part_records(folder: Path) -> list[Path]:
    return list((folder / PARTS).glob(f"[0-9]*.*/{PART_RECORD}"))


def units_done(folder: Path) -> int:
    """Return how many units are parts in a working folder, to their ends."""
    records = map(read_sealed, _part_records(folder))
    return len({one.get("unit") for one in records if isinstance(one, dict) and one.get("goes_on") is None})


def read_run(folder: Path) -> dict[str, Any]:
    """Return what the run that began a working folder recorded; empty without a record, or with a damaged one."""
    run = read_sealed(folder / RUN)
    return run if isinstance(run, dict) else {}


def command_of(folder: Path) -> str:
    """Return the command line that resumes the work in a working folder; "" if Python code started it."""
    line = read_run(folder).get("command")
    return line if isinstance(line, str) and line.isprintable() else ""


def write_sealed(path: Path, content: Any) -> None:
    """Write JSON with its checksum, atomically and durably."""
    write_atomically(path, sealed(content))


def sealed(content: Any) -> bytes:
    """JSON with its checksum."""
    data = json.dumps(content).encode()
    return f"{crc32c(data)} ".encode() + data


def read_sealed(path: Path) -> Any:
    """Return what `write_sealed` wrote; None where there is no such file, or it was changed."""
    try:
        checksum, _, data = path.read_bytes().partition(b" ")
        return json.loads(data) if checksum == crc32c(data).encode() else None
    except OSError as error:
        if is_about_reader(error):
            raise
    except ValueError:
        pass
    return None


def fingerprint(content: Mapping[str, Any]) -> str:
    """Return a short string for everything the resulting bytes depend on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
