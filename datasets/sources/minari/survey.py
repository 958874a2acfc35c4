"""Which columns a Minari dataset has, as all of its episodes hold them, and how their steps end: only flags are read for that.

The columns follow from the spaces, from what the episodes hold, and from which infos can be kept. Infos come with as many rows
as observations (the first one from the reset), or with one for each step; they may be missing from some episodes, or differ
in shape or kind. A name is kept if its values fit into rows of one dtype and shape:

    n + 1 rows in every episode that has it    ``info/<name>`` and ``next/info/<name>``, as observations
    else                                       ``next/info/<name>`` alone: what the step brought; a row of the reset is dropped

and where an episode does not have it, its rows are zeros and ``info_mask/<name>`` (``next/info_mask/<name>``) is False.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import numpy as np

from ....errors import CorruptSourceError, SchemaError, UsageError
from ....storage.schema import clean_keys
from ...formats.pictures import decode_pictures, is_jpeg, picture_shape
from ...ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED, outcomes
from ...ingest.records import count_notes, name_left_out
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
from ...ingest.trajectories import Column, count_outcomes, to_flags
from .files import Field, MinariFiles
from .metadata import Metadata

Kind = Literal["numbers", "jpeg", "text", "mask"]
_FLAGS = ("rewards", "terminations", "truncations")


@dataclass(frozen=True)
class ColumnSource:
    """Where the rows of a column come from. Picklable.

    ``rows`` (infos only) is how many rows each episode has, int64, -1 where it has none that fit. The kind ``mask`` says
    whether there are rows, not what they are.
    """

    column: Column
    path: str
    kind: Kind = "numbers"
    rows: np.ndarray | None = None

    def read(self, files: MinariFiles, found: Survey, index: int, low: int, high: int, name: str) -> np.ndarray:
        """Rows ``low..high-1`` in one episode; zeros beyond what there is. Raises CorruptSourceError."""
        column, episode = self.column, found.episodes[index]
        every = found.states if column.per == "state" else found.steps
        there = int((every if self.rows is None else self.rows)[index])
        if self.kind == "mask":
            return np.full((high - low, *column.shape), there >= 0)
        # Rows of an info that belong to steps: that of the reset comes before them.
        skip = max(0, there - int(found.steps[index])) if column.per == "step" else 0
        stop = max(low, min(high, there - skip))
        rows = np.zeros((high - low, *column.shape), column.dtype)
        if stop > low:
            values = files.read(episode, self.path, low + skip, stop + skip)
            where = f"{name}: {column.key} of episode {episode}"
            if self.kind == "jpeg":
                height, width, channels = (*_squeezed(column.shape), 1)[:3]
                values = np.concatenate([*decode_pictures(values, (height, width, channels), "uint8", where)])
            elif self.kind == "text":
                values = text_rows(values, column.shape[0], where)
            values = cast_rows(np.asarray(values).reshape(stop - low, *column.shape), column.dtype, where, low)
            if stop == high:
                return values
            rows[: stop - low] = values
        return rows


@dataclass
class Survey:
    """What a dataset holds. Of each episode: ``steps`` and ``states``, the rows of actions and of observations (int64), and
    ``bits``, how each of the steps that are kept ends (uint8, `ingest.block`)."""

    episodes: Sequence[int]
    steps: np.ndarray
    states: np.ndarray
    spaces: dict[str, Json]
    bits: list[np.ndarray] = field(default_factory=list)
    sources: list[ColumnSource] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of_kind(self, kind: Kind) -> list[ColumnSource]:
        """The columns of one kind."""
        return [source for source in self.sources if source.kind == kind]

    def compared_with(self, metadata: Metadata) -> list[tuple[str, int, int]]:
        """The counts that the metadata state and that are others: of what, as stated, and as held."""
        held = {"steps": int(self.steps.sum()), "episodes": len(self.episodes)}
        stated = {"steps": metadata.steps, "episodes": metadata.episodes}
        return [(what, count, held[what]) for what, count in stated.items() if count not in (None, held[what])]

    def counts(self) -> dict[str, int]:
        """For the manifest: how episodes end, and what is irregular."""
        kept, ends = (np.array([one(bits) for bits in self.bits]) for one in (len, np.count_nonzero))
        every = np.concatenate(self.bits)
        return {
            **count_outcomes(outcomes(every[every != 0])),
            "empty_episodes": int((self.steps == 0).sum()),
            "split_episodes": int(np.maximum(0, ends - 1).sum()),
            "given_up_steps": int((self.steps - kept).sum()),
            "blank_successors": int(((ends > 0) & (self.states <= self.steps) & (self.steps == kept)).sum()),
        }

    def runs(self) -> np.ndarray:
        """The episodes of the dataset, int64 ``[n, 3]``: place in `episodes`, first state row there, number of state rows."""
        runs = [np.zeros((0, 3), np.int64)]
        for index, bits in enumerate(self.bits):
            ends = np.flatnonzero(bits)
            first = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
            runs.append(np.stack([np.full(len(ends), index), first, ends - first + 2], 1))
        return np.concatenate(runs)


def survey(files: MinariFiles, metadata: Metadata, name: str, text: TextAs, unknown_next: str = "truncate") -> Survey:
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
        steps[index], states[index] = _count(fields, described, f"{name}: episode_{episode}")
        for one in described:
            one.add(files, episode, fields[one.path], f"{name}: {one.path} of episode {episode}")
        for path, info in fields.items():
            if path.partition("/")[0] == "infos":
                infos[path][index] = info
        found.bits.append(_bits(files, found, index, name, unknown_next))
    if not any(map(len, found.bits)):
        raise CorruptSourceError(f"{name} holds no step whose successor is known")
    found.sources = [one.source(name) for one in described]
    found.keys = renamed([one.leaf for one in described])
    _add_infos(found, infos)
    found.notes = [*_notes(found, metadata)]
    return found


def _bits(files: MinariFiles, found: Survey, index: int, name: str, unknown_next: str) -> np.ndarray:
    """How each step of an episode that is kept ends."""
    steps, states, episode = int(found.steps[index]), int(found.states[index]), found.episodes[index]
    if not steps:
        return np.zeros(0, np.uint8)
    terminated, truncated = (
        to_flags(files.read(episode, path, 0, steps), f"{name}: episode {episode}: {path}", "step")
        for path in _FLAGS[1:]
    )
    bits = (terminated * END_TERMINATED | truncated * END_TRUNCATED).astype(np.uint8)
    end = int(bits[-1]) or END_CUT
    if states <= steps and not terminated[-1] and unknown_next == "truncate":
        bits = bits[:-1]
    if len(bits) and not bits[-1]:
        bits[-1] = end
    return bits


def _count(fields: Mapping[str, Field], described: Sequence[_SpaceColumn], where: str) -> tuple[int, int]:
    """Steps and states of an episode. Raises CorruptSourceError where its columns do not fit together."""
    for path in (*_FLAGS, *(one.path for one in described)):
        if path not in fields:
            raise CorruptSourceError(f"{where}/{path} is missing", hint="the files do not hold what their spaces say")
        here = fields[path]
        if path in _FLAGS and not here.why and (here.dtype is None or int(np.prod(here.shape)) != 1):
            raise CorruptSourceError(
                f"{where}/{path} has rows of {here.dtype} {list(here.shape)}, not one number a step"
            )
        if here.why and not here.rows:
            raise CorruptSourceError(f"{where}/{path}: {here.why}")
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
    for path in _FLAGS[1:]:
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
            kind, shape, dtype = "jpeg", picture_shape(first, where), np.dtype("uint8")
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
        leaf, dtype = self.leaf, self.leaf.dtype
        per: Literal["state", "step"] = "state" if self.path.startswith("observations") else "step"
        if self._dtypes:
            # The stored dtype counts: a float32 space often holds values that the environment gave as float64.
            dtype = stored_dtype(_common(self._dtypes), f"{name}: {leaf.key}")
        return ColumnSource(Column(leaf.key, dtype, leaf.shape, per), self.path, self._kind or "numbers")


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _common(dtypes: Iterable[np.dtype]) -> np.dtype:
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


def _add_infos(found: Survey, infos: Mapping[str, Mapping[int, Field]]) -> None:
    """Add the infos that are kept to a survey, and why others are not."""
    taken = TakenKeys(source.column.key for source in found.sources)
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
        there = rows >= 0
        per: Literal["state", "step"] = "state" if (rows > found.steps)[there].all() else "step"
        prefix = "" if per == "state" else "next/"
        found.sources.append(ColumnSource(Column(prefix + key, dtype, shape, per), path, rows=rows))
        if (~there & (found.steps > 0)).any():
            mask = Column(f"{prefix}info_mask/{key.removeprefix('info/')}", "bool", (1,), per)
            found.sources.append(ColumnSource(mask, path, "mask", rows))


def _common_rows(key: str, fields: Mapping[int, Field], steps: np.ndarray) -> tuple[tuple[int, ...], str, np.ndarray]:
    """Shape and dtype of an info, and how many rows each episode has of it (-1: none that fit).

    Raises UsageError with what keeps it from being a column.
    """
    dtypes = {one.dtype: one.why for one in fields.values() if one.rows or one.dtype is None}
    if None in dtypes:
        raise UsageError(dtypes[None] or "its dtype is object: text, or bytes")
    shapes = sorted({one.shape for one in fields.values() if one.rows})
    if len(shapes) != 1:
        raise UsageError(f"its shape varies: {', '.join(map(str, shapes))}" if shapes else "it is empty everywhere")
    if 0 in shapes[0]:
        raise UsageError(f"its shape {shapes[0]} is empty")
    rows = np.full(len(steps), -1, np.int64)
    for index, one in fields.items():
        if one.rows and one.rows - steps[index] in (0, 1):
            rows[index] = one.rows
    if (rows < 0).all():
        raise UsageError("it has neither n nor n + 1 rows in any episode")
    # TED wants a dimension for a single number.
    return shapes[0] or (1,), stored_dtype(_common([one for one in dtypes if one is not None]), key), rows


#: What became of irregular episodes.
_IRREGULAR = {
    "empty_episodes": "{n:episode without a step was|episodes without a step were} left out.",
    "split_episodes": "{n:episode ends|episodes end} inside one of Minari's, where a step is flagged terminated or truncated.",
    "given_up_steps": "Dropped: {n:step} whose successor is not in the data (episodes with as many observations as steps). "
    "The observation of such a step is the final one of the step before.",
    "blank_successors": "{n:episode lacks its|episodes lack their} final observation; the last successor is zeros.",
    "cut_episodes": "{n:episode is|episodes are} flagged neither terminated nor truncated at the end: cut there.",
}


def _notes(found: Survey, metadata: Metadata) -> Iterator[str]:
    """What a user should know about the values, in sentences."""
    infos = [one for one in found.sources if one.rows is not None and one.kind != "mask"]
    cut = [one for one in infos if one.column.per == "step" and np.any(one.rows == found.steps + 1)]
    for sentence, some in {
        "Minari stored {} as JPEG, which is lossy: the frames are as decoded.": found.of_kind("jpeg"),
        "Text is stored as UTF-8 bytes, zero-padded: {}.": found.of_kind("text"),
        "Not in every episode, zeros elsewhere, as the masks say: {}.": found.of_kind("mask"),
        "The info of the reset is dropped, as some episodes lack it: {}.": cut,
    }.items():
        if some:
            yield sentence.format(", ".join(one.column.key for one in some))
    if found.left_out:
        yield f"Left out: {name_left_out(found.left_out)}."
    dtypes = [one.column.dtype for one in found.sources if one.column.key == "observation"]
    if dtypes == ["float64"] and found.spaces["observation"].get("dtype") == "float32":
        yield "The observation space says float32, the data are float64, and kept as they are."
    for what, stated, held in found.compared_with(metadata):
        yield f"The metadata state {stated} {what}, the files hold {held}."
    yield from count_notes(_IRREGULAR, found.counts())
