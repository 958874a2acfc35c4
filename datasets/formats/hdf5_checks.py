"""Checks of HDF5 files that somebody else wrote: damage becomes a CorruptSourceError, dangerous contents are refused."""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError, RbdataError
from .hdf5_chunks import check_chunks

#: HDF5's filters shrink data at most about 1030-fold (deflate): an array that declares more holds nothing.
_LARGEST_RATIO = 1200
#: Bytes of one attribute, or of the texts that it lists.
_LARGEST_ATTRIBUTE = 64 << 20
#: How a global heap begins: the texts, and arrays of any length, of a file. Behind it the size of the heap, and its objects.
_HEAP, _HEAP_HEAD, _HEAP_LEAST = re.compile(rb"GCOL\x01"), 16, 4096
_HEAP_OBJECT = struct.Struct("<HHIQ")
#: Groups inside each other.
DEEPEST = 16


def root_names(path: Path) -> set[str]:
    """Names of the members and attributes of a file's root group; empty for what is no HDF5 file."""
    import h5py

    try:
        with h5py.File(path) as file:
            return {*file, *file.attrs}
    except (OSError, RuntimeError, LookupError, TypeError, ValueError):
        return set()


@contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Errors of HDF5 inside the block become a CorruptSourceError that names the file; errors of the disk do not."""
    try:
        yield
    except RbdataError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, OverflowError) as error:
        # h5py says in many ways that it cannot read something: types it has no equivalent for, dimensions, names.
        if isinstance(error, OSError) and error.errno:
            raise
        reason = str(error).partition("(")[2].rstrip(")") or str(error)
        message = f"{name} is not a whole HDF5 file: {reason or 'it cannot be read'}"
        raise CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)") from error


def check_storage(array: Any, what: str, *, least: int, size: int) -> int:
    """Refuse an array (``h5py.h5d.DatasetID``) whose values are in other files, or that is larger than its bytes can hold.

    ``size`` is that of the file. Arrays of up to ``least`` bytes are not compared with what is stored; returns how many
    bytes that is. Raises CorruptSourceError that names ``what``.
    """
    from h5py import h5d

    properties = array.get_create_plist()
    if properties.get_external_count() or properties.get_layout() == h5d.VIRTUAL:
        raise CorruptSourceError(f"{what} is kept in another file, which is not read")
    if array.dtype.hasobject:
        check_heaps(array)
    stored: int = array.get_storage_size()
    if stored > size:
        raise CorruptSourceError(f"{what} claims {stored} bytes of a file that has {size}")
    if properties.get_nfilters():
        check_chunks(array, what)
    if not array.shape or array.dtype.hasobject:
        return stored  # no values, one value, or text: read with care or not at all
    declared = math.prod(array.shape) * array.dtype.itemsize
    if declared > max(stored * _LARGEST_RATIO, least):
        raise CorruptSourceError(f"{what} declares {array.shape}, {declared} bytes, but holds {stored} bytes")
    return stored


def read_attributes(owner: Any, name: str, size: int) -> dict[str, Any]:
    """The attributes of a file or group (h5py's objects) of a file of ``size`` bytes; texts become ``str`` as h5py does it.

    Raises CorruptSourceError for more than fits in memory: a text may be as long as the file, and be listed many times.
    """
    found: dict[str, Any] = {}
    for key in owner.attrs:
        attribute = owner.attrs.get_id(key)
        count = math.prod(attribute.shape or ())
        texts = attribute.dtype.hasobject
        if texts:
            check_heaps(attribute)
        if (
            texts and count > 16 and count * size > _LARGEST_ATTRIBUTE
        ) or attribute.get_storage_size() > _LARGEST_ATTRIBUTE:
            raise CorruptSourceError(f"{name}: the attribute {key!r} holds {count} values, more than is read")
        found[key] = owner.attrs[key]
    return found


def check_heaps(item: Any) -> None:
    """Refuse the file of an open object if it has a heap in which HDF5 (2.0 at least) searches without end.

    That is where an object, or free space (number 0), takes no bytes. Raises CorruptSourceError.
    """
    from h5py import h5i

    file = h5i.get_file_id(item)
    path = Path(os.fsdecode(file.name))
    if file.get_create_plist().get_sizes()[1] != 8:
        raise CorruptSourceError(f"{path.name} was written with lengths of other than 8 bytes, which are not read")
    about = path.stat()
    _check_heaps(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=64)
def _check_heaps(path: Path, size: int, _: int) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        left = size // 4  # objects, that no crowd of heaps inside each other is looked through again and again
        for found in _HEAP.finditer(data):
            begin = found.start()
            if begin + _HEAP_HEAD > size:
                break
            (length,) = struct.unpack_from("<Q", data, begin + 8)
            at, end = begin + _HEAP_HEAD, begin + length
            if length < _HEAP_LEAST or end > size:
                continue  # HDF5 refuses it
            while at + _HEAP_OBJECT.size <= end:
                number, _, _, held = _HEAP_OBJECT.unpack_from(data, at)
                at += _HEAP_OBJECT.size + (held + 7 & ~7) if number else held
                left -= 1
                if at > end or left < 0 or not (number or held):
                    message = f"{path.name}: the heap at byte {begin}, where texts are kept, is damaged"
                    raise CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)")
