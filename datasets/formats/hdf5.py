"""HDF5 files from third parties: damage becomes a CorruptSourceError that names the file.

HDF5 itself is not protected from a file here: it is used in a worker process (`workers`).

`ChunkedRows` reads the rows of a dataset with its chunks unpacked in threads. D4RL's files are in chunks packed by deflate, and
HDF5 unpacks them one after the other with plain zlib: two thirds of the time it takes to convert a file. Here the packed chunks
are read as they are and unpacked by ISA-L, several at once and ahead of what is being written.

A chunk of shape ``chunks`` at grid position g holds the cells from ``g * chunks`` on; chunks at the far edges extend beyond the
array. Filters, in the order they were applied: ``shuffle`` (2; byte i of all cells, then byte i + 1), ``deflate`` (1; a zlib
stream).
https://docs.h5py.org/en/stable/high/dataset.html#lossless-compression-filters
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import cache, partial
from itertools import product, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...errors import CorruptSourceError, RbdataError, UsageError
from ...storage.leaf import DTYPES
from .limits import REFETCH, check_row_bytes, most_unpacked

if TYPE_CHECKING:
    import h5py


#: HDF5's filters shrink data at most about 1030-fold (deflate): an array that declares more, and not few bytes, holds nothing.
_LARGEST_RATIO, _FEW_BYTES = 1200, 1 << 16
#: Limit of the nesting of groups.
DEEPEST = 16


def head_names(path: Path) -> dict[str, str]:
    """Members and attributes of a file's root group, and below its first group, by name: of an array with dtype and shape
    ("float32 100 3"), else "". Raises CorruptSourceError for other files.
    """
    import h5py

    found: dict[str, str] = {}

    def look(group: Any, prefix: str) -> None:
        inner = ""
        for name in group:
            link = group.get(name, getlink=True)
            item = group[name] if isinstance(link, h5py.HardLink) else None
            kind = (item.dtype, *(item.shape or ())) if isinstance(item, h5py.Dataset) else ()
            found[prefix + name] = " ".join(map(str, kind))
            if isinstance(item, h5py.Group) and (prefix or not inner):
                inner = inner or name
                if prefix.count("/") < 2:
                    look(item, f"{prefix}{name}/")
        found.update((prefix + name, "") for name in attributes(group))

    with open_file(path, path.name) as file:
        look(file["/"], "")
    return found


@contextmanager
def open_file(path: Path, name: str, **how: Any) -> Iterator[h5py.File]:
    """The file, open for reading; HDF5's errors become a CorruptSourceError that calls it ``name``."""
    import h5py

    with damage_reported(name), h5py.File(path, "r", locking=False, **how) as file:
        yield file


@contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Errors of HDF5 inside the block become a CorruptSourceError that names the file; errors of the disk do not.

    Raises UsageError for a file that this program has open.
    """
    try:
        yield
    except RbdataError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, OverflowError) as error:
        # h5py raises many kinds of errors for data that it cannot read: types without an equivalent, dimensions, names.
        if isinstance(error, OSError) and error.errno:
            raise
        if "locking flag values" in str(error):
            hint = "close it first: a program can open an HDF5 file again only with the same locking="
            raise UsageError(f"{name} is open in this program", hint=hint) from error
        reason = str(error).partition("(")[2].rstrip(")") or str(error)
        message = f"{name} is not a whole HDF5 file: {reason or 'it cannot be read'}"
        raise CorruptSourceError(message, hint=REFETCH) from error


def unread_part(group: Any, name: str) -> str:
    """Why a member of a group (``h5py.Group``) is not read; "" where it is.

    HDF5 reads zeros where the file or array of a virtual one is missing, and calls a file damaged whose links lead nowhere.
    """
    import h5py

    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        return f"it is a link to {link.filename}, and links to other files are not followed"
    if isinstance(link, h5py.SoftLink) and group.get(name) is None:
        return "its link leads nowhere"
    how, hint = _unreadable(group[name].id) if isinstance(group[name], h5py.Dataset) else ("", "")
    return how and f"it is {how}: {hint}"


def _unreadable(array: Any) -> tuple[str, str]:
    """How an array (``h5py.h5d.DatasetID``) is stored, and what to do about it, if it is not read."""
    from h5py import h5d, h5z

    properties = array.get_create_plist()
    is_virtual = properties.get_layout() == h5d.VIRTUAL
    if is_virtual or properties.get_external_count():
        other = properties.get_virtual_filename(0) if is_virtual else properties.get_external(0)[0].decode()
        return f"kept in another file, {other}, which is not read", "write its values into this one"
    missing = [number for number in _filters_of(properties) if not h5z.filter_avail(number)]
    how = f"packed by HDF5's filter {missing[0]}, which h5py does not have" if missing else ""
    return how, "h5repack -f GZIP=4 IN OUT repacks it"


def arrays_below(top: Any, name: str, most: int = 10_000) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every array below a file or group (h5py's) with its path from there, in order; ``name`` is what errors call it.

    Raises CorruptSourceError for links, and for more than ``most`` objects.
    """
    import h5py

    seen: set[Any] = set()
    count = 0
    stack = [("", top["/"] if isinstance(top, h5py.File) else top)]
    while stack:
        prefix, group = stack.pop()
        for key in group:
            path, count = prefix + key, count + 1
            if count > most or path.count("/") > DEEPEST:
                raise CorruptSourceError(f"{name}: too many or too deep objects ({path!r})")
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                message = f"{name}: {path} is a link to somewhere else, which is not followed"
                raise CorruptSourceError(message, hint="the provider's files have none: use another mirror (--mirror)")
            item = group[key]
            # A group may contain itself, an array may have a hundred names.
            if item.id in seen:
                continue
            seen.add(item.id)
            if isinstance(item, h5py.Group):
                stack.append((path + "/", item))
            elif isinstance(item, h5py.Dataset):
                yield path, item


