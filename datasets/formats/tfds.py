"""Folders of TensorFlow Datasets: what ``dataset_info.json`` and ``features.json`` say, and the values of a record; and a
folder of episodes, written without TensorFlow.

Both files are protocol buffers as JSON (tensorflow/datasets: core/proto/{dataset_info,feature}.proto), whose 64-bit numbers are
strings:

    dataset_info.json   name, version, fileFormat, splits: [{name, filepathTemplate, shardLengths: episodes of each file}]
    features.json       featuresDict.features, by name; each has pythonClassName, and one of
                          featuresDict | sequence {feature, length} | tensor {dtype, shape, encoding, minimum, maximum}
                          | text | image {dtype, shape, ...} | classLabel {numClasses} | boundingBox | audio | video
                          | translation | jsonFeature

A record is a ``tf.train.Example``, whose keys are the names joined by ``/`` (core/example_serializer.py). The values of all
elements of a sequence follow each other in one list; the length of the sequence is that of the list. Booleans and whole numbers
are int64 (uint64 by its bits), floating-point numbers float32, text, pictures and encoded tensors byte strings. A sequence
inside a sequence, ``key``, is ``key/ragged_flat_values`` and ``key/ragged_row_lengths_0``, of fixed length or not.

A record may have more keys than ``features.json``; they are not read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isnan, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...errors import CorruptSourceError, UsageError, reason
from .limits import REFETCH, check_row_bytes
from .pictures import decode_pictures, encode_png, picture_shape
from .tfrecord import Lists, Value, WireError, encode_example, encode_record

#: The sequence that makes a record an episode.
STEPS = "steps"
Kind = Literal["numbers", "encoded", "picture", "text"]
#: Bytes of encoded values that are decoded at a time.
_BLOCK_BYTES = 8 << 20

_FORMAT, _TEMPLATE = "tfrecord", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
#: What cannot be read as the JSON that it should be raises.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


# -- dataset_info.json -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """One split: its files in order, and the number of episodes in each."""

    name: str
    files: Sequence[str]
    lengths: Sequence[int]


@dataclass(frozen=True)
class TfdsInfo:
    """What ``dataset_info.json`` says."""

    name: str
    version: str
    splits: Mapping[str, Split]
    description: str
    citation: str
    licence: str


def parse_info(data: bytes, where: str) -> TfdsInfo:
    """Raises CorruptSourceError, and UsageError for files of another format than TFRecord."""
    try:
        record = json.loads(data)
        found = str(record.get("fileFormat") or _FORMAT).lower()
        name, splits = record["name"], [_split(record["name"], one) for one in record["splits"]]
        licence = (record.get("redistributionInfo") or {}).get("license") or ""
    except _MALFORMED as error:
        raise _not_tfds(where, error) from error
    if found != _FORMAT:
        message = f"{where}: the files are of format {found}; rbdata reads {_FORMAT}"
        raise UsageError(message, hint="let tensorflow-datasets write it once more with file_format='tfrecord'")
    version, description, citation = (str(record.get(key) or "") for key in ("version", "description", "citation"))
    return TfdsInfo(name, version, {split.name: split for split in splits}, description, citation, str(licence))


def _split(dataset: str, record: Mapping[str, Any]) -> Split:
    name, lengths = record["name"], [int(length) for length in record.get("shardLengths") or []]
    count, files = f"{len(lengths):05d}", []
    for number in range(len(lengths)):
        index, file = f"{number:05d}", str(record.get("filepathTemplate") or _TEMPLATE)
        stated = {"DATASET": dataset, "SPLIT": name, "FILEFORMAT": _FORMAT, "NUM_SHARDS": count}
        for field, value in {**stated, "SHARD_INDEX": index, "SHARD_X_OF_Y": f"{index}-of-{count}"}.items():
            file = file.replace(f"{{{field}}}", value)
        files.append(file)
    return Split(name, files, lengths)


def _not_tfds(where: str, error: Exception) -> CorruptSourceError:
    message = f"{where} is not what tensorflow-datasets writes: {type(error).__name__}: {reason(error)}"
    return CorruptSourceError(message, hint=REFETCH)


# -- features.json -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TfdsFeature:
    """What a key of a record holds: of ``name``, in every step or (not ``in_steps``) once an episode.

    ``shape`` and ``dtype`` are those of a value; a picture may not state its height and width (None). With ``items`` a value is
    a sequence of such values: of this length, or of any length (-1). ``packed``: encoded with zlib. ``low``, ``high``,
    ``classes``: the bounds that are stated, and the number of classes of a label.
    """

    name: str
    in_steps: bool
    kind: Kind
    dtype: str
    shape: tuple[int | None, ...]
    items: int | None = None
    packed: bool = False
    low: float | None = None
    high: float | None = None
    classes: int | None = None

    @property
    def is_number(self) -> bool:
        """Whether a value is one number."""
        return self.kind in ("numbers", "encoded") and self.items is None and self.shape in ((), (1,))

    @property
    def has_bounds(self) -> bool:
        """Whether it states which values it has."""
        return (self.low, self.high, self.classes) != (None, None, None)

    @property
    def row_bytes(self) -> int:
        """Bytes of one value, without its `items`."""
        return prod(size or 1 for size in self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Features:
    """The features that have values of one size, or text; ``left_out`` are all others, and why."""

    features: tuple[TfdsFeature, ...]
    left_out: Mapping[str, str]


def parse_features(data: bytes, where: str) -> Features:
    """Raises CorruptSourceError unless it is the ``features.json`` of episodes with ``steps``, and for unknown features."""
    try:
        every = dict(_walk({"featuresDict": json.loads(data)["featuresDict"]}, "", []))
    except _MALFORMED as error:
        raise _not_tfds(where, error) from error
    found = tuple(one for one in every.values() if isinstance(one, TfdsFeature))
    if not any(feature.in_steps for feature in found):
        message = f"{where} describes no episodes: it has no {STEPS}"
        raise CorruptSourceError(message, hint="only datasets in the layout of RLDS can be read")
    for feature in found:
        check_row_bytes(feature.row_bytes * max(1, feature.items or 1), f"{where}: {feature.name}")
    return Features(found, {name: why for name, why in every.items() if isinstance(why, str)})


#: What holds values: their kind, and what is not stated about them.
_HOLDERS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "text": ("text", {"dtype": "uint8"}),
    "image": ("picture", {"dtype": "uint8"}),
    "classLabel": ("numbers", {"dtype": "int64"}),
    "boundingBox": ("numbers", {"dtype": "float32", "shape": {"dimensions": [4]}}),
    "tensor": ("numbers", {}),
}
_NO_ROWS = {"audio": "sound", "video": "a video", "translation": "a translation"}


def _walk(feature: Mapping[str, Any], name: str, items: list[int]) -> Iterator[tuple[str, TfdsFeature | str]]:
    """The features at and below one by name, or why they have no rows; ``items`` are the lengths of the sequences around it,
    without that of steps. Raises ValueError for an unknown feature."""
    holder = next((key for key in ("featuresDict", "sequence", *_HOLDERS, *_NO_ROWS) if key in feature), None)
    if holder == "featuresDict":
        for key, one in (feature[holder].get("features") or {}).items():
            yield from _walk(one, f"{name}/{key}" if name else key, items)
    elif holder == "sequence":
        inside = items if name == STEPS else [*items, int(feature[holder].get("length") or -1)]
        yield from _walk(feature[holder]["feature"], name, inside)
    elif holder in _HOLDERS:
        kind, defaults = _HOLDERS[holder]
        yield name, _described(name, items, kind, {**defaults, **feature[holder]})
    elif holder:
        yield name, f"it is {_NO_ROWS[holder]}"
    else:
        raise ValueError(f"{name} is a {feature.get('pythonClassName') or 'feature of no kind'}, which is not known")


def _described(name: str, items: list[int], kind: Kind, content: Mapping[str, Any]) -> TfdsFeature | str:
    in_steps, dtype = name.partition("/")[0] == STEPS, content["dtype"]
    sizes = map(int, (content.get("shape") or {}).get("dimensions") or [])
    shape = tuple(None if size < 0 else size for size in sizes)
    encoding = str(content.get("encoding") or "none").lower()
    if kind == "picture":
        shape = shape or (None, None, 3)
    if dtype in ("string", "object") and not shape:
        kind, dtype = "text", "uint8"
    if kind == "numbers" and encoding != "none":
        kind = "encoded"
        if encoding not in ("bytes", "zlib"):
            raise ValueError(f"{name} has the encoding {encoding}, which is not known")
    reasons = {
        f"its dtype is {dtype}": dtype not in _DTYPES,
        f"its pictures have shape {list(shape)}": kind == "picture" and (len(shape) != 3 or shape[2] is None),
        "it is a picture of a whole episode": kind == "picture" and not in_steps,
        "it is a sequence of sequences": len(items) > 1,
        "it is a sequence of a whole episode": bool(items) and not in_steps,
        f"it is a sequence of {kind}{'' if kind == 'encoded' else 's'}": bool(items) and kind != "numbers",
        f"its shape {list(shape)} is not fixed": kind != "picture" and None in shape,
        f"its shape {list(shape)} is empty": 0 in shape or items == [0],
    }
    if why := next((why for why, holds in reasons.items() if holds), None):
        return why
    bounds = (float(content.get(side, "nan")) for side in ("minimum", "maximum"))
    low, high = (None if isnan(bound) else bound for bound in bounds)
    classes = int(content.get("numClasses") or 0)
    has_classes = 0 < classes < 1 << 31 and not items
    count = items[0] if items else None
    return TfdsFeature(
        name, in_steps, kind, dtype, shape, count, encoding == "zlib", low, high, classes if has_classes else None
    )


# -- values of a record ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """The values of a feature in one record, of ``shape`` each.

    ``content``: numbers ``[count, *shape]``, or ``count`` strings that are not decoded yet. For sequences of any length,
    ``lengths`` ``[count]`` are the numbers of elements, all of which are in ``content``, one after the other.
    """

    feature: TfdsFeature
    where: str
    shape: tuple[int, ...]
    content: np.ndarray | list[bytes]
    lengths: np.ndarray | None = None

    @property
    def count(self) -> int:
        return len(self.content if self.lengths is None else self.lengths)

    def blocks(self) -> Iterator[np.ndarray]:
        """All values, or all elements of them, in blocks ``[k, *shape]``. Raises CorruptSourceError."""
        feature, content = self.feature, self.content
        if isinstance(content, np.ndarray):
            yield content
        elif feature.kind == "picture":
            yield from decode_pictures(content, self.shape, feature.dtype, self.where)
        else:
            tensors = (self._tensor(data, number) for number, data in enumerate(content))
            while some := b"".join(islice(tensors, max(1, _BLOCK_BYTES // feature.row_bytes))):
                yield np.frombuffer(some, np.dtype(feature.dtype).newbyteorder("<")).reshape(-1, *self.shape)

    def elements(self) -> np.ndarray:
        """All of `blocks`."""
        return np.concatenate([np.empty((0, *self.shape), self.feature.dtype), *self.blocks()])

    def last(self) -> np.ndarray:
        """The last value, ``[1, *shape]``, or all elements of it. Raises CorruptSourceError."""
        count = 1 if self.lengths is None else int(self.lengths[-1])
        return replace(self, content=self.content[len(self.content) - count :]).elements()

    def padded(self, most: int, hint: str) -> Iterator[np.ndarray]:
        """Sequences as blocks of rows ``[k, most, *shape]``, each padded with zeros. Raises CorruptSourceError with this hint
        for a longer sequence."""
        sizes, elements = np.asarray(self.lengths), self.elements()
        if len(sizes) and sizes.max() > most:
            message = f"{self.where}: value {int(sizes.argmax())} has {sizes.max()} elements"
            raise CorruptSourceError(message, hint=hint)
        ends = np.cumsum(sizes)
        for low, high in row_blocks(len(sizes), most * self.feature.row_bytes):
            rows = np.zeros((high - low, most, *self.shape), self.feature.dtype)
            some = slice(int(ends[low] - sizes[low]), int(ends[high - 1]))
            rows[np.arange(most) < sizes[low:high, None]] = elements[some]
            yield rows

    def _tensor(self, data: bytes, number: int) -> bytes:
        """The bytes of an encoded value. One that unpacks to gigabytes gets one byte further than its size."""
        size, unpack, is_whole = self.feature.row_bytes, zlib.decompressobj(), True
        if self.feature.packed:
            try:
                data = unpack.decompress(data, size + 1)
            except zlib.error as error:
                raise CorruptSourceError(f"{self.where}: value {number} is damaged: {error}", hint=REFETCH) from error
            is_whole = unpack.eof
        if not is_whole or len(data) != size:
            message = f"{self.where}: value {number} has {len(data)} bytes, not {size}"
            raise CorruptSourceError(message, hint=REFETCH)
        return data


def row_blocks(count: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """``count`` rows as runs (low, high) that take little memory."""
    size = max(1, _BLOCK_BYTES // max(1, row_bytes))
    return ((low, min(low + size, count)) for low in range(0, count, size))


def read_values(lists: Lists, feature: TfdsFeature, where: str) -> Values:
    """The values of a feature in a record. Raises CorruptSourceError."""
    name, where = feature.name, f"{where}: {feature.name}"
    try:
        if feature.kind != "numbers":
            strings = lists.strings(name)
            return Values(feature, where, _shape(feature, strings, where), strings)
        shape = _shape(feature, [], where)
        if feature.items is None:
            return Values(feature, where, shape, _numbers(lists, name, feature.dtype, shape))
        elements = _numbers(lists, f"{name}/ragged_flat_values", feature.dtype, shape)
        lengths = _numbers(lists, f"{name}/ragged_row_lengths_0", "int64", ())
        stated, low = sum(lengths.tolist()), min(lengths.tolist(), default=0)
        if stated != len(elements) or low < 0:
            raise ValueError(f"it states {stated} elements in sequences of lengths from {low}, and has {len(elements)}")
        if feature.items == -1:
            return Values(feature, where, shape, elements, lengths)
        if (lengths != feature.items).any():
            raise ValueError(f"a sequence has another length than {feature.items}")
        shape = (feature.items, *shape)
        return Values(feature, where, shape, elements.reshape(-1, *shape))
    except CorruptSourceError:
        raise
    except KeyError as error:
        raise CorruptSourceError(f"{where} is missing", hint=REFETCH) from error
    except (WireError, ValueError) as error:
        raise CorruptSourceError(f"{where}: {error}", hint=REFETCH) from error


def _shape(feature: TfdsFeature, strings: Sequence[bytes], where: str) -> tuple[int, ...]:
    """The shape of a value, or of an element; for pictures that do not state it, the shape of the first picture."""
    shape = feature.shape
    if None in shape and strings:
        found = picture_shape(strings[0], f"{where}: picture 0")
        shape = (*(size or seen for size, seen in zip(shape[:2], found)), shape[2])
        check_row_bytes(prod(size or 1 for size in shape) * np.dtype(feature.dtype).itemsize, where)
    return tuple(size or 0 for size in shape)


def _numbers(lists: Lists, key: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A list of numbers as values ``[n, *shape]``. Raises ValueError for numbers that the dtype cannot hold."""
    found = lists.numbers(key)
    if found is None:
        return np.empty((0, *shape), dtype)
    if (found.dtype.kind == "f") != (np.dtype(dtype).kind == "f"):
        raise ValueError(f"it has {found.dtype} numbers, its dtype is {dtype}")
    with np.errstate(over="ignore"):
        stored = found.view(np.uint64) if dtype == "uint64" else found.astype(dtype)
    if dtype != "uint64" and found.dtype.kind != "f" and (stored != found).any():
        raise ValueError(f"{found[stored != found][0]} does not fit {dtype}")
    if len(stored) % prod(shape):
        raise ValueError(f"it has {len(stored)} numbers, {prod(shape)} belong to a value")
    return stored.reshape(-1, *shape)


