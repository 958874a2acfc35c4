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
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CorruptSourceError, RbdataError, UsageError
from ...storage.leaf import DTYPES
from .limits import REFETCH, check_row_bytes, most_unpacked

if TYPE_CHECKING:
    import h5py


#: HDF5's filters shrink data at most about 1030-fold (deflate): an array that declares more holds nothing.
_LARGEST_RATIO = 1200
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
    item = group[name]
    if not isinstance(item, h5py.Dataset):
        return ""
    if problem := unknown_filter(item.id):
        return f"it is {problem}: h5repack -f GZIP=4 IN OUT repacks it"
    if item.external or item.is_virtual:
        other = item.external[0][0] if item.external else item.virtual_sources()[0].file_name
        return f"its values are in another file, {other}, which is not read: write them into this one"
    return ""


def arrays_below(top: Any, name: str, most: int = 10_000) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every array below a file or group (h5py's) with its path from there, in order; ``name`` is what errors call it.

    Raises CorruptSourceError for links, and for more than ``most`` objects.
    """
    import h5py

    seen: set[Any] = set()
    count = 0
    stack = [("", top["/"] if isinstance(top, h5py.File) else top, 0)]
    while stack:
        prefix, group, depth = stack.pop()
        for key in group:
            path = prefix + key
            count += 1
            if count > most or depth > DEEPEST or key in (".", ".."):
                raise CorruptSourceError(f"{name}: too many or too deep objects ({path!r})")
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                message = f"{name}: {path} is a link to somewhere else, which is not followed"
                raise CorruptSourceError(message, hint="the provider's files have none: use another mirror (--mirror)")
            item = group[key]
            # A group may contain itself, an array may have a hundred names.
            if not isinstance(item, (h5py.Group, h5py.Dataset)) or item.id in seen:
                continue
            seen.add(item.id)
            if isinstance(item, h5py.Group):
                stack.append((path + "/", item, depth + 1))
            else:
                yield path, item


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
    if properties.get_nfilters() and (problem := unknown_filter(array)):
        raise CorruptSourceError(f"{what} is {problem}", hint="repack it: h5repack -f GZIP=4 IN OUT")
    shape, dtype = array.shape, array.dtype
    if not shape or dtype.hasobject:
        return stored  # no values, one value, or text
    declared = math.prod(shape) * dtype.itemsize
    if declared > max(stored * _LARGEST_RATIO, least):
        raise CorruptSourceError(f"{what} declares {shape}, {declared} bytes, but holds {stored} bytes")
    return stored


def unknown_filter(array: Any) -> str:
    """How an array (``h5py.h5d.DatasetID``) is packed, if h5py cannot unpack it; else ""."""
    from h5py import h5z

    missing = [number for number in _filters_of(array.get_create_plist()) if not h5z.filter_avail(number)]
    return f"packed by HDF5's filter {missing[0]}, which h5py does not have" if missing else ""


def has_rows(array: h5py.Dataset) -> bool:
    """Whether the values of an array are rows of numbers."""
    shape = array.shape
    return bool(shape) and 0 not in shape[1:] and array.dtype.newbyteorder("=").name in DTYPES


def check_array(array: h5py.Dataset, where: str) -> None:
    """`check_storage` of an array that `has_rows`, and the bytes of a row. Raises CorruptSourceError."""
    check_storage(array.id, where, least=1 << 16, size=array.file.id.get_filesize())
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
#: Smaller chunks cost more to hand to a thread than to unpack; larger ones are not unpacked ahead.
_SMALLEST_CHUNK, _LARGEST_AHEAD = 1 << 12, 4 << 20
#: Chunks next to each other that hold the same rows.
_MOST_BESIDE = 1 << 10


class ChunkedRows:
    """Blocks of rows of one dataset, best in ascending order; ``ahead`` rows are unpacked before they are asked for.

    Without a ``pool`` they are unpacked when they are asked for. The dataset is one that `check_storage` passed.
    """

    def __init__(self, dataset: h5py.Dataset, name: str, pool: Executor | None = None, ahead: int = 0) -> None:
        self._dataset, self._pool, self._name = dataset, pool, name
        self._filters = _filters_unpacked_here(dataset.id)
        chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize if self._filters else 0
        self._ahead = ahead if pool is not None and 0 < chunk <= _LARGEST_AHEAD else 0
        if chunk < _SMALLEST_CHUNK:
            self._pool = None
        #: By strip (as many rows as a chunk has): the cells of the other dimensions that each chunk holds, and what gives it.
        self._strips: dict[int, list[tuple[tuple[slice, ...], Callable[[], np.ndarray]]]] = {}

    def read(self, low: int, high: int) -> np.ndarray:
        """Rows ``low..high-1``; the caller may write to them."""
        if self._filters is None or low == high:
            return plain_bools(self._dataset[low:high])
        size = self._dataset.chunks[0]
        for strip in range(low // size, (min(high + self._ahead, len(self._dataset)) - 1) // size + 1):
            if strip not in self._strips:
                self._strips[strip] = list(self._chunks(strip))
        out = np.empty((high - low, *self._dataset.shape[1:]), self._dataset.dtype)
        for strip in range(low // size, (high - 1) // size + 1):
            first = strip * size
            begin, end = max(low, first), min(high, first + size)
            for cells, unpacked in self._strips[strip]:
                out[(slice(begin - low, end - low), *cells)] = unpacked()[begin - first : end - first]
        for strip in [strip for strip in self._strips if (strip + 1) * size <= high]:
            del self._strips[strip]
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

    def _chunks(self, strip: int) -> Iterator[tuple[tuple[slice, ...], Callable[[], np.ndarray]]]:
        """The chunks of a strip; with a pool they are being unpacked."""
        shape, (rows, *chunks) = self._dataset.shape[1:], self._dataset.chunks
        for corner in product(*(range(0, size, chunk) for size, chunk in zip(shape, chunks))):
            cells = tuple(slice(at, min(at + chunk, size)) for at, chunk, size in zip(corner, chunks, shape))
            inside = tuple(slice(0, cell.stop - cell.start) for cell in cells)
            unpack = partial(self._unpack, (strip * rows, *corner), inside)
            yield cells, cache(unpack) if self._pool is None else self._pool.submit(unpack).result

    def _unpack(self, offset: tuple[int, ...], inside: tuple[slice, ...]) -> np.ndarray:
        from isal import isal_zlib
        from isal.igzip_lib import IsalError

        chunks, dtype = self._dataset.chunks, self._dataset.dtype
        where, size = f"{self._name}: {self._dataset.name}, the chunk at {offset}", math.prod(chunks) * dtype.itemsize
        mask, data = self._dataset.id.read_direct_chunk(offset)
        applied = [filter for number, filter in enumerate(self._filters or ()) if not mask >> number & 1]
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


def _filters_unpacked_here(array: Any) -> tuple[int, ...] | None:
    """The filters of an array (``h5py.h5d.DatasetID``) whose chunks are unpacked here; None where HDF5 reads it."""
    from h5py import h5d, h5t

    properties, dtype = array.get_create_plist(), array.dtype
    if properties.get_layout() != h5d.CHUNKED or dtype.hasobject or 0 in array.shape:
        return None
    filters = _filters_of(properties)
    if filters not in _UNPACKED_HERE or not array.get_type().equal(h5t.py_create(dtype)):
        return None
    chunks = properties.get_chunk()
    size, grid = math.prod(chunks) * dtype.itemsize, [-(-all // one) for all, one in zip(array.shape, chunks)]
    beside = math.prod(grid[1:])
    if beside > _MOST_BESIDE or size * beside > most_unpacked(array.get_storage_size()):
        return None
    # Chunks that were never written are not in the file; HDF5 fills them in.
    return filters if array.get_num_chunks() == math.prod(grid) else None


def _filters_of(properties: Any) -> tuple[int, ...]:
    """The filters of a dataset's creation properties, in the order they were applied."""
    return tuple(properties.get_filter(number)[0] for number in range(properties.get_nfilters()))


def plain_bools(rows: np.ndarray) -> np.ndarray:
    """Rows with booleans as the bytes 0 and 1; a file may hold any byte, which NumPy and torch do not correct."""
    return rows.view(np.uint8) != 0 if rows.dtype == bool else rows
