"""The ``preprocess`` of the dataset classes: a function maps all records into a new storage in memory-mapped files.

It is TorchRL's call, done by tensordict's `map`. ``rbdata preprocess`` is the other way: it can be interrupted, gives the same
result for any number of processes, filters and regroups, and makes a dataset with a manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import UsageError
from ...storage.replay.storages.dataset_storage import DatasetStorage
from ...storage.replay.storages.storage import Storage
from ...storage.replay.storages.tensor_storage import TensorStorage

#: Records in a chunk if the caller states neither a size nor a number of chunks.
CHUNK = 1024

Function = Callable[[TensorDictBase], TensorDictBase | None]


class _Applied:
    """A function that gets records of its own, to which it may add keys; of a dataset, those of the row numbers given."""

    def __init__(self, fn: Function, storage: Storage | None) -> None:
        self._fn, self._storage = fn, storage

    def __call__(self, records: Any) -> TensorDictBase:
        """The function's result. Raises UsageError if it does not have one record for each given record."""
        data = records.clone() if self._storage is None else self._storage.get(records["row"])
        result = self._fn(data)
        result = data if result is None else result
        if not isinstance(result, TensorDictBase) or result.batch_size[:1] != records.batch_size[:1]:
            found = (
                f"a batch of {list(result.batch_size)}" if isinstance(result, TensorDictBase) else type(result).__name__
            )
            message = f"the function returned {found} for {list(records.batch_size)} records"
            hint = (
                "it must return a TensorDict with a record for each one, or change the one it gets and return nothing"
            )
            raise UsageError(message, hint=hint)
        return result


def map_records(
    storage: Storage,
    fn: Function,
    dest: str | os.PathLike[str],
    *,
    dim: int = 0,
    num_workers: int | None = None,
    num_frames: int | None = None,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    mp_start_method: str | None = None,
    **options: Any,
) -> TensorStorage:
    """The first ``num_frames`` records (all of them by default), each passed through ``fn``, in files under ``dest``.

    ``fn`` is given ``[n]`` records and returns ``[n]``, whatever n is (single records with ``chunksize=0``). The first record
    goes through it once more, to know the keys, shapes and dtypes of the files. Records are cut into ``num_chunks`` chunks, or
    chunks of ``chunksize``, by default of 1,024. ``num_workers`` processes (by default one for each processor; 0: this one) are
    started by ``mp_start_method`` ("spawn" by default). ``options`` are others of ``TensorDict.map``.

    Raises UsageError for a storage that holds no TensorDicts, and for a function that does not return as many records.
    """
    if dim:
        raise UsageError(f"records are mapped along dimension 0, not {dim}")
    number = len(storage) if num_frames is None else min(num_frames, len(storage))
    dataset = storage if isinstance(storage, DatasetStorage) else None
    source: Any = None
    if dataset is not None:
        source = TensorDict({"row": torch.arange(number, device="cpu")}, [number])
    elif isinstance(storage, TensorStorage):
        source = storage.get(slice(0, number))
    if not isinstance(source, TensorDictBase) or not number:
        message = f"a {type(storage).__name__} of {number} records has none that are mapped"
        raise UsageError(message, hint="preprocess takes datasets and tensor storages of TensorDicts")
    apply = _Applied(fn, dataset)
    example = apply(source[0]) if chunksize == 0 else apply(source[:1])[0]
    target: Any = example.expand(number).memmap_like(os.fspath(dest))
    chunks = {"num_chunks": num_chunks} if num_chunks else {"chunksize": CHUNK if chunksize is None else chunksize}
    if num_workers == 0 and options.get("pool") is None:
        size = -(-number // num_chunks) if num_chunks else chunks["chunksize"] or 1
        for first in range(0, number, size):
            rows = first if chunksize == 0 else slice(first, first + size)
            target[rows].update_(apply(source[rows]))
    else:
        method = mp_start_method or "spawn"
        source.map(apply, dim, num_workers, out=target, mp_start_method=method, **chunks, **options)
    return TensorStorage(target)
