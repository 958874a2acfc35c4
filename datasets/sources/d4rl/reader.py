"""One D4RL file, from a place to a dataset.

It is fetched whole, resumably, and read in place. What is in it decides the leaves, so they are known only then
(``inspect``). The format is described in `file`, what becomes of its rows in `ingest.trajectories`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ....errors import ChecksumError, CorruptSourceError, UsageError
from ....storage.episodes import EpisodeTable
from ...fetch import Location, RemoteObject
from ...formats.hdf5 import open_file
from ...ingest.estimate import bytes_of_state, expect_rows
from ...ingest.records import ConvertOptions, Expectation, RawObject, count_notes, name_left_out
from ...ingest.trajectories import Column, TransitionRows, count_outcomes, longest, resolve_transitions
from ...ingest.unit import Facts, Part
from ...ingest.whole_file import ACCEPT, WholeFileReader
from .file import CACHE, FileContents, read_flags, sample, survey
from .registry import RegistryEntry, family_of
from .rows import INNER, RowsUnit

LICENCE = "CC-BY-4.0"
CITATION = (
    "Justin Fu, Aviral Kumar, Ofir Nachum, George Tucker, Sergey Levine. D4RL: Datasets for Deep Data-Driven "
    "Reinforcement Learning. 2020. arXiv:2004.07219"
)
_ENTRY_NOTES = {
    "hopper-medium-expert-v0": "This file holds expert and medium-replay data, not expert and medium (D4RL issue 19).",
    "hopper-medium-v1": "Medium and expert were swapped in the first upload of hopper v1 (D4RL issues 76, 86).",
    "hopper-expert-v1": "Medium and expert were swapped in the first upload of hopper v1 (D4RL issues 76, 86).",
}
_BY = {
    "timeouts": "Episodes end where the file flags a time-out.",
    "terminals": "Episodes end where the file flags a terminal.",
    "both": "Episodes end where the file flags a terminal or a time-out.",
    "horizon": (
        "The file's time-outs are missing, or not used: episodes end at terminals (not in AntMaze and Maze2D) and, at the "
        "latest, after {horizon} rows."
    ),
}
_COUNTED = {
    "given_up_steps": (
        "Dropped: {n} of {rows} steps with no next state in the file (end of the file, or time limit); the observation of "
        "such a step is the final one of the step before it."
    ),
    "unknown_next_steps": "{n:step} with no next state in the file: kept, truncated, with a next state of zeros.",
    "inner_terminals": (
        "{n:row flagged terminal does not end its|rows flagged terminal do not end their} trajectory; "
        + INNER
        + " holds the flags."
    ),
    "seams": (
        "{n:episode ends|episodes end} without a flag: the file's next observation is not what its next row holds."
    ),
    "rounded_successors": (
        "{n:next observation differs|next observations differ} by rounding from the following row, which is taken."
    ),
}

#: What ends an episode.
By = Literal["timeouts", "terminals", "both", "horizon"]


@dataclass(frozen=True)
class Found:
    """What a file holds, what ends its episodes, and what becomes of its rows."""

    contents: FileContents
    by: By
    transitions: TransitionRows


class D4rlReader(WholeFileReader):
    """One file, from a place to a dataset."""

    source, converter = "d4rl", "d4rl 2"
    native_libraries = ("h5py", "isal.isal_zlib")
    return_steps = sys.maxsize  # rewards of an episode are summed at once
    #: Set by `take_head`; `_names`: the arrays by the keys of their columns.
    _found: Found | None = None
    _names: dict[str, str]
    #: Set by `facts`.
    sha256 = ""

    def __init__(
        self,
        entry: RegistryEntry | None,
        location: Location,
        item: RemoteObject,
        options: ConvertOptions,
        *,
        published: bool,
    ) -> None:
        super().__init__(entry.name if entry else None, location, item, options)
        self.entry = entry
        if entry:
            self.licence, self.citation = LICENCE, CITATION
        self.family = family_of(entry)
        self._published = published
        self._asked = options.extra["episodes_by"]
        self.horizon = options.extra["horizon"] or (entry.horizon if entry else None)

    def identity(self) -> dict[str, Any]:
        # Without what the place states about the file: if that differs, the file is fetched again. Its checksum and the options
        # are in the digest.
        return {"converter": self.converter, "dataset": self.name, "file": self.item.name}

    def read_head(self, path: Path) -> Found:
        """What the file holds decides the leaves. Raises CorruptSourceError, UsageError."""
        name = self.item.url
        with open_file(path, name, **CACHE) as file:
            contents = survey(file, name)
            terminals = read_flags(file, name, "terminals")
            timeouts = read_flags(file, name, "timeouts") if contents.timeouts else None
            flags = EndFlags(terminals, timeouts, self.family.terminals_end, self.horizon)
            by = choose_ends(self._asked, flags, name)
            ends, by_clock = _ends(by, flags)
            how: Any = {"has_next": contents.has_next, "unknown_next": self.options.unknown_next}
            transitions = resolve_transitions(ends, terminals, by_clock, **how)
            if not transitions.steps:
                raise CorruptSourceError(f"{name} holds no step whose successor is known")
        transitions.counts["longest_trajectory"] = longest(transitions.end)
        return Found(contents, by, transitions)

    def take_head(self, found: Found) -> None:
        self._found, columns = found, [*found.contents.columns.values()]
        self._names = {column.key: path for path, column in found.contents.columns.items()}
        if (found.transitions.inner & found.transitions.keep).any():
            columns.append(Column(INNER, "bool", (1,), "step"))
            self._names[INNER] = INNER
        self.set_columns(columns)
        if self.options.layout == "ted":
            self.bulk = ()  # the steps hold observations of any size as two columns

    @property
    def found(self) -> Found:
        """What the file holds, once it was seen."""
        assert self._found is not None
        return self._found

    def expect(self) -> Expectation | None:
        if self._found is None:
            return None
        rows, ratio = self._found.transitions, 1.0
        if self.bulk:
            ratio = bytes_of_state(self, self.sample_rows) / self.schema["observation"].row_bytes
        expected = expect_rows(self, rows.steps, int(np.count_nonzero(rows.last & rows.keep)), ratio)
        return replace(expected, notes=list(self._notes(rows.counts)), counted=True)

    def units(self, lead: Part | None) -> list[RowsUnit]:
        found, stat = self.found, self.path.stat()
        identity = json.dumps([stat.st_size, stat.st_mtime_ns, self._options()])
        how = (self.path, found.contents.has_next, found.transitions, self.columns, self._names)
        return [RowsUnit(0, self.item.url, found.transitions.steps, identity, *how)]

    def sample_rows(self) -> np.ndarray:
        return sample(self.path, self.item.url, self.found.contents.rows)

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        about = parts[0].about
        self.sha256 = about["sha256"]
        self._check_published()
        counts = {**about["counts"], **count_outcomes(episodes.outcomes)}
        leaves = {key: self.schema[key] for key in ("observation", "action")}  # the files state no bounds
        spaces = {key: {"type": "Box", "shape": list(one.shape), "dtype": one.dtype} for key, one in leaves.items()}
        return Facts(counts, list(self._notes(counts)), [], spaces)

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        size = self.path.stat().st_size
        return [{"name": self.item.name, "path": self._raw_path, "size": size, "sha256": self.sha256, "crc32c": None}]

    def unverified(self) -> list[str]:
        return [] if self.entry and self.entry.sha256 == self.sha256 else super().unverified()

    def raw_objects(self) -> list[RawObject]:
        return [RawObject(self._raw_path, self.item, self.location)]

    @property
    def _raw_path(self) -> str:
        return self.entry.path if self.entry else self.item.name

    def describe(self) -> dict[str, Any]:
        entry = self.entry
        return {
            "family": entry.family if entry else None,
            "reference_scores": [entry.low, entry.high] if entry and entry.low is not None else None,
            "options": self._options(),
            "keys": {one.key: path for path, one in self.found.contents.columns.items() if one.key.startswith("info/")},
            "left_out": self.found.contents.left_out,
            "metadata": self.found.contents.metadata,
        }

    def _options(self) -> dict[str, Any]:
        """The options with the values that were used."""
        large = {"codec": self.schema["observation"].codec, "layout": self.options.layout} if self.bulk else {}
        unknown_next = self.options.unknown_next
        return {"unknown_next": unknown_next, "episodes_by": self.found.by, "horizon": self.horizon, **large}

    # -- behind it -------------------------------------------------------------------------------------------------

    def _notes(self, counts: Mapping[str, int]) -> Iterator[str]:
        """What a user should know about the converted file, in sentences; ``counts`` are those of the steps."""
        entry, horizon = self.entry, self.horizon
        if entry:
            yield from self.family.notes
            if entry.name in _ENTRY_NOTES:
                yield _ENTRY_NOTES[entry.name]
            if entry.path.startswith("ant_maze_new/"):
                yield "AntMaze v0 time-outs are out of step with the resets (D4RL issue 77): prefer v2."
            if not entry.listed:
                yield "D4RL registers this id but does not list it among its downloads."
        yield _BY[self.found.by].format(horizon=horizon)
        yield from count_notes(_COUNTED, counts)
        if horizon and counts["longest_trajectory"] > horizon + 1:
            yield f"The longest trajectory has {counts['longest_trajectory']} rows, more than the horizon of {horizon}."
        stored = self.found.contents.rewards
        if stored != "float32":
            yield f"Rewards were {stored} and are float32; all other values are as in the file."
        if entry and entry.sha256 and self.sha256 not in ("", entry.sha256):
            yield f"The file is not the one known under this name (its sha256 begins {entry.sha256[:12]})."
        if self.found.contents.left_out:
            yield f"Left out: {name_left_out(self.found.contents.left_out)}."

    def _check_published(self) -> None:
        """Raise ChecksumError for a file that is not the one published."""
        known = self.entry.sha256 if self.entry and self._published else None
        if known in (None, self.sha256) or self.accept_changed:
            return
        message = f"{self.item.url} is not the file that is known: its sha256 is {self.sha256}, not {known}"
        raise ChecksumError(message, hint=ACCEPT)


# -- what ends an episode ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EndFlags:
    """The flags of a file's rows, bool ``[N]``: ``timeouts`` where it has them.

    ``terminals_end``: a terminal is the last row of its trajectory. ``horizon``: the time limit, where it is known.
    """

    terminals: np.ndarray
    timeouts: np.ndarray | None
    terminals_end: bool
    horizon: int | None

    @property
    def ends(self) -> np.ndarray:
        """Which rows a terminal makes the last of their trajectory."""
        return self.terminals if self.terminals_end else np.zeros_like(self.terminals)


def choose_ends(asked: str, flags: EndFlags, name: str) -> By:
    """What ends trajectories in a file: the requested flags, or for ``auto``, those that the file has.

    Time-outs if they are flagged, together with terminals if these end a trajectory; if time-outs are missing (or never flagged
    in a file with trajectories beyond the horizon), the horizon, counted from the last boundary. Raises UsageError if the
    requested ends are not available.
    """
    timeouts, horizon = flags.timeouts, flags.horizon
    if asked in ("timeouts", "both") and timeouts is None:
        message = f"{name} flags no time-outs, so they cannot end its episodes"
        raise UsageError(message, hint="use --episodes-by terminals or horizon")
    if asked == "horizon" and horizon is None:
        raise UsageError(f"the horizon of {name} is not known", hint="give it: --horizon N")
    if asked != "auto":
        return asked  # type: ignore[return-value]
    if timeouts is not None:
        trajectories = flags.ends.copy()
        trajectories[-1] = True
        if timeouts.any() or horizon is None or longest(trajectories) <= horizon + 1:
            return "both" if flags.terminals_end else "timeouts"
    if horizon is not None:
        return "horizon"
    if flags.ends.any():
        return "terminals"
    message = f"nothing in {name} says where its trajectories end: no time-outs, no terminals, no known horizon"
    raise UsageError(message, hint="give the horizon: --horizon N")


def _ends(by: By, flags: EndFlags) -> tuple[np.ndarray, np.ndarray]:
    """Which rows end a trajectory by a terminal, and which by the clock."""
    never = np.zeros_like(flags.terminals)
    if by in ("timeouts", "both"):
        assert flags.timeouts is not None
        return (flags.terminals if by == "both" else never), flags.timeouts.copy()
    if by == "terminals":
        return flags.terminals, never
    # Every horizon-th row, counted from 0 after each row that ends a trajectory.
    assert flags.horizon is not None
    rows, begins = np.arange(len(never)), np.zeros(len(never), np.int64)
    begins[1:] = np.where(flags.ends[:-1], rows[1:], 0)
    position = rows - np.maximum.accumulate(begins)
    return flags.ends, position % flags.horizon == flags.horizon - 1
