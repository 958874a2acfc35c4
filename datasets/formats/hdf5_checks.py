"""HDF5 files that somebody else wrote: damage becomes a CorruptSourceError, and what would be wrong or endless is refused.

HDF5 itself is not protected from a file here: it is used in a sandbox (`workers.sandbox`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError, RbdataError
from .hdf5_chunks import check_chunks

#: HDF5's filters shrink data at most about 1030-fold (deflate): an array that declares more holds nothing.
_LARGEST_RATIO = 1200
#: Groups inside each other.
DEEPEST = 16


def root_names(path: Path) -> set[str]:
    """Names of the members and attributes of a file's root group. Raises CorruptSourceError for other files."""
    import h5py

    with damage_reported(path.name), h5py.File(path, "r") as file:
        return {*file, *file.attrs}


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
    """Refuse an array (``h5py.h5d.DatasetID``) whose values are in other files, or not what its file of ``size`` bytes holds.

    Arrays of up to ``least`` bytes are not compared with what is stored; returns how many bytes that is. Raises
    CorruptSourceError that names ``what``.
    """
    from h5py import h5d

    properties = array.get_create_plist()
    if properties.get_external_count() or properties.get_layout() == h5d.VIRTUAL:
        raise CorruptSourceError(f"{what} is kept in another file, which is not read")
    stored: int = array.get_storage_size()
    if stored > size:
        raise CorruptSourceError(f"{what} claims {stored} bytes of a file that has {size}")
    if properties.get_layout() == h5d.CHUNKED:
        check_chunks(array, what)
    if not array.shape or array.dtype.hasobject:
        return stored  # no values, one value, or text
    declared = math.prod(array.shape) * array.dtype.itemsize
    if declared > max(stored * _LARGEST_RATIO, least):
        raise CorruptSourceError(f"{what} declares {array.shape}, {declared} bytes, but holds {stored} bytes")
    return stored


def attributes(owner: Any) -> dict[str, Any]:
    """The attributes of a file or group (h5py's objects); names that are not UTF-8 are escaped."""
    names = {key: key if isinstance(key, str) else key.decode(errors="backslashreplace") for key in owner.attrs}
    return {name: owner.attrs[key] for key, name in names.items()}
