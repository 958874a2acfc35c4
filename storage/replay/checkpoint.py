"""Checkpoints: a folder that is replaced as a whole, and read only when it is whole.

<path>                  the checkpoint
.<name>.writing         the next one, while it is written
.<name>.old             the last one, for the moment between two renames; taken if the machine stopped in that moment

A buffer in a folder: all of it or, when writing fails, the checkpoint that was there before. No pickle.

    storage/                   tensors: see `saving`; others: a state (see `saving`)
    writer/metadata.json       {"cursor", "write_count", ...}; other writers: a state
    sampler/ position/ transforms/   states
    buffer_metadata.json       {"batch_size", "consume_after_n_samples": null or a number}
    rbdata_checkpoint.json     format version 1: the kinds of the parts, and size and crc32c of every file; written last

Storage, writer and buffer_metadata.json are as TorchRL 0.14 writes them, so each reads the other's (with a random
sampler).

The folder is written beside its destination and renamed to it (see `CheckpointWriter`). The files of a storage that already
lie in ``<path>/storage`` are not copied: these data are in_place, and no older state of them is kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import (
    DamagedDatasetError,
    DatasetExistsError,
    DiskSpaceError,
    NotADatasetError,
    RbdataError,
    UsageError,
    reason,
)
from ..checksums import crc32c, sum_range
from ..durable import is_full, sync_folder, system_error, write_atomically
from ..folder import remove_tree
from ..snapshot import aside
from ..tensordict_folder import check_plain, read_json, regular_size
from .arguments import check_batch_size
from .iterable import LoaderPlace
from .overrides import is_overridden
from .pipeline import OrderState, check_count
from .saving import METADATA, read_state, reading, write_state
from .storages.memmap_storage import LazyMemmapStorage
from .storages.storage import Storage
from .storages.tensor_storage import TensorStorage
from .storages.trees import copy_of

FORMAT, FORMAT_VERSION = "rbdata-replay", 1
FILENAME = "rbdata_checkpoint.json"
FOREIGN = "buffer_metadata.json"


class CheckpointWriter:
    """A checkpoint being written, as a context: on success it replaces the old one, on failure nothing has changed.

    ``in_place``: a part already lies at the destination, so the rest is written there too.
    """

    def __init__(self, path: Any, *, in_place: bool = False) -> None:
        self.target = Path(path).absolute()
        self._in_place = in_place
        self.path = self.target if in_place else self.target.with_name(f".{self.target.name}.writing")

    def __enter__(self) -> CheckpointWriter:
        if self._in_place:
            check_plain(self.target)
        else:
            is_checkpoint = (self.target / FILENAME).exists() or (self.target / FOREIGN).exists()
            if self.target.is_dir() and any(self.target.iterdir()) and not is_checkpoint:
                message = f"{self.target} is in the way: it is not a checkpoint"
                raise DatasetExistsError(message, hint="name another folder")
            remove_tree(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        if kind is not None:
            if not self._in_place:
                remove_tree(self.path)
            found = system_error(error)
            if found is not None and is_full(found):
                message = f"the disk is full: the checkpoint {self.target} was not written"
                raise DiskSpaceError(message, hint="make room, or name a folder on another disk") from error
            return
        _sync(self.path)
        if self._in_place:
            return
        old = aside(self.target)
        if os.path.lexists(self.target):
            remove_tree(old)
            self.target.rename(old)
        self.path.rename(self.target)
        sync_folder(self.target.parent)
        remove_tree(old)

    def part(self, name: str) -> CheckpointWriter:
        """A checkpoint inside this one."""
        inner = CheckpointWriter(self.target / name)
        inner.path = self.path / name
        inner.path.mkdir(parents=True, exist_ok=True)
        return inner

    def json(self, name: str, record: Any) -> None:
        """Write a JSON file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record).encode())

    def tensors(self, name: str, state: dict[str, Any]) -> None:
        """Write a state."""
        write_state(self.path / name, state)

    def describe(self, kind: str, about: dict[str, Any]) -> None:
        """Write the description of the checkpoint; call it last."""
        files = {}
        for path in self._own_files():
            name = path.relative_to(self.path).as_posix()
            # Data in place may change after this: only files written here get a checksum.
            size, is_mapped = path.stat().st_size, self._in_place and name.startswith("storage/")
            files[name] = [size, None if is_mapped else sum_range(path, 0, size)[1]]
        record = {"format": FORMAT, "format_version": FORMAT_VERSION, "kind": kind, "about": about, "files": files}
        record["checksum"] = crc32c(json.dumps(record, sort_keys=True).encode())
        write_atomically(self.path / FILENAME, json.dumps(record, indent=1).encode())

    def _own_files(self) -> list[Path]:
        """All files, in order, except the description and the files of checkpoints inside this one."""
        found: list[Path] = []
        for top, folders, names in os.walk(self.path):
            folder = Path(top)
            if folder == self.path:
                names = [name for name in names if name != FILENAME]
            elif FILENAME in names:
                folders.clear()
                continue
            found += [folder / name for name in names]
        return sorted(path for path in found if path.is_file())


