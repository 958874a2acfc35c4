"""Which columns a Minari dataset has, as all of its episodes hold them; no row is read for that.

The columns follow from the spaces, from what the episodes hold, and from which infos can be kept. Infos come with as many rows
as observations (the first one from the reset), or with one for each step; they may be missing from some episodes, or differ
in shape or kind. A name is kept if its values fit into rows of one dtype and shape:

    n + 1 rows in every episode that has it    ``info/<name>`` and ``next/info/<name>``, as observations
    else                                       ``next/info/<name>`` alone: what the step brought; a row of the reset is dropped

and where an episode does not have it, its rows are zeros and ``info_mask/<name>`` (``next/info_mask/<name>``) is False.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import numpy as np

from ....errors import CorruptSourceError, SchemaError, UsageError
from ....storage.schema import clean_keys
from ...formats.pictures import decode_jpegs, frame_shape, is_jpeg
from ...ingest.spaces import (
    Json,
    SpaceLeaf,
    TakenKeys,
    TextAs,
    cast_rows,
    renamed,
    space_leaves,
    stored_dtype,
    text_rows,
)
from ...ingest.trajectories import Column
from .files import Field, MinariFiles
from .metadata import Metadata

Kind = Literal["numbers", "jpeg", "text"]


@dataclass(frozen=True)
class ColumnSource:
    """Where the rows of a column come from. Picklable.

    ``rows`` (infos only) is how many rows each episode has, int64, -1 where it has none that fit. ``mask``: the column says
    whether there are rows, not what they are.
    """

    column: Column
    path: str
    kind: Kind = "numbers"
    rows: np.ndarray | None = None
    mask: bool = False

    def read(self, files: MinariFiles, found: Survey, index: int, low: int, high: int, name: str) -> np.ndarray:
        """Rows ``low..high-1`` in one episode; zeros beyond what there is. Raises CorruptSourceError."""
        column, episode = self.column, found.episodes[index]
        every = found.states if column.per == "state" else found.steps
        there = int((every if self.rows is None else self.rows)[index])
        if self.mask:
            return np.full((high - low, *column.shape), there >= 0)
        # Rows of an info that belong to steps: that of the reset comes before them.
        skip = max(0, there - int(found.steps[index])) if column.per == "step" else 0
        stop = max(low, min(high, there - skip))
        rows = np.zeros((0, *column.shape), column.dtype)
        if stop > low:
            values = files.read(episode, self.path, low + skip, stop + skip)
            where = f"{name}: {column.key} of episode {episode}"
            if self.kind == "jpeg":
                values = decode_jpegs([bytes(value) for value in values], column.shape, where)
            elif self.kind == "text":
                values = text_rows(values, column.shape[0], where)
            rows = cast_rows(np.asarray(values).reshape(stop - low, *column.shape), column.dtype, where, low)
        return rows if stop == high else np.concatenate([rows, np.zeros((high - stop, *column.shape), column.dtype)])


@dataclass
class Survey:
    """What a dataset holds: ``steps`` and ``states`` are the rows of actions and observations of each episode, int64."""

    episodes: Sequence[int]
    steps: np.ndarray
    states: np.ndarray
    spaces: dict[str, Json]
    sources: list[ColumnSource] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def compared_with(self, metadata: Metadata) -> list[tuple[str, int, int]]:
        """The counts that the metadata state and that are others: of what, as stated, and as held."""
        held = {"steps": int(self.steps.sum()), "episodes": len(self.episodes)}
        stated = {"steps": metadata.steps, "episodes": metadata.episodes}
        return [(what, count, held[what]) for what, count in stated.items() if count not in (None, held[what])]


def survey(files: MinariFiles, metadata: Metadata, name: str, text: TextAs) -> Survey:
    """Look through a dataset.

    Raises CorruptSourceError where the files do not hold what the spaces say, UsageError for what cannot be stored.
    """
    if not files.episodes:
        raise CorruptSourceError(f"{name} holds no episodes")
    spaces = {base: metadata.spaces.get(base) or _guess(files, base + "s", name) for base in ("observation", "action")}
    steps, states = np.zeros((2, len(files.episodes)), np.int64)
    found = Survey(files.episodes, steps, states, spaces)
    described = list[_SpaceColumn]()
    for base, space in spaces.items():
        leaves, omitted = space_leaves(space, base, text)
        described += [_SpaceColumn(leaf, "/".join([base + "s", *map(str, leaf.path)])) for leaf in leaves]
        found.left_out |= omitted
    if {one.path.partition("/")[0] for one in described} != {"observations", "actions"}:
        raise UsageError(f"{name}: no observations or no actions remain: {found.left_out}")
    infos = defaultdict[str, dict[int, Field]](dict)
    for index, episode in enumerate(files.episodes):
        fields = files.fields(episode)
        steps[index], states[index] = _count(fields, described, f"{name}: episode_{episode}", episode)
        for one in described:
            one.add(files, episode, fields[one.path], f"{name}: {one.path} of episode {episode}")
        for path, info in fields.items():
            if path.partition("/")[0] == "infos":
                infos[path][index] = info
    found.sources = [one.source(name) for one in described]
    found.keys = renamed([one.leaf for one in described])
    masked, shortened = _add_infos(found, infos)
    found.notes = _notes(found, metadata, masked, shortened)
    return found


def _count(fields: Mapping[str, Field], described: Sequence[_SpaceColumn], where: str, episode: int) -> tuple[int, int]:
    """Steps and states of an episode. Raises CorruptSourceError where its columns do not fit together."""
    flags = ("rewards", "terminations", "truncations")
    for path in (*flags, *(one.path for one in described)):
        if path not in fields:
            raise CorruptSourceError(f"{where}/{path} is missing", hint="the files do not hold what their spaces say")
        if fields[path].why and not fields[path].rows:
            raise CorruptSourceError(f"{where}/{path}: {fields[path].why}")
    has, steps = f"{where.replace('_', ' ')} has", fields["rewards"].rows
    rows = {path: {fields[one.path].rows for one in described if one.path.startswith(path)} for path in ("obs", "act")}
    if any(len(counts) > 1 for counts in rows.values()):
        raise CorruptSourceError(f"{has} observations or actions whose parts have different numbers of rows")
    (states,), (actions,) = rows["obs"], rows["act"]
    if actions != steps:
        raise CorruptSourceError(f"{has} {actions} actions and {steps} rewards")
    if steps and states - steps not in (0, 1):
        message = f"{has} {states} observations and {steps} steps"
        raise CorruptSourceError(message, hint="an episode of n steps has n + 1 observations")
    for path in flags[1:]:
        if fields[path].rows != steps:
            raise CorruptSourceError(f"{has} {fields[path].rows} {path} and {steps} steps")
    return steps, states


class _SpaceColumn:
    """A leaf of a space, as all episodes hold it."""

    def __init__(self, leaf: SpaceLeaf, path: str) -> None:
        self.leaf, self.path = leaf, path
        self._kind: Kind | None = None
        self._dtypes: dict[np.dtype, None] = {}

    def add(self, files: MinariFiles, episode: int, found: Field, where: str) -> None:
        """Take an episode. Raises CorruptSourceError where it does not hold what the space says."""
        if not found.rows:
            return
        wanted = tuple(self.leaf.space.get("shape", ()))
        kind: Kind = "text" if self.leaf.is_text else "numbers"
        shape, dtype = found.shape, found.dtype
        if found.is_flat and int(np.prod(shape, dtype=np.int64)) == int(np.prod(wanted, dtype=np.int64)):
            shape = wanted
        may_be_jpeg = (dtype is None and not found.why) or (dtype == np.uint8 and len(shape) == 1 and shape != wanted)
        if kind == "numbers" and may_be_jpeg and is_jpeg(first := bytes(files.read(episode, self.path, 0, 1)[0])):
            kind, shape, dtype = "jpeg", frame_shape(first, where), np.dtype("uint8")
        if found.why or (kind == "text") != (dtype is None):
            what = found.why or ("it holds bytes" if dtype is None else f"it holds {dtype}")
            raise CorruptSourceError(f"{where} is not of its space ({self.leaf.space['type']}): {what}")
        if kind != "text" and _squeezed(shape) != _squeezed(wanted):
            raise CorruptSourceError(f"{where} has rows of shape {shape}, its space says {wanted}")
        if self._kind not in (None, kind):
            raise CorruptSourceError(f"{where} holds {kind}, earlier episodes {self._kind}")
        self._kind = kind
        if dtype is not None:
            self._dtypes[dtype] = None

    def source(self, name: str) -> ColumnSource:
        leaf, per = self.leaf, "state" if self.path.startswith("observations") else "step"
        dtype = leaf.dtype
        if self._dtypes:
            # The stored dtype counts: a float32 space often holds values that the environment gave as float64.
            dtype = stored_dtype(_common(list(self._dtypes)), f"{name}: {leaf.key}")
        return ColumnSource(Column(leaf.key, dtype, leaf.shape, per), self.path, self._kind or "numbers")  # type: ignore[arg-type]


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _common(dtypes: Sequence[np.dtype]) -> np.dtype:
    """A dtype that holds the values of all. Raises UsageError if no dtype does so exactly."""
    common = np.result_type(*dtypes)
    if not all(np.can_cast(dtype, common, "safe") for dtype in dtypes):
        raise UsageError(f"its dtype varies: {', '.join(map(str, dtypes))}")
    return common


def _guess(files: MinariFiles, top: str, name: str) -> Json:
    """The space that an episode's values seem to be of, where the metadata state none."""
    first = files.episodes[0]
    fields = files.fields(first)

    def guess(path: str) -> Json:
        if path in fields:
            here = fields[path]
            if here.dtype is not None:
                return {"type": "Box", "dtype": str(here.dtype), "shape": list(here.shape), "low": None, "high": None}
            every = (files.read(one, path, 0, files.fields(one)[path].rows) for one in files.episodes)
            longest = max((len(text) for text in chain.from_iterable(every)), default=1)
            return {"type": "Text", "min_length": 0, "max_length": max(1, longest), "charset": ""}
        inside = [one.removeprefix(path + "/").partition("/")[0] for one in fields if one.startswith(path + "/")]
        names = list(dict.fromkeys(inside))
        if not names:
            raise CorruptSourceError(f"{name} does not say what its {top[:-1]} space is, and episode {first} has none")
        if all(map(str.isdecimal, names)):
            return {"type": "Tuple", "spaces": [guess(f"{path}/{number}") for number in range(len(names))]}
        return {"type": "Dict", "spaces": {one: guess(f"{path}/{one}") for one in names}}

    return guess(top)


