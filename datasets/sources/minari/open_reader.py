"""The reader for each of Minari's data formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .reader import Data, Reader


@contextmanager
def open_reader(data: Data) -> Iterator[Reader]:
    """Open a dataset's files for reading. Raises CorruptSourceError, MissingExtraError for Arrow without pyarrow."""
    reader: Reader
    if data.format == "hdf5":
        from .hdf5 import Hdf5Reader

        reader = Hdf5Reader(data)
    else:
        from .arrow import ArrowReader

        reader = ArrowReader(data)
    try:
        yield reader
    finally:
        reader.close()