# -- writing -----------------------------------------------------------------------------------------------------------

#: A file is closed at this many bytes, about as in TensorFlow Datasets.
_FILE_BYTES = 256 << 20
#: Values of at least this many bytes are packed one by one.
_LARGE = 64
_CLASSES = "tensorflow_datasets.core.features"


@dataclass(frozen=True)
class WrittenFeature:
    """A feature of the steps: ``name`` is a path, ``shape`` that of a value.

    uint8 of height, width and 1, 3 or 4 channels are pictures (PNG). float64, which lists of numbers do not hold, and other
    large values are encoded one by one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def encoding(self) -> Literal["png", "zlib", "bytes", "none"]:
        if self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in (1, 3, 4):
            return "png"
        if self.dtype != "float32" and prod(self.shape) * np.dtype(self.dtype).itemsize >= _LARGE:
            return "zlib"
        return "bytes" if self.dtype == "float64" else "none"

    def to_json(self) -> dict[str, Any]:
        about = {"shape": {"dimensions": [str(size) for size in self.shape]} if self.shape else {}, "dtype": self.dtype}
        if self.encoding == "png":
            return {"pythonClassName": f"{_CLASSES}.image_feature.Image", "image": {**about, "encodingFormat": "png"}}
        tensor = {**about, "encoding": self.encoding}
        return {"pythonClassName": f"{_CLASSES}.tensor_feature.Tensor", "tensor": tensor}

    def encode(self, rows: np.ndarray) -> list[bytes]:
        """Values ``[n, *shape]`` as byte strings, for the encodings other than none."""
        if self.encoding == "png":
            return [encode_png(row) for row in rows]
        plain = [row.astype(np.dtype(self.dtype).newbyteorder("<")).tobytes() for row in rows]
        return [zlib.compress(one) for one in plain] if self.encoding == "zlib" else plain


class EpisodeFolder:
    """Writes a dataset of one split, ``train``. A record is held in memory, encoded, until it is complete: its length comes
    first."""

    def __init__(self, folder: Path, name: str, version: str, features: Sequence[WrittenFeature]) -> None:
        self._folder, self._name, self._version, self._features = folder, name, version, features
        #: Episodes and bytes of each file. Until their number is known, the last part of their names is missing.
        self._lengths, self._bytes = list[int](), list[int]()
        folder.mkdir(parents=True)

    def add(self, lists: Mapping[str, Value]) -> None:
        """Append an episode: the list of each feature, by its path."""
        record = encode_record(encode_example({f"{STEPS}/{name}": values for name, values in lists.items()}))
        if not self._bytes or self._bytes[-1] >= _FILE_BYTES:
            self._lengths.append(0)
            self._bytes.append(0)
        with self._file(len(self._lengths) - 1).open("ab") as file:
            file.write(record)
        self._lengths[-1] += 1
        self._bytes[-1] += len(record)

    def finish(self, description: str, citation: str | None) -> None:
        """Name the files, and describe them."""
        for number in range(len(self._lengths)):
            file = self._file(number)
            file.rename(f"{file}-of-{len(self._lengths):05d}")
        split: dict[str, Any] = {"name": "train", "filepathTemplate": _TEMPLATE, "numBytes": str(sum(self._bytes))}
        split["shardLengths"] = [str(length) for length in self._lengths]
        about = {"name": self._name, "version": self._version, "fileFormat": _FORMAT, "splits": [split]}
        about |= {"moduleName": "rbdata", "description": description} | ({"citation": citation} if citation else {})
        features: dict[str, Any] = {}
        for feature in self._features:
            *folders, last = feature.name.split("/")
            inside = features
            for folder in folders:
                inside = inside.setdefault(folder, _dictionary({}))["featuresDict"]["features"]
            inside[last] = feature.to_json()
        steps = {"feature": _dictionary(features), "length": "-1"}
        top = {STEPS: {"pythonClassName": f"{_CLASSES}.dataset_feature.Dataset", "sequence": steps}}
        for name, record in (("dataset_info.json", about), ("features.json", _dictionary(top))):
            (self._folder / name).write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _file(self, number: int) -> Path:
        return self._folder / f"{self._name}-train.tfrecord-{number:05d}"


def _dictionary(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_CLASSES}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
