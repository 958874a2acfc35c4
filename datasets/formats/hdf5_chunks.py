"""Rows of an HDF5 dataset, with its chunks unpacked in threads.

D4RL's files are in chunks packed by deflate, and HDF5 unpacks them one after the other with plain zlib: two thirds of the
time it takes to convert a file. Here the packed chunks are read as they are and unpacked by ISA-L, several at once and
ahead of what is being written. Whatever is stored in another way is read by HDF5 itself.

A chunk of shape ``chunks`` at grid position g holds the cells from ``g * chunks`` on; those at the far edges hang over.
Filters, in the order they were applied: ``shuffle`` (2; byte i of all cells, then byte i + 1), ``deflate`` (1; a zlib
stream). https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CorruptSourceError

if TYPE_CHECKING:
    import h5py

_DEFLATE, _SHUFFLE = 1, 2
#: Larger chunks are left to HDF5, so that what is unpacked ahead stays small.
_LARGEST_CHUNK = 4 << 20


class Rows:
    """Blocks of rows of one dataset, in ascending order; ``ahead`` rows are unpacked before they are asked for."""

    def __init__(self, dataset: h5py.Dataset, pool: Executor, ahead: int, name: str) -> None:
        self._dataset, self._pool, self._ahead, self._name = dataset, pool, ahead, name
        self._filters = _filters(dataset)
        self._strips: dict[int, list[tuple[tuple[slice, ...], Future[np.ndarray]]]] = {}

    def read(self, low: int, high: int) -> np.ndarray:
        """Rows ``low..high-1``, to be written to by the caller if need be."""
        if self._filters is None:
            return self._dataset[low:high]
        size = self._dataset.chunks[0]
        self._start(low // size, (min(high + self._ahead, len(self._dataset)) - 1) // size)
        out = np.empty((high - low, *self._dataset.shape[1:]), self._dataset.dtype)
        for strip in range(low // size, (high - 1) // size + 1):
            first = strip * size
            begin, end = max(low, first), min(high, first + size)
            for cells, future in self._strips[strip]:
                target = (slice(begin - low, end - low), *cells)
                out[target] = future.result()[begin - first : end - first]
        for strip in [strip for strip in self._strips if (strip + 1) * size <= high]:
            del self._strips[strip]
        return out

    def _start(self, first: int, last: int) -> None:
        """Begin to unpack the strips (all chunks of some rows) that are not on their way yet."""
        for strip in range(first, last + 1):
            if strip not in self._strips:
                self._strips[strip] = list(self._chunks(strip))

    def _chunks(self, strip: int) -> Iterator[tuple[tuple[slice, ...], Future[np.ndarray]]]:
        """The chunks of a strip, on their way: which cells of the other dimensions each one holds."""
        shape, chunks = self._dataset.shape, self._dataset.chunks
        counts = [-(-size // chunk) for size, chunk in zip(shape[1:], chunks[1:])]
        for place in product(*map(range, counts)):
            offset = (strip * chunks[0], *(at * chunk for at, chunk in zip(place, chunks[1:])))
            ends = [min(at + chunk, size) for at, chunk, size in zip(offset[1:], chunks[1:], shape[1:])]
            cells = tuple(slice(at, end) for at, end in zip(offset[1:], ends))
            yield cells, self._pool.submit(self._unpack, offset, tuple(slice(0, c.stop - c.start) for c in cells))

    def _unpack(self, offset: tuple[int, ...], inside: tuple[slice, ...]) -> np.ndarray:
        from isal import isal_zlib
        from isal.igzip_lib import IsalError

        chunks, dtype = self._dataset.chunks, self._dataset.dtype
        where = f"{self._name}: {self._dataset.name}, the chunk at {offset}"
        mask, data = self._dataset.id.read_direct_chunk(offset)
        if mask:
            # Single chunks may have been stored without some of the filters; this is rare enough for HDF5 itself.
            cells = tuple(slice(at, at + size) for at, size in zip(offset, chunks))
            return self._dataset[cells]
        size = int(np.prod(chunks, dtype=np.int64)) * dtype.itemsize
        try:
            plain = isal_zlib.decompressobj().decompress(data, size + 1)
        except IsalError as error:  # type: ignore[misc]  # its stub knows no exceptions
            raise CorruptSourceError(f"{where} is damaged: {error}") from error
        if len(plain) != size:
            raise CorruptSourceError(f"{where} holds {len(plain)} bytes instead of {size}")
        if _SHUFFLE in (self._filters or ()):
            plain = np.frombuffer(plain, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
        cells = (slice(None), *inside)
        return np.frombuffer(plain, dtype).reshape(chunks)[cells]


def _filters(dataset: h5py.Dataset) -> tuple[int, ...] | None:
    """The dataset's filters where its chunks can be unpacked here; None where HDF5 must read it."""
    chunks = dataset.chunks
    if not chunks or int(np.prod(chunks, dtype=np.int64)) * dataset.dtype.itemsize > _LARGEST_CHUNK:
        return None
    properties = dataset.id.get_create_plist()
    filters = tuple(properties.get_filter(number)[0] for number in range(properties.get_nfilters()))
    if filters not in ((_DEFLATE,), (_SHUFFLE, _DEFLATE)):
        return None
    grid = int(np.prod([-(-size // chunk) for size, chunk in zip(dataset.shape, chunks)], dtype=np.int64))
    # Chunks that were never written are not there to be read; HDF5 fills them in.
    return filters if dataset.id.get_num_chunks() == grid else None
