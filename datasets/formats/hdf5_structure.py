"""Structures of HDF5 files in which HDF5 (2.0 at least) gets lost: looked for before it opens a file.

    "GCOL"   a global heap: texts, and arrays of any length. HDF5 goes from object to object, and stays where one has no bytes.
    "HEAP"   a local heap: the names in a group. Its free space is a list, which HDF5 follows without end if it is a ring.

A file is read once for each of them, a third of a second of processor time for a gigabyte. Where the bytes of an array happen
to look like one of them, it is one that HDF5 would refuse anyway, or it is sound.

Format: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (III.A.1, III.D, III.E)
"""

from __future__ import annotations

import mmap
import re
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError
from .hdf5_headers import Headers, superblock

_GLOBAL, _LOCAL = re.compile(rb"GCOL\x01"), re.compile(rb"HEAP\0")
_GLOBAL_HEAD, _LEAST_GLOBAL = 16, 4096
_GLOBAL_OBJECT = struct.Struct("<HHIQ")
_END_OF_FREE = 1


def check_structure(path: Path, name: str) -> None:
    """Raise CorruptSourceError, calling the file ``name``, where HDF5 would not come back from reading it."""
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
