"""Checks of HDF5 files that somebody else wrote: damage becomes a CorruptSourceError, dangerous contents are refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError, RbdataError

#: HDF5's filters shrink data at most about 1030-fold (deflate): an array that declares more holds nothing.
_LARGEST_RATIO = 1200
#: Groups inside each other.
DEEPEST = 16


def root_names(path: Path) -> set[str]:
    """Names of the members and attributes of a file's root group; empty for what is no HDF5 file."""
    import h5py

    try:
        with h5py.File(path) as file:
            return {*file, *file.attrs}
    except (OSError, RuntimeError, KeyError, UnicodeDecodeError):
        return set()


@contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Errors of HDF5 inside the block become a CorruptSourceError that names the file; errors of the disk do not."""
    try:
        yield
    except RbdataError:
        raise
    except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = str(error).partition("(")[2].rstrip(")") or str(error)
        message = f"{name} is not a whole HDF5 file: {reason or 'it cannot be read'}"
        raise CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)") from error


def check_storage(array: Any, what: str, *, least: int) -> None:
    """Refuse an array (``h5py.h5d.DatasetID``) whose values are in other files, or that is larger than its bytes can hold.

    Arrays of up to ``least`` bytes are not compared with what is stored. Raises CorruptSourceError that names ``what``.
    """
    from h5py import h5d

    properties = array.get_create_plist()
    if properties.get_external_count() or properties.get_layout() == h5d.VIRTUAL:
        raise CorruptSourceError(f"{what} is kept in another file, which is not read")
    if not array.shape or array.dtype.hasobject:
        return  # no values, one value, or text: read with care or not at all
    size, stored = math.prod(array.shape) * array.dtype.itemsize, array.get_storage_size()
    if size > max(stored * _LARGEST_RATIO, least):
        raise CorruptSourceError(f"{what} declares {array.shape}, {size} bytes, but holds {stored} bytes")
