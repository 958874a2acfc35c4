"""Which columns a dataset has: what its spaces say, what its episodes hold, and which infos can be kept.

Infos come with as many rows as observations (the first one from the reset), or with one for each step; they may be missing from
some episodes, or differ in shape or kind. A name is kept when what is there fits into rows of one dtype and shape:

    n + 1 rows in every episode that has it    ``info/<name>`` and ``next/info/<name>``, as observations
    else                                       ``next/info/<name>`` alone: what the step brought; a row of the reset is dropped

and where an episode does not have it, its rows are zeros and ``info_mask/<name>`` (``next/info_mask/<name>``) is False.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, SchemaError, UsageError
from ....storage.schema import clean_keys
from ...ingest.spaces import Json, SpaceLeaf, TextAs, renamed, space_leaves, stored_dtype
from ...ingest.trajectories import Column
from .metadata import Metadata
from .reader import Field, Kind, Place, Reader


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
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> list[Column]:
        return [source.column for source in self.sources]


def survey(
    reader: Reader,
    metadata: Metadata,
    name: str,
    text: TextAs,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Survey:
    """Look through a dataset without reading its rows.

    Raises CorruptSourceError where the files do not hold what the spaces say, UsageError for what cannot be stored.
    """
    if not reader.episodes:
        raise CorruptSourceError(f"{name} holds no episodes")
    spaces = {key: metadata.spaces.get(key) or reader.space((key + "s",)) for key in ("observation", "action")}
    left_out: dict[str, str] = {}
    leaves: list[tuple[SpaceLeaf, Place]] = []
    for base in ("observation", "action"):
        found, omitted = space_leaves(spaces[base], base, text)
        leaves += [(leaf, (base + "s", *leaf.path)) for leaf in found]
        left_out.update(omitted)
    if not any(place[0] == "observations" for _, place in leaves) or not any(
        place[0] == "actions" for _, place in leaves
    ):
        raise UsageError(f"{name}: nothing is left of its observations or its actions: {left_out}")
    described: list[_Merged] = [_Merged(leaf, place) for leaf, place in leaves]
    infos = _Infos(len(reader.episodes))
    steps, states = (np.zeros(len(reader.episodes), np.int64) for _ in range(2))
    for index, episode in enumerate(reader.episodes):
        steps[index] = reader.steps(episode)
        rows = {one.place[0]: one.add(reader, episode, name) for one in described}
        for one in described:
            if one.rows != rows[one.place[0]]:
                raise CorruptSourceError(
                    f"{name}: episode {episode} has {one.place} of {one.rows} rows, others of its space more"
                )
        states[index] = rows["observations"]
        _check_rows(name, episode, int(steps[index]), rows["observations"], rows["actions"])
        infos.add(index, int(steps[index]), reader.infos(episode))
        if not index % 64:
            on_progress(index, len(reader.episodes))
    sources = [one.source(name) for one in described]
    kept, why_not = infos.sources(steps, {source.column.key.lower() for source in sources})
    left_out.update(why_not)
    all_sources = [*sources, *kept]
    result = Survey(
        reader.episodes, steps, states, all_sources, spaces, renamed([leaf for leaf, _ in leaves]), left_out
    )
    result.keys.update(infos.keys)
    result.notes = _notes(result, metadata, infos)
    return result


def _check_rows(name: str, episode: int, steps: int, states: int, actions: int) -> None:
    if actions != steps:
        raise CorruptSourceError(f"{name}: episode {episode} has {actions} actions and {steps} rewards")
    if states not in (steps, steps + 1) and steps:
        message = f"{name}: episode {episode} has {states} observations and {steps} steps"
        raise CorruptSourceError(message, hint="an episode of n steps has n + 1 observations")


class _Merged:
    """A leaf of a space, as all episodes hold it."""

    def __init__(self, leaf: SpaceLeaf, place: Place) -> None:
        self.leaf, self.place = leaf, place
        self.rows = 0
        self._kind: Kind | None = None
        self._dtypes: dict[np.dtype, None] = {}

    def add(self, reader: Reader, episode: int, name: str) -> int:
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

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._found: dict[Place, dict[int, Field]] = {}
        self._steps: dict[int, int] = {}
        self.keys: dict[str, str] = {}
        #: Names that some episodes lack, and names of which the reset's row is dropped.
        self.masked: list[str] = []
        self.shortened: list[str] = []

    def add(self, index: int, steps: int, fields: dict[Place, Field]) -> None:
        self._steps[index] = steps
        for place, one in fields.items():
            self._found.setdefault(place, {})[index] = one

    def sources(self, steps: np.ndarray, taken: set[str]) -> tuple[list[Source], dict[str, str]]:
        """The infos that are kept, and why others are not."""
        kept: list[Source] = []
        left_out: dict[str, str] = {}
        names = {place: "/".join(map(str, place[1:])) for place in self._found}
        for place, fields in self._found.items():
            path = "infos/" + names[place]
            try:
                (key,) = clean_keys([f"info/{names[place]}"]).values()
                plain = key.lower()  # on many disks names that differ in case alone are one file
                if plain in taken or any(
                    other.startswith(plain + "/") or plain.startswith(other + "/") for other in taken
                ):
                    raise SchemaError(f"its key {key} is taken")
                sources = self._columns(place, key, fields, steps)
            except (UsageError, SchemaError) as error:
                left_out[path] = str(error)
                continue
            taken.add(plain)
            if key != "info/" + names[place]:
                self.keys[key] = path
            kept += sources
        return kept, left_out

    def _columns(self, place: Place, key: str, fields: dict[int, Field], steps: np.ndarray) -> list[Source]:
        """The column of an info, and that of its mask. Raises UsageError with what keeps it from being one."""
        for one in fields.values():
            if one.kind != "numbers":
                raise UsageError(one.why or f"it holds {one.kind}")
        present = {index: one for index, one in fields.items() if one.rows}
        shapes = {one.shape for one in present.values()}
        if len(shapes) != 1:
            raise UsageError(
                f"its shape varies: {', '.join(map(str, sorted(shapes)))}" if shapes else "it is empty everywhere"
            )
        (shape,) = shapes
        if 0 in shape:
            raise UsageError(f"its shape {shape} is empty")
        shape = shape or (1,)  # TED wants a dimension for a single number
        dtype = stored_dtype(_common(list({one.dtype: None for one in present.values()})), key)
        rows = np.full(self._episodes, -1, np.int64)
        for index, one in present.items():
            if one.rows - self._steps[index] in (0, 1):
                rows[index] = one.rows
        there = rows >= 0
        if not there.any():
            raise UsageError("it has neither n nor n + 1 rows in any episode")
        per_state = bool((rows[there] == steps[there] + 1).all())
        name = key.removeprefix("info/")
        lacks = bool((~there & (steps > 0)).any())
        if not per_state and (rows[there] == steps[there] + 1).any():
            self.shortened.append(name)
        prefix = "" if per_state else "next/"
        per: Any = "state" if per_state else "step"
        found = [Source(Column(prefix + key, dtype, shape, per), place, "numbers", rows)]
        if lacks:
            self.masked.append(name)
            found.append(
                Source(Column(f"{prefix}info_mask/{name}", "bool", (1,), per), place, "numbers", rows, mask=True)
            )
        return found


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _common(dtypes: list[np.dtype]) -> np.dtype:
    """A dtype that holds the values of all. Raises UsageError where there is none that does so exactly."""
    common = np.result_type(*dtypes)
    if not all(np.can_cast(dtype, common, "safe") for dtype in dtypes):
        raise UsageError(f"its dtype varies: {', '.join(map(str, dtypes))}")
    return common


def _notes(found: Survey, metadata: Metadata, infos: _Infos) -> list[str]:
    """What a user should know about the values, in sentences."""
    notes = []
    pictures = [source.column.key for source in found.sources if source.kind == "jpeg"]
    if pictures:
        notes.append(f"Minari stored {', '.join(pictures)} as JPEG, which is lossy: the frames are as decoded.")
    texts = [source.column.key for source in found.sources if source.kind == "text"]
    if texts:
        notes.append(f"Text is stored as UTF-8 bytes, zero-padded: {', '.join(texts)}.")
    if infos.masked:
        notes.append(f"Not in every episode, zeros with a mask (info_mask) elsewhere: {', '.join(infos.masked)}.")
    if infos.shortened:
        notes.append(f"The info of the reset is dropped, as some episodes lack it: {', '.join(infos.shortened)}.")
    if found.left_out:
        notes.append(f"Left out: {'; '.join(f'{path} ({why})' for path, why in list(found.left_out.items())[:8])}.")
    wider = [
        source.column
        for source in found.sources
        if source.column.dtype == "float64" and source.column.key == "observation"
    ]
    stated = found.spaces["observation"].get("dtype")
    if wider and stated == "float32":
        notes.append("The observation space says float32, the data are float64, and kept as they are.")
    if metadata.steps not in (None, int(found.steps.sum())):
        notes.append(f"The metadata state {metadata.steps} steps, the files hold {int(found.steps.sum())}.")
    if metadata.episodes not in (None, len(found.episodes)):
        notes.append(f"The metadata state {metadata.episodes} episodes, the files hold {len(found.episodes)}.")
    return notes
