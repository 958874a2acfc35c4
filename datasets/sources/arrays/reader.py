"""Users' own arrays as a dataset: the episodes in their tables (`rows`).

Everything is read in this process: arrays in memory cannot be sent to others cheaply, and one file is read by one.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ....errors import DatasetExistsError, SchemaError, UsageError
from ....storage.codecs import PLAIN
from ....storage.episodes import EpisodeTable
from ....storage.manifest import Manifest
from ...fetch.location import DirectoryLocation
from ...ingest.block import Block
from ...ingest.estimate import expect_rows
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, Expectation, PartSpec, count_notes, name_left_out
from ...ingest.spaces import box_json
from ...ingest.trajectories import Column, TransitionRows, column_difference, count_outcomes
from ...ingest.unit import Facts, Part, Unit
from .files import data_files, visible
from .roles import Given, Roles, find_roles, is_one_value, listed
from .rows import blocks, columns_of, count_first_rows, end_episodes, stored_apart, take_other_order
from .sections import Section, sections_of
from .tables import Table, join_columns, leave_out, open_tables, select_episodes

#: What the manifest calls the only part.
RECORDING = "recording"
COUNTED = {
    "given_up_steps": (
        "Dropped: {n} of {rows} rows whose successor is not in the data; the observation of such a row is the final one of "
        "the step before it."
    ),
    "unknown_next_steps": "Kept, truncated, with a next state of zeros: {n:step} whose successor is not in the data.",
    "seams": "Episodes cut where the stated next observation is not the observation of the next row: {n}.",
    "rounded_successors": (
        "Stored as the observation of the next row: "
        "{n:next observation that differs|next observations that differ} from it by rounding, or by the sign of "
        "a zero, alone."
    ),
    "inner_flags": (
        "Flags set before the end of an episode, which the file states otherwise: {n:step}. They end nothing, "
        "and are kept "
        "as leaves."
    ),
    "jumps": (
        "Rows whose number of the step is not the next one, inside an episode: {n}. Where rows were left out there, the "
        "next state of the row before is not the one that followed."
    ),
    "rounded_rewards": "Rewards that float32 rounds, integers beyond 2^24 or numbers below 1e-38: {n}.",
    "rows_not_finite": "Observations with NaN or infinity, as in the data: {n}.",
    "actions_not_finite": "Actions with NaN or infinity, as in the data: {n}.",
    "other_order": (
        "All {n:episode} (or all but the first) begin with a reward of 0, which hardly any other row has. "
        "Rows of dm_env hold "
        "the reward that led to their observation, and logs of Gymnasium's vector environments have a row for each reset; "
        'here a row holds the reward that followed: see "Rows of other orders" in docs/sources/arrays.md.'
    ),
    "cut_episodes": "Episodes without a flag at their end, which count as truncated: {n}.",
}


class ArraysReader(Reader):
    """The dataset of tables.

    ``tables`` are read in order, once; if there are several, each holds one or more whole episodes. ``given`` is the map
    (`roles`), which the first table must fit, and all others as the first. ``made_from`` says what they are, and identifies
    them in ``content``: None where nothing does. ``begin`` gives the tables from an episode on, if they can begin there: tables
    then have ``episode_lengths``, and what an interrupted run has read is kept.
    """

    source, converter, here = "arrays", "arrays 1", True
    #: Holds open files and temporary folders as long as the job lives.
    opened: ExitStack

    def __init__(
        self,
        name: str,
        tables: Iterable[Table],
        given: Mapping[str, Given],
        options: ConvertOptions,
        *,
        made_from: Mapping[str, Any],
        content: Any,
        environment: str | None = None,
        begin: Callable[[int], Iterable[Table]] | None = None,
        left_out: Mapping[str, str] = {},
    ) -> None:
        remaining = iter(tables)
        first = next(remaining, None)
        if first is None:
            raise UsageError(f"{name} has no arrays")
        self._first, self._given = first, given
        self.roles = self._roles_of(first)
        #: Of tables that are known beforehand: their sections, steps and episodes.
        self._sections: list[Section] | None = None
        self._counts, self._inner = (0, 0), 0
        notes: list[str] = []
        if isinstance(tables, Sequence):
            notes = self._find_sections(tables, options.unknown_next)
        known = [(first, self.roles)] if self._sections is None else [(one.table, one.roles) for one in self._sections]
        self._apart = stored_apart(known)
        try:
            # Only the name of the location is used: there is nothing to fetch.
            super().__init__(name, DirectoryLocation("this machine"), options)
            self.set_columns(columns_of(self.roles, first.arrays, self._apart))
        except SchemaError as error:
            hint = "rename one of the arrays, or give it another key in the map, such as --map info/other=NAME"
            hint += f"; the arrays are {listed(first.arrays)}"
            raise UsageError(f"{first.name}: {error.message}", hint=hint) from error
        self._tables = chain([first], remaining)
        self.why = "taken as " + ", ".join(f"{ours}={theirs}" for ours, theirs in self.roles.to_map().items())
        self._made_from, self._environment = made_from, environment
        self.continues = content is not None
        self._content: Any = uuid.uuid4().hex if content is None else content
        self.begin = begin
        #: The arrays that are not taken, and why.
        self.left_out = {**left_out, **self.roles.left_out, **first.unreadable}
        self._assumed: dict[str, None] = dict.fromkeys([*self.roles.assumed, *notes])
        self.spaces = {
            key: box_json(self.schema[key].dtype, self.schema[key].shape, None, None)
            for key in ("observation", "action")
            if key in self.schema
        }

    def identity(self) -> dict[str, Any]:
        return {
            "converter": self.converter,
            "content": self._content,
            "map": self.roles.to_map(),
            "leaves": [leaf.to_json() for leaf in self.schema],
            "unknown_next": self.options.unknown_next,
        }

    def differences(self, manifest: Manifest) -> list[str]:
        """For a job of `reader_of_path`."""
        found = []
        if manifest.source.get("map") != self.roles.to_map():
            found.append("another map")
        if manifest.source.get("episodes") != self._made_from.get("episodes"):
            found.append("other episodes")
        if self._environment is not None and manifest.source.get("environment") != self._environment:
            found.append("another environment")
        if manifest.source.get("split") != self._made_from.get("split"):
            found.append("another split")
        elif manifest.provenance.get("files_state", self.files_state) != self.files_state:
            found.append("files that were changed since")
        return found

    def check_append(self, old: Manifest) -> None:
        """What has an identity is added once."""
        mine = self._made_from.get("identity")
        if mine is not None and mine in (one.get("identity") for one in (old.source, *old.source.get("appended", ()))):
            message = f"{old.id} has the episodes of identity {mine!r} already"
            raise DatasetExistsError(message, hint="other episodes have another identity, such as the day they are of")

    # -- what there is -------------------------------------------------------------------------------------------------

    def _find_sections(self, tables: Sequence[Table], unknown_next: str) -> list[str]:
        """Find the sections of tables and count them; returns what is assumed.

        Flags that end nothing, since what states the episodes says otherwise, are kept as leaves.
        """
        pairs = [(self._first, self.roles), *((table, self._roles_of(table)) for table in tables[1:])]
        wanted = columns_of(self.roles, self._first.arrays)
        for table, roles in pairs:
            self._check_columns(columns_of(roles, table.arrays), wanted, table, roles)
        whole = isinstance(self._given.get("episode"), (int, float))
        self._sections, notes = sections_of(pairs, whole)
        steps = episodes = 0
        for one in self._sections:
            rows = end_episodes(one.table, one.roles, unknown_next=unknown_next, whole=one.whole)
            steps, episodes = steps + rows.steps, episodes + int((rows.last & rows.keep).sum())
            self._inner += rows.counts.get("inner_flags", 0)
        self._counts = steps, episodes
        if self._inner:
            extra = {
                key: role
                for key, role in self.roles.inner_flags().items()
                if not any(is_one_value(one.table.arrays[getattr(one.roles, role)]) for one in self._sections)
            }
            self._sections = [replace(one, roles=one.roles.with_flags(extra)) for one in self._sections]
            self.roles = self.roles.with_flags(extra)
        return notes

    def sections(self, first: int = 0) -> Iterator[tuple[Table, Roles, TransitionRows]]:
        """The sections, of episode ``first`` and those after it, with what becomes of their rows.

        Raises UsageError for a table that is unlike the first.
        """
        unknown_next = self.options.unknown_next
        for one in self._sections or ():
            self._note_table(one.table, one.roles)
            yield one.table, one.roles, end_episodes(one.table, one.roles, unknown_next=unknown_next, whole=one.whole)
        if self._sections is not None:
            return
        for table in self.begin(first) if self.begin and first else self._tables:
            roles = self.roles if table is self._first else self._roles_of(table)
            self._note_table(table, roles)
            self._check_columns(columns_of(roles, table.arrays, self._apart), self.columns, table, roles)
            rows = end_episodes(table, roles, unknown_next=unknown_next)
            if rows.counts.get("inner_flags"):
                message = f"{table.name}: a flag is set before the last step of its episode"
                hint = (
                    "state how the episode ended by one value, terminated=True, and keep the flags as info/terminated"
                )
                raise UsageError(message, hint=hint)
            yield table, roles, rows

    def _note_table(self, table: Table, roles: Roles) -> None:
        self.left_out = {**roles.left_out, **table.unreadable, **self.left_out}
        self._assumed |= dict.fromkeys(roles.assumed)

    def _check_columns(self, columns: Sequence[Column], wanted: Sequence[Column], table: Table, roles: Roles) -> None:
        """Raise UsageError for a table that has other columns than the first."""
        if columns == wanted:
            return
        message = f"{table.name} is unlike {self._first.name}: {column_difference(columns, wanted)}"
        odd = {column.key for column in columns} ^ {column.key for column in wanted}
        names = [name for key, name in {**self.roles.extra, **roles.extra}.items() if key in odd]
        hint = f"leave out what only some of them have: --leave-out {shlex.quote(','.join(names))}" if names else None
        raise UsageError(message, hint=hint)

    def _roles_of(self, table: Table) -> Roles:
        plain = join_columns(table, self._given)  # which adds to the arrays
        is_episode = table.kind != "table" or isinstance(self._given.get("episode"), (int, float))
        return find_roles(table.arrays, plain, table.name, table.unreadable, table.names, is_episode=is_episode)

    def expect(self) -> Expectation:
        expected = expect_rows(self, *self._counts)  # which looks at the arrays of all tables
        return replace(expected, notes=self._notes({"inner_flags": self._inner}))

    def units(self, lead: Part | None) -> list[TablesUnit]:
        identity = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()
        return [TablesUnit(0, self.title, self._counts[0], identity, self)]

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        codec = next((leaf.codec for leaf in self.schema.states), PLAIN)
        large = {"codec": codec, "layout": self.options.layout} if self.bulk else {}
        return {
            "dataset": None,
            "map": self.roles.to_map(),
            "environment": self._environment,
            "options": {"unknown_next": self.options.unknown_next, **large},
            "left_out": self.left_out,
            **self._made_from,
        }

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        counts = {**count_outcomes(episodes.outcome), **parts[-1].about["counts"], "environments": 1}
        states = episodes.steps + len(episodes)
        made_of = {"name": self.name, "size": None, "crc32c": None}
        spec = PartSpec(RECORDING, states, RECORDING, made_of, number=0, first_state=0)
        return Facts(counts, self._notes(counts), [spec], self.spaces)

    def _notes(self, counts: Mapping[str, Any]) -> list[str]:
        notes = list(self._assumed)
        notes += count_notes(COUNTED, counts)
        if not isinstance(self.roles.reward, str):
            notes.append(f"The data have no rewards: each is {self.roles.reward:g}, as stated.")
        if self.left_out:
            notes.append(f"Left out: {name_left_out(self.left_out)}.")
        return notes


@dataclass(frozen=True)
class TablesUnit(Unit):
    """The tables of a reader, one after the other. It can be continued after whole tables where the reader can `begin`."""

    reader: ArraysReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        reader, columns, kept = self.reader, self.reader.columns, resume or {}
        done, episodes = int(kept.get("steps", 0)), int(kept.get("episodes", 0))
        counts: Counter[str] = Counter(kept.get("counts"))
        are_actions = [number for number, column in enumerate(columns) if column.key in reader.roles.action]
        for table, roles, transitions in reader.sections(episodes):
            begins = True
            for rows, rewards, bits in blocks(table, roles, columns, transitions):
                for column, values in zip(columns, rows):
                    key = column.key
                    if values.dtype.kind == "f" and (key in roles.observation or key in roles.action):
                        kind = "rows_not_finite" if key in roles.observation else "actions_not_finite"
                        counts[kind] += int((~np.isfinite(values)).any(tuple(range(1, values.ndim))).sum())
                if len(bits):
                    actions = [rows[number] for number in are_actions]
                    count_first_rows(counts, rewards, bits, actions, begins=begins)
                    begins = bool(bits[-1])
                done += len(bits)
                named = {column.key: values for column, values in zip(columns, rows)}
                yield Block({**named, "next/reward": rewards}, bits, done=done)
            counts.update(transitions.counts)
            if reader.begin is not None:
                episodes += table.arrays["episode_lengths"].shape[0]
                state = {"steps": done, "episodes": episodes, "counts": dict(counts)}
                yield Block({}, done=done, mark=state)
        if not done:
            raise UsageError(f"{reader.name}: there is no step whose successor is known, and none that is terminated")
        take_other_order(counts)
        yield Block({}, done=done, record={"counts": dict(counts)})


def reader_of_path(location: Any, options: ConvertOptions) -> ArraysReader:
    """The job of a file or folder on this machine. Raises as `open_tables` and `find_roles`."""
    assert isinstance(location, DirectoryLocation)
    path = Path(location.url, location.only)
    files = ExitStack()
    scratch = Path(files.enter_context(TemporaryDirectory(prefix=".unpacked-", dir=options.scratch)))
    split: str | None = options.extra["split"]
    episodes: str | None = options.extra["episodes"]
    tables = files.enter_context(open_tables(path, scratch, split))
    tables = tables if episodes is None else select_episodes(tables, path, episodes)
    left_out = leave_out(tables, options.extra["leave_out"] or "")
    by_split = {} if path.is_file() else data_files(path)
    parts = [path] if path.is_file() else by_split.get(split or "".join(by_split)) or visible(path)
    content: list[Any] = [
        [one.relative_to(path.parent).as_posix(), one.stat().st_size, one.stat().st_mtime_ns] for one in parts
    ]
    chosen = {key: value for key, value in (("split", split), ("episodes", episodes)) if value is not None}
    content += [chosen] if chosen else []
    job = ArraysReader(
        path.name,
        tables,
        options.extra["map"],
        options,
        made_from={"files": [path.name] if path.is_file() else len(parts), **chosen},
        content=content,
        environment=options.extra["environment"],
        left_out=left_out,
    )
    job.files_state = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    job.opened = files
    job.location = location
    return job
