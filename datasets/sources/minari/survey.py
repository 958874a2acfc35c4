"""Which columns a dataset has: what its spaces say, what its episodes hold, and which infos can be kept.

Infos come with as many rows as observations (the first one from the reset), or with one for each step; they may be missing from
some episodes, or differ in shape or kind. A name is kept when what is there fits into rows of one dtype and shape:

    n + 1 rows in every episode that has it    ``info/<name>`` and ``next/info/<name>``, as observations
    else                                       ``next/info/<name>`` alone: what the step brought; a row of the reset is dropped

and where an episode does not have it, its rows are zeros and ``info_mask/<name>`` (``next/info_mask/<name>``) is False.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ....errors import CorruptSourceError, SchemaError, UsageError
from ....storage.schema import clean_keys
from ...ingest.spaces import Json, SpaceLeaf, TakenKeys, TextAs, renamed, space_leaves, stored_dtype
from ...ingest.trajectories import Column
from .metadata import Metadata
from .reader import EpisodeReader, Field, Kind, Place


@dataclass(frozen=True)
class Source:
    """Where the rows of a column come from. Picklable.

    ``rows`` (infos only) is how many rows each episode has, int64, -1 where it has none that fit. ``mask``: the column says
    whether there are rows, not what they are.
    """

    column: Column
    place: Place
    kind: Kind
    rows: np.ndarray | None = None
    mask: bool = False


@dataclass
class Survey:
    """What a dataset holds: ``steps`` and ``states`` are the rows of actions and observations of each episode, int64."""

    episodes: Sequence[int]
    steps: np.ndarray
    states: np.ndarray
    sources: list[Source]
    spaces: dict[str, Json]
    keys: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Bytes of the files.
    size: int = 0

    @property
    def columns(self) -> list[Column]:
        return [source.column for source in self.sources]


def survey(reader: EpisodeReader, metadata: Metadata, name: str, text: TextAs) -> Survey:
    """Look through a dataset without reading its rows.

    Raises CorruptSourceError where the files do not hold what the spaces say, UsageError for what cannot be stored.
    """
    if not reader.episodes:
        raise CorruptSourceError(f"{name} holds no episodes")
    spaces = {key: metadata.spaces.get(key) or reader.space((key + "s",)) for key in ("observation", "action")}
    left_out: dict[str, str] = {}
    described: list[_Merged] = []
    for base in ("observation", "action"):
        found, omitted = space_leaves(spaces[base], base, text)
        described += [_Merged(leaf, (base + "s", *leaf.path)) for leaf in found]
        left_out.update(omitted)
    if {one.place[0] for one in described} != {"observations", "actions"}:
        raise UsageError(f"{name}: no observations or no actions remain: {left_out}")
    infos = _Infos()
    steps, states = (np.zeros(len(reader.episodes), np.int64) for _ in range(2))
    for index, episode in enumerate(reader.episodes):
        steps[index] = reader.steps(episode)
        rows = {one.place[0]: one.add(reader, episode, name) for one in described}
        for one in described:
            if one.rows != rows[one.place[0]]:
                message = f"{name}: episode {episode} has {one.place} of {one.rows} rows, others of its space more"
                raise CorruptSourceError(message)
        states[index] = rows["observations"]
        if rows["actions"] != steps[index]:
            message = f"{name}: episode {episode} has {rows['actions']} actions and {steps[index]} rewards"
            raise CorruptSourceError(message)
        if steps[index] and states[index] - steps[index] not in (0, 1):
            message = f"{name}: episode {episode} has {states[index]} observations and {steps[index]} steps"
            raise CorruptSourceError(message, hint="an episode of n steps has n + 1 observations")
        infos.add(index, reader.infos(episode))
    sources = [one.source(name) for one in described]
    kept, why_not = infos.sources(steps, TakenKeys(source.column.key.lower() for source in sources))
    keys = {**renamed([one.leaf for one in described]), **infos.keys}
    result = Survey(reader.episodes, steps, states, [*sources, *kept], spaces, keys, {**left_out, **why_not})
    result.notes = _notes(result, metadata, infos)
    return result


class _Merged:
    """A leaf of a space, as all episodes hold it."""

    def __init__(self, leaf: SpaceLeaf, place: Place) -> None:
        self.leaf, self.place = leaf, place
        self.rows = 0
        self._kind: Kind | None = None
        self._dtypes: dict[np.dtype, None] = {}

    def add(self, reader: EpisodeReader, episode: int, name: str) -> int:
        """Take an episode; returns how many rows it has."""
        wanted = tuple(self.leaf.space.get("shape", ()))
        found = reader.field(episode, self.place, wanted)
        where = f"{name}: {'/'.join(map(str, self.place))} of episode {episode}"
        self.rows = found.rows
        if not found.rows:
            return 0
        if found.kind == "other" or (found.kind == "text") != self.leaf.is_text:
            raise CorruptSourceError(
                f"{where} is not of its space ({self.leaf.space['type']}): {found.why or found.kind}"
            )
        if not self.leaf.is_text and _squeezed(found.shape) != _squeezed(wanted):
            raise CorruptSourceError(f"{where} has rows of shape {found.shape}, its space says {wanted}")
        if self._kind not in (None, found.kind):
            raise CorruptSourceError(f"{where} holds {found.kind}, earlier episodes {self._kind}")
        self._kind = found.kind
        self._dtypes[found.dtype] = None
        return found.rows

    def source(self, name: str) -> Source:
        leaf = self.leaf
        per: Any = "state" if self.place[0] == "observations" else "step"
        dtype = leaf.dtype
        if not leaf.is_text and self._dtypes:
            # What is stored is what counts: a float32 space often holds what the environment gave as float64.
            dtype = stored_dtype(_common(list(self._dtypes)), f"{name}: {leaf.key}")
        return Source(Column(leaf.key, dtype, leaf.shape, per), self.place, self._kind or "numbers")


class _Infos:
    """All infos of all episodes, by place."""

    def __init__(self) -> None:
        self._found: dict[Place, dict[int, Field]] = {}
        self.keys: dict[str, str] = {}
        #: Names that some episodes lack, and names of which the reset's row is dropped.
        self.masked: list[str] = []
        self.shortened: list[str] = []

    def add(self, index: int, fields: dict[Place, Field]) -> None:
        for place, one in fields.items():
            self._found.setdefault(place, {})[index] = one

    def sources(self, steps: np.ndarray, taken: TakenKeys) -> tuple[list[Source], dict[str, str]]:
        """The infos that are kept, and why others are not."""
        kept: list[Source] = []
        left_out: dict[str, str] = {}
        names = {place: "/".join(map(str, place[1:])) for place in self._found}
        for place, fields in self._found.items():
            path = "infos/" + names[place]
            try:
                (key,) = clean_keys([f"info/{names[place]}"]).values()
                plain = key.lower()  # on many disks names that differ in case alone are one file
                if plain in taken:
                    raise SchemaError(f"its key {key} is taken")
                sources = self._columns(place, key, fields, steps)
            except (UsageError, SchemaError) as error:
                left_out[path] = error.message
                continue
            taken.add(plain)
            if key != "info/" + names[place]:
                self.keys[key] = path
            kept += sources
        return kept, left_out

    def _columns(self, place: Place, key: str, fields: dict[int, Field], steps: np.ndarray) -> list[Source]:
        """The column of an info, and that of its mask. Raises UsageError with what keeps it from being one."""
        unusable = [one for one in fields.values() if one.kind != "numbers"]
        if unusable:
            raise UsageError(unusable[0].why or f"it holds {unusable[0].kind}")
        present = {index: one for index, one in fields.items() if one.rows}
        shapes = sorted({one.shape for one in present.values()})
        if len(shapes) != 1:
            raise UsageError(f"its shape varies: {', '.join(map(str, shapes))}" if shapes else "it is empty everywhere")
        if 0 in shapes[0]:
            raise UsageError(f"its shape {shapes[0]} is empty")
        shape = shapes[0] or (1,)  # TED wants a dimension for a single number
        dtype = stored_dtype(_common(list(dict.fromkeys(one.dtype for one in present.values()))), key)
        rows = np.full(len(steps), -1, np.int64)
        for index, one in present.items():
            if one.rows - steps[index] in (0, 1):
                rows[index] = one.rows
        there = rows >= 0
        if not there.any():
            raise UsageError("it has neither n nor n + 1 rows in any episode")
        has_reset = rows[there] == steps[there] + 1
        per: Literal["state", "step"] = "state" if has_reset.all() else "step"
        prefix, name = "" if per == "state" else "next/", key.removeprefix("info/")
        if per == "step" and has_reset.any():
            self.shortened.append(name)
        found = [Source(Column(prefix + key, dtype, shape, per), place, "numbers", rows)]
        if (~there & (steps > 0)).any():
            self.masked.append(name)
            mask = Column(f"{prefix}info_mask/{name}", "bool", (1,), per)
            found.append(Source(mask, place, "numbers", rows, mask=True))
        return found


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _common(dtypes: list[np.dtype]) -> np.dtype:
    """A dtype that holds the values of all. Raises UsageError if no dtype does so exactly."""
    common = np.result_type(*dtypes)
    if not all(np.can_cast(dtype, common, "safe") for dtype in dtypes):
        raise UsageError(f"its dtype varies: {', '.join(map(str, dtypes))}")
    return common


def _notes(found: Survey, metadata: Metadata, infos: _Infos) -> list[str]:
    """What a user should know about the values, in sentences."""
    by_kind = {kind: [one.column.key for one in found.sources if one.kind == kind] for kind in ("jpeg", "text")}
    left_out = [f"{path} ({why})" for path, why in list(found.left_out.items())[:8]]
    listed = {
        "Minari stored {} as JPEG, which is lossy: the frames are as decoded.": by_kind["jpeg"],
        "Text is stored as UTF-8 bytes, zero-padded: {}.": by_kind["text"],
        "Not in every episode, zeros with a mask (info_mask) elsewhere: {}.": infos.masked,
        "The info of the reset is dropped, as some episodes lack it: {}.": infos.shortened,
    }
    notes = [sentence.format(", ".join(names)) for sentence, names in listed.items() if names]
    if left_out:
        notes.append(f"Left out: {'; '.join(left_out)}.")
    dtypes = [column.dtype for column in found.columns if column.key == "observation"]
    if dtypes == ["float64"] and found.spaces["observation"].get("dtype") == "float32":
        notes.append("The observation space says float32, the data are float64, and kept as they are.")
    counted = (("steps", metadata.steps, int(found.steps.sum())), ("episodes", metadata.episodes, len(found.episodes)))
    for what, stated, held in counted:
        if stated not in (None, held):
            notes.append(f"The metadata state {stated} {what}, the files hold {held}.")
    return notes