# -- infos ---------------------------------------------------------------------------------------------------------------


def _add_infos(found: Survey, infos: Mapping[str, Mapping[int, Field]]) -> tuple[list[str], list[str]]:
    """Add the infos that are kept to a survey, and why others are not. Returns the names that some episodes lack, and those
    of which the reset's row is dropped."""
    taken = TakenKeys(source.column.key for source in found.sources)
    masked, shortened = list[str](), list[str]()
    for path, fields in sorted(infos.items()):
        stated = "info/" + path.partition("/")[2]
        try:
            (key,) = clean_keys([stated]).values()
            if key in taken:
                raise SchemaError(f"its key {key} is taken")
            shape, dtype, rows = _common_rows(key, fields, found.steps)
        except (UsageError, SchemaError) as error:
            found.left_out[path] = error.message
            continue
        taken.add(key)
        if key != stated:
            found.keys[key] = path
        there, name = rows >= 0, key.removeprefix("info/")
        has_reset = rows[there] == found.steps[there] + 1
        per: Literal["state", "step"] = "state" if has_reset.all() else "step"
        prefix = "" if per == "state" else "next/"
        if per == "step" and has_reset.any():
            shortened.append(name)
        found.sources.append(ColumnSource(Column(prefix + key, dtype, shape, per), path, rows=rows))
        if (~there & (found.steps > 0)).any():
            masked.append(name)
            mask = Column(f"{prefix}info_mask/{name}", "bool", (1,), per)
            found.sources.append(ColumnSource(mask, path, rows=rows, mask=True))
    return masked, shortened