class Checkpoint:
    """A checked checkpoint: its ``path``, and its description ``about``.

    A checkpoint from TorchRL has no description; its storage, writer and batch size are loaded.
    """

    def __init__(self, path: Any, kind: str) -> None:
        target = Path(path).absolute()
        if not target.exists() and aside(target).exists():
            target = aside(target)
        self.path = target
        self.about: dict[str, Any] = {}
        if any(target.rglob("*.pickle")):
            raise UsageError(f"{target} holds pickled objects, which are not read")
        if not (target / FILENAME).exists():
            if (target / FOREIGN).exists() and kind != "ReplayBufferEnsemble":
                return
            raise NotADatasetError(f"{target} holds no checkpoint of a replay buffer")
        record = self._record()
        if record["kind"] != kind:
            message = f"the checkpoint is that of a {record['kind']}, not of a {kind}"
            raise UsageError(message, hint="make the buffer of the same parts as the one that was saved")
        self._check(record["files"])
        self.about = record["about"]

    def _record(self) -> dict[str, Any]:
        with reading(self.path / FILENAME):
            record = read_json(self.path / FILENAME)
            checksum = record.pop("checksum")
            are_dicts = isinstance(record["files"], dict) and isinstance(record["about"], dict)
            if record["format"] != FORMAT or not are_dicts:
                raise ValueError("it is something else")
            if record["format_version"] > FORMAT_VERSION:
                raise UsageError(f"{self.path} was written by a newer rbdata")
            if checksum != crc32c(json.dumps(record, sort_keys=True).encode()):
                raise ValueError("it does not match its own checksum")
            return record

    def _check(self, files: dict[str, Any]) -> None:
        for name, stated in files.items():
            path = self.inside(name)
            if not (isinstance(stated, list) and len(stated) == 2):
                raise DamagedDatasetError(f"{self.path / FILENAME} is damaged at {name!r}")
            size, checksum = stated
            if regular_size(path) != size or (checksum and sum_range(path, 0, size)[1] != checksum):
                raise DamagedDatasetError(f"the checkpoint is damaged: {path} is not the file that was saved")

    def inside(self, name: str) -> Path:
        """A path in the checkpoint. Raises DamagedDatasetError for a path that leads out of it, by its name or by a link."""
        parts = name.split("/")
        path = self.path.joinpath(*parts)
        folders = [self.path.joinpath(*parts[: level + 1]) for level in range(len(parts))]
        if {"", ".", ".."}.intersection(parts) or "\\" in name or any(folder.is_symlink() for folder in folders):
            raise DamagedDatasetError(f"{path} leads out of the checkpoint", hint="do not use this checkpoint")
        return path

    def part(self, name: str, kind: str) -> Checkpoint:
        """A checkpoint inside this one."""
        return Checkpoint(self.inside(name), kind)

    def tensors(self, name: str) -> dict[str, Any]:
        return read_state(self.inside(name))


