"""Reads folders of tensors that ``TensorDict.memmap`` writes, without running any code that they name.

    meta.json            {"shape": batch size, "device", "_type": class of the folder, key: entry, ...}
        a tensor         {"device", "shape", "dtype": "torch.float32", "is_nested": false}, its elements in <key>.memmap
        a sub-folder     {"type": name of its class}, with its own meta.json
    of NonTensorData     {"_type", "data": a JSON value, ...}

``TensorDict.load_memmap`` takes the class to load from ``meta.json``, and some of those classes unpickle files that the same
JSON names. So a folder is looked through before: it holds TensorDicts and JSON values alone, no pickle and no link.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedDatasetError, UsageError, reason

if TYPE_CHECKING:
    from tensordict import TensorDict

TENSORDICT = "<class 'tensordict._td.TensorDict'>"
#: The dtypes that tensordict finds again; those of quantised tensors apart.
READ_BACK = {f"torch.{name}{bits}" for name in ("uint", "int") for bits in (8, 16, 32, 64)} | {
    *("torch.bool", "torch.bfloat16", "torch.float16", "torch.float32", "torch.float64"),
    *("torch.complex32", "torch.complex64", "torch.complex128"),
}
_VALUE = "<class 'tensordict.tensorclass.NonTensorData'>"


def read_memmap(folder: Path) -> TensorDict:
    """Map a folder of tensors; writes to them reach the files, as with ``TensorDict.load_memmap``.

    Raises DamagedDatasetError for files that are missing, too short or malformed, and UsageError for contents other than plain
    tensors and JSON values.
    """
    from tensordict import TensorDict

    _check_folder(folder)
    try:
        return TensorDict.load_memmap(folder).lock_()
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DamagedDatasetError(f"{folder} cannot be read: {reason(error)}") from error


def _check_folder(folder: Path) -> None:
    record = read_json(folder / "meta.json")
    if record.get("_type") not in (TENSORDICT, _VALUE):
        raise UsageError(f"{folder} holds a {record.get('_type')!r}, which is not read: only plain TensorDicts are")
    for path in folder.iterdir():
        if path.suffix in (".pickle", ".pkl"):
            raise UsageError(f"{folder} holds pickled objects, which are not read")
        if path.is_symlink():
            raise DamagedDatasetError(f"{path} is a link, not a file or folder of its own")
        if path.is_dir():
            _check_folder(path)
    for key, entry in record.items():
        if isinstance(entry, dict) and "type" not in entry:
            _check_tensor(folder, key, entry)


def _check_tensor(folder: Path, key: str, entry: Mapping[str, Any]) -> None:
    """Raise DamagedDatasetError for a file that is missing or too short: torch would make one, or make it longer."""
    import torch

    shape: Any = entry.get("shape")
    dtype = getattr(torch, str(entry.get("dtype")).removeprefix("torch."), None)
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or not isinstance(dtype, torch.dtype):
        raise DamagedDatasetError(f"{folder / 'meta.json'}: {key} has dtype {entry.get('dtype')!r}, shape {shape!r}")
    wanted = math.prod(shape) * dtype.itemsize
    files = [folder / f"{name}.memmap" for name in (_encoded(key), key)]
    found = next((file.stat().st_size for file in files if file.is_file()), 0)
    if found < wanted:
        raise DamagedDatasetError(f"{files[0]} has {found} bytes, {shape} {dtype} need {wanted}")


def _encoded(key: str) -> str:
    """A key as the name of a file, by tensordict's rule."""
    name = "".join(f"%{ord(char):02X}" if char in '/<>:"|?*\\ \0%' or not char.isprintable() else char for char in key)
    return "%2E" * len(name) if name in (".", "..") else name or "%"


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object in a file that is no link. Raises DamagedDatasetError."""
    try:
        if path.is_symlink():
            raise DamagedDatasetError(f"{path} is a link, not a file of its own")
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedDatasetError(f"{path} cannot be read as JSON: {reason(error)}") from error
    if not isinstance(record, dict):
        raise DamagedDatasetError(f"{path} does not hold a JSON object")
    return record
