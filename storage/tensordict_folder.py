"""Reads folders that ``TensorDict.memmap`` writes, without running any code that they name.

``TensorDict.load_memmap`` takes the class to load from a string in ``meta.json``, and some of those classes unpickle files that
the same JSON names: an untrusted folder can run code. This reader never imports a class, never unpickles and never follows a
link. The format is that of tensordict 0.13 and 0.14 (the tests compare with what tensordict writes):

    meta.json            {"shape": batch size, "device", "_type": class of the folder, key: entry, ...}
        a tensor         {"device", "shape", "dtype": "torch.float32", "is_nested": false}, its elements in <key>.memmap
        a sub-folder     {"type": name of its class}, with its own meta.json
    of class TensorDict  the same again
    of NonTensorData     {"_type", "data": a JSON value, ...}

Keys with characters that file systems refuse are percent-encoded in file names. Everything else (tensor classes, stacks of
values, pickled objects, nested jagged tensors) is refused. Writing needs neither tensordict nor torch.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedDatasetError, DatasetExistsError, UsageError, reason
from .untrusted_json import parse_json

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

TENSORDICT = "<class 'tensordict._td.TensorDict'>"
_VALUE = "<class 'tensordict.tensorclass.NonTensorData'>"
_NUMBERS = (
    "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128"
)
_NARROW = "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
_BITS = "bits8 bits16 bits1x8 bits2x4 bits4x2"
_DTYPES = frozenset(["bool", *_NUMBERS.split(), *_NARROW.split(), *_BITS.split()])
_ENCODED = frozenset('/<>:"|?*\\ \0%') | {chr(code) for code in (*range(32), 127)}
_OWN_ENTRIES = frozenset({"shape", "device", "_type"})
#: Limits before anything is known about the data: bytes of a meta.json, and levels of folders.
_META_BYTES, _DEPTH = 16 << 20, 32


def read_memmap(folder: Path) -> TensorDict:
    """Map a folder of tensors; writes to them reach the files, as with ``TensorDict.load_memmap``.

    Raises DamagedDatasetError for files that are missing, too short or malformed, and UsageError for contents other than plain
    tensors and JSON values. ``folder`` itself may be a link; nothing inside it may be one.
    """
    return _read_folder(Path(folder), 0).lock_()


def read_json(path: Path, limit: int = _META_BYTES) -> dict[str, Any]:
    """A JSON object from a regular file of at most ``limit`` bytes. Raises DamagedDatasetError."""
    size = regular_size(path)
    if size > limit:
        raise DamagedDatasetError(f"{path} has {size} bytes, more than the {limit} that such a file may have")
    try:
        record = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedDatasetError(f"{path} cannot be read as JSON: {reason(error)}") from error
    if not isinstance(record, dict):
        raise DamagedDatasetError(f"{path} does not hold a JSON object")
    return record


def regular_size(path: Path) -> int:
    """Size of a regular file in bytes. Raises DamagedDatasetError for anything else, and if it is missing."""
    found = _status(path)
    if not stat.S_ISREG(found.st_mode):
        raise DamagedDatasetError(f"{path} is not a regular file")
    return found.st_size


def check_plain(folder: Path) -> None:
    """Raise DatasetExistsError if a folder to write to holds links, pipes or devices at any depth, through which writes would
    go. The folder may be missing."""
    for top, folders, files in os.walk(folder):
        for path in (Path(top, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # another process writes here too
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    message = f"{path} is neither a file nor a folder: nothing is written through it"
                    raise DatasetExistsError(message, hint="remove it, or name another folder")


def _status(path: Path) -> os.stat_result:
    try:
        return os.lstat(path)
    except (OSError, ValueError) as error:
        raise DamagedDatasetError(f"{path} is missing or cannot be read: {reason(error)}") from error


def _read_folder(folder: Path, depth: int) -> TensorDict:
    import torch
    from tensordict import TensorDict

    if depth > _DEPTH:
        raise DamagedDatasetError(f"{folder} is nested deeper than {_DEPTH} levels")
    record = read_json(folder / "meta.json")
    _check_class(folder, record, TENSORDICT)
    batch = _shape(record.get("shape"), folder / "meta.json")
    result = TensorDict(batch_size=batch, device="cpu" if record.get("device") == "cpu" else None)
    for key, entry in record.items():
        if key in _OWN_ENTRIES:
            continue
        if not isinstance(entry, dict):
            raise DamagedDatasetError(f"{folder / 'meta.json'}: the entry {key!r} is malformed")
        value = _read_entry(folder, key, entry, depth)
        try:
            if isinstance(value, (torch.Tensor, TensorDict)):
                result.set(key, value)
            else:
                result.set_non_tensor(key, value)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise DamagedDatasetError(f"{folder}: {key!r} does not fit batch {list(batch)}: {reason(error)}") from error
    return result


def _read_entry(folder: Path, key: str, entry: dict[str, Any], depth: int) -> Any:
    if "type" not in entry:
        if entry.get("is_nested"):
            raise UsageError(f"{folder / 'meta.json'}: {key!r} is a nested tensor, which is not read")
        return map_tensor(_existing(folder, key, ".memmap"), entry.get("dtype"), entry.get("shape"))
    below = _existing(folder, key, "")
    if not stat.S_ISDIR(_status(below).st_mode):
        raise DamagedDatasetError(f"{below} is not a folder")
    record = read_json(below / "meta.json")
    if record.get("_type") != _VALUE:
        return _read_folder(below, depth + 1)
    _check_class(below, record, _VALUE)
    if "data" not in record or not _is_plain(record["data"]):
        raise UsageError(f"{below} holds a value other than numbers, text and lists of these, which is not read")
    return record["data"]


def is_known_dtype(dtype: torch.dtype) -> bool:
    """Whether `dtype_named` knows a dtype; files with other ones cannot be read."""
    return str(dtype).removeprefix("torch.") in _DTYPES


def dtype_named(name: Any, place: object) -> torch.dtype:
    """The dtype with a name such as "float32" or "torch.float32". Raises DamagedDatasetError, naming ``place``, if unknown."""
    import torch

    short = str(name).removeprefix("torch.")
    dtype: torch.dtype | None = getattr(torch, short, None) if short in _DTYPES else None
    if dtype is None:  # unknown, or missing in this version of torch
        raise DamagedDatasetError(f"{place}: unknown dtype {name!r}")
    return dtype


def map_tensor(path: Path, dtype_name: Any, stated_shape: Any) -> Any:
    """Map a file of one tensor's elements, writable. Raises DamagedDatasetError if it does not hold that tensor."""
    import torch
    from tensordict import MemoryMappedTensor

    dtype, shape = dtype_named(dtype_name, path), _shape(stated_shape, path)
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    size = regular_size(path)
    if size < count * dtype.itemsize:
        raise DamagedDatasetError(f"{path} has {size} bytes, {list(shape)} {dtype} need {count * dtype.itemsize}")
    try:
        return MemoryMappedTensor.from_filename(path, dtype, torch.Size(shape))
    except (OSError, RuntimeError, ValueError) as error:
        raise DamagedDatasetError(f"{path} cannot be mapped: {reason(error)}") from error


