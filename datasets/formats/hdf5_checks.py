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

import numpy as np

from ...errors import CorruptSourceError, RbdataError
from .hdf5_chunks import check_chunks, unpack_chunk
from .hdf5_headers import Headers, read_type, superblock

#: Heads of heaps, see `check_structure`.
_GLOBAL, _LOCAL = re.compile(rb"GCOL\x01"), re.compile(rb"HEAP\0")
_GLOBAL_HEAD, _LEAST_GLOBAL = 16, 4096
_GLOBAL_OBJECT = struct.Struct("<HHIQ")
_END_OF_FREE = 1
#: HDF5's filters shrink data at most about 1030-fold (deflate): an array that declares more holds nothing.
_LARGEST_RATIO = 1200
#: Bytes of one attribute, or of the texts that it lists.
_LARGEST_ATTRIBUTE = 64 << 20
#: A text, or an array of any length, as it is stored: how many, and where in which heap.
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
#: Bytes up to which HDF5 puts several texts into one heap.
_LARGEST_SHARED = 1 << 16
_MOST_ATTRIBUTES = 256
#: Groups inside each other.
DEEPEST = 16


def check_structure(path: Path, name: str) -> None:
    """Raise CorruptSourceError, calling the file ``name``, for structures in which HDF5 (2.0 at least) gets lost.

        "GCOL"   a global heap: texts, and arrays of any length. HDF5 goes from object to object, and stays where one has no
                 bytes.
        "HEAP"   a local heap: the names in a group. Its free space is a list, which HDF5 follows without end if it is a ring.

    A file is read once for each of them, a third of a second of processor time for a gigabyte. Where the bytes of an array
    happen to look like one of them, it is one that HDF5 would refuse anyway, or it is sound.

    Format: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (III.A.1, III.D, III.E)
    """
    about = path.stat()
    found = _first_ring(path, name, about.st_size, about.st_mtime_ns)
    if found:
        message = f"{name} is not a whole HDF5 file: {found}"
        raise CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)")


@lru_cache(maxsize=64)
def _first_ring(path: Path, name: str, size: int, _: int) -> str:
    """What is wrong with a file, "" if nothing is."""
    if size < _GLOBAL_HEAD:
        return ""  # HDF5 says so
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        begin = superblock(data)
        if begin is None:
            return ""  # HDF5 says so
        lengths = data[begin + (10 if data[begin + 8] > 1 else 14)]
        offsets = data[begin + (9 if data[begin + 8] > 1 else 13)]
        if (offsets, lengths) != (8, 8):
            return f"it has addresses of {offsets} and lengths of {lengths} bytes, of which only 8 are read"
        found = _global_heaps(data) or _local_heaps(data, begin)
        if not found:
            Headers(data, begin, name).check_root()
        return found


def _global_heaps(data: Any) -> str:
    left = len(data) // 4  # objects, that no crowd of heaps inside each other is looked through again and again
    for found in _GLOBAL.finditer(data):
        begin = found.start()
        if begin + _GLOBAL_HEAD > len(data):
            break
        (length,) = struct.unpack_from("<Q", data, begin + 8)
        at, end = begin + _GLOBAL_HEAD, begin + length
        if length < _LEAST_GLOBAL or end > len(data):
            continue  # HDF5 refuses it
        while at + _GLOBAL_OBJECT.size <= end:
            number, _, _, held = _GLOBAL_OBJECT.unpack_from(data, at)
            at += _GLOBAL_OBJECT.size + (held + 7 & ~7) if number else held
            left -= 1
            if at > end or left < 0 or not (number or held):
                return f"the heap at byte {begin}, where texts are kept, is damaged"
    return ""


def _local_heaps(data: Any, base: int) -> str:
    left = len(data) // 4
    for found in _LOCAL.finditer(data):
        if found.start() + 32 > len(data):
            break
        size, free, address = struct.unpack_from("<QQQ", data, found.start() + 8)
        begin, count = base + address, 0
        while free != _END_OF_FREE and free + 16 <= size and begin + free + 16 <= len(data):
            (free,) = struct.unpack_from("<Q", data, begin + free)
            count += 1
            left -= 1
            if count > size // 16 or left < 0:
                return f"the heap at byte {found.start()}, where names are kept, is damaged"
    return ""


