"""A buffer in a folder: all of it or, when writing fails, the checkpoint that was there before. No pickle.

    storage/                   the data as ``TensorDict.load_memmap`` opens them, capacity rows, those never written as holes;
                               storage_metadata.json {"metadata": {}, "is_pytree": false, "len": rows filled}
    writer/metadata.json       {"cursor", "write_count"}; other writers: a state (see `state_files`)
    sampler/ position/ transforms/   states
    buffer_metadata.json       {"batch_size", "consume_after_n_samples": null}
    rbdata_checkpoint.json     format version 1: what the parts are, and size and crc32c of every file; written last

Storage, writer and buffer_metadata.json are as TorchRL 0.14 writes them, so each reads the other's (with a random
sampler). A storage of trees, of lists, or on a dataset is written as a state.

The folder is written beside its place and renamed into it (see `checkpoint_folder`). A storage in files that lie in
``<path>/storage`` already is not copied: there the data are in_place, and there is no older state of them to keep.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import DamagedDatasetError, RbdataError, UsageError
from ...tensordict_folder import read_memmap
from ..batch_order import OrderState
from ..state_files import read_state, write_state
from ..storages.list_storage import ListStorage
from ..storages.memmap_storage import LazyMemmapStorage
from ..storages.storage import Storage
from ..storages.tensor_storage import TensorStorage
from ..writers.round_robin import RoundRobinWriter
from .checkpoint_folder import Checkpoint, CheckpointWriter

__all__ = ["Checkpoint", "CheckpointWriter", "dump", "dump_into", "load", "load_from"]


def dump(buffer: Any, path: Any) -> None:
    """Write a `ReplayBuffer` to the folder ``path``. Raises UsageError for contents that only pickle could write."""
    storage = buffer.storage
    in_place = isinstance(storage, LazyMemmapStorage) and storage.scratch_dir == Path(path).absolute() / "storage"
    # The lock is released first: nobody waits while the disk does.
    with CheckpointWriter(path, in_place=in_place) as folder, buffer._lock:
        dump_into(buffer, folder, in_place=in_place)


def load(buffer: Any, path: Any) -> None:
    """Read a checkpoint into a buffer made of the same parts.

    Raises NotADatasetError when there is none, DamagedDatasetError when it is not whole, UsageError or SchemaError when it
    belongs to another buffer; the buffer is then as it was before.
    """
    load_from(buffer, Checkpoint(path, type(buffer).__name__))


# -- writing -----------------------------------------------------------------------------------------------------------


def dump_into(buffer: Any, folder: CheckpointWriter, *, in_place: bool = False) -> None:
    """Write the parts of a buffer, whose lock is held, into a checkpoint that is being made."""
    storage, writer = buffer.storage, buffer.writer
    with storage.read_lock:
        _dump_storage(storage, folder.path / "storage", buffer._save_hooks, in_place)
    if isinstance(writer, RoundRobinWriter):
        folder.json("writer/metadata.json", writer.state_dict())
    else:
        write_state(folder.path / "writer", writer.state_dict())
    write_state(folder.path / "sampler", buffer.sampler.state_dict())
    state: OrderState = buffer._pipeline.state()
    write_state(folder.path / "position", {"generator": state.generator, "sampler": _plain(state.sampler)})
    write_state(folder.path / "transforms", buffer.transform.state_dict())
    folder.json("buffer_metadata.json", {"batch_size": buffer.batch_size, "consume_after_n_samples": None})
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


def _dump_storage(storage: Storage, folder: Path, hooks: list[Any], in_place: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data: Any = storage._data if isinstance(storage, TensorStorage) else None
    if not is_tensor_collection(data):
        if hooks:
            raise UsageError(f"save hooks work on TensorDicts; the storage is a {type(storage).__name__}")
        write_state(folder, _flat_state(storage))
        return
    assert isinstance(storage, TensorStorage)
    if hooks:
        for hook in hooks:
            hook.is_full, hook.shift = storage.is_full, (storage.newest + 1) % storage.capacity
            data = hook(_without_rest(data, storage), path=folder)
        if isinstance(data, TensorDictBase) and not data.is_memmap():
            data.memmap(str(folder))
    elif not in_place:
        copy = data.memmap_like(str(folder))
        for key, leaf in data.items(include_nested=True, leaves_only=True):
            copy.get(key)[: storage.filled].copy_(leaf[: storage.filled])
    metadata = {"metadata": {}, "is_pytree": False, "len": len(storage)}
    (folder / "storage_metadata.json").write_text(json.dumps(metadata))


def _without_rest(data: Any, storage: TensorStorage) -> Any:
    """All rows, those never written zero: they hold whatever was in memory."""
    if storage.is_full:
        return data
    clean = data.clone()
    clean[storage.filled :].zero_()
    return clean


def _flat_state(storage: Storage) -> dict[str, Any]:
    if isinstance(storage, ListStorage):
        state: dict[str, Any] = {"kinds": [], "newest": storage.newest}
        for number, record in enumerate(storage.state_dict()["records"]):
            if isinstance(record, TensorDictBase):
                leaves = {_path(key): leaf for key, leaf in record.items(True, True)}
                state["kinds"].append({"batch": list(record.batch_size), "keys": list(leaves)})
                state.update({f"{number}/{name}": leaf for name, leaf in leaves.items()})
            elif isinstance(record, torch.Tensor):
                state["kinds"].append("tensor")
                state[f"{number}"] = record
            elif isinstance(record, (bool, int, float, str)):
                state["kinds"].append({"value": record})
            else:
                message = f"record {number} is a {type(record).__name__}, which only pickle could write"
                raise UsageError(message, hint="store TensorDicts, tensors or numbers")
        return state
    if isinstance(storage, TensorStorage):
        whole: dict[str, Any] = storage.state_dict()
        parts = [] if whole["data"] is None else pytree.tree_leaves(whole["data"])
        return {"leaves": len(parts), "filled": storage.filled, "newest": storage.newest} | {
            f"leaf {number}": leaf for number, leaf in enumerate(parts)
        }
    return storage.state_dict()


def _path(key: Any) -> str:
    return key if isinstance(key, str) else "/".join(key)


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
    states = {name: read_state(checkpoint.inside(name)) for name in ("sampler", "position", "transforms") if own}
    states["writer"] = writer = _writer_state(buffer, checkpoint)
    batch_size = _batch_size(checkpoint)
    order = None
    if own:
        try:
            order = OrderState(states["position"]["generator"], states["position"]["sampler"])
        except KeyError as error:
            raise DamagedDatasetError(f"{checkpoint.path / 'position'} lacks {error}") from error
    before = buffer._pipeline.state()
    buffer._pipeline.rewind()
    try:
        if order is not None:
            buffer._pipeline.go_to(order)
        buffer._restore(states, partial(_load_storage, buffer, checkpoint, writer))  # of TorchRL's: writer and storage
    except BaseException as error:
        buffer._pipeline.go_to(before)
        if isinstance(error, Exception) and not isinstance(error, RbdataError):
            raise DamagedDatasetError(f"{checkpoint.path} is damaged: {type(error).__name__}: {error}") from error
        raise
    if order is None:
        buffer.sampler.empty()
        buffer._pipeline.rewind()
    buffer.batch_size = batch_size


def _batch_size(checkpoint: Checkpoint) -> int | None:
    size = checkpoint.json("buffer_metadata.json").get("batch_size")
    if size is not None and (type(size) is not int or not 1 <= size < 1 << 40):
        raise DamagedDatasetError(f"{checkpoint.path / 'buffer_metadata.json'}: batch_size is {size!r}")
    return size


def _alike(there: str, have: str) -> bool:
    """Storages of tensors hold each other's contents."""
    kin = {"TensorStorage", "LazyTensorStorage", "LazyMemmapStorage"}
    return there in kin and have in kin


