"""Episodes of RLDS: a record of a TFRecord file is one, as TensorFlow Datasets stores it (`formats.tfds`).

A row of ``steps`` has the observation, the action taken there, and the reward that followed. So by the specification
(https://github.com/google-research/rlds) the last row, ``is_last``, has only an observation: T rows are T - 1 steps.

Robot data break that: the template that most of them were made with puts the last real action, and the only reward, into the
last row, which is ``is_last`` and ``is_terminal``. Read by the specification, no episode succeeds. There T rows are T steps,
the last of them terminated, whose successor is not stored and becomes zeros. Which of the two a dataset is follows from its
last rows (`_is_real`); one episode does not tell, since one that failed may well end with zeros.

    steps/observation[/...]     observation[/...]       a state
    steps/action[/...]          action[/...]
    steps/reward                ("next", "reward")
    other features of steps     info/...                a state if it is a picture
    features of the episode     info/...                the same in every step
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ....errors import CorruptSourceError, ObjectNotFoundError, UsageError
from ....storage import amounts
from ....storage.leaf import is_observation
from ....storage.schema import clean_keys
from ...fetch import Location, RemoteObject
from ...fetch.location import join_path
from ...formats.tfds import STEPS, Split, TfdsFeature, Values, parse_features, parse_info, read_values, row_blocks
from ...formats.tfrecord import Lists, WireError, read_records
from ...ingest.block import LazyRows
from ...ingest.episode_files import (
    Episode,
    EpisodeFiles,
    EpisodeReader,
    EpisodesUnit,
    RawInput,
    Rows,
    file_groups,
    state_rows,
)
from ...ingest.records import ConvertOptions, RawObject
from ...ingest.spaces import Json, LossyCastError, box_json, cast, cast_rows, nested_space, stored_dtype, text_rows
from ...ingest.trajectories import Column
from ...ingest.unit import Facts, Unit

if TYPE_CHECKING:
    from ....storage.episodes import EpisodeTable
    from ...ingest.unit import Part

LastRow = Literal["auto", "observation", "step"]
_ENDS = ("is_last", "is_terminal")
_FLAGS = tuple(f"{STEPS}/{name}" for name in _ENDS)
_NAMES = ("observation", "action", "reward", "discount")
_OBSERVATION, _ACTION, _REWARD, _DISCOUNT = (f"{STEPS}/{name}" for name in _NAMES)
#: Features that are read even if they do not become leaves.
_READ = (_REWARD, _DISCOUNT, *_FLAGS)
#: Bytes of the two files that describe a dataset.
_LARGEST_JSON = 64 << 20


class RldsReader(EpisodeFiles):
    """The files of one split, or of several, are units."""

    reader: RldsEpisodes
    converter = "rlds 1"
    sentences: Mapping[str, str] = {
        "kept_last_rows": (
            "The last row of {n:terminated episode} is a step, as in robot data; by the specification of RLDS it would be "
            "an observation alone (--last-row observation)."
        ),
        "unused_last_rows": (
            "{n:terminated episode has|terminated episodes have} a reward or an action in the last row, which is an "
            "observation alone by the specification of RLDS (--last-row step keeps them)."
        ),
        "given_up_steps": "Dropped: the last row, with a reward, of {n:episode}, since no observation follows it.",
        "early_ends": "{n:episode has|episodes have} is_last before the last row; all rows are read.",
        "episodes_without_rewards": "{n:episode has|episodes have} no rewards in the data; they are zeros here.",
    }

    def __init__(
        self,
        source: str,
        name: str | None,
        location: Location,
        folder: str,
        described: Sequence[RemoteObject],
        split: str | None,
        options: ConvertOptions,
    ) -> None:
        """``described`` are ``dataset_info.json`` and ``features.json``, ``folder`` has them and the files."""
        self.source = source
        info, features = (RawObject(join_path(folder, item.name), item, location) for item in described)
        self.info = parse_info(self.read_description(info, _LARGEST_JSON), info.item.url)
        found = parse_features(self.read_description(features, _LARGEST_JSON), features.item.url)
        kept, left_out = _chosen(found.features, options.extra)
        self.left_out = {**found.left_out, **left_out}
        keys = leaf_keys(kept)
        self.renamed = {key: name for name, key in keys.items() if not name.endswith(key.removeprefix("info/"))}
        self.splits = self._splits(split)
        files = self._files(location, folder, options.parts)
        lengths = {path: length for _, path, _, length in files}
        groups = file_groups(location, [(path, item) for _, path, item, _ in files], [number for number, *_ in files])
        reader = RldsEpisodes(kept, keys, lengths, options.extra["max_length"], options.extra["last_row"])
        super().__init__(name, location, groups, reader, options, episodes=sum(lengths.values()))
        self._decided: LastRow = options.extra["last_row"]
        self.first_decides = self._decided == "auto"
        self.licence, self.citation = self.info.licence or None, self.info.citation or None

    def _splits(self, asked: str | None) -> list[Split]:
        """The requested splits. Raises UsageError for a missing split, and if a split must be named."""
        there = self.info.splits
        names = asked.split("+") if asked else ["train"] if "train" in there else list(there)
        absent = [name for name in names if name not in there]
        if absent or len(set(names)) != len(names) or (not asked and len(names) != 1):
            what = f"no split {', '.join(absent)}" if absent else "several splits"
            hint = f"name one, or several joined by +, with --split: {', '.join(there)}"
            raise UsageError(f"{self.info.name} has {what}", hint=hint)
        return [there[name] for name in names]

    def _files(
        self, location: Location, folder: str, chosen: Sequence[int] | None
    ) -> list[tuple[int, str, RemoteObject, int]]:
        """The files of the splits (those of the numbers ``chosen``): number, path, object, episodes in it.

        Raises ObjectNotFoundError for missing files, CorruptSourceError if no files are stated.
        """
        listed = {item.name: item for item in location.list(folder)}
        stated = [(file, length) for split in self.splits for file, length in zip(split.files, split.lengths)]
        if not stated:
            splits = ", ".join(split.name for split in self.splits)
            message = f"{location.url}/{folder}: dataset_info.json states no files of {splits}"
            raise CorruptSourceError(message, hint="it was written before the dataset was complete")
        numbers = range(len(stated)) if chosen is None else chosen
        wanted = [(one, *(stated[one] if one < len(stated) else (f"file {one}", 0))) for one in numbers]
        absent = [file for _, file, _ in wanted if file not in listed]
        if absent:
            hint = f"dataset_info.json names {len(stated)} files; choose of those that are there with --shards"
            missing = f"{location.url}/{folder} has no {amounts.listed(absent, 3)}"
            error = ObjectNotFoundError(missing, hint=hint)
            error.partly_there = True
            raise error
        return [(number, join_path(folder, file), listed[file], length) for number, file, length in wanted]

    def decided(self, unit: Unit, first: Part) -> Unit:
        assert isinstance(unit, EpisodesUnit)
        return replace(unit, reader=replace(self.reader, last_row=_last_row(first.about)))

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        facts = super().facts(parts, episodes)
        if not self.first_decides:
            return facts
        first = next(part.about for part in parts if part.steps)
        self._decided = _last_row(first)
        if len(self.groups) == 1:
            return facts
        what = "a step" if self._decided == "step" else "an observation, not a step"
        decided = f"of all files was decided by {first['objects'][0]['name']}, the first with a step"
        note = f"What the last row of a terminated episode is ({what}) {decided}; --last-row states it."
        return replace(facts, notes=[*facts.notes, note])

    def spaces(self) -> dict[str, Any]:
        return {base: space for base in ("observation", "action") if (space := self._stated_space(base))}

    # -- what the manifest says ----------------------------------------------------------------------------------------

    def _stated_space(self, base: str) -> Json | None:
        """The space of the leaves at and below a key; None where the features state no bounds of any of them."""
        features = {self.reader.keys.get(feature.name): feature for feature in self.reader.features}
        leaves = {column.key: column for column in self.columns if _is_in(column.key, base)}
        if not any(key in features and features[key].has_bounds for key in leaves):
            return None
        return nested_space({key: _space(column, features.get(key)) for key, column in leaves.items()}, base)

    def identity(self) -> dict[str, Any]:
        described = [record["crc32c"] for _, record in self.described]
        return {**super().identity(), "described": described, "splits": [split.name for split in self.splits]}

    def unverified(self) -> list[str]:
        """The two files of JSON alone: records have checksums."""
        files = {raw.path for raw, _ in self.described}
        return [path for path in super().unverified() if path in files]

    def describe(self) -> dict[str, Any]:
        found = super().describe()
        options = {**found["options"], "last_row": self._decided, "split": "+".join(one.name for one in self.splits)}
        about = {"name": self.info.name, "version": self.info.version, "description": self.info.description}
        more = {"jpeg": "Pillow"} if any(one.kind == "picture" for one in self.reader.features) else {}
        return {**found, "options": options, "metadata": about, "keys": self.renamed, "left_out": self.left_out, **more}


def _last_row(first: Mapping[str, Any]) -> LastRow:
    """What the last rows of terminated episodes are in a file, by what its unit says of itself."""
    return "step" if first["counts"].get("kept_last_rows") else "observation"


def _chosen(
    features: Sequence[TfdsFeature], options: Mapping[str, Any]
) -> tuple[tuple[TfdsFeature, ...], dict[str, str]]:
    """The features to store, and those that are not, with the reason. Raises UsageError for names of unknown features."""
    unwanted = [name.strip().strip("/") for name in (options["leave_out"] or "").split(",") if name.strip()]
    short = {feature.name: feature.name.removeprefix(f"{STEPS}/") for feature in features}
    counts = Counter(short.values())
    # A feature of the steps and one of the episode may have the same name.
    names = {name: name if counts[one] > 1 else one for name, one in short.items()}
    meant = {one: {name for name in names if _is_in(name, one) or _is_in(short[name], one)} for one in unwanted}
    for one, some in meant.items():
        if not some:
            message = f"there is no feature {one} to leave out"
            raise UsageError(message, hint=f"features: {', '.join(names.values())}")
    left_out = {}
    for feature in features:
        if any(feature.name in some for some in meant.values()):
            left_out[names[feature.name]] = "left out as asked"
        elif feature.kind == "text" and options["text"] == "omit":
            left_out[names[feature.name]] = "text, left out as asked"
    kept = tuple(feature for feature in features if names[feature.name] not in left_out)
    odd = next((one.name for one in kept if one.name in (_REWARD, *_FLAGS) and not one.is_number), None)
    if odd is not None:
        raise UsageError(f"{odd} is not one number a step", hint=f"name {names[odd]} in --leave-out to read the rest")
    if not any(is_observation(short[feature.name]) for feature in kept):
        raise UsageError("no observation is left to store", hint=f"features: {', '.join(names.values())}")
    return kept, left_out


# -- episodes ------------------------------------------------------------------------------------------------------------


def leaf_keys(features: tuple[TfdsFeature, ...]) -> dict[str, str]:
    """The leaf of each feature by its name; rewards and flags have none. Raises SchemaError if two collide."""
    names = {}
    for feature in features:
        top, _, rest = feature.name.partition("/")
        if top != STEPS:
            beside = f"{STEPS}/{feature.name}"
            twice = any(_is_in(one.name, beside) or _is_in(beside, one.name) for one in features)
            names[feature.name] = f"info/{'episode_' * twice}{feature.name}"
        elif rest.partition("/")[0] in ("observation", "action"):
            names[feature.name] = rest
        elif rest not in ("is_first", *_ENDS) and feature.name != _REWARD:
            names[feature.name] = f"info/{rest}"
        if feature.items == -1 and feature.name in names:
            names[f"{feature.name}/length"] = f"{names[feature.name]}_length"
    keys = clean_keys(names.values())
    return {name: keys[key] for name, key in names.items()}


@dataclass(frozen=True)
class RldsEpisodes(EpisodeReader):
    """Reads one TFRecord file.

    ``keys`` are `leaf_keys`; features without one are not read. ``lengths`` are the numbers of records by file, as far as they
    are stated. ``most`` is the longest text in bytes, and the longest sequence in elements, that a row holds.
    """

    features: tuple[TfdsFeature, ...]
    keys: Mapping[str, str]
    lengths: Mapping[str, int]
    most: int
    last_row: LastRow = "auto"

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        last_row, found = self.last_row, 0
        if last_row == "auto":
            real = any(self._ends_with_a_step(lists, where) for where, lists in _records(raw))
            last_row = "step" if real else "observation"
        for where, lists in _records(raw):
            found += 1
            episode = self._episode(lists, where, last_row == "step", raw.counts)
            if episode is not None:
                yield episode
        stated = self.lengths.get(raw.name)
        if stated not in (None, found):
            message = f"{raw.name} holds {amounts.plural(found, 'episode')}, {stated} belong to it"
            raise CorruptSourceError(message, hint="it is cut short, or of another version; fetch it again")

    def _episode(self, lists: Lists, where: str, keep: bool, counts: Counter[str]) -> Episode | None:
        """An episode, None for a record without a row; ``keep``: the last row of a terminal one is a step."""
        row, once = self._read(lists, where)
        rows = next(iter(row.values())).count
        if not rows:
            counts["empty_episodes"] += 1
            return None
        is_last, is_terminal = (_flags(row.get(name), rows, name == _FLAGS[0]) for name in _FLAGS)
        terminal, last = bool(is_terminal[-1]), bool(is_last[-1])
        # A few writers mark the row before the last: the transition that ended it, not the state that it ended in.
        terminated = bool(is_terminal[-2:].any())
        kept = keep and terminal
        steps = rows - (not kept)
        counts["kept_last_rows"] += kept
        counts["blank_successors"] += kept or (terminal and _ends_blank(row))
        counts["unused_last_rows"] += terminal and not kept and _is_real(row)
        counts["given_up_steps"] += not terminal and _has_reward(row)
        counts["early_ends"] += bool(is_last[:-1].any())
        counts["cut_episodes"] += not (last or terminated)
        counts["episodes_without_rewards"] += _REWARD not in row
        states: dict[str, Rows] = {}
        actions: dict[str, Rows] = {}
        for name, values in row.items():
            if name not in self.keys:
                continue
            picture = values.feature.kind == "picture" and not _is_in(name, _ACTION)
            if picture or _is_in(name, _OBSERVATION):
                states.update({key: state_rows(leaf) for key, leaf in self._leaves(values, rows)})
            else:
                actions.update(self._leaves(values, steps))
        for values in once.values():
            actions.update(self._leaves(values, steps))
        reward = row.get(_REWARD)
        rewards = np.zeros(rows, np.float32) if reward is None else reward.elements().reshape(rows)
        return Episode(states, actions, rewards[:steps], terminated, last and not terminated, is_blank=kept)

    def _read(self, lists: Lists, where: str) -> tuple[dict[str, Values], dict[str, Values]]:
        """The values of the steps, and of the episode, by name. Raises CorruptSourceError for unequal lengths."""
        read = [feature for feature in self.features if feature.name in self.keys or feature.name in _READ]
        every = {feature.name: read_values(lists, feature, where) for feature in read}
        row = {name: values for name, values in every.items() if values.feature.in_steps}
        once = {name: values for name, values in every.items() if name not in row}
        few, many = (choose(row, key=lambda name: row[name].count) for choose in (min, max))
        if row[few].count != row[many].count:
            counted = f"{row[many].count} rows of {many}, and {row[few].count} of {few}"
            raise CorruptSourceError(f"{where}: {counted}")
        for name, values in once.items():
            if values.count != 1:
                raise CorruptSourceError(f"{where}: {values.count} values of {name}, not one")
        return row, once

    def _ends_with_a_step(self, lists: Lists, where: str) -> bool:
        """Whether the last row of a terminal episode is a step."""
        row, _ = self._read(lists, where)
        terminal = row.get(f"{STEPS}/is_terminal")
        return terminal is not None and terminal.count > 0 and bool(terminal.elements()[-1].any()) and _is_real(row)

    def _leaves(self, values: Values, rows: int) -> Iterator[tuple[str, Rows]]:
        """The first rows of a feature by their leaf. A feature of the episode has its value in each row."""
        feature, key, hint = values.feature, self.keys[values.feature.name], _LONGER.format(self.most)
        shape, dtype, blocks, content = values.shape, _leaf_dtype(feature), values.blocks(), values.content
        if feature.kind == "text" and not isinstance(content, np.ndarray):
            shape, bounds = (self.most,), row_blocks(len(content), self.most)
            blocks = (text_rows(content[low:high], self.most, values.where, hint) for low, high in bounds)
        elif values.lengths is not None:
            shape, blocks = (self.most, *shape), values.padded(self.most, hint)
            yield self.keys[f"{feature.name}/length"], values.lengths[:rows]
        if not feature.in_steps:
            blocks = _repeated(blocks, rows)
        stored = (cast_rows(block, dtype, values.where) for block in blocks)
        yield key, LazyRows(dtype, shape, _first(stored, rows))


_LONGER = (
    "a row holds {} bytes of a text, and elements of a sequence: give a larger --max-length, or leave the feature out "
    "(--leave-out)"
)


def _records(raw: RawInput) -> Iterator[tuple[str, Lists]]:
    """Where each record is, and its lists."""
    with raw.file.open("rb") as file:
        for record in read_records(iter(lambda: file.read(1 << 20), b""), raw.name, os.fstat(file.fileno()).st_size):
            where = f"{raw.name}: record {record.number} (at byte {record.offset})"
            try:
                lists = Lists(record.payload)
            except WireError as error:
                message = f"{where} is not a tf.train.Example: {error}"
                raise CorruptSourceError(message, hint="the file was not written by tensorflow-datasets") from error
            del record  # its lists have all that is needed
            yield where, lists


def _is_in(name: str, folder: str) -> bool:
    return f"{name}/".startswith(f"{folder}/")


def _flags(values: Values | None, rows: int, default: bool) -> np.ndarray:
    """A flag of each row; if it is missing, False, but ``default`` in the last row."""
    if values is not None:
        return np.asarray(values.elements().reshape(rows, -1).any(1))
    flags = np.zeros(rows, bool)
    flags[-1] = default
    return flags


# -- the last row --------------------------------------------------------------------------------------------------------


def _is_real(row: Mapping[str, Values]) -> bool:
    """Whether reward or action of the last row are not zero, which by the specification mean nothing.

    An action alone counts unless its discount is 0: RL Unplugged's suites leave the action of the last row as it was.
    """
    if _has_reward(row):
        return True
    if _DISCOUNT in row and not row[_DISCOUNT].elements()[-1].any():
        return False
    return any(_ends_with(values) for name, values in row.items() if _is_in(name, _ACTION))


def _has_reward(row: Mapping[str, Values]) -> bool:
    return _REWARD in row and _ends_with(row[_REWARD])


def _ends_with(values: Values) -> bool:
    """Whether the last value is a number other than zero."""
    return values.feature.kind in ("numbers", "encoded") and bool(values.last().any())


def _ends_blank(row: Mapping[str, Values]) -> bool:
    """Whether the last observation is zeros throughout: D4RL in TensorFlow Datasets invents it."""
    observed = [values for name, values in row.items() if _is_in(name, _OBSERVATION)]
    return bool(observed) and not any(values.feature.kind == "picture" or _ends_with(values) for values in observed)


# -- rows ----------------------------------------------------------------------------------------------------------------


def _space(column: Column, feature: TfdsFeature | None) -> Json:
    """The space of a leaf, with the bounds that its feature states, if it has one and they are of its dtype."""
    if feature is not None and feature.classes is not None:
        return {"type": "Discrete", "n": feature.classes, "start": 0}
    low, high = (None, None) if feature is None else (feature.low, feature.high)
    return box_json(column.dtype, column.shape, _bound(low, column.dtype), _bound(high, column.dtype))


def _bound(value: float | None, dtype: str) -> Any:
    with suppress(LossyCastError):
        return None if value is None else cast(np.array([value]), dtype)
    return None


def _leaf_dtype(feature: TfdsFeature) -> str:
    return "int64" if feature.dtype == "uint64" else stored_dtype(feature.dtype, feature.name)


def _repeated(blocks: Iterator[np.ndarray], rows: int) -> Iterator[np.ndarray]:
    """The one value of an episode in each of its rows."""
    value = np.concatenate(list(blocks))
    for low, high in row_blocks(rows, value.nbytes):
        yield np.broadcast_to(value, (high - low, *value.shape[1:]))


def _first(blocks: Iterator[np.ndarray], rows: int) -> Iterator[np.ndarray]:
    """The first rows; all blocks are read."""
    for block in blocks:
        if rows:
            yield block[:rows]
        rows -= min(rows, len(block))