def root_names(path: Path) -> set[str]:
    """Names of the members and attributes of a file's root group; empty for other files."""
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


def check_storage(array: Any, headers: Headers, what: str, *, least: int, size: int) -> int:
    """Refuse an array (``h5py.h5d.DatasetID``) whose values are in other files, or that is larger than its bytes can hold.

    ``headers`` are those of the file, ``size`` its bytes. Arrays of up to ``least`` bytes are not compared with what is
    stored; returns how many bytes that is. Raises CorruptSourceError that names ``what``.
    """
    from h5py import h5d, h5o

    _check_type(array.get_type(), what)
    # HDF5 reads a fill value, as long as it states to be, when it is asked for any property.
    if array.dtype.hasobject and headers.has_fill_value(h5o.get_info(array).addr):
        raise CorruptSourceError(f"{what} has a fill value of {array.dtype}, which is not read")
    properties = array.get_create_plist()
    if properties.get_external_count() or properties.get_layout() == h5d.VIRTUAL:
        raise CorruptSourceError(f"{what} is kept in another file, which is not read")
    stored: int = array.get_storage_size()
    if stored > size:
        raise CorruptSourceError(f"{what} claims {stored} bytes of a file that has {size}")
    if properties.get_layout() == h5d.CHUNKED:
        check_chunks(array, what)
    if not array.shape or array.dtype.hasobject:
        return stored  # no values, one value, or text: read with care or not at all
    declared = math.prod(array.shape) * array.dtype.itemsize
    if declared > max(stored * _LARGEST_RATIO, least):
        raise CorruptSourceError(f"{what} declares {array.shape}, {declared} bytes, but holds {stored} bytes")
    return stored


def read_attributes(owner: Any, name: str, size: int) -> dict[str, Any]:
    """The attributes of a file or group (h5py's objects) of a file of ``size`` bytes; texts become ``str`` as h5py does it,
    names that are not UTF-8 are escaped.

    Raises CorruptSourceError for more than fits in memory: a text may be as long as the file, and be listed many times. What
    a text states to be long HDF5 allocates before it looks for it.
    """
    import h5py

    found: dict[str, Any] = {}
    texts: dict[str | bytes, tuple[int, int]] = {}
    for key in owner.attrs:
        attribute = owner.attrs.get_id(key)
        what = f"{name}: the attribute {key!r}"
        _check_type(attribute.get_type(), what)
        count = attribute.get_space().get_simple_extent_npoints()
        several = attribute.dtype.hasobject and count > 16
        held = count * attribute.get_type().get_size()
        if (several and count * size > _LARGEST_ATTRIBUTE) or held > _LARGEST_ATTRIBUTE:
            raise CorruptSourceError(f"{what} holds {count} values, more than is read")
        if attribute.dtype.hasobject:
            texts[key] = count, _width(attribute, what)
    if texts:
        _check_attributes(Path(os.fsdecode(h5py.h5i.get_file_id(owner.id).name)), texts, name)
    for key in owner.attrs:
        found[key if isinstance(key, str) else key.decode(errors="backslashreplace")] = owner.attrs[key]
    return found


def _check_attributes(path: Path, texts: dict[str | bytes, tuple[int, int]], name: str) -> None:
    """Refuse attributes of any length that state more bytes than their file has. ``texts``: how many values, bytes of an item.

    Wherever HDF5 keeps an attribute, it is in one piece, so all places are looked at where there is one of its name: version,
    flags, bytes of the name, type and shape (each up to a multiple of 8 in version 1), what the name is encoded in (version
    3), and those, and then the values.
    """
    if len(texts) > _MOST_ATTRIBUTES:
        raise CorruptSourceError(f"{name} holds {len(texts)} attributes of any length, more than are read")
    left = 1 << 20
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        for key, (count, width) in texts.items():
            word = (key if isinstance(key, bytes) else key.encode()) + b"\0"  # h5py leaves what is not UTF-8
            at, places = data.find(word), 0
            while at >= 0 and count:
                left -= 1
                for version, head in ((1, 8), (2, 8), (3, 9)):
                    if at < head or data[at - head] != version:
                        continue
                    sizes = struct.unpack_from("<HHH", data, at - head + 2)
                    first = at + sum(size + 7 & ~7 if version == 1 else size for size in sizes)
                    if sizes[0] == len(word) and first + count * _REFERENCE.itemsize <= len(data):
                        stated = int(np.frombuffer(data, _REFERENCE, count, first)["length"].max())
                        places += 1
                        if stated * width > len(data):
                            message = f"{name}: the attribute {key!r} states {stated * width} bytes"
                            raise CorruptSourceError(f"{message}, the file has {len(data)}")
                at = data.find(word, at + 1)
            if (count and not places) or left < 0:
                raise CorruptSourceError(f"{name}: the length of the attribute {key!r} cannot be proved")