def check_writable(data: Any, taken: Iterable[str] = (), *, level: str = "") -> None:
    """Raise UsageError for data that `read_memmap` would not restore from what ``TensorDict.memmap`` writes.

    ``taken`` are the names of other files in the folder.
    """
    from tensordict import NonTensorData, TensorDict

    names = {"meta.json", *taken}
    for key, value in data.items():
        place = f"{level}{key}"
        if key in _OWN_ENTRIES:
            raise UsageError(f"the key {place!r} is reserved in a folder of tensors", hint="rename it")
        name = encoded_name(key)
        if not _encodes(name) or len(name.encode()) > 248:
            raise UsageError(f"no file can be named after the key {place!r:.100}", hint="rename it")
        if isinstance(value, TensorDict):
            check_writable(value, level=f"{place}/")
        elif isinstance(value, NonTensorData):
            if not _is_plain(value.data):
                message = f"{place} is a {type(value.data).__name__} that JSON cannot hold: {value.data!r:.60}"
                raise UsageError(message, hint="files hold tensors, numbers, text, and lists and dicts of these")
        elif _is_strided(value) and is_known_dtype(value.dtype):
            name += ".memmap"
        else:
            kind = type(value).__name__ + (f" of {value.dtype}" if hasattr(value, "layout") else "")
            raise UsageError(f"{place} is a {kind}, which cannot be read from files")
        if name in names:
            raise UsageError(f"the key {place!r} would take the place of another file, {name}", hint="rename it")
        names.add(name)


def _is_strided(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested


def _existing(folder: Path, key: str, suffix: str) -> Path:
    """The file or folder of a key, under its encoded name or (from older versions of tensordict) under the key itself."""
    encoded = encoded_name(key)
    path = folder / f"{encoded}{suffix}"
    if encoded != key and not {"/", "\\", "\0"}.intersection(key) and f"{key}{suffix}" not in ("", ".", ".."):
        older = folder / f"{key}{suffix}"
        if not os.path.lexists(path) and os.path.lexists(older):
            return older
    return path


def encoded_name(key: str) -> str:
    """A key as the name of a file."""
    encoded = "".join(f"%{ord(char):02X}" if char in _ENCODED else char for char in key) or "%"
    return "%2E" * len(encoded) if encoded in (".", "..") else encoded


def _check_class(folder: Path, record: dict[str, Any], expected: str) -> None:
    """Raise UsageError for classes other than the expected one, and for any pickle in the folder."""
    if record.get("_type") != expected:
        raise UsageError(f"{folder} holds a {record.get('_type')!r}, which is not read: only plain TensorDicts are")
    if any(path.suffix in (".pickle", ".pkl") for path in folder.iterdir()):
        raise UsageError(f"{folder} holds pickled objects, which are not read")


def _shape(value: Any, where: Path) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 64 or not all(type(size) is int and size >= 0 for size in value):
        raise DamagedDatasetError(f"{where}: a shape is {value!r}, not a list of sizes")
    if math.prod(size or 1 for size in value) >= 1 << 60:
        raise DamagedDatasetError(f"{where}: the shape {value} is larger than any file")
    return tuple(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value survives the JSON that tensordict writes."""
    if type(value) in (list, dict):
        parts = value if type(value) is list else [*value, *value.values()]
        named = type(value) is list or all(type(key) is str for key in value)
        return named and depth < 4 and all(_is_plain(item, depth + 1) for item in parts)
    if type(value) is str:
        return value.isascii() or _encodes(value)
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return value is None or type(value) is bool or (type(value) is float and math.isfinite(value))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True
