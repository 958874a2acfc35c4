"""The ``preprocess`` of the dataset classes: a function maps all records into a new storage in memory-mapped files.

It is TorchRL's call. ``rbdata preprocess`` is the other way: it can be interrupted, filters and
regroups, and makes a dataset with a manifest.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor, TensorDict, TensorDictBase

from ...errors import DiskSpaceError, SchemaError, UsageError, WorkerLostError
from ...storage.durable import allocate, is_full, system_error
from ...storage.replay.draw import draw_seed
from ...storage.replay.storages.dataset_storage import DatasetStorage
from ...storage.replay.storages.storage import Storage
from ...storage.replay.storages.tensor_storage import TensorStorage
from ...storage.replay.storages.trees import copy_of, expand_record, pair_leaves, partial_keys, shared_values
from ...storage.replay.timeline import path_of
from ...storage.tensordict_folder import check_writable
from ..sources.gymnasium.policy import seed_generators
from ..user_code_old.identity import check_attributes
from ..user_code_old.loading import unpickled_copy
from ..user_code_old.process_state import CallerSettings, as_caller, pickled_by_value
from ..workers.task import usable_cpus
from ..workers.worker_process import end_with_starter

#: Records in a chunk if the caller states neither a size nor a number of chunks.
CHUNK = 1024

Function = Callable[[TensorDictBase], TensorDictBase | None]


class _Map:
    """Calls the function on chunks, and writes what it returns to the files. Pickled once for all chunks.

    A chunk is ``(records, number of the first one, seed)``; of a dataset, records are row numbers.
    """

    def __init__(self, storage: Storage | None, fn: Function, single: bool, threads: int) -> None:
        self.storage, self.fn, self.single, self.threads = storage, fn, single, threads
        self.settings = CallerSettings.read()
        self.target: TensorDictBase | None = None

    def apply(self, chunk: TensorDictBase, first: int) -> TensorDictBase:
        """The function's result for a chunk, ``[n]``. Raises UsageError if it does not have one record for each given
        record."""
        given = chunk[0] if self.single else chunk
        if self.storage is None:
            data = copy_of(given)  # a TensorDict of the function's own, to which it may add keys
        else:
            data = self.storage.get(given["row"] if given.ndim else int(given["row"]))
        result = self.fn(data)
        result = data if result is None else result
        where = f"record {first}" if len(chunk) == 1 else f"records {first} to {first + len(chunk) - 1}"
        if not isinstance(result, TensorDictBase):
            message = f"the function returned a {type(result).__name__} for {where}"
            raise UsageError(message, hint="it must return a TensorDict, or change the one it gets and return nothing")
        result = result[None] if self.single else result
        if result.batch_size[:1] != chunk.batch_size[:1]:
            message = f"the function returned a batch of {list(result.batch_size)} for {where}"
            raise UsageError(message, hint="it must return a record for each one; rbdata preprocess can filter")
        try:
            if partial := partial_keys(result):
                raise SchemaError(f"only some of them have {', '.join(map(path_of, partial))}")
            shared_values(result)
            if self.target is not None:
                pair_leaves(self.target, result, 1)
        except SchemaError as error:
            message = f"the function returned other records for {where} than for the first ones: {error.message}"
            raise UsageError(message, hint="keys, shapes and dtypes must be the same for all records") from error
        return result

    def write(self, chunk: TensorDictBase, first: int, result: TensorDictBase | None = None) -> None:
        assert self.target is not None
        self.target[first : first + len(chunk)].update_(self.apply(chunk, first) if result is None else result)


@lru_cache(maxsize=1)
def _opened(payload: bytes) -> _Map:
    """In a worker: what was pickled by the process that started it, opened once for all chunks."""
    return pickle.loads(payload)


def _work(payload: bytes, chunk: bytes, first: int, seed: int) -> None:
    work = _opened(payload)
    torch.set_num_threads(work.threads or 1)
    seed_generators(seed)
    with as_caller(work.settings):
        work.write(pickle.loads(chunk), first)


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
    generator: torch.Generator | None = None,
    max_tasks_per_child: int | None = None,
    worker_threads: int = 1,
    index_with_generator: bool = False,
    pbar: bool = False,
    mp_start_method: str | None = None,
    pool: Any = None,
) -> TensorStorage:
    """The first ``num_frames`` records (all of them by default), each passed through ``fn``, in files under ``dest``.

    ``fn`` is given ``[n]`` records and returns ``[n]``, whatever n is (single records with ``chunksize=0``); it may change
    them in place and return nothing. Records are cut into ``num_chunks`` chunks, or chunks of ``chunksize``, by default of
    1,024; ``num_workers`` processes (by default one for each processor; 0: this one) work on them, started by
    ``mp_start_method`` ("spawn" by default), each with ``worker_threads`` threads and replaced after ``max_tasks_per_child``
    chunks (Python 3.11 and later); or the processes of a ``multiprocessing`` ``pool``. ``generator`` decides the seeds of
    torch, NumPy and ``random`` for every chunk in any worker. ``pbar`` shows a bar where tqdm is installed.
    ``index_with_generator`` has no effect.

    Raises DiskSpaceError before the work begins; UsageError for a storage that holds no TensorDicts, for a function that does
    not return as many records, or returns records of other keys, shapes or dtypes than the first ones (it names them; values
    that are not tensors must be the same for all), for what files cannot hold, and for worker processes inside
    ``torch.autocast``; WorkerLostError when a process ended in the middle of its work.
    """
    if dim:
        raise UsageError(f"records are mapped along dimension 0, not {dim}")
    number = len(storage) if num_frames is None else min(num_frames, storage.filled)
    dataset = storage if isinstance(storage, DatasetStorage) else None
    source: Any = None
    if dataset is not None:
        source = TensorDict({"row": torch.arange(number, device="cpu")}, [number])
    elif isinstance(storage, TensorStorage):
        source = storage.get(slice(0, number))
    if not isinstance(source, TensorDictBase):
        message = f"a {type(storage).__name__} has no records that are mapped"
        raise UsageError(message, hint="preprocess takes datasets and tensor storages of TensorDicts")
    work = _Map(dataset, fn, chunksize == 0, worker_threads)
    size = 1 if work.single else chunksize or (-(-number // num_chunks) if num_chunks else CHUNK)
    if not number:
        raise UsageError("there are no records to map")
    places = range(0, number, max(1, size))
    seed = draw_seed(generator)
    if num_workers == 0 and pool is None:
        for first in _shown(places, pbar):
            seed_generators(seed + first)
            chunk = source[first : first + size]
            result = work.apply(chunk, first)
            if work.target is None:
                work.target = _target(result[0], number, dest)
            work.write(chunk, first, result)
        return TensorStorage(work.target)

    CallerSettings.check_autocast()  # workers are outside it
    seed_generators(seed)
    # By a copy: the function that makes the records has not been called before.
    example = unpickled_copy(_pickled(work)).apply(source[:1], 0)[0]
    work.target = target = _target(example, number, dest)
    payload = _pickled(work)
    # Chunks are sent by value: a slice would be sent with all the memory that it shares.
    chunks = ((payload, pickle.dumps(copy_of(source[first : first + size])), first, seed + first) for first in places)
    if pool is not None:
        pool.starmap(_work, chunks, 1)
        return TensorStorage(target)
    limits: dict[str, Any] = {} if sys.version_info < (3, 11) else {"max_tasks_per_child": max_tasks_per_child}
    context = multiprocessing.get_context(mp_start_method or "spawn")
    try:
        with ProcessPoolExecutor(num_workers or usable_cpus(), context, end_with_starter, **limits) as workers:
            running = [workers.submit(_work, *chunk) for chunk in chunks]
            try:
                for done in _shown(running, pbar):
                    done.result()
            except BaseException:
                workers.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        message = "a process that mapped records was killed"
        raise WorkerLostError(message, hint="use fewer processes or smaller chunks if memory ran out") from error
    return TensorStorage(target)


def _pickled(work: _Map) -> bytes:
    """The work by value, with the function's module where a fresh process would not find that (notebooks, tests)."""
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, obj: Any) -> Any:
            check_attributes(obj)
            return super().reducer_override(obj)

    module = sys.modules.get(getattr(work.fn, "__module__", None) or "")
    top = "__main__" if module is None else module.__name__.partition(".")[0]
    by_value = top != "__main__" and not any(finder.find_spec(top, None) for finder in sys.meta_path)
    with pickled_by_value([module] if module is not None and by_value else []), io.BytesIO() as file:
        Pickler(file).dump(work)
        return file.getvalue()


def _shown(steps: Any, pbar: bool) -> Any:
    """The steps, with a bar where it is asked for and tqdm is installed."""
    if pbar:
        with suppress(ImportError):
            return import_module("tqdm").tqdm(steps)
    return steps


def _target(example: TensorDictBase, number: int, dest: str | os.PathLike[str]) -> TensorDictBase:
    """Room for ``number`` records like the example."""
    records = expand_record(example, number)
    check_writable(records)
    try:
        target = records.memmap_like(os.fspath(dest))
        for leaf in target.values(include_nested=True, leaves_only=True):
            if isinstance(leaf, MemoryMappedTensor):
                allocate(Path(leaf.filename), leaf.nbytes)  # a process that writes into holes on a full disk is killed
    except (OSError, RuntimeError) as error:
        found = system_error(error)
        if found is None or not is_full(found):
            raise
        message = f"the disk of {os.fspath(dest)} is full: there is no room for {number} records"
        raise DiskSpaceError(message, hint="make room, or name a dest on another disk") from error
    return target