def check_storage(array: Any, what: str, size: int) -> int:
    """Refuse an array (``h5py.h5d.DatasetID``) whose values are in other files, or not what its file of ``size`` bytes holds.

    Returns how many bytes are stored; arrays of few bytes are not compared with them. Raises CorruptSourceError that names
    ``what``.
    """
    how, hint = _unreadable(array)
    if how:
        raise CorruptSourceError(f"{what} is {how}", hint=hint)
    stored: int = array.get_storage_size()
    shape, dtype = array.shape, array.dtype
    # Without a shape it has no values; those of text have no size of their own.
    declared = math.prod(shape) * dtype.itemsize if shape and not dtype.hasobject else 0
    if declared > max(min(stored, size) * _LARGEST_RATIO, _FEW_BYTES):
        raise CorruptSourceError(f"{what} declares {shape}, {declared} bytes, but holds {stored} bytes")
    return stored


def has_rows(array: h5py.Dataset) -> bool:
    """Whether the values of an array are rows of numbers."""
    shape = array.shape
    return bool(shape) and 0 not in shape[1:] and array.dtype.newbyteorder("=").name in DTYPES


def check_array(array: h5py.Dataset, where: str) -> None:
    """`check_storage` of an array that `has_rows`, and the bytes of a row. Raises CorruptSourceError."""
    check_storage(array.id, where, array.file.id.get_filesize())
    check_row_bytes(math.prod(array.shape[1:]) * array.dtype.itemsize, where)


def attributes(owner: Any) -> dict[str, Any]:
    """The attributes of a file or group (h5py's objects); names that are not UTF-8 are escaped."""
    names = {key: key if isinstance(key, str) else key.decode(errors="backslashreplace") for key in owner.attrs}
    return {name: owner.attrs[key] for key, name in names.items()}


#: Bytes of rows that `ChunkedRows.blocks` reads at a time.
_BLOCK_BYTES = 4 << 20
_DEFLATE, _SHUFFLE = 1, 2
#: Filters that are undone here; HDF5 reads arrays with other filters.
_UNPACKED_HERE = ((_DEFLATE,), (_SHUFFLE, _DEFLATE))
#: Smaller chunks cost more to hand to a thread than to unpack.
_SMALLEST_CHUNK = 1 << 12

#: What gives the rows of a chunk, and the cells of the other dimensions that it holds.
_Chunk: TypeAlias = "tuple[Callable[[], np.ndarray], tuple[slice, ...]]"