def _sync(folder: Path) -> None:
    """Make every file durable before the old checkpoint is removed."""
    found = list(folder.rglob("*"))
    # In parallel: a list of records may have thousands of files, and each sync waits for the disk.
    with ThreadPoolExecutor(16, "rbdata-sync") as pool:
        list(pool.map(_sync_file, (path for path in found if path.is_file())))
    for path in found:
        if path.is_dir():
            sync_folder(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Rows of a batch from a storage that has fewer.
_LARGEST_BATCH = 1 << 16
#: Storages that can load each other's contents.
_OF_TENSORS = ("TensorStorage", "LazyTensorStorage", "LazyMemmapStorage")


def dump(buffer: Any, path: Any) -> None:
    """Write a `ReplayBuffer` to the folder ``path``. Raises UsageError for contents that only pickle could write."""
    storage = buffer.storage
    in_place = isinstance(storage, LazyMemmapStorage) and storage.scratch_dir == Path(path).absolute() / "storage"
    # The lock is released first: no thread waits for the disk.
    with CheckpointWriter(path, in_place=in_place) as folder, buffer._lock:
        dump_into(buffer, folder)


def load(buffer: Any, path: Any) -> None:
    """Read a checkpoint into a buffer made of the same parts; if it is refused, the buffer stays unchanged.

    Raises NotADatasetError, DamagedDatasetError, or UsageError and SchemaError if it belongs to another buffer.
    """
    load_from(buffer, Checkpoint(path, type(buffer).__name__))


# -- writing -----------------------------------------------------------------------------------------------------------


def dump_into(buffer: Any, folder: CheckpointWriter) -> None:
    """Write the parts of a buffer, whose lock is held, into a checkpoint that is being made."""
    storage, writer = buffer.storage, buffer.writer
    if buffer._save_hooks and not isinstance(storage, TensorStorage):
        raise UsageError(f"save hooks work on TensorDicts; the storage is a {type(storage).__name__}")
    with storage.read_lock:  # other processes may write: rows and cursor must be consistent
        storage.dumps(folder.path / "storage", *([buffer._save_hooks] if buffer._save_hooks else []))
        writer.dumps(folder.path / "writer")
        newest = storage.newest
    order: OrderState = buffer._pipeline.state()
    with _gone_back(buffer, order):
        buffer.sampler.dumps(folder.path / "sampler")
    sampler = list(order.sampler) if isinstance(order.sampler, tuple) else order.sampler
    position = {"generator": order.generator, "sampler": sampler, "batches": order.batches}
    folder.tensors("position", {**position, **_iterations(buffer)})
    folder.tensors("transforms", buffer._pipeline.transforms_state())
    consumed_after = getattr(buffer.sampler, "max_sample_count", None)
    metadata = {"batch_size": buffer.batch_size, "consume_after_n_samples": consumed_after}
    folder.json(FOREIGN, metadata)
    parts = {"storage": storage, "sampler": buffer.sampler, "writer": writer}
    kinds = {name: type(part).__name__ for name, part in parts.items()}
    hooks = [type(hook).__name__ for hook in buffer._save_hooks]
    folder.describe(type(buffer).__name__, {**kinds, "newest": newest, "hooks": hooks})


@contextmanager
def _gone_back(buffer: Any, order: OrderState) -> Iterator[None]:
    """Inside, a user's sampler has the state before the batches that are on their way."""
    if order.own is None or not buffer._pipeline.queued:
        yield
        return
    ahead = deepcopy(buffer.sampler.state_dict())
    buffer.sampler.load_state_dict(deepcopy(order.own))
    try:
        yield
    finally:
        buffer.sampler.load_state_dict(ahead)


# -- reading -----------------------------------------------------------------------------------------------------------


def load_from(buffer: Any, checkpoint: Checkpoint) -> None:
    """Read the parts of a buffer from a checkpoint that has been checked."""
    about = checkpoint.about
    for part in ("storage", "sampler", "writer"):
        have = type(getattr(buffer, part)).__name__
        exchangeable = all(kind in _OF_TENSORS for kind in (about.get(part), have))
        if part in about and about[part] != have and not exchangeable:
            message = f"the checkpoint's {part} is a {about[part]}, the buffer's a {have}"
            raise UsageError(message, hint="make the buffer of the same parts as the one that was saved")
    own = "sampler" in about  # checkpoints from TorchRL have only writer and storage
    loading = [name for name in ("sampler", "writer") if own and is_overridden(getattr(buffer, name), "loads")]
    names = [name for name in ("sampler", "position", "transforms") if own and name not in loading]
    states = {name: checkpoint.tensors(name) for name in names}
    if "writer" not in loading:
        states["writer"] = _writer_state(buffer, checkpoint)
    metadata = read_json(checkpoint.inside(FOREIGN))
    batch_size = metadata.get("batch_size")
    largest = max(buffer.storage.max_size, _LARGEST_BATCH)
    if batch_size is not None and (type(batch_size) is not int or not 1 <= batch_size <= largest):
        raise DamagedDatasetError(f"{checkpoint.path / FOREIGN}: batch_size is {batch_size!r}")
    if not own and metadata.get("consume_after_n_samples") is not None:
        message = f"{checkpoint.path} holds what was consumed as a pickle, which is not read"
        raise UsageError(message, hint="pass the buffer's state_dict()")
    with reading(checkpoint.path):
        order, iterations = {}, _read_iterations({})
        if own:
            position = states.pop("position")
            iterations = _read_iterations(position)
            generator, batches = position["generator"], check_count(position.get("batches", 0))
            order = {"generator": generator, "sampler": position["sampler"], "batches": batches}
        _restore(buffer, states, order, partial(_load_storage, buffer, checkpoint, states.get("writer", {})))
    for name in loading:  # by a user's method, which reads what the user's ``dumps`` wrote
        getattr(buffer, name).loads(checkpoint.path / name)
    if not own:
        buffer.sampler.empty()
        buffer._pipeline.rewind()
    buffer.batch_size = batch_size
    buffer.__dict__.update(iterations)


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
    newest = checkpoint.about.get("newest")  # older versions wrote it only here
    storage.loads(folder, buffer._load_hooks, writer.get("_cursor") if newest is None else newest + 1)


# -- states in memory --------------------------------------------------------------------------------------------------


def part_state(part: Any) -> dict[str, Any]:
    """The state of a part in new memory: a user's class may return lists and tensors that it goes on to change."""
    state: dict[str, Any] = part.state_dict()
    return copy_of(state) if is_overridden(part, "state_dict") else state


def load_part(part: Any, state: dict[str, Any]) -> None:
    """Load a state from `part_state`; a user's class may keep what it gets, and change it."""
    part.load_state_dict(copy_of(state) if is_overridden(part, "load_state_dict") else state)


def state_of(buffer: Any) -> dict[str, Any]:
    """`ReplayBuffer.state_dict`; the caller holds the buffer's lock."""
    order: OrderState = buffer._pipeline.state()
    return {
        "_storage": part_state(buffer.storage),
        "_sampler": part_state(buffer.sampler) if order.own is None else copy_of(order.own),
        "_writer": part_state(buffer.writer),
        "_transforms": buffer._pipeline.transforms_state(),
        "_batch_size": buffer.batch_size,
        "_rng": (order.generator, "cpu"),
        "position": order.sampler,
        "batches": order.batches,
        **_iterations(buffer),
    }


def load_state(buffer: Any, state_dict: dict[str, Any]) -> None:
    """`ReplayBuffer.load_state_dict`; nothing else may use the buffer meanwhile."""
    state = {name.removeprefix("_"): value for name, value in state_dict.items()}
    missing = [name for name in ("storage", "sampler", "writer", "transforms", "batch_size") if name not in state]
    if missing:
        raise UsageError(f"the state lacks {', '.join(missing)}: it is not a buffer's")
    storage, cursor = state["storage"], state["writer"].get("_cursor")
    if "position" not in state and cursor:  # a state from TorchRL, whose storages do not state the newest row
        storage = {"newest": int(cursor) - 1, **storage}
    order, iterations = {"batches": check_count(state.get("batches", 0))}, _read_iterations(state)
    generator = state["generator"] if "generator" in state else (state.get("rng") or (None,))[0]
    order |= {} if generator is None else {"generator": generator}
    order |= {"sampler": state["position"]} if "position" in state else {}
    size = state["batch_size"]
    size = None if size is None else check_batch_size(size)
    try:
        _restore(buffer, state, order, partial(load_part, buffer.storage, storage))
    except RbdataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else reason(error)
        raise UsageError(f"the state is that of a buffer made of other parts: {what}") from error
    buffer.batch_size = size
    buffer.__dict__.update(iterations)


def _iterations(buffer: Any) -> dict[str, Any]:
    """Where the iterators of a buffer and of its loaders are, by name in a state."""
    place = [] if buffer._loader_place is None else buffer._loader_place.state()
    return {"loader_epochs": buffer._loader_epochs, "loader_place": place, "pass_ended": buffer._pass_ended}


def _read_iterations(state: dict[str, Any]) -> dict[str, Any]:
    """What `_iterations` states, and what older states and TorchRL's leave out, as attributes of a buffer."""
    epochs, place = check_count(state.get("loader_epochs", 0)), LoaderPlace.of(state.get("loader_place", []))
    if place is not None and not epochs:
        raise UsageError("the state is inside the pass of a loader, and none was begun")
    return {
        "_loader_epochs": epochs,
        "_loader_place": place,
        "_pass_ended": bool(state.get("pass_ended")),
    }


def _restore(buffer: Any, states: dict[str, Any], order: dict[str, Any], load_storage: Callable[[], None]) -> None:
    """Load the available states of the parts, go to the ``order`` (the known fields of an `OrderState`), and load the storage
    last: it writes nothing if its state does not fit. After an error the buffer is unchanged."""
    every: dict[str, Any] = {"sampler": buffer.sampler, "transforms": buffer.transform, "writer": buffer.writer}
    parts = {name: part for name, part in every.items() if name in states}
    pipeline = buffer._pipeline
    pipeline.rewind()
    here, before = pipeline.state(), {name: part_state(part) for name, part in parts.items()}
    try:
        for name, part in parts.items():
            load_part(part, states[name])
        # The sampler's state may be that of draws made ahead of time.
        pipeline.go_to(replace(pipeline.state(), **order))
        load_storage()
        if "writer" in states:  # its cursor counts where the storage's state has none
            load_part(buffer.writer, states["writer"])
    except BaseException:
        for name, part in parts.items():
            load_part(part, before[name])
        pipeline.go_to(here)
        raise