def _check_type(kind: Any, what: str) -> None:
    """Refuse a type (``h5py.h5t.TypeID``) that HDF5 does not write, or of many types inside each other."""
    try:
        read_type(kind.encode(), 2, in_file=False)
    except (ValueError, IndexError, struct.error) as error:
        raise CorruptSourceError(f"{what} is of a type that is not read: {error}") from error


def _width(owner: Any, what: str) -> int:
    """Bytes of an item of values of any length (of an attribute or array). Raises CorruptSourceError for any other kind."""
    from h5py import h5t

    kind = owner.get_type()
    if isinstance(kind, h5t.TypeStringID):
        return 1
    if not isinstance(kind, h5t.TypeVlenID) or kind.get_super().dtype.hasobject:
        raise CorruptSourceError(f"{what} holds {owner.dtype}, which is not read")
    return int(kind.get_super().get_size())


def check_lengths(array: Any, low: int, high: int, size: int, what: str) -> None:
    """Refuse rows of texts, or of arrays of any length, that state more bytes than a file of ``size`` has.

    HDF5 allocates what is stated before it looks for it. Refused as well are short ones in heaps of megabytes, which HDF5
    reads as a whole for each. ``array`` is a ``h5py.h5d.DatasetID``; one value counts as a row. Raises CorruptSourceError
    that names ``what``.
    """
    from h5py import h5i

    width, file = _width(array, what), h5i.get_file_id(array)
    base = file.get_create_plist().get_userblock()
    stored = np.memmap(os.fsdecode(file.name), np.uint8, "r")
    for data in _references(array, low, high, what):
        found = np.frombuffer(data, _REFERENCE)
        longest = int(found["length"].max(initial=0)) * width
        if longest > size:
            raise CorruptSourceError(f"{what} states values of {longest} bytes, the file has {size}")
        found = found[(found["length"] > 0) & (found["heap"] < max(0, len(stored) - base - 16))]
        places = found["heap"].astype(np.int64)[:, None] + np.arange(base + 8, base + 16)
        sizes = stored[places].view("<u8")[:, 0]
        if ((sizes > _LARGEST_SHARED) & (sizes // 2 > found["length"].astype(np.uint64) * width)).any():
            raise CorruptSourceError(
                f"{what} has short values in heaps of up to {sizes.max()} bytes, which are not read"
            )


def _references(array: Any, low: int, high: int, what: str) -> Iterator[bytes]:
    """What is stored of rows ``low..high-1``, of more where they are in chunks."""
    from h5py import h5d, h5i

    properties = array.get_create_plist()
    row = math.prod(array.shape[1:]) * _REFERENCE.itemsize
    if properties.get_layout() == h5d.CHUNKED:
        first = low - low % properties.get_chunk()[0]
        # The shape may say that there are many more; HDF5 looks through all that were written for each of them.
        written = list[tuple[int, ...]]()
        array.chunk_iter(lambda info: written.append(info.chunk_offset))
        for offset in written:
            if first <= offset[0] < high:
                yield unpack_chunk(array, offset, what)
    elif properties.get_layout() != h5d.CONTIGUOUS:
        raise CorruptSourceError(f"{what} is kept in its header, where texts are not read")
    elif array.get_offset() is not None:
        with Path(os.fsdecode(h5i.get_file_id(array).name)).open("rb") as file:
            file.seek(array.get_offset() + low * row)
            yield file.read(min((high - low) * row, array.get_storage_size()))
