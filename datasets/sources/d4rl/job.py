"""One D4RL file, from a place to a dataset.

It is fetched whole, resumably, and read in place. What is in it decides the leaves, so they are known only then
(``inspect_files``). The format is described in `contents`, what becomes of its rows in `episode_ends`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ....errors import ChecksumError, CorruptSourceError, SchemaError
from ....storage.schema import clean_keys
from ....storage.writer import ColumnWriter
from ...fetch import Location, RemoteObject, resolve
from ...ingest import trajectories
from ...ingest.job import ACCEPT, ConvertOptions, PartSpec, Plan, RawObject, WholeFileJob
from ...ingest.raw_files import hash_file
from ...ingest.spaces import TakenKeys
from ...ingest.trajectories import Column
from ...workers.pool import usable_cpus
from .episode_ends import Flags, Layout, choose, lay_out, longest
from .file import Array, FileContents, PixelSource, RowWriter, open_file, read_flags, sample, survey
from .registry import Entry, family_of

LICENCE = "CC-BY-4.0"
CITATION = (
    "Justin Fu, Aviral Kumar, Ofir Nachum, George Tucker, Sergey Levine. D4RL: Datasets for Deep Data-Driven "
    "Reinforcement Learning. 2020. arXiv:2004.07219"
)
#: Chunks unpacked at once; one thread more hashes the file.
_THREADS = 4

#: Where terminals that do not end a trajectory go.
_INNER = "next/terminal"

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
    "unknown_next_steps": "{n} steps with no next state in the file are kept, truncated, with a next state of zeros.",
    "inner_terminals": "{n} rows flagged terminal do not end their trajectory; " + _INNER + " holds the flags.",
    "seams": "{n} episodes end without a flag: the file's next observation is not what its next row holds.",
    "rounded_successors": "{n} next observations differ by rounding from the following row's, and are that row's.",
    "position_jumps": "{n} steps move further than the agent can: resets that the file does not flag.",
    "rows_not_finite": "{n} observations hold NaN or infinity, as in the file.",
}
_MOST_LEFT_OUT = 8


class D4rlJob(WholeFileJob):
    """One file, from a place to a dataset."""

    native = ("h5py", "isal.isal_zlib")
    #: Set by `inspect_files`: what the file holds, what becomes of its rows, and the keys of its other arrays by path.
    _contents: FileContents
    _layout: Layout
    _keys: dict[str, str]
    #: Set by `plan`.
    _sha256: str

    def __init__(
        self, entry: Entry | None, location: Location, item: RemoteObject, options: ConvertOptions, *, published: bool
    ) -> None:
        self.entry, self.location, self.options = entry, location, options
        self.item = resolve(location, [item])[0]
        self.family = family_of(entry)
        self._published = published
        self._asked = options.extra["episodes_by"]
        self.horizon = options.extra["horizon"] or (entry.horizon if entry else None)
        self.accept_changed = options.extra["accept_changed"]

    def identity(self) -> dict[str, Any]:
        # Not what the place states of the file: what was fetched of another one is fetched again. Its checksum and the options
        # are in the plan's digest.
        return {"converter": "d4rl 2", "dataset": self.entry.name if self.entry else None, "file": self.item.name}

    def inspect_files(self, files: Mapping[str, Path]) -> None:
        """Look into the file: what it holds decides the leaves. Raises CorruptSourceError, UsageError."""
        self.path = files[self.item.url]
        self._look(self.item.url)

    def _look(self, name: str) -> None:
        with open_file(self.path, name) as file:
            contents = survey(file, name)
            terminals = read_flags(file, name, "terminals")
            timeouts = read_flags(file, name, "timeouts") if "timeouts" in contents.arrays else None
        flags = Flags(terminals, timeouts, self.family.terminals_end, self.horizon)
        by, has_next = choose(self._asked, flags, name), "next_observations" in contents.arrays
        self._layout = lay_out(by, flags, has_next=has_next, unknown_next=self.options.unknown_next)
        if not self._layout.steps:
            raise CorruptSourceError(f"{name} holds no step whose successor is known")
        self._contents, self._keys = contents, _info_keys(contents, name)
        self.schema, bulk = trajectories.lay_out(self._columns(), self.options)
        # Plain TED needs no second pass: the plan writes observations of any size as two columns.
        self.bulk = () if self.options.layout == "ted" else bulk

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        from concurrent.futures import ThreadPoolExecutor

        contents, layout = self._contents, self._layout
        columns.reserve(layout.steps)
        name = self.item.url
        pool = ThreadPoolExecutor(min(_THREADS, usable_cpus()) + 1, "rbdata-d4rl")
        try:
            digest = pool.submit(hash_file, self.path, hashlib.sha256(usedforsecurity=False))
            with open_file(self.path, name) as file:
                writer = RowWriter(file, name, contents, layout, self._keys, self.family.jump, pool)
                inner = _INNER if _INNER in self.schema else None
                rewards = writer.write(columns, observations=not self.bulk, inner_key=inner)
            self._sha256 = digest.result().hexdigest()
        finally:
            pool.shutdown(cancel_futures=True)
        self._check_bytes()
        on_progress(1, 1)
        episodes = layout.episodes(rewards)
        counts = {
            **layout.counts,
            **writer.counts,
            **trajectories.count_outcomes(episodes.outcome),
            "longest_trajectory": longest(layout.end),
        }
        states = layout.steps + len(episodes)
        part = PartSpec(self.item.name, states, "whole", self._object())
        return Plan(
            episodes,
            counts,
            list(_notes(self.entry, contents, layout.by, self.horizon, counts, self._sha256)),
            parts=[part] if self.bulk else [],
            spaces=self._spaces(),
            digest=f"{self._sha256} {json.dumps(self._options(), sort_keys=True)}",
        )

    # -- large observations ----------------------------------------------------------------------------------------

    def parts(self) -> int:
        return 1 if self.bulk else 0

    def sample_rows(self) -> np.ndarray:
        return sample(self.path, self.item.url, self._contents.rows)

    def row_sources(self) -> list[PixelSource]:
        if not self.bulk:
            return []
        has_next = "next_observations" in self._contents.arrays
        return [PixelSource(self.path, self.item.url, self._contents.rows, self._layout, has_next)]

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return [] if self.bulk else [self._object()]  # with bulk leaves it is that of their part

    def _object(self) -> dict[str, Any]:
        path = self.entry.path if self.entry else self.item.name
        size = self.path.stat().st_size
        return {"name": self.item.name, "path": path, "size": size, "sha256": self._sha256, "crc32c": None}

    def unverified(self) -> list[str]:
        return [] if self.entry and self.entry.sha256 == getattr(self, "_sha256", "") else super().unverified()

    def raw_objects(self) -> list[RawObject]:
        return [RawObject(self.entry.path if self.entry else self.item.name, self.item, self.location)]

    def about(self) -> dict[str, Any]:
        entry = self.entry
        return {
            "source": {
                "name": "d4rl",
                "upstream": "d4rl",
                "dataset": entry.name if entry else None,
                "family": entry.family if entry else None,
                "reference_scores": [entry.low, entry.high] if entry and entry.low is not None else None,
                "options": self._options(),
                "keys": {key: path for path, key in self._keys.items()},
                "left_out": self._contents.left_out,
                "metadata": self._contents.metadata,
            },
            "licence": LICENCE if entry else None,
            "citation": CITATION if entry else None,
        }

    def _options(self) -> dict[str, Any]:
        """The options as they turned out."""
        large = {"codec": self.schema["observation"].codec, "layout": self.options.layout} if self.bulk else {}
        by, unknown_next = self._layout.by, self.options.unknown_next
        return {"unknown_next": unknown_next, "episodes_by": by, "horizon": self.horizon, **large}

    # -- behind it -------------------------------------------------------------------------------------------------

    def _columns(self) -> list[Column]:
        arrays = self._contents.arrays
        infos = {array.path: array for array in self._contents.infos}
        columns = [
            _column("observation", arrays["observations"], "state"),
            _column("action", arrays["actions"], "step"),
            *(_column(key, infos[path], "step") for path, key in self._keys.items()),
        ]
        if (self._layout.inner & self._layout.keep).any():
            columns.append(Column(_INNER, "bool", (1,), "step"))
        return columns

    def _spaces(self) -> dict[str, Any]:
        """Shapes and dtypes; D4RL's files state no bounds."""
        return {
            key: {"type": "Box", "shape": list(self.schema[key].shape), "dtype": self.schema[key].dtype}
            for key in ("observation", "action")
        }

    def _check_bytes(self) -> None:
        """Raises ChecksumError for a file that is not the one known."""
        self.check_recorded(self._sha256)
        known = self.entry.sha256 if self.entry and self._published and not self._recorded else None
        if known in (None, self._sha256) or self.accept_changed:
            return
        message = f"{self.item.url} is not the file that is known: its sha256 is {self._sha256}, not {known}"
        raise ChecksumError(message, hint=ACCEPT)


