"""A folder of TensorFlow Datasets with episodes, written without TensorFlow; `tfds` describes the layout.

A record is held in memory, encoded, until it is complete: its length comes first.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .pictures import encode_png
from .tfds import STEPS
from .tfrecord import masked_crc32c

#: A file is closed at this many bytes, about as in TensorFlow Datasets.
_FILE_BYTES = 256 << 20
#: Values of at least this many bytes are packed one by one.
_LARGE = 64
_CLASSES = "tensorflow_datasets.core.features"
#: Parts of a message, one after the other.
Pieces = list[bytes]


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
    """Writes a dataset of one split, ``train``."""

    def __init__(self, folder: Path, name: str, version: str, features: Sequence[WrittenFeature]) -> None:
        self._folder, self._name, self._version, self._features = folder, name, version, features
        self._lengths: list[int] = []
        self._bytes = 0
        self._file: io.BufferedWriter | None = None
        folder.mkdir(parents=True)

    def add(self, lists: Mapping[str, Pieces]) -> None:
        """Append an episode: the list of each feature, by its path, as `strings` or `numbers` encode it."""
        entries: Pieces = []
        for name, content in lists.items():
            entries += _field(1, [*_field(1, [f"{STEPS}/{name}".encode()]), *_field(2, content)])
        if self._file is None or self._file.tell() >= _FILE_BYTES:
            self._close()
            self._file = (self._folder / f"{len(self._lengths):05d}").open("wb")
            self._lengths.append(0)
        self._bytes += _write_record(self._file, _field(1, entries))
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
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "numBytes": str(self._bytes),
            "shardLengths": [str(length) for length in self._lengths],
        }
        about = {"name": self._name, "version": self._version, "fileFormat": "tfrecord", "splits": [split]}
        about |= {"moduleName": "rbdata", "description": description} | ({"citation": citation} if citation else {})
        steps = {"feature": _tree(self._features), "length": "-1"}
        top = {STEPS: {"pythonClassName": f"{_CLASSES}.dataset_feature.Dataset", "sequence": steps}}
        for name, record in (("dataset_info.json", about), ("features.json", _dictionary(top))):
            (self._folder / name).write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def _tree(features: Sequence[WrittenFeature]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for feature in features:
        inner = nested
        *above, last = feature.name.split("/")
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = feature
    return _described(nested)


def _described(nested: Mapping[str, Any]) -> dict[str, Any]:
    return _dictionary(
        {name: _described(one) if isinstance(one, dict) else one.to_json() for name, one in nested.items()}
    )


def _dictionary(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_CLASSES}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


# -- protocol buffers ----------------------------------------------------------------------------------------------------


def strings(values: Iterable[bytes]) -> Pieces:
    """A Feature of byte strings."""
    return _field(1, [piece for value in values for piece in _field(1, [value])])


def numbers(values: np.ndarray) -> Pieces:
    """A Feature of all values, floating-point numbers as float32."""
    flat = values.reshape(-1)
    if flat.dtype.kind == "f":
        return _field(2, _field(1, [flat.astype("<f4").tobytes()]))
    pieces = [_varints(flat[at : at + (1 << 16)].astype(np.int64)) for at in range(0, len(flat), 1 << 16)]
    return _field(3, _field(1, pieces))


def _varints(values: np.ndarray) -> bytes:
    """Whole numbers ``[n]``, int64, each as `_varint` encodes it."""
    bits = values.view(np.uint64)
    if (bits < 128).all():  # flags, and most discrete actions
        return bits.astype(np.uint8).tobytes()
    lengths = 1 + sum((bits >= np.uint64(1 << 7 * place)).astype(np.int64) for place in range(1, 10))
    out = np.empty((len(bits), 10), np.uint8)
    for place in range(10):
        more = (lengths > place + 1).astype(np.uint8) << 7
        out[:, place] = ((bits >> np.uint64(7 * place)) & np.uint64(0x7F)).astype(np.uint8) | more
    return out[np.arange(10) < lengths[:, None]].tobytes()


def _varint(value: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: Pieces) -> Pieces:
    """A length-delimited field; empty content is none."""
    return [_varint(number << 3 | 2) + _varint(sum(map(len, content))), *content]


def _write_record(file: io.BufferedWriter, payload: Pieces) -> int:
    """Append a record; returns its bytes."""
    import google_crc32c

    extend: Any = google_crc32c.extend
    length = struct.pack("<Q", sum(map(len, payload)))
    file.write(length + struct.pack("<I", masked_crc32c(extend(0, length))))
    found = 0
    for piece in payload:
        found = extend(found, piece)
        file.write(piece)
    file.write(struct.pack("<I", masked_crc32c(found)))
    return sum(map(len, payload)) + 16
