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

from ....errors import DatasetExistsError, SchemaError, UsageError
from ....storage.codecs import PLAIN
from ....storage.episodes import EpisodeTable
from ....storage.manifest import Manifest
from ...fetch.directory import DirectoryLocation
from ...ingest.block import Block
from ...ingest.estimate import expect_rows
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, Expectation, PartSpec, count_notes, name_left_out
from ...ingest.spaces import box_json
from ...ingest.trajectories import TransitionRows, count_outcomes
from ...ingest.unit import Facts, Part, Unit
from .files import data_files, visible
from .opening import open_tables
from .roles import Given, Roles, find_roles, listed
from .rows import columns_of, end_episodes, transition_table
from .sections import sections_of
from .tables import Table, join_columns, leave_out

#: What the manifest calls the only part.
RECORDING = "recording"

#: Sentences of the notes by the count that they state (`count_notes`).
_COUNTED = {
    "given_up_steps": (
        "Dropped: {n} of {rows} rows whose successor is not in the data, which next observations would state; the "
        "observation of such a row is the final one of the step before it."
    ),
    "unknown_next_steps": "Kept, truncated, with a next state of zeros: {n:step} whose successor is not in the data.",
    "seams": "Episodes cut where the stated next observation is not the observation of the next row: {n}.",
    "rounded_successors": (
        "Stored as the observation of the next row: {n:next observation that differs|next observations that differ} from it "
        "by rounding, or by the sign of a zero, alone."
    ),
    "inner_flags": (
        "Flags set before the end of an episode, which the file states otherwise: {n:step}. They end nothing, and are kept "
        "as leaves."
    ),
    "cut_episodes": "Episodes without a flag at their end, which count as truncated: {n}.",
}


