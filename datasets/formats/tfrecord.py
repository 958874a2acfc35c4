"""TFRecord files of ``tf.train.Example``: records from a byte stream, every checksum checked, and their named lists.

Format (https://www.tensorflow.org/tutorials/load_data/tfrecord, tensorflow/core/lib/io/record_writer.h). One record after
the other, all numbers little-endian:

    uint64   length of the payload
    uint32   masked crc32c of those 8 bytes
    byte     payload[length]
    uint32   masked crc32c of the payload

masked(c) = rotate right(c, 15) + 0xa282ead8, modulo 2**32. There is no header and no index. (TensorFlow is the library that
reads them; the package ``tfrecord`` checks no checksum.)

The payload is a protocol buffer message (tensorflow/core/example/{example,feature}.proto), read by ``protobuf``:

    Example          1: Features
    Features         1: map of names to Feature
    Feature          one of 1: BytesList, 2: FloatList, 3: Int64List, each with 1: its values
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from ...errors import CorruptSourceError
from .packed import StreamFile

#: The longest episode of RL Unplugged (27,000 frames) takes about 60 MB; what claims more than this is not such a file.
_LONGEST_RECORD = 1 << 27
_MASK = 0xA282EAD8
#: A list of byte strings, or an array: float32 or int64 ``[n]``.
Value: TypeAlias = "list[bytes] | np.ndarray"
#: The lists by their field in a Feature, and the type of the values of each.
_KINDS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
_LISTS = {"BytesList": "TYPE_BYTES", "FloatList": "TYPE_FLOAT", "Int64List": "TYPE_INT64"}
_DAMAGED = "the copy at the source or mirror is damaged; fetch it again, or try another mirror"


@dataclass(frozen=True)
class Record:
    """One record; ``number`` and ``offset`` (of its first byte in the unpacked file) say where it lies."""

    number: int
    offset: int
    payload: bytes


def masked_crc32c(data: bytes) -> int:
    """The checksum of bytes under the mask that keeps a checksum of checksums apart from one of data."""
    import google_crc32c

    value: int = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def read_records(pieces: Iterable[bytes], name: str, longest: int = _LONGEST_RECORD) -> Iterator[Record]:
    """Yield the records of a stream, of at most ``longest`` bytes each. Memory is one record and one piece.

    Raises CorruptSourceError, naming the file, the record and its offset, when a checksum does not match or the stream
    ends inside a record.
    """
    file = io.BufferedReader(StreamFile(pieces))
    number = offset = 0
    while head := file.read(12):
        where = f"{name}: record {number} (at byte {offset} of the unpacked file)"
        if len(head) < 12:
            raise CorruptSourceError(f"{where} is cut short: {len(head)} bytes are left", hint=_DAMAGED)
        length, stated = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != stated:
            raise CorruptSourceError(f"{where}: the checksum of its length does not match", hint=_DAMAGED)
        if length > longest:
            raise CorruptSourceError(f"{where} claims to be {length} bytes long, of at most {longest}", hint=_DAMAGED)
        payload, tail = file.read(length), file.read(4)
        if len(payload) < length or len(tail) < 4:
            message = f"{where} is cut short: {len(payload) + len(tail)} of {length + 4} bytes are there"
            raise CorruptSourceError(message, hint=_DAMAGED)
        if masked_crc32c(payload) != int.from_bytes(tail, "little"):
            raise CorruptSourceError(f"{where}: the checksum of its content does not match", hint=_DAMAGED)
        held = [payload]
        del payload  # whoever has parsed it can let go of it
        yield Record(number, offset, held.pop())
        number, offset = number + 1, offset + length + 16


def encode_record(payload: bytes) -> bytes:
    """A record with this payload, as it lies in a file."""
    length = struct.pack("<Q", len(payload))
    checksums = (struct.pack("<I", masked_crc32c(data)) for data in (length, payload))
    return b"".join((length, next(checksums), payload, next(checksums)))


# -- examples ----------------------------------------------------------------------------------------------------------


class WireError(ValueError):
    """The bytes are not an Example, or a list is one of another kind."""


class Lists:
    """The features of an Example, each decoded when it is asked for. Raises WireError, at construction and when it decodes."""

    def __init__(self, payload: bytes) -> None:
        from google.protobuf.message import DecodeError

        try:
            self._features = _example().FromString(payload).features.feature
        except DecodeError as error:
            raise WireError(str(error)) from error
        self.names = list(self._features)

    def value(self, name: str) -> Value:
        """The byte strings of a feature, or its numbers; one without a value is an empty list of bytes. Raises KeyError.

        Integers are int64; those written as unsigned with the highest bit set come out as the negative number of the same
        bits (``array.view("uint64")`` undoes it).
        """
        if name not in self._features:  # to ask for it would add it
            raise KeyError(name)
        feature = self._features[name]
        kind = feature.WhichOneof("kind") or "bytes_list"
        values = getattr(feature, kind).value
        return list(values) if kind == "bytes_list" else np.array(values, "f4" if kind == "float_list" else "i8")

    def strings(self, name: str) -> list[bytes]:
        """The byte strings of a feature, none for an empty one. Raises KeyError, WireError."""
        found = self.value(name)
        if isinstance(found, np.ndarray) and len(found):
            raise WireError("it is a list of numbers")
        return [] if isinstance(found, np.ndarray) else found

    def numbers(self, name: str) -> np.ndarray | None:
        """The numbers of a feature, int64 or float32 ``[n]``; None for an empty one. Raises KeyError, WireError."""
        found = self.value(name)
        if not isinstance(found, np.ndarray) and found:
            raise WireError("it is a list of byte strings")
        return found if isinstance(found, np.ndarray) and len(found) else None


def parse_example(payload: bytes) -> dict[str, Value]:
    """The features of an Example by name, as `Lists.value` has them. Raises WireError."""
    lists = Lists(payload)
    return {name: lists.value(name) for name in lists.names}


def encode_example(lists: Mapping[str, Value]) -> bytes:
    """An Example of these byte strings and numbers: floats as float32, all others as int64 (uint64 by its bits)."""
    example = _example()()
    for name, values in lists.items():
        feature = example.features.feature[name]
        if isinstance(values, np.ndarray):
            one, dtype = (feature.float_list, "f4") if values.dtype.kind == "f" else (feature.int64_list, "i8")
            one.value.extend(values.reshape(-1).astype(dtype).tolist())
        else:
            feature.bytes_list.value.extend(values)
    data: bytes = example.SerializeToString(deterministic=True)
    return data


@cache
def _example() -> Any:
    """The class of Example: the modules with it, which ``protoc`` writes, are part of TensorFlow."""
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    lists = [{"name": kind, "field": [_field("value", 1, type_, "REPEATED")]} for kind, type_ in _LISTS.items()]
    kinds = [_field(name, number, kind, oneofIndex=0) for number, (name, kind) in enumerate(_KINDS.items(), 1)]
    entry = [_field("key", 1, "TYPE_STRING"), _field("value", 2, "Feature")]
    entry_type = {"name": "FeatureEntry", "field": entry, "options": {"mapEntry": True}}
    features = [_field("feature", 1, "Features.FeatureEntry", "REPEATED")]
    messages = [
        *lists,
        {"name": "Feature", "field": kinds, "oneofDecl": [{"name": "kind"}]},
        {"name": "Features", "field": features, "nestedType": [entry_type]},
        {"name": "Example", "field": [_field("features", 1, "Features")]},
    ]
    file = {"name": "rbdata/example.proto", "package": "rbdata", "syntax": "proto3", "messageType": messages}
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(json_format.ParseDict(file, descriptor_pb2.FileDescriptorProto()).SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rbdata.Example"))


def _field(name: str, number: int, kind: str, label: str = "OPTIONAL", **more: Any) -> dict[str, Any]:
    of = {"type": kind} if kind.startswith("TYPE_") else {"typeName": f".rbdata.{kind}"}
    return {"name": name, "number": number, "label": f"LABEL_{label}", **of, **more}
