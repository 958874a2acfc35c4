"""The working folder of a dataset that is being made: what it belongs to, and whether a run can go on with it.

The journal states the fingerprint of all that decides the resulting bytes, the command that continues the work, and how far it
is, for people. The work itself is the parts: one that is there is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UnfinishedDatasetError
from .folder import JOURNAL, RAW, DatasetPlace, holds_files, remove_links
from .journal import Journal

#: The folder of the parts: a name that no leaf can have.
PARTS = ".parts"
#: The record of a join that has begun (`join`).
JOIN = "join.json"
#: The entry of a run that no other can go on with.
_ONCE = "once"


class Work:
    """Use it with the place's lock held.

    ``restart``: discard unfinished work, unless an earlier restart with the same fingerprint began it. ``continues``: whether
    another run can continue this one's work; otherwise the next one discards it (and ``discarded`` is set). Raises
    UnfinishedDatasetError for unfinished work of another fingerprint.
    """

    def __init__(
        self, place: DatasetPlace, fingerprint: str, *, restart: bool = False, command: str = "", continues: bool = True
    ) -> None:
        self.place, self.folder = place, place.working
        place.check_free(force=restart)
        remove_links(self.folder)
        journal = Journal(self.folder / JOURNAL)
        same = journal.fingerprint == fingerprint
        resumes = same and (not restart or bool(journal.find("restart")))
        self._journal = journal
        self.discarded = bool(journal.find(_ONCE))
        if not resumes and (restart or journal.fingerprint is None or not self.holds_work()):
            place.discard_working()
            self.folder.mkdir(parents=True)
            self._journal = journal = Journal(self.folder / JOURNAL)
            journal.start(fingerprint)
            if restart:
                journal.record({"kind": "restart"})
            if not continues:
                journal.record({"kind": _ONCE})
        elif not same:
            message = f"an unfinished {place.id} exists, started with other options, shards or source files"
            asked, command = command, journal.command
            how = f"continue it with `{command}`" if command else "continue it with the options it was started with"
            if command and command == asked:  # the same words: what they name has changed
                how = "undo what was changed since (a file that it reads, or its code) to continue"
            raise UnfinishedDatasetError(message, hint=f"{how}, or start over with --force")
        journal.record_command(command)

    @staticmethod
    def belongs(place: DatasetPlace, fingerprint: str, *, restart: bool) -> bool:
        """Whether the next run with this fingerprint will go on with what is there; it starts over otherwise."""
        journal = Journal(place.working / JOURNAL)
        return journal.fingerprint == fingerprint and (not restart or bool(journal.find("restart")))

    def remember(self, kind: str, content: Mapping[str, Any], number: int | str | None = None) -> None:
        """Record something for the next run, and for people."""
        self._journal.record({**content, "kind": kind, "number": number})

    def remembered(self, kind: str) -> dict[Any, dict[str, Any]]:
        """What was recorded, by number."""
        return self._journal.find(kind)

    def forget(self, kind: str, number: int | str | None = None) -> None:
        """Drop what is no longer valid."""
        self._journal.forget(lambda entry: (entry.get("kind"), entry.get("number")) == (kind, number))

    def holds_work(self) -> bool:
        """Whether the next run can go on with anything: parts (a lead is read again every time), raw files, a join, a log, a
        copy of a dataset."""
        if self._journal.find(_ONCE):
            return False
        if self._journal.find("log") or self._journal.find("copy"):
            return True
        done = any(path.name[:4] != "lead" for path in self.part_folders())
        return done or holds_files(self.folder / RAW) or (self.folder / JOIN).exists()

    def part_folders(self) -> list[Path]:
        """The folders of finished parts."""
        return sorted(path.parent for path in (self.folder / PARTS).glob("*.*/part.json"))


def fingerprint(content: Mapping[str, Any]) -> str:
    """A short string for everything the resulting bytes depend on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