class ArraysReader(Reader):
    """The dataset of tables that have the arrays of the first one. There are two kinds: `TablesReader`, `StreamReader`.

    ``given`` is the map (`roles`). ``made_from`` says what the tables are, and identifies them in ``content``: None where
    nothing does.
    """

    source, converter, here = "arrays", "arrays 1", True
    #: Holds open files and temporary folders as long as the reader lives.
    opened: ExitStack
    #: Whether tables can be read from an episode on: what an interrupted run has read is then kept.
    begins = False
    #: What is known beforehand: steps, episodes, and flags that end nothing.
    steps = episodes = inner_flags = 0

    def __init__(
        self,
        *,
        name: str,
        first: Table,
        given: Mapping[str, Given],
        options: ConvertOptions,
        made_from: Mapping[str, Any],
        content: Any,
        environment: str | None = None,
        left_out: Mapping[str, str] = {},
    ) -> None:
        # Only the name of the location is used: there is nothing to fetch.
        super().__init__(name, DirectoryLocation("this machine"), options)
        self.first, self._given = first, given
        self._made_from, self._environment = made_from, environment
        self.continues = content is not None
        self._content: Any = uuid.uuid4().hex if content is None else content
        self.roles = self._roles_of(first)
        self._kind = _kind(first)
        #: The arrays that are not taken, and why.
        self.left_out = {**self.roles.left_out, **first.unreadable, **left_out}
        self.assumed = list(self.roles.assumed)

    def decide_columns(self) -> None:
        """Decide the columns by the roles."""
        try:
            self.set_columns(columns_of(self.roles, self.first.arrays))
        except SchemaError as error:
            hint = "rename one of the arrays, or give it another key in the map, such as --map info/other=NAME"
            hint += f"; the arrays are {listed(self.first.arrays)}"
            raise UsageError(f"{self.first.name}: {error.message}", hint=hint) from error
        self.why = "taken as " + ", ".join(f"{ours}={theirs}" for ours, theirs in self.roles.to_map().items())

    def _roles_of(self, table: Table) -> Roles:
        """The roles of the arrays of a table, to which the map may add joined ones. Raises UsageError."""
        plain = join_columns(table, self._given)
        return find_roles(table.arrays, plain, table.name, table.unreadable)

    def check_like_first(self, table: Table) -> None:
        """Raise UsageError for a table that has other arrays than the first."""
        join_columns(table, self._given)
        if _kind(table) == self._kind and not table.unreadable:
            return
        roles = self._roles_of(table)
        here, there = _described(roles, table), _described(self.roles, self.first)
        odd = [key for key in {**there, **here} if here.get(key) != there.get(key)]
        if odd:
            shown = [f"{key} is {here.get(key, 'missing')}, and {there.get(key, 'missing')} there" for key in odd[:4]]
            extra = {**self.roles.extra, **roles.extra}
            names = ",".join(extra[key] for key in sorted(odd) if key in extra)
            hint = f"leave out what only some of them have: --leave-out {shlex.quote(names)}" if names else None
            raise UsageError(f"{table.name} is unlike {self.first.name}: {'; '.join(shown)}", hint=hint)
        self.left_out = {**roles.left_out, **table.unreadable, **self.left_out}

    def tables(self, first: int) -> Iterator[tuple[Table, TransitionRows]]:
        """The tables of episode ``first`` and those after it, and what becomes of their rows. Raises UsageError for one that is
        unlike the first."""
        raise NotImplementedError

    def expect(self) -> Expectation:
        notes = self._notes({"inner_flags": self.inner_flags})
        return replace(expect_rows(self, self.steps, self.episodes), notes=notes)

    def units(self, lead: Part | None) -> list[TablesUnit]:
        identity = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()
        return [TablesUnit(0, self.title, self.steps, identity, self)]

    # -- what it is made from ------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        return {
            "converter": self.converter,
            "content": self._content,
            "map": self.roles.to_map(),
            "leaves": [leaf.to_json() for leaf in self.schema],
            "unknown_next": self.options.unknown_next,
        }

    def differences(self, manifest: Manifest) -> list[str]:
        """For what `reader_of_path` returns."""
        there = manifest.source
        found = {
            "another map": there.get("map") != self.roles.to_map(),
            "another environment": self._environment not in (None, there.get("environment")),
            "another split": there.get("split") != self._made_from.get("split"),
        }
        was_changed = manifest.provenance.get("files_state", self.files_state) != self.files_state
        found["files that were changed since"] = was_changed and not found["another split"]
        return [words for words, differs in found.items() if differs]

    def check_append(self, old: Manifest) -> None:
        """What has an identity is added once."""
        mine = self._made_from.get("identity")
        if mine is not None and mine in (one.get("identity") for one in (old.source, *old.source.get("appended", ()))):
            message = f"{old.id} has the episodes of identity {mine!r} already"
            raise DatasetExistsError(message, hint="other episodes have another identity, such as the day they are of")

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
        counts = {**count_outcomes(episodes.outcomes), **parts[-1].about["counts"], "environments": 1}
        states = episodes.steps + len(episodes)
        made_of = {"name": self.name, "size": None, "crc32c": None}
        spec = PartSpec(RECORDING, states, RECORDING, made_of, number=0, first_state=0)
        spaces = {
            key: box_json(self.schema[key].dtype, self.schema[key].shape, None, None)
            for key in ("observation", "action")
            if key in self.schema
        }
        return Facts(counts, self._notes(counts), [spec], spaces)

    def _notes(self, counts: Mapping[str, Any]) -> list[str]:
        notes = [*self.assumed, *count_notes(_COUNTED, counts)]
        if not isinstance(self.roles.reward, str):
            notes.append(f"The data have no rewards: each is {self.roles.reward:g}, as stated.")
        if self.left_out:
            notes.append(f"Left out: {name_left_out(self.left_out)}.")
        return notes


def _kind(table: Table) -> dict[str, Any]:
    """What tables of one dataset have in common."""
    return {name: (array.dtype, array.shape[1:]) for name, array in table.arrays.items()}


def _described(roles: Roles, table: Table) -> dict[str, str]:
    """Which array has which role, and what rows the columns have."""
    rows = {column.key: f"{column.dtype} {list(column.shape)}" for column in columns_of(roles, table.arrays)}
    return {**roles.to_map(), **rows}