def _common_rows(key: str, fields: Mapping[int, Field], steps: np.ndarray) -> tuple[tuple[int, ...], str, np.ndarray]:
    """Shape and dtype of an info, and how many rows each episode has of it (-1: none that fit).

    Raises UsageError with what keeps it from being a column.
    """
    unusable = [one for one in fields.values() if one.dtype is None]
    if unusable:
        raise UsageError(unusable[0].why or "its dtype is object: text, or bytes")
    present = {index: one for index, one in fields.items() if one.rows}
    shapes = sorted({one.shape for one in present.values()})
    if len(shapes) != 1:
        raise UsageError(f"its shape varies: {', '.join(map(str, shapes))}" if shapes else "it is empty everywhere")
    if 0 in shapes[0]:
        raise UsageError(f"its shape {shapes[0]} is empty")
    dtype = stored_dtype(_common(list({one.dtype: None for one in present.values() if one.dtype is not None})), key)
    rows = np.full(len(steps), -1, np.int64)
    for index, one in present.items():
        if one.rows - steps[index] in (0, 1):
            rows[index] = one.rows
    if (rows < 0).all():
        raise UsageError("it has neither n nor n + 1 rows in any episode")
    return shapes[0] or (1,), dtype, rows  # TED wants a dimension for a single number


def _notes(found: Survey, metadata: Metadata, masked: Sequence[str], shortened: Sequence[str]) -> list[str]:
    """What a user should know about the values, in sentences."""
    by_kind = {kind: [one.column.key for one in found.sources if one.kind == kind] for kind in ("jpeg", "text")}
    listed = {
        "Minari stored {} as JPEG, which is lossy: the frames are as decoded.": by_kind["jpeg"],
        "Text is stored as UTF-8 bytes, zero-padded: {}.": by_kind["text"],
        "Not in every episode, zeros with a mask (info_mask) elsewhere: {}.": masked,
        "The info of the reset is dropped, as some episodes lack it: {}.": shortened,
    }
    notes = [sentence.format(", ".join(names)) for sentence, names in listed.items() if names]
    if found.left_out:
        left_out = [f"{path} ({why})" for path, why in list(found.left_out.items())[:8]]
        notes.append(f"Left out: {'; '.join(left_out)}.")
    dtypes = [one.column.dtype for one in found.sources if one.column.key == "observation"]
    if dtypes == ["float64"] and found.spaces["observation"].get("dtype") == "float32":
        notes.append("The observation space says float32, the data are float64, and kept as they are.")
    for what, stated, held in found.compared_with(metadata):
        notes.append(f"The metadata state {stated} {what}, the files hold {held}.")
    return notes