class ChunkedRows:
    """Blocks of rows of one dataset, best in ascending order; ``ahead`` rows are unpacked before they are asked for.

    Without a ``pool`` they are unpacked when they are asked for. The dataset is one that `check_storage` passed.
    """

    def __init__(self, dataset: h5py.Dataset, name: str, pool: Executor | None = None, ahead: int = 0) -> None:
        self._dataset, self._name, self._ahead = dataset, name, ahead
        self._filters = _filters_unpacked_here(dataset.id)
        is_small = not self._filters or math.prod(dataset.chunks) * dataset.dtype.itemsize < _SMALLEST_CHUNK
        self._pool = None if is_small else pool
        #: By strip: as many rows as a chunk has.
        self._strips: dict[int, list[_Chunk]] = {}

    def read(self, low: int, high: int) -> np.ndarray:
        """Rows ``low..high-1``; the caller may write to them."""
        if not self._filters or low == high:
            return plain_bools(self._dataset[low:high])
        size, last = self._dataset.chunks[0], len(self._dataset) - 1
        for strip in range(low // size, min(high - 1 + (self._ahead if self._pool else 0), last) // size + 1):
            if strip not in self._strips:
                self._strips[strip] = list(self._chunks(strip))
        out = np.empty((high - low, *self._dataset.shape[1:]), self._dataset.dtype)
        for strip in range(low // size, (high - 1) // size + 1):
            first = strip * size
            begin, end = max(low, first), min(high, first + size)
            for rows, cells in self._strips[strip]:
                out[(slice(begin - low, end - low), *cells)] = rows()[begin - first : end - first]
        self._strips = {strip: chunks for strip, chunks in self._strips.items() if (strip + 1) * size > high}
        return plain_bools(out)

    def all(self) -> np.ndarray:
        """All rows."""
        return self.read(0, len(self._dataset))

    def blocks(self, low: int, high: int) -> Iterator[np.ndarray]:
        """The same rows in blocks of some megabytes. Raises CorruptSourceError, also for damage that HDF5 finds."""
        row_bytes = math.prod(self._dataset.shape[1:]) * self._dataset.dtype.itemsize
        size = max(1, _BLOCK_BYTES // row_bytes)
        for first in range(low, high, size):
            with damage_reported(self._name):
                yield self.read(first, min(first + size, high))

    def _chunks(self, strip: int) -> Iterator[_Chunk]:
        """The chunks of a strip; with a pool they are being unpacked."""
        shape, (rows, *chunks) = self._dataset.shape[1:], self._dataset.chunks
        for corner in product(*map(range, repeat(0), shape, chunks)):
            cells = tuple(slice(at, min(at + chunk, size)) for at, chunk, size in zip(corner, chunks, shape))
            inside = tuple(slice(0, cell.stop - cell.start) for cell in cells)
            unpack = partial(self._unpack, (strip * rows, *corner), inside)
            yield self._pool.submit(unpack).result if self._pool else cache(unpack), cells

    def _unpack(self, offset: tuple[int, ...], inside: tuple[slice, ...]) -> np.ndarray:
        from isal import isal_zlib
        from isal.igzip_lib import IsalError

        chunks, dtype = self._dataset.chunks, self._dataset.dtype
        where, size = f"{self._name}: {self._dataset.name}, the chunk at {offset}", math.prod(chunks) * dtype.itemsize
        mask, data = self._dataset.id.read_direct_chunk(offset)
        applied = [filter for number, filter in enumerate(self._filters) if not mask >> number & 1]
        if _DEFLATE in applied:
            stream = isal_zlib.decompressobj()
            try:
                data = stream.decompress(data, size + 1)
            except IsalError as error:  # type: ignore[misc]  # its stub knows no exceptions
                raise CorruptSourceError(f"{where} is damaged: {error}") from error
            if len(data) == size and not stream.eof:  # its checksum is at the end
                raise CorruptSourceError(f"{where} is cut short")
        if len(data) != size:
            raise CorruptSourceError(f"{where} holds {len(data)} bytes instead of {size}")
        if _SHUFFLE in applied:
            data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
        return np.frombuffer(data, dtype).reshape(chunks)[(slice(None), *inside)]


def _filters_unpacked_here(array: Any) -> tuple[int, ...]:
    """The filters of an array (``h5py.h5d.DatasetID``) whose chunks are unpacked here; none where HDF5 reads it."""
    from h5py import h5d, h5t

    properties, dtype = array.get_create_plist(), array.dtype
    filters = _filters_of(properties)
    if properties.get_layout() != h5d.CHUNKED or filters not in _UNPACKED_HERE or 0 in array.shape:
        return ()
    if dtype.hasobject or not array.get_type().equal(h5t.py_create(dtype)):
        return ()
    chunks = properties.get_chunk()
    grid = [-(-all // one) for all, one in zip(array.shape, chunks)]
    is_large = math.prod(grid[1:]) * math.prod(chunks) * dtype.itemsize > most_unpacked(array.get_storage_size())
    # Chunks that were never written are not in the file; HDF5 fills them in.
    return () if is_large or array.get_num_chunks() != math.prod(grid) else filters


def _filters_of(properties: Any) -> tuple[int, ...]:
    """The filters of a dataset's creation properties, in the order they were applied."""
    return tuple(properties.get_filter(number)[0] for number in range(properties.get_nfilters()))


def plain_bools(rows: np.ndarray) -> np.ndarray:
    """Rows with booleans as the bytes 0 and 1; a file may hold any byte, which NumPy and torch do not correct."""
    return rows.view(np.uint8) != 0 if rows.dtype == bool else rows