class TablesReader(ArraysReader):
    """Tables that are all known: their sections are found (`sections`), and their steps counted.

    Flags that end nothing, since what states the episodes says otherwise, are kept as leaves.
    """

    def __init__(self, tables: Sequence[Table], **about: Any) -> None:
        if not tables:
            raise UsageError(f"{about['name']} has no arrays")
        super().__init__(first=tables[0], **about)
        for table in tables[1:]:
            self.check_like_first(table)
        is_stated = isinstance(self._given.get("episode"), (int, float))
        self._sections = sections_of(tables, self.roles, is_stated)
        for _, rows in self.tables(0):
            self.steps, self.episodes = self.steps + rows.steps, self.episodes + int((rows.last & rows.keep).sum())
            self.inner_flags += rows.counts.get("inner_flags", 0)
        if self.inner_flags:
            kept = self.roles.inner_flags().items()
            arrays = [one.table.arrays for one in self._sections]
            leaves = {key: name for key, name in kept if not any(one[name].is_one_value for one in arrays)}
            self.roles = self.roles.with_leaves(leaves)
        self.decide_columns()

    def tables(self, first: int) -> Iterator[tuple[Table, TransitionRows]]:
        for one in self._sections:
            how = self.options.unknown_next
            yield one.table, end_episodes(one.table, self.roles, unknown_next=how, whole=one.whole)


class StreamReader(ArraysReader):
    """Tables that are read in order, once, each of one or more whole episodes.

    ``begin`` gives the tables from an episode on, if they can begin there: tables then have ``episode_lengths``.
    """

    def __init__(
        self, tables: Iterable[Table], *, begin: Callable[[int], Iterable[Table]] | None = None, **about: Any
    ) -> None:
        remaining = iter(tables)
        super().__init__(first=next(remaining), **about)
        self._tables, self._begin, self.begins = chain([self.first], remaining), begin, begin is not None
        self.decide_columns()

    def tables(self, first: int) -> Iterator[tuple[Table, TransitionRows]]:
        for table in self._begin(first) if self._begin and first else self._tables:
            self.check_like_first(table)
            rows = end_episodes(table, self.roles, unknown_next=self.options.unknown_next)
            if rows.counts.get("inner_flags"):
                message = f"{table.name}: a flag is set before the last step of its episode"
                hint = (
                    "state how the episode ended by one value, terminated=True, and keep the flags as info/terminated"
                )
                raise UsageError(message, hint=hint)
            yield table, rows


@dataclass(frozen=True)
class TablesUnit(Unit):
    """The tables of a reader, one after the other. It can be continued after whole tables where the reader `begins`."""

    reader: ArraysReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        reader, kept = self.reader, resume or {}
        done, episodes = int(kept.get("steps", 0)), int(kept.get("episodes", 0))
        counts: Counter[str] = Counter(kept.get("counts"))
        for table, transitions in reader.tables(episodes):
            steps = transition_table(table, reader.roles, len(transitions.keep))
            for values, rewards, bits in steps.blocks(reader.columns, transitions):
                rows = {column.key: some for column, some in zip(reader.columns, values)}
                done += len(bits)
                yield Block({**rows, "next/reward": rewards}, bits, done=done)
            counts.update(transitions.counts)
            if reader.begins:
                episodes += table.arrays["episode_lengths"].shape[0]
                state = {"steps": done, "episodes": episodes, "counts": dict(counts)}
                yield Block({}, done=done, mark=state)
        if not done:
            raise UsageError(f"{reader.name}: there is no step whose successor is known, and none that is terminated")
        yield Block({}, done=done, record={"counts": dict(counts)})


def reader_of_path(location: Any, options: ConvertOptions) -> TablesReader:
    """The reader of a file or folder on this machine. Raises as `open_tables` and `find_roles`."""
    assert isinstance(location, DirectoryLocation)
    path = Path(location.url, location.only)
    split: str | None = options.extra["split"]
    files = ExitStack()
    scratch = Path(files.enter_context(TemporaryDirectory(prefix=".unpacked-", dir=options.scratch)))
    tables = files.enter_context(open_tables(path, scratch, split))
    left_out = leave_out(tables, options.extra["leave_out"] or "")
    parts = [path] if path.is_file() else data_files(path, split) or visible(path)
    content: list[Any] = [
        [one.relative_to(path.parent).as_posix(), one.stat().st_size, one.stat().st_mtime_ns] for one in parts
    ]
    chosen = {} if split is None else {"split": split}
    content += [chosen] if chosen else []
    reader = TablesReader(
        tables,
        name=path.name,
        given=options.extra["map"],
        options=options,
        made_from={"files": [path.name] if path.is_file() else len(parts), **chosen},
        content=content,
        environment=options.extra["environment"],
        left_out=left_out,
    )
    reader.files_state = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    reader.opened = files
    reader.location = location
    return reader
