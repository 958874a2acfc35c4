"""Saving and loading of tensor storages: states in memory, and folders (see `tensor_files`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase, is_tensor_collection

from ....errors import DamagedDatasetError, UsageError
from ..state_files import reading
from .storage import Storage
from .tensor_files import read_tensors, write_leaves, write_metadata, write_tensors
from .tensor_layout import batch_shape
from .trees import copy_of, from_state


class SavedTensors(Storage):
    """The part of `TensorStorage` that saves and loads it."""

    _data: Any

    @property
    def initialized(self) -> bool:
        """Whether memory is allocated."""
        return self._data is not None

    def contents(self) -> Any:
        raise NotImplementedError

    def restore(self, data: Any, filled: int, newest: int) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Copies of the contents, under the names that TorchRL's storages use."""
        data = {} if self._data is None else copy_of(self.contents())
        return {"_storage": data, "initialized": self.initialized, "_len": len(self), "newest": self.newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict`, or that of TorchRL's tensor storages, gave; the latter knows no newest row."""
        if "_storage" not in state:  # of an older version
            state = {
                **state,
                "_storage": state["data"],
                "_len": state["filled"],
                "initialized": state["data"] is not None,
            }
        if not state["initialized"]:
            self._accept()
            self.empty()
            return
        data = self._as_stored(from_state(state["_storage"]))
        filled = state.get("filled", -(-int(state["_len"]) // int(batch_shape(data, self.ndim)[1:].numel())))
        self.restore(data, filled, state.get("newest", filled - 1))

    def _as_stored(self, data: Any) -> Any:
        """A TensorDict as the tensorclass that is stored, if there is one."""
        stored = type(self._data)
        other = isinstance(data, TensorDictBase) and is_tensor_collection(self._data)
        return stored.from_tensordict(data) if other and not issubclass(stored, TensorDictBase) else data

    def dumps(self, path: Any, hooks: Sequence[Any] = ()) -> None:
        """Write the contents to a folder, see `tensor_files`; ``hooks`` change the data on their way, see `ted_hooks`."""
        folder = Path(path)
        if not hooks:
            write_tensors(folder, self._data, self.filled, self.newest, len(self))
            return
        if not is_tensor_collection(self._data):
            raise UsageError(f"save hooks work on TensorDicts; the storage is a {type(self).__name__}")
        data = self._data
        if not self.is_full:  # rows never written hold whatever was in memory
            data = data.clone()
            data[self.filled :].zero_()
        folder.mkdir(parents=True, exist_ok=True)
        for hook in hooks:
            hook.is_full, hook.shift = self.is_full, (self.newest + 1) % self.capacity
            data = hook(data, path=folder)
        if isinstance(data, TensorDictBase) and not data.is_memmap():
            write_leaves(folder, data)
        write_metadata(folder, {"metadata": {}, "is_pytree": False, "len": len(self), "newest": self.newest})

    def loads(self, path: Any, hooks: Sequence[Any] = (), cursor: int | None = None) -> None:
        """Read what `dumps`, or TorchRL's, wrote; ``cursor`` is the next row where the folder does not say.

        Raises DamagedDatasetError when it is not whole, SchemaError or UsageError when it belongs to another storage.
        """
        folder = Path(path).absolute()
        with reading(folder):
            data, rows, newest = read_tensors(folder, self._data, hooks)
            if data is None:
                self._accept()
                self.empty()
                return
            if is_tensor_collection(data) and len(data.batch_size) < max(1, self.ndim):
                message = "the data were changed by a save hook"
                raise UsageError(message, hint="register the hook that undoes it: register_load_hook(Flat2TED())")
            shape = batch_shape(data, self.ndim)
            filled = rows // int(shape[1:].numel())
            if cursor is not None and not 0 <= cursor <= shape[0]:
                raise DamagedDatasetError(f"{folder}: row {cursor} cannot be the next one of {shape[0]}")
            if newest is None:
                newest = ((filled if cursor is None else cursor) - 1) % shape[0] if filled else -1
            if filled > shape[0] or not -1 <= newest < shape[0]:
                raise DamagedDatasetError(f"{folder}: {filled} rows, the last one written {newest}, in {shape[0]} rows")
            self._take_files(folder, data, filled, newest)

    def _take_files(self, folder: Path, data: Any, filled: int, newest: int) -> None:
        self.restore(data, filled, newest)