def _writer_state(buffer: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    if not isinstance(buffer.writer, RoundRobinWriter):
        return read_state(checkpoint.inside("writer"))
    record = checkpoint.json("writer/metadata.json")
    state = {"cursor": record.get("cursor"), "write_count": record.get("write_count") or 0}
    if any(type(value) is not int or not 0 <= value < 1 << 62 for value in state.values()):
        raise DamagedDatasetError(f"{checkpoint.path / 'writer/metadata.json'} is damaged: {record!r:.100}")
    if state["cursor"] > buffer.storage.max_size:
        message = f"the checkpoint's next row is {state['cursor']}, the buffer has {buffer.storage.max_size}"
        raise UsageError(message, hint="make the buffer as large as the one that was saved")
    return state


def _load_storage(buffer: Any, checkpoint: Checkpoint, writer: dict[str, Any]) -> None:
    storage: Storage = buffer.storage
    folder = checkpoint.inside("storage")
    if not (folder / "storage_metadata.json").exists():
        _take_flat_state(storage, read_state(folder))
        return
    if not isinstance(storage, TensorStorage):
        raise UsageError(f"the checkpoint holds TensorDicts, which a {type(storage).__name__} does not")
    rows = checkpoint.json("storage/storage_metadata.json").get("len")
    if type(rows) is not int or rows < 0:
        raise DamagedDatasetError(f"{folder / 'storage_metadata.json'}: len is {rows!r}")
    data: Any = read_memmap(folder)
    for hook in buffer._load_hooks:
        data = hook(data, out=None)
    if tuple(data.batch_size) == () or len(data.batch_size) < storage.ndim:
        message = "the checkpoint's data were changed by a save hook"
        raise UsageError(message, hint="register the hook that undoes it: register_load_hook(Flat2TED())")
    beside = int(data.batch_size[1 : storage.ndim].numel())
    filled = rows // beside
    newest = checkpoint.about.get("newest")
    if newest is None:
        newest = (writer["cursor"] - 1) % data.batch_size[0] if filled else -1
    capacity = data.batch_size[0]
    if (
        filled > capacity
        or type(newest) is not int
        or not -1 <= newest < capacity
        or writer.get("cursor", 0) > capacity
    ):
        message = f"{folder}: {filled} rows, the last one written {newest}, do not fit into {capacity} rows"
        raise DamagedDatasetError(message)
    if isinstance(storage, LazyMemmapStorage) and storage.scratch_dir == folder and storage.initialized:
        storage.set_counters(filled, newest)
    else:
        storage.restore(data, filled, newest)


def _take_flat_state(storage: Storage, state: dict[str, Any]) -> None:
    if isinstance(storage, ListStorage):
        if "kinds" not in state:
            raise UsageError("the checkpoint's storage is no list")
        records = [_record(number, kind, state) for number, kind in enumerate(state["kinds"])]
        storage.load_state_dict({"records": records, "newest": state["newest"]})
    elif isinstance(storage, TensorStorage):
        if not state["leaves"]:
            storage.empty()
            return
        if storage._data is None:
            message = "a tree of tensors can only be loaded into a storage that knows its structure"
            raise UsageError(message, hint="extend the buffer with one record first")
        spec = pytree.tree_structure(storage._data)
        leaves = [state[f"leaf {number}"] for number in range(state["leaves"])]
        if spec.num_leaves != len(leaves):
            raise UsageError(f"the checkpoint's tree has {len(leaves)} tensors, the storage's {spec.num_leaves}")
        storage.restore(pytree.tree_unflatten(leaves, spec), state["filled"], state["newest"])
    else:
        storage.load_state_dict(state)


def _record(number: int, kind: Any, state: dict[str, Any]) -> Any:
    if kind == "tensor":
        return state[f"{number}"]
    if "value" in kind:
        return kind["value"]
    record = TensorDict(batch_size=kind["batch"])
    for name in kind["keys"]:
        record.set(tuple(name.split("/")), state[f"{number}/{name}"])
    return record
