"""A buffer in a folder: all of it or, when writing fails, the checkpoint that was there before. No pickle.

    storage/                   tensors: see `tensor_files`; others: a state (see `state_files`)
    writer/metadata.json       {"cursor", "write_count", ...}; other writers: a state
    sampler/ position/ transforms/   states
    buffer_metadata.json       {"batch_size", "consume_after_n_samples": null or a number}
    rbdata_checkpoint.json     format version 1: what the parts are, and size and crc32c of every file; written last

Storage, writer and buffer_metadata.json are as TorchRL 0.14 writes them, so each reads the other's (with a random
sampler).

The folder is written beside its place and renamed into it (see `checkpoint_folder`). A storage in files that lie in
``<path>/storage`` already is not copied: there the data are in_place, and there is no older state of them to keep.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ....errors import DamagedDatasetError, UsageError
from ..batch_order import OrderState, check_count
from ..overrides import is_overridden
from ..state_files import read_state, reading, write_state
from ..storages.memmap_storage import LazyMemmapStorage
from ..storages.storage import Storage
from ..storages.tensor_files import METADATA
from ..storages.tensor_storage import TensorStorage
from .checkpoint_folder import Checkpoint, CheckpointWriter

#: Rows of a batch from a storage that has fewer.
_LARGEST_BATCH = 1 << 16

__all__ = ["Checkpoint", "CheckpointWriter", "dump", "dump_into", "load", "load_from"]


def dump(buffer: Any, path: Any) -> None:
    """Write a `ReplayBuffer` to the folder ``path``. Raises UsageError for contents that only pickle could write."""
    storage = buffer.storage
    in_place = isinstance(storage, LazyMemmapStorage) and storage.scratch_dir == Path(path).absolute() / "storage"
    # The lock is released first: nobody waits while the disk does.
    with CheckpointWriter(path, in_place=in_place) as folder, buffer._lock:
        dump_into(buffer, folder)


def load(buffer: Any, path: Any) -> None:
    """Read a checkpoint into a buffer made of the same parts.

    Raises NotADatasetError when there is none, DamagedDatasetError when it is not whole, UsageError or SchemaError when it
    belongs to another buffer; the buffer is then as it was before.
    """
    load_from(buffer, Checkpoint(path, type(buffer).__name__))


# -- writing -----------------------------------------------------------------------------------------------------------


def dump_into(buffer: Any, folder: CheckpointWriter) -> None:
    """Write the parts of a buffer, whose lock is held, into a checkpoint that is being made."""
    storage, writer = buffer.storage, buffer.writer
    if buffer._save_hooks and not isinstance(storage, TensorStorage):
        raise UsageError(f"save hooks work on TensorDicts; the storage is a {type(storage).__name__}")
    with storage.read_lock:
        if isinstance(storage, TensorStorage):
            storage.dumps(folder.path / "storage", buffer._save_hooks)
        else:
            storage.dumps(folder.path / "storage")
    writer.dumps(folder.path / "writer")
    if is_overridden(buffer.sampler, "dumps"):
        buffer.sampler.dumps(folder.path / "sampler")
    else:
        write_state(folder.path / "sampler", buffer.sampler.state_dict())
    state: OrderState = buffer._pipeline.state()
    write_state(
        folder.path / "position",
        {"generator": state.generator, "sampler": _plain(state.sampler), "batches": state.batches},
    )
    write_state(folder.path / "transforms", buffer.transform.state_dict())
    consumed_after = getattr(buffer.sampler, "max_sample_count", None)
    metadata = {"batch_size": buffer.batch_size, "consume_after_n_samples": consumed_after}
    folder.json("buffer_metadata.json", metadata)
    folder.describe(
        type(buffer).__name__,
        {
            "storage": type(storage).__name__,
            "sampler": type(buffer.sampler).__name__,
            "writer": type(writer).__name__,
            "newest": storage.newest,
            "hooks": [type(hook).__name__ for hook in buffer._save_hooks],
        },
    )


def _plain(position: Any) -> Any:
    return list(position) if isinstance(position, tuple) else position


# -- reading -----------------------------------------------------------------------------------------------------------


def load_from(buffer: Any, checkpoint: Checkpoint) -> None:
    """Read the parts of a buffer from a checkpoint that has been checked."""
    about = checkpoint.about
    for part in ("storage", "sampler", "writer"):
        have = type(getattr(buffer, part)).__name__
        if part in about and about[part] != have and not (part == "storage" and _alike(about[part], have)):
            message = f"the checkpoint's {part} is a {about[part]}, the buffer's a {have}"
            raise UsageError(message, hint="make the buffer of the same parts as the one that was saved")
    own = "sampler" in about
    loading = [name for name in ("sampler", "writer") if own and is_overridden(getattr(buffer, name), "loads")]
    names = [name for name in ("sampler", "position", "transforms") if own and name not in loading]
    states = {name: read_state(checkpoint.inside(name)) for name in names}
    writer = {} if "writer" in loading else _writer_state(buffer, checkpoint)
    if "writer" not in loading:
        states["writer"] = writer
    batch_size = _batch_size(checkpoint, buffer.storage.max_size)
    if not own and checkpoint.json("buffer_metadata.json").get("consume_after_n_samples") is not None:
        message = f"{checkpoint.path} holds what was consumed as a pickle, which is not read"
        raise UsageError(message, hint="pass the buffer's state_dict()")
    with reading(checkpoint.path):
        order = None
        if own:
            position = states.pop("position")
            order = OrderState(position["generator"], position["sampler"], check_count(position.get("batches", 0)))
        # Of TorchRL's: writer and storage.
        buffer._restore(states, lambda: order, partial(_load_storage, buffer, checkpoint, writer))
    for name in loading:  # by a method of the user's, which reads what the user's ``dumps`` wrote
        getattr(buffer, name).loads(checkpoint.path / name)
    if order is None:
        buffer.sampler.empty()
        buffer._pipeline.rewind()
    buffer.batch_size = batch_size


def _batch_size(checkpoint: Checkpoint, rows: int) -> int | None:
    size = checkpoint.json("buffer_metadata.json").get("batch_size")
    if size is not None and (type(size) is not int or not 1 <= size <= max(rows, _LARGEST_BATCH)):
        raise DamagedDatasetError(f"{checkpoint.path / 'buffer_metadata.json'}: batch_size is {size!r}")
    return size


def _alike(there: Any, have: str) -> bool:
    """Storages of tensors hold each other's contents."""
    kin = ("TensorStorage", "LazyTensorStorage", "LazyMemmapStorage")
    return there in kin and have in kin


def _writer_state(buffer: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    state: dict[str, Any] = buffer.writer.read(checkpoint.inside("writer"))
    if state.get("_cursor", 0) > buffer.storage.max_size:
        message = f"the checkpoint's next row is {state['_cursor']}, the buffer has {buffer.storage.max_size}"
        raise UsageError(message, hint="make the buffer as large as the one that was saved")
    return state


def _load_storage(buffer: Any, checkpoint: Checkpoint, writer: dict[str, Any]) -> None:
    storage: Storage = buffer.storage
    folder = checkpoint.inside("storage")
    if not isinstance(storage, TensorStorage):
        if (folder / METADATA).exists():
            raise UsageError(f"the checkpoint holds tensors, which a {type(storage).__name__} does not")
        storage.loads(folder)
        return
    newest = checkpoint.about.get("newest")  # which older versions wrote nowhere else
    storage.loads(folder, buffer._load_hooks, writer.get("_cursor") if newest is None else newest + 1)
