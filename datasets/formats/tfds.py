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

import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from math import isnan, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...errors import CorruptSourceError, UsageError
from .limits import LARGEST_ROW, REFETCH, check_row_bytes
from .pictures import decode_pictures, encode_png, picture_size
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
_NO_ROWS = {"audio": "sound", "video": "a video", "translation": "a translation"}


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
    record = _json(data, where)
    found = str(record.get("fileFormat") or _FORMAT).lower()
    if found != _FORMAT:
        message = f"{where}: the files are of format {found}; rbdata reads {_FORMAT}"
        raise UsageError(message, hint="let tensorflow-datasets write it once more with file_format='tfrecord'")
    try:
        name = str(record["name"])
        splits = {str(one["name"]): _split(name, one) for one in record.get("splits") or []}
        if not splits:
            raise ValueError("it has no splits")
        licence = (record.get("redistributionInfo") or {}).get("license")
        version, description, citation = (str(record.get(key) or "") for key in ("version", "description", "citation"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{where} is not what tensorflow-datasets writes: {type(error).__name__}: {error}"
        raise CorruptSourceError(message, hint=REFETCH) from error
    return TfdsInfo(name, version, splits, description, citation, str(licence or ""))


def _split(dataset: str, record: Mapping[str, Any]) -> Split:
    lengths = [int(length) for length in record.get("shardLengths") or []]
    if any(length < 0 for length in lengths):
        raise ValueError("shardLengths has a negative number")
    name, count = str(record["name"]), f"{len(lengths):05d}"
    stated = {"DATASET": dataset, "SPLIT": name, "FILEFORMAT": _FORMAT, "NUM_SHARDS": count}
    files = []
    for number in range(len(lengths)):
        values = {**stated, "SHARD_INDEX": f"{number:05d}", "SHARD_X_OF_Y": f"{number:05d}-of-{count}"}
        template = str(record.get("filepathTemplate") or _TEMPLATE)
        files.append(re.sub(r"{(\w+)}", partial(_value_of, values), template))
    return Split(name, files, lengths)


def _value_of(values: dict[str, str], match: re.Match[str]) -> str:
    return values.get(match[1], match[0])


# -- features.json -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TfdsFeature:
    """What a key of a record holds: of ``name``, in every step or (not ``in_steps``) once an episode.

    ``shape`` and ``dtype`` are those of a value; a picture may not state its height and width (None). With ``items`` a value is
    a sequence of such values: of this length, or of any length (-1); ``ragged``: its elements are in one list with the elements
    of all other values. ``packed``: encoded with zlib. ``low``, ``high``, ``classes``: the bounds that are stated, and the
    number of classes of a label.
    """

    name: str
    in_steps: bool
    kind: Kind
    dtype: str
    shape: tuple[int | None, ...]
    items: int | None = None
    ragged: bool = False
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
    record = _json(data, where)
    try:
        if "featuresDict" not in record:
            raise ValueError("it has no featuresDict")
        every = list(_walk(record, "", []))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        message = f"{where} is not what tensorflow-datasets writes: {type(error).__name__}: {error}"
        raise CorruptSourceError(message, hint=REFETCH) from error
    found = tuple(one for _, one in every if isinstance(one, TfdsFeature))
    if not any(feature.in_steps for feature in found):
        message = f"{where} describes no episodes: it has no {STEPS}"
        raise CorruptSourceError(message, hint="only datasets in the layout of RLDS can be read")
    return Features(found, {name: why for name, why in every if isinstance(why, str)})


def _walk(feature: Mapping[str, Any], name: str, items: list[int]) -> Iterator[tuple[str, TfdsFeature | str]]:
    """The features below one, or why they have no rows; ``items`` are the lengths of the sequences around it, without that of
    steps. Raises ValueError for an unknown feature."""
    inner = feature.get("featuresDict")
    if inner is not None:
        for key, one in (inner.get("features") or {}).items():
            yield from _walk(one, f"{name}/{key}" if name else str(key), items)
    elif "sequence" in feature:
        around = items if name == STEPS else [*items, int(feature["sequence"].get("length") or -1)]
        yield from _walk(feature["sequence"]["feature"], name, around)
    elif "text" in feature:
        yield name, _described(name, items, "text", {"dtype": "uint8"})
    elif known := [key for key in _BASIC if key in feature]:
        kind, defaults = _BASIC[known[0]]
        yield name, _described(name, items, kind, {**defaults, **feature[known[0]]})
    elif known := [key for key in _NO_ROWS if key in feature]:
        yield name, f"it is {_NO_ROWS[known[0]]}"
    else:
        raise ValueError(f"{name} is a {feature.get('pythonClassName') or 'feature of no kind'}, which is not known")


#: What holds values, and what is not stated about them.
_BASIC: dict[str, tuple[Kind, dict[str, Any]]] = {
    "image": ("picture", {"dtype": "uint8"}),
    "classLabel": ("numbers", {"dtype": "int64"}),
    "boundingBox": ("numbers", {"dtype": "float32", "shape": {"dimensions": [4]}}),
    "tensor": ("numbers", {}),
}


def _described(name: str, items: list[int], kind: Kind, content: Mapping[str, Any]) -> TfdsFeature | str:
    in_steps, dtype = name.partition("/")[0] == STEPS, str(content["dtype"])
    sizes = map(int, (content.get("shape") or {}).get("dimensions") or [])
    shape = tuple(None if size < 0 else size for size in sizes)
    encoding, ragged = str(content.get("encoding") or "none").lower(), bool(items)
    if dtype in ("string", "object") and not shape:
        kind, dtype = "text", "uint8"
    if kind == "picture":
        shape = shape or (None, None, 3)
    if kind == "numbers" and encoding != "none":
        kind = "encoded"
        if encoding not in ("bytes", "zlib"):
            raise ValueError(f"{name} has the encoding {encoding}, which is not known")
    if kind == "encoded" and shape[:1] == (None,) and not items:
        items, shape = [-1], shape[1:]  # each string has its own length
    reasons = {
        f"its dtype is {dtype}": dtype not in _DTYPES,
        f"its pictures have shape {list(shape)}": kind == "picture" and (len(shape) != 3 or shape[2] is None),
        "it is a picture of a whole episode": kind == "picture" and not in_steps,
        "it is a sequence of sequences": len(items) > 1,
        "it is a sequence of a whole episode": bool(items) and not in_steps,
        f"it is a sequence of {kind}s": bool(items) and kind in ("text", "picture"),
        f"its shape {list(shape)} is not fixed": kind != "picture" and None in shape,
        f"its shape {list(shape)} is empty": 0 in shape or items == [0],
    }
    for why, holds in reasons.items():
        if holds:
            return why
    low, high = (_number(content.get(side)) for side in ("minimum", "maximum"))
    classes = int(content.get("numClasses") or 0)
    stated = (low, high, classes if 0 < classes < 1 << 31 and not items else None)
    one = TfdsFeature(
        name, in_steps, kind, dtype, shape, items[0] if items else None, ragged, encoding == "zlib", *stated
    )
    if one.row_bytes * max(1, one.items or 1) > LARGEST_ROW:
        raise ValueError(f"a value of {name} has {one.row_bytes} bytes, the largest that is read has {LARGEST_ROW}")
    return one


def _number(value: Any) -> float | None:
    return None if value is None or isnan(float(value)) else float(value)


def _json(data: bytes, where: str) -> Any:
    try:
        record = json.loads(data)
    except ValueError as error:
        raise CorruptSourceError(f"{where} is not JSON: {error}", hint=REFETCH) from error
    if not isinstance(record, dict):
        raise CorruptSourceError(f"{where} is not what tensorflow-datasets writes", hint=REFETCH)
    return record


# -- values of a record ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """The values of a feature in one record: ``count`` of them.

    ``content``: numbers ``[count, *shape]``, or strings that are not decoded yet. For sequences, ``lengths`` ``[count]`` are
    the numbers of elements, all of which are in ``content``, one after the other.
    """

    feature: TfdsFeature
    where: str
    content: np.ndarray | list[bytes]
    lengths: np.ndarray | None = None

    @property
    def strings(self) -> list[bytes]:
        """Those that are not decoded yet."""
        return [] if isinstance(self.content, np.ndarray) else self.content

    @property
    def count(self) -> int:
        return len(self.content if self.lengths is None else self.lengths)

    def elements(self) -> np.ndarray:
        """All values, or all elements of them, ``[n, *shape]``. Raises CorruptSourceError."""
        if isinstance(self.content, np.ndarray):
            return self.content
        return np.concatenate([np.empty((0, *self.shape), self.feature.dtype), *self.blocks()])

    def blocks(self) -> Iterator[np.ndarray]:
        """Encoded tensors, or pictures, in blocks. Raises CorruptSourceError."""
        feature = self.feature
        if feature.kind == "picture":
            yield from decode_pictures(self.strings, self.shape, feature.dtype, self.where)
            return
        size, tensors = max(1, _BLOCK_BYTES // feature.row_bytes), self._tensors()
        while some := list(islice(tensors, size)):
            yield np.concatenate(some)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value, or of an element; for pictures that do not state it, the shape of the first picture."""
        shape = self.feature.shape
        if None in shape and self.strings:
            found = picture_size(self.strings[0], f"{self.where}: picture 0")
            shape = (*(size or seen for size, seen in zip(shape, found)), shape[2])
            check_row_bytes(prod(size or 1 for size in shape) * np.dtype(self.feature.dtype).itemsize, self.where)
        return tuple(size or 0 for size in shape)

    def last(self) -> np.ndarray:
        """The last value, ``[1, *shape]``, or all elements of it. Not for pictures. Raises CorruptSourceError."""
        if self.strings and self.lengths is None:
            return replace(self, content=self.strings[-1:]).elements()
        elements = self.elements()
        return elements[len(elements) - (1 if self.lengths is None else int(self.lengths[-1])) :]

    def sizes(self) -> np.ndarray:
        """The numbers of elements of sequences, int64 ``[count]``. Raises CorruptSourceError."""
        if self.lengths is not None:
            return self.lengths
        return np.array([len(block) for block in self._tensors()], np.int64)

    def padded(self, most: int, hint: str) -> Iterator[np.ndarray]:
        """Sequences as blocks of rows ``[k, most, *shape]``, each padded with zeros. Raises CorruptSourceError with this hint
        for a longer sequence."""
        sizes, elements = self.sizes(), self.elements()
        if len(sizes) and sizes.max() > most:
            message = f"{self.where}: value {int(sizes.argmax())} has {sizes.max()} elements"
            raise CorruptSourceError(message, hint=hint)
        ends = np.cumsum(sizes)
        for low, high in row_blocks(len(sizes), most * self.feature.row_bytes):
            rows = np.zeros((high - low, most, *self.shape), self.feature.dtype)
            some = slice(int(ends[low] - sizes[low]), int(ends[high - 1]))
            rows[np.arange(most) < sizes[low:high, None]] = elements[some]
            yield rows

    def _tensors(self) -> Iterator[np.ndarray]:
        return (_tensor(one, self.feature, f"{self.where}: value {number}") for number, one in enumerate(self.strings))


def row_blocks(count: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """``count`` rows as runs (low, high) that take little memory."""
    size = max(1, _BLOCK_BYTES // max(1, row_bytes))
    return ((low, min(low + size, count)) for low in range(0, count, size))


def read_values(lists: Lists, feature: TfdsFeature, where: str) -> Values:
    """The values of a feature in a record. Raises CorruptSourceError."""
    key = f"{feature.name}/ragged_flat_values" if feature.ragged else feature.name
    where = f"{where}: {feature.name}"
    try:
        lengths = _lengths(lists, feature.name) if feature.ragged else None
        if feature.kind == "numbers":
            values = Values(feature, where, _numbers(lists, key, feature), lengths)
        else:
            values = Values(feature, where, lists.strings(key), lengths)
    except KeyError as error:
        raise CorruptSourceError(f"{where} is missing", hint=REFETCH) from error
    except (WireError, ValueError) as error:
        raise CorruptSourceError(f"{where}: {error}", hint=REFETCH) from error
    held = len(values.content)
    if lengths is not None and lengths.sum() != held:
        raise CorruptSourceError(f"{where} states {lengths.sum()} elements, and has {held}", hint=REFETCH)
    if lengths is not None and feature.items != -1 and (lengths != feature.items).any():
        raise CorruptSourceError(f"{where} has a sequence of another length than {feature.items}", hint=REFETCH)
    return values


def _lengths(lists: Lists, name: str) -> np.ndarray:
    found = lists.numbers(f"{name}/ragged_row_lengths_0")
    lengths = np.empty(0, np.int64) if found is None else found
    if lengths.dtype != np.int64 or (lengths < 0).any() or (lengths > LARGEST_ROW).any():
        raise ValueError("the lengths of its sequences are no lengths")
    return lengths


def _numbers(lists: Lists, key: str, feature: TfdsFeature) -> np.ndarray:
    dtype, found = np.dtype(feature.dtype), lists.numbers(key)
    values = np.empty(0, dtype) if found is None else _cast(found, dtype)
    shape = tuple(one or 0 for one in feature.shape)
    if len(values) % prod(shape):
        raise ValueError(f"it has {len(values)} numbers, {prod(shape)} belong to a value")
    return values.reshape(-1, *shape)


def _cast(found: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers of a record in the dtype of their feature. Raises ValueError for numbers that the dtype cannot hold."""
    if (found.dtype.kind == "f") != (dtype.kind == "f"):
        raise ValueError(f"it has {found.dtype} numbers, its dtype is {dtype}")
    if dtype == np.uint64:
        return found.view(np.uint64)
    with np.errstate(over="ignore"):
        stored = found.astype(dtype)
    if dtype.kind != "f" and (stored != found).any():
        raise ValueError(f"{found[stored != found][0]} does not fit {dtype}")
    return stored


def _tensor(data: bytes, feature: TfdsFeature, where: str) -> np.ndarray:
    """One encoded value, as ``[1, *shape]``, or its elements."""
    shape = tuple(size or 0 for size in feature.shape)
    most = LARGEST_ROW if feature.items == -1 else feature.row_bytes
    if feature.packed:
        unpack = zlib.decompressobj()
        try:
            # One byte more than there can be: a small value that unpacks to gigabytes gets no further.
            content = unpack.decompress(data, most + 1)
        except zlib.error as error:
            raise CorruptSourceError(f"{where} is damaged: {error}", hint=REFETCH) from error
        whole = unpack.eof
    else:
        content, whole = data, True
    fits = len(content) % feature.row_bytes == 0 if feature.items == -1 else len(content) == feature.row_bytes
    if not whole or not fits or len(content) > most:
        raise CorruptSourceError(f"{where} has {len(content)} bytes, not {feature.row_bytes}", hint=REFETCH)
    return np.frombuffer(content, np.dtype(feature.dtype).newbyteorder("<")).reshape(-1, *shape)


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
        size = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        if self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in (1, 3, 4):
            return "png"
        if self.dtype != "float32" and size >= _LARGE:
            return "zlib"
        return "bytes" if self.dtype == "float64" else "none"

    def to_json(self) -> dict[str, Any]:
        shape = {"dimensions": [str(size) for size in self.shape]} if self.shape else {}
        if self.encoding == "png":
            about = {"shape": shape, "dtype": self.dtype, "encodingFormat": "png"}
            return {"pythonClassName": f"{_CLASSES}.image_feature.Image", "image": about}
        about = {"shape": shape, "dtype": self.dtype, "encoding": self.encoding}
        return {"pythonClassName": f"{_CLASSES}.tensor_feature.Tensor", "tensor": about}

    def encode(self, rows: np.ndarray) -> list[bytes]:
        """Values ``[n, *shape]`` as byte strings, for the encodings other than none."""
        if self.encoding == "png":
            return [encode_png(row) for row in rows]
        plain = [np.ascontiguousarray(row, np.dtype(self.dtype).newbyteorder("<")).tobytes() for row in rows]
        return [zlib.compress(one) for one in plain] if self.encoding == "zlib" else plain


class EpisodeFolder:
    """Writes a dataset of one split, ``train``. A record is held in memory, encoded, until it is complete: its length comes
    first."""

    def __init__(self, folder: Path, name: str, version: str, features: Sequence[WrittenFeature]) -> None:
        self._folder, self._name, self._version, self._features = folder, name, version, features
        self._lengths: list[int] = []
        self._bytes = 0
        self._file: io.BufferedWriter | None = None
        folder.mkdir(parents=True)

    def add(self, lists: Mapping[str, Value]) -> None:
        """Append an episode: the list of each feature, by its path."""
        record = encode_record(encode_example({f"{STEPS}/{name}": values for name, values in lists.items()}))
        if self._file is None or self._file.tell() >= _FILE_BYTES:
            self._close()
            self._file = (self._folder / f"{len(self._lengths):05d}").open("wb")
            self._lengths.append(0)
        self._bytes += self._file.write(record)
        self._lengths[-1] += 1

    def finish(self, description: str, citation: str | None) -> None:
        """Name the files, and describe them."""
        self._close()
        count = len(self._lengths)
        for number in range(count):
            name = f"{self._name}-train.tfrecord-{number:05d}-of-{count:05d}"
            (self._folder / f"{number:05d}").rename(self._folder / name)
        split = {
            "name": "train",
            "filepathTemplate": _TEMPLATE,
            "numBytes": str(self._bytes),
            "shardLengths": [str(length) for length in self._lengths],
        }
        about = {"name": self._name, "version": self._version, "fileFormat": _FORMAT, "splits": [split]}
        about |= {"moduleName": "rbdata", "description": description} | ({"citation": citation} if citation else {})
        steps = {"feature": _tree(self._features), "length": "-1"}
        top = {STEPS: {"pythonClassName": f"{_CLASSES}.dataset_feature.Dataset", "sequence": steps}}
        for name, record in (("dataset_info.json", about), ("features.json", _dictionary(top))):
            (self._folder / name).write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def _tree(features: Sequence[WrittenFeature]) -> dict[str, Any]:
    """``features.json`` of features with these paths."""
    nested: dict[str, list[WrittenFeature]] = {}
    for feature in features:
        top, _, rest = feature.name.partition("/")
        nested.setdefault(top, []).append(replace(feature, name=rest))
    return _dictionary({top: _tree(some) if some[0].name else some[0].to_json() for top, some in nested.items()})


def _dictionary(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_CLASSES}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
