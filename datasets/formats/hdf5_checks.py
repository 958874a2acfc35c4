"""Checks of HDF5 files that somebody else wrote: damage becomes a CorruptSourceError, dangerous contents are refused."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product, repeat
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CorruptSourceError, RbdataError
from .hdf5_chunks import check_chunks, unpack_chunk
from .hdf5_structure import check_structure

#: HDF5's filters shrink data at most about 1030-fold (deflate): an array that declares more holds nothing.
_LARGEST_RATIO = 1200
#: Bytes of one attribute, or of the texts that it lists.
_LARGEST_ATTRIBUTE = 64 << 20
#: A text, or an array of any length, as it is stored: how many, and where in which heap.
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
#: Groups inside each other.
DEEPEST = 16


def root_names(path: Path) -> set[str]:
    """Names of the members and attributes of a file's root group; empty for what is no HDF5 file."""
    import h5py

    try:
        check_structure(path, path.name)
        with h5py.File(path) as file:
            return {*file, *file.attrs}
    except (CorruptSourceError, OSError, RuntimeError, LookupError, TypeError, ValueError):
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
        if (
            texts and count > 16 and count * size > _LARGEST_ATTRIBUTE
        ) or attribute.get_storage_size() > _LARGEST_ATTRIBUTE:
            raise CorruptSourceError(f"{name}: the attribute {key!r} holds {count} values, more than is read")
        found[key] = owner.attrs[key]
    return found


def check_lengths(array: Any, low: int, high: int, size: int, what: str) -> None:
    """Refuse rows of texts, or of arrays of any length, that state more bytes than a file of ``size`` has.

    HDF5 allocates what is stated before it looks for it. ``array`` is a ``h5py.h5d.DatasetID``; one value counts as a row.
    Raises CorruptSourceError that names ``what``.
    """
    from h5py import h5t

    kind = array.get_type()
    if not isinstance(kind, (h5t.TypeVlenID, h5t.TypeStringID)):
        raise CorruptSourceError(f"{what} holds {array.dtype}, which is not read")
    width = kind.get_super().get_size() if isinstance(kind, h5t.TypeVlenID) else 1
    for data in _references(array, low, high, what):
        found = np.frombuffer(data, _REFERENCE)["length"]
        if int(found.max(initial=0)) * width > size:
            raise CorruptSourceError(f"{what} states values of {int(found.max()) * width} bytes, the file has {size}")


def _references(array: Any, low: int, high: int, what: str) -> Iterator[bytes]:
    """What is stored of rows ``low..high-1``, of more where they are in chunks."""
    from h5py import h5d, h5i

    properties = array.get_create_plist()
    row = math.prod(array.shape[1:]) * _REFERENCE.itemsize
    if properties.get_layout() == h5d.CHUNKED:
        chunks = properties.get_chunk()
        places = [range(low - low % chunks[0], high, chunks[0]), *map(range, repeat(0), array.shape[1:], chunks[1:])]
        for offset in product(*places):
            yield unpack_chunk(array, offset, what)
    elif properties.get_layout() != h5d.CONTIGUOUS:
        raise CorruptSourceError(f"{what} is kept in its header, where texts are not read")
    elif array.get_offset() is not None:
        with Path(os.fsdecode(h5i.get_file_id(array).name)).open("rb") as file:
            file.seek(array.get_offset() + low * row)
            yield file.read((high - low) * row)