def _column(key: str, array: Array, per: Literal["state", "step"]) -> Column:
    return Column(key, array.dtype.name, array.shape, per)


def _info_keys(contents: FileContents, name: str) -> dict[str, str]:
    """Under which key each of the other per-step arrays goes: ``infos/qpos`` -> ``info/qpos``, ``infos`` -> ``info/infos``.

    Arrays whose keys would fall together are left out, all but the first.
    """
    keys: dict[str, str] = {}
    taken = TakenKeys(())
    for array in list(contents.infos):
        wanted = "info/" + array.path.removeprefix("infos/")
        try:
            key = clean_keys([wanted])[wanted]
        except SchemaError as error:
            raise CorruptSourceError(f"{name}: {array.path}: {error.message}") from error
        # On many disks names that differ in case alone are one file.
        plain = key.lower()
        if plain in taken:
            contents.left_out[array.path] = f"its key {key} is taken"
            continue
        taken.add(plain)
        keys[array.path] = key
    return keys


def _notes(
    entry: Entry | None, contents: FileContents, by: str, horizon: int | None, counts: Mapping[str, int], sha256: str
) -> Iterator[str]:
    """What a user should know about the converted file, in sentences; ``counts`` are those of the plan."""
    if entry:
        yield from family_of(entry).notes
        if entry.name in _ENTRY_NOTES:
            yield _ENTRY_NOTES[entry.name]
        if entry.path.startswith("ant_maze_new/"):
            yield "AntMaze v0 time-outs are out of step with the resets (D4RL issue 77): prefer v2."
        if not entry.listed:
            yield "D4RL registers this id but does not list it among its downloads."
    yield _BY[by].format(horizon=horizon)
    for name, sentence in _COUNTED.items():
        if counts[name]:
            yield sentence.format(n=counts[name], rows=counts["rows"])
    if horizon and counts["longest_trajectory"] > horizon + 1:
        yield f"The longest trajectory has {counts['longest_trajectory']} rows, more than the horizon of {horizon}."
    stored = contents.arrays["rewards"].dtype.name
    if stored != "float32":
        yield f"Rewards were {stored} and are float32; all other values are as in the file."
    if entry and entry.sha256 and entry.sha256 != sha256:
        yield f"The file is not the one known under this name (its sha256 begins {entry.sha256[:12]})."
    if contents.left_out:
        some = [f"{path} ({why})" for path, why in list(contents.left_out.items())[:_MOST_LEFT_OUT]]
        more = len(contents.left_out) - len(some)
        yield f"Left out: {', '.join(some)}{f' and {more} more' if more else ''}."
