"""The ``preprocess`` of the dataset classes: a function maps all records into a new storage in memory-mapped files.

It is TorchRL's call, done by `TensorDict.map`. ``rbdata preprocess`` is the other way: it can be interrupted, filters and
regroups, and makes a dataset with a manifest.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import UsageError
from ...storage.replay.storages.dataset_storage import DatasetStorage
from ...storage.replay.storages.storage import Storage
from ...storage.replay.storages.tensor_storage import TensorStorage

#: Records in a chunk where the caller does not say.
CHUNK = 1024

Function = Callable[[TensorDictBase], TensorDictBase | None]


class _Apply:
    """Calls the function on a chunk: of records, or of their numbers in a storage. Pickled once for all chunks."""

    def __init__(self, storage: Storage | None, fn: Function) -> None:
        self.storage, self.fn = storage, fn

    def __call__(self, chunk: TensorDictBase) -> TensorDictBase:
        if self.storage is None:
            data = chunk.clone()  # a TensorDict of the function's own, to which it may add keys
        else:
            data = self.storage.get(chunk["row"] if chunk.ndim else int(chunk["row"]))
        result = self.fn(data)
        return data if result is None else result

    @cached_property
    def _payload(self) -> bytes:
        import cloudpickle

        return cloudpickle.dumps((self.storage, self.fn))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_opened, (self._payload,))


@lru_cache(maxsize=1)
def _opened(payload: bytes) -> _Apply:
    """In a worker: what was pickled by the process that started it, opened once for all chunks."""
    return _Apply(*pickle.loads(payload))


def map_records(
    storage: Storage,
    fn: Function,
    dest: str | os.PathLike[str],
    *,
    dim: int = 0,
    num_frames: int | None = None,
    num_workers: int | None = None,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    **options: Any,
) -> TensorStorage:
    """The first ``num_frames`` records (all of them by default), each passed through ``fn``, in files under ``dest``.

    ``fn`` is given ``[n]`` records and returns ``[n]``, whatever n is (single records with ``chunksize=0``); it may change
    them in place and return nothing. Records are cut into ``num_chunks`` chunks, or chunks of ``chunksize``, by default of
    1,024; ``num_workers`` processes (by default one for each processor; 0: this one) work on them. Further ``options`` are
    those of `TensorDict.map`.

    Raises UsageError for a storage that holds no TensorDicts, and for a function that does not return as many records.
    """
    if dim:
        raise UsageError(f"records are mapped along dimension 0, not {dim}")
    number = len(storage) if num_frames is None else min(num_frames, storage.filled)
    if isinstance(storage, DatasetStorage):
        source: Any = TensorDict({"row": torch.arange(number)}, [number])
        apply = _Apply(storage, fn)
    else:
        source = storage.get(slice(0, number)) if isinstance(storage, TensorStorage) else None
        if not isinstance(source, TensorDictBase):
            message = f"a {type(storage).__name__} has no records that are mapped"
            raise UsageError(message, hint="preprocess takes datasets and tensor storages of TensorDicts")
        apply = _Apply(None, fn)
    if chunksize is None and num_chunks is None:
        chunksize = CHUNK
    target = _target(apply(source[0] if chunksize == 0 else source[:1]), number, dest, chunksize == 0)
    if num_workers == 0 and options.get("pool") is None:
        size = 1 if chunksize == 0 else chunksize or -(-number // (num_chunks or 1))
        for rows, out in zip(source.split(size), target.split(size)):
            out.update_(apply(rows[0])[None] if chunksize == 0 else apply(rows))
    else:
        source.map(apply, dim, num_workers, chunksize=chunksize, num_chunks=num_chunks, out=target, **options)
    return TensorStorage(target)


def _target(example: TensorDictBase, number: int, dest: str | os.PathLike[str], single: bool) -> TensorDictBase:
    """Room for ``number`` records like the example."""
    if not single:
        if example.batch_size[:1] != torch.Size([1]):
            message = f"the function returned a batch of {list(example.batch_size)} for one record"
            raise UsageError(message, hint="it must return a record for each one; rbdata preprocess can filter")
        example = example[0]
    return example.expand(number, *example.batch_size).memmap_like(os.fspath(dest))
