"""Records in memory, with every leaf compressed separately by the row codec of dataset folders.

Writing or reading a batch takes one call of the codec for each leaf. Leaves too small to benefit are not compressed. Records
may differ; if all are of one kind, they are read leaf by leaf, like tensors.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor, is_non_tensor, is_tensor_collection

from ....errors import DamagedDatasetError, SchemaError, UsageError
from ...codecs import DEFAULT, PLAIN
from ...codecs.zstd import RowDecoder, RowEncoder
from ...memory_map import element_bytes
from ...tensordict_folder import dtype_named
from ..saving import is_class
from ..timeline import Key, as_key
from .list_storage import ListStorage
from .rows import Readable, TensorLeaf, take_windows
from .storage import Storage
from .trees import copy_of, set_nested_sizes

#: Rows of fewer bytes are not compressed: the frame around them would be larger than what is saved.
SMALLEST_ROW = 64


@dataclass(frozen=True)
class LeafKind:
    """A leaf of a record: its path (empty for a tensor alone), dtype and shape."""

    path: Key
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    @property
    def small(self) -> bool:
        return self.row_bytes < SMALLEST_ROW


@dataclass(frozen=True)
class RecordKind:
    """The layout that many records share: leaves, batch size (None for a single tensor), class, paths of non-tensor values.

    ``nested``: path and batch size of each nested TensorDict that is empty or has another batch size than the record.
    """

    leaves: tuple[LeafKind, ...]
    batch: tuple[int, ...] | None
    kind: type[Any] | None = None
    others: tuple[Key, ...] = ()
    nested: tuple[tuple[Key, tuple[int, ...]], ...] = ()


@dataclass
class Packed:
    """A record: one blob for each leaf of its kind, and non-tensor values. ``kind`` None: ``rest`` is the record."""

    kind: RecordKind | None
    blobs: list[Any]
    rest: Any = None


class CompressedListStorage(ListStorage):
    """A list of compressed records: tensors, TensorDicts (nested ones as well) and tensorclasses; others stay as they are.

    A record with a tensorclass inside is one of the others. ``compression_level`` is zstd's, 1 to 22.
    ``compression_fn(tensor) -> tensor`` and ``decompression_fn(tensor, metadata)`` (``metadata`` has "shape", "dtype" and
    "device") take the codec's place. Records read are on ``device``.
    """

    def __init__(
        self,
        max_size: int,
        *,
        compression_fn: Callable[[torch.Tensor], torch.Tensor] | None = None,
        decompression_fn: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor] | None = None,
        compression_level: int = 3,
        device: Any = "cpu",
        compilable: bool = False,
    ) -> None:
        super().__init__(max_size, compilable=compilable, device=device)
        if (compression_fn is None) != (decompression_fn is None):
            raise UsageError("give compression_fn and decompression_fn together")
        if not 1 <= compression_level <= 22:
            raise UsageError(f"compression_level is 1 to 22, not {compression_level!r}")
        self.compression_fn, self.decompression_fn = compression_fn, decompression_fn
        self.compression_level = compression_level
        self._own = threading.local()
        self._kinds: dict[RecordKind | None, int] = {}  # number of records of each kind
        self._table: dict[str, Readable] | None = None

    # -- writing -----------------------------------------------------------------------------------------------------

    def _to_records(self, data: Any) -> Iterable[Packed]:
        """Packed records; a batch of tensors is packed in one call."""
        whole = (
            self.compression_fn is None and isinstance(data, (torch.Tensor, TensorDict)) and not _holds_classes(data)
        )
        leaves, rest = _split(data) if whole else ([], {})
        if rest or not leaves:
            return [record if isinstance(record, Packed) else self._pack(record) for record in data]
        about = tuple(LeafKind(path, leaf.dtype, tuple(leaf.shape[1:])) for path, leaf in leaves)
        kind = RecordKind(about, None)
        if isinstance(data, TensorDict):
            nested = tuple((path, batch[1:]) for path, batch in _nested(data))
            kind = RecordKind(about, tuple(data.batch_size[1:]), nested=nested)
        columns = [self._encode(part, leaf) for part, (_, leaf) in zip(about, leaves)]
        return [Packed(kind, list(blobs)) for blobs in zip(*columns)]

    def _write(self, place: int, record: Packed) -> None:
        if place < len(self._records):
            self._count_kind(self._records[place].kind, -1)
        self._count_kind(record.kind, 1)
        super()._write(place, record)

    def _count_kind(self, kind: RecordKind | None, change: int) -> None:
        count = self._kinds.get(kind, 0) + change
        if count and kind in self._kinds:
            self._kinds[kind] = count
            return
        self._kinds.pop(kind, None)
        if count:
            self._kinds[kind] = count
        self._table = self._rows_of(next(iter(self._kinds))) if len(self._kinds) == 1 else None

    def _rows_of(self, kind: RecordKind | None) -> dict[str, Readable] | None:
        """Readers of single leaves, if all records are of one kind that allows it; otherwise None."""
        if (
            kind is None
            or kind.batch is None
            or kind.kind is not None
            or kind.others
            or self.compression_fn is not None
        ):
            return None
        if any("/" in part for leaf in kind.leaves for part in leaf.path):  # names would be those of other leaves
            return None
        leaves = [CompressedLeaf(self, leaf, number) for number, leaf in enumerate(kind.leaves)]
        return {leaf.leaf.name: leaf for leaf in leaves} or None

    def _pack(self, record: Any) -> Packed:
        is_collection = is_tensor_collection(record)
        can_pack = is_collection or isinstance(record, torch.Tensor)
        if not can_pack or _holds_classes(record):
            return Packed(None, [], copy_of(record))
        batch = kind = None
        nested: tuple[tuple[Key, tuple[int, ...]], ...] = ()
        if is_collection:
            batch = tuple(record.batch_size)
            if not isinstance(record, TensorDictBase):
                kind, record = type(record), record.to_tensordict(retain_none=False)
            nested = _nested(record)
        given, rest = _split(record)
        about = tuple(LeafKind(path, leaf.dtype, tuple(leaf.shape)) for path, leaf in given)
        if self.compression_fn is not None:
            # What it returns may be a view of the record.
            blobs: list[Any] = [copy_of(self.compression_fn(leaf)) for _, leaf in given]
        else:
            blobs = [self._encode(part, leaf.unsqueeze(0))[0] for part, (_, leaf) in zip(about, given)]
        return Packed(RecordKind(about, batch, kind, tuple(rest), nested), blobs, rest)

    def _encode(self, about: LeafKind, rows: torch.Tensor) -> list[bytes]:
        """One blob for each row."""
        data = element_bytes(rows)
        starts = np.arange(len(rows)) * about.row_bytes
        if about.small:
            whole = bytes(data)
            return [whole[start : start + about.row_bytes] for start in starts.tolist()]
        encoder = getattr(self._own, "encoder", None)
        if encoder is None:
            encoder = self._own.encoder = RowEncoder(b"", level=self.compression_level)
        joined, lengths = encoder.encode(data, starts, about.row_bytes)
        ends = np.cumsum(lengths)
        return [joined[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist())]

    # -- reading -----------------------------------------------------------------------------------------------------

    def fields(self) -> dict[str, Readable] | None:
        return self._table

    @property
    def nested_sizes(self) -> tuple[tuple[Key, tuple[int, ...]], ...]:
        kind = next(iter(self._kinds)) if self._table is not None else None
        return () if kind is None else kind.nested

    @property
    def batch_tail(self) -> tuple[int, ...]:
        kind = next(iter(self._kinds)) if self._table is not None else None
        return () if kind is None or kind.batch is None else kind.batch

    def column(self, key: Key) -> torch.Tensor | None:
        if self._table is None:
            return super().column(key)
        rows = self._table.get("/".join(key))
        return None if rows is None else rows.block(0, len(self._records))

    def _read(self, place: int) -> Any:
        return self._unpack(self._records[place])

    def _unpack(self, packed: Packed) -> Any:
        kind = packed.kind
        if kind is None:
            return packed.rest
        leaves = [self._decode(about, [blob])[0] for about, blob in zip(kind.leaves, packed.blobs)]
        if kind.batch is None:
            return leaves[0]
        record = TensorDict(batch_size=kind.batch)
        for about, leaf in zip(kind.leaves, leaves):
            record.set(about.path, leaf)
        set_nested_sizes(record, kind.nested)
        for path, value in packed.rest.items() if packed.rest else ():
            record.set_non_tensor(path, value)
        return record if kind.kind is None else kind.kind.from_tensordict(record)

    def decode(self, about: LeafKind, number: int, places: list[int]) -> torch.Tensor:
        """A leaf of the records at ``places``, ``[n, *shape]``."""
        return self._decode(about, [self._records[place].blobs[number] for place in places])

    def _decode(self, about: LeafKind, blobs: list[Any]) -> torch.Tensor:
        """Rows ``[n, *shape]`` from their blobs."""
        if self.decompression_fn is not None:
            shape, dtype = torch.Size(about.shape), about.dtype
            metadata = {"type": "tensor", "shape": shape, "dtype": dtype, "device": self._device}
            return torch.stack([self.decompression_fn(blob, metadata) for blob in blobs])
        joined = b"".join(blobs)
        if about.small or not about.row_bytes:
            rows = np.frombuffer(bytearray(joined), np.uint8)
        else:
            decoders = self._own.__dict__.setdefault("decoders", {})
            decoder = decoders.get(about.row_bytes)
            if decoder is None:
                decoder = decoders[about.row_bytes] = RowDecoder(b"", about.row_bytes)
            lengths = np.fromiter(map(len, blobs), np.int64, len(blobs))
            rows = decoder.decode(np.frombuffer(joined, np.uint8), np.cumsum(lengths) - lengths, lengths)
        if rows.size != len(blobs) * about.row_bytes:
            raise DamagedDatasetError(f"a record's {'/'.join(about.path)} has {rows.size} bytes")
        out = torch.empty((len(blobs), *about.shape), dtype=about.dtype, device="cpu")
        if rows.size:
            out = torch.from_numpy(rows.reshape(-1)).view(about.dtype).reshape(out.shape)
        return out if self._device is None else out.to(self._device)

    def bytes(self) -> int:
        """Bytes of the compressed records, without the list itself."""
        blobs = (blob for packed in self._records for blob in packed.blobs)
        return sum(blob.nbytes if isinstance(blob, torch.Tensor) else len(blob) for blob in blobs)

    def empty(self) -> None:
        super().empty()
        self._kinds, self._table = {}, None

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The compressed records as numbers and tensors. Raises UsageError for values that only pickle could write."""
        if self.compression_fn is not None:
            message = "records compressed by functions of one's own cannot be saved"
            raise UsageError(message, hint="use the storage's own codec")
        kinds: dict[RecordKind, int] = {}
        for number, packed in enumerate(self._records):
            if packed.kind is None or packed.kind.kind is not None:
                raise UsageError(f"record {number} is neither a tensor nor a TensorDict: only pickle could write it")
            kinds.setdefault(packed.kind, len(kinds))
        blobs = [blob for packed in self._records for blob in packed.blobs]
        return {
            "kinds": [_describe(kind) for kind in kinds],
            "kind": torch.tensor([kinds[packed.kind] for packed in self._records], dtype=torch.int64, device="cpu"),
            "rest": [list(packed.rest.values()) for packed in self._records if packed.rest],
            "lengths": torch.tensor([len(blob) for blob in blobs], dtype=torch.int64, device="cpu"),
            "data": torch.from_numpy(np.frombuffer(bytearray(b"".join(blobs)), np.uint8)),
            "newest": self._newest,
            **self._order_to_save(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`, or from TorchRL's storage (with its codec zlib)."""
        if "_metadata" in state:
            pairs = zip(state["_storage"], state["_metadata"])
            super().load_state_dict({"_storage": [_torchrl_record(*pair) for pair in pairs if pair[1] is not None]})
            return
        if self.decompression_fn is not None:
            message = "the state has records of the storage's own codec, which functions of one's own cannot read"
            raise UsageError(message, hint="leave out compression_fn and decompression_fn, or write the records again")
        kinds = [_kind(about) for about in state["kinds"]]
        numbers, lengths, others = state["kind"].tolist(), state["lengths"].tolist(), iter(state["rest"])
        data = state["data"].numpy().tobytes()
        if len(numbers) > self.capacity:
            raise SchemaError(f"{len(numbers)} records do not fit into a storage of {self.capacity}")
        if min([0, *numbers, *lengths]) < 0 or sum(lengths) != len(data):
            raise DamagedDatasetError("the lengths of the compressed records do not belong to their data")
        leaves = sum(len(kinds[number].leaves) for number in numbers)
        if not -1 <= state["newest"] < max(1, len(numbers)) or leaves != len(lengths):
            raise DamagedDatasetError("the compressed leaves do not belong to the records")
        ends = np.cumsum([0, *lengths]).tolist()
        records, leaf = [], 0
        for number in numbers:
            kind = kinds[number]
            blobs = [data[ends[place] : ends[place + 1]] for place in range(leaf, leaf + len(kind.leaves))]
            leaf += len(kind.leaves)
            records.append(Packed(kind, blobs, dict(zip(kind.others, next(others) if kind.others else ()))))
        for packed in {packed.kind: packed for packed in records}.values():  # paths and shapes may make no record
            self._unpack(packed)
        ordered = self._ordered_here(len(records), state["newest"], state.get("ordered"))
        self._accept()
        self.empty()
        for place, packed in enumerate(records):
            self._write(place, packed)
        self._newest, self.ordered = state["newest"], ordered

    dumps, loads = Storage.dumps, Storage.loads

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_own", "_table")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _own=threading.local())
        self._table = self._rows_of(next(iter(self._kinds))) if len(self._kinds) == 1 else None


class CompressedLeaf:
    """A leaf of all records of one kind; rows are records. See `storage.codecs.codec.Rows`."""

    def __init__(self, storage: CompressedListStorage, about: LeafKind, number: int) -> None:
        codec = PLAIN if about.small else DEFAULT
        self.leaf = TensorLeaf("/".join(about.path), about.shape, about.dtype, about.row_bytes, codec=codec)
        self._storage, self._about, self._number = storage, about, number

    @property
    def count(self) -> int:
        return len(self._storage._records)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._storage.decode(self._about, self._number, index.tolist())

    windows = take_windows

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.take(torch.arange(start, stop, device="cpu"))


def _split(data: Any) -> tuple[list[tuple[Key, torch.Tensor]], dict[Key, Any]]:
    """The tensors of a tensor or TensorDict with their paths, and copies of its other values by path."""
    if isinstance(data, torch.Tensor):
        return [((), data)], {}
    leaves, rest = [], {}
    for key, value in data.items(True, True, is_leaf=is_leaf_nontensor):
        if isinstance(value, torch.Tensor):
            leaves.append((as_key(key), value))
        else:
            rest[as_key(key)] = copy_of(value.tolist() if is_non_tensor(value) else value)
    return leaves, rest


def _holds_classes(data: Any) -> bool:
    """Whether there are tensorclasses within a record or a batch."""
    if isinstance(data, torch.Tensor):
        return False
    inside = data.values(include_nested=True, is_leaf=is_leaf_nontensor)
    return any(map(is_class, inside))


def _nested(data: TensorDictBase) -> tuple[tuple[Key, tuple[int, ...]], ...]:
    """The nested TensorDicts of `RecordKind`."""
    found = data.items(include_nested=True, is_leaf=is_leaf_nontensor)
    inside = [(key, value) for key, value in found if is_tensor_collection(value) and not is_non_tensor(value)]
    return tuple(
        (as_key(key), tuple(value.batch_size))
        for key, value in inside
        if value.batch_size != data.batch_size or not len(value.keys())
    )


def _describe(kind: RecordKind) -> dict[str, Any]:
    leaves = [[list(leaf.path), str(leaf.dtype).removeprefix("torch."), list(leaf.shape)] for leaf in kind.leaves]
    batch = None if kind.batch is None else list(kind.batch)
    about = {"leaves": leaves, "batch": batch, "others": [list(path) for path in kind.others]}
    return about | {"nested": [[list(path), list(size)] for path, size in kind.nested]} if kind.nested else about


def _kind(about: dict[str, Any]) -> RecordKind:
    leaves = []
    for path, name, shape in about["leaves"]:
        if not all(type(size) is int and size >= 0 for size in shape):
            raise DamagedDatasetError(f"{name!r} {shape!r} is not a leaf of a record")
        leaves.append(LeafKind(tuple(path), dtype_named(name, "state of the storage"), tuple(shape)))
    batch = None if about["batch"] is None else tuple(about["batch"])
    nested = tuple((tuple(path), tuple(size)) for path, size in about.get("nested", ()))
    return RecordKind(tuple(leaves), batch, None, tuple(tuple(path) for path in about["others"]), nested)


def _torchrl_record(compressed: Any, about: dict[str, Any]) -> Any:
    if about["type"] == "tensor":
        data = bytearray(zlib.decompress(compressed.numpy().tobytes()))
        return torch.frombuffer(data, dtype=about["dtype"]).reshape(about["shape"])
    if about["type"] != "tensordict":
        return about["value"]
    record = TensorDict()
    for key, leaf in about["fields"].items():
        record.set(key, leaf["value"] if leaf["type"] == "non_tensor" else _torchrl_record(compressed[key], leaf))
    return record
