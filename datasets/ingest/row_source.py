"""Where the large rows of a part come from: the part of `run.FillTask` that each provider implements.

    RowSource.blocks -> Block(leaf, buffer, runs) -> sink: row i of a run begins at byte starts[i] of the buffer

A staged job decodes first and plans later: its row counts are known only when all of its bytes have been read. Worker processes
decode everything into folders of the working folder (`run.stage_all`), and `StagedPart` is the row source over those. Rows of
a staged file are raw, or each compressed on its own as the dataset has them. Then the lengths of all of its rows are beside it
(`write_lengths`), and a file that holds exactly one part becomes part of the dataset by a rename.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...errors import RbdataError
from ...storage.checksums import Crc32c
from ...storage.codecs import codec_of
from ...storage.codecs.compressed import compressed_codec
from ...storage.durable import sync_folder
from ...storage.memory_map import map_array
from ...storage.schema import Leaf
from ..fetch import Location, RemoteObject, stream

#: Sample rows, uint8 ``[row_bytes]`` each; those of several leaves may differ in size.
SampleRows: TypeAlias = Sequence[np.ndarray] | np.ndarray

#: Decoded bytes in memory at a time, for sources that can choose.
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Block:
    """Rows of one leaf. ``runs`` are pairs (position of the first row in the part, int64 byte offsets of its rows)."""

    leaf: str
    buffer: Any
    runs: Sequence[tuple[int, np.ndarray]]
    #: Progress so far, out of ``RowSource.rows``; bytes fetched and retries so far.
    done: int
    fetched: int = 0
    retries: int = 0
    #: The crc32c of all bytes of the object; only in the last block, if it was computed.
    crc32c: str | None = None


class RowSource:
    """Where the large rows of one part come from. Picklable: it is sent to a worker process."""

    @property
    def rows(self) -> int:
        """What progress counts, in all."""
        raise NotImplementedError

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        """The rows of these leaves, all of them once, in any order. A buffer is valid until the next block is asked for."""
        raise NotImplementedError

    def adopt(self, leaf: Leaf, folder: Path, index: int) -> dict[str, Any] | None:
        """Make already encoded rows part ``index`` of a leaf; returns its record, or None if the rows are not encoded."""
        return None


def block_of_rows(leaf: Leaf, position: int, rows: np.ndarray, done: int) -> Block:
    """A block of consecutive rows, ``[n, *leaf.shape]``."""
    data = np.ascontiguousarray(rows, leaf.np_dtype)
    starts = np.arange(len(rows), dtype=np.int64) * leaf.row_bytes
    return Block(leaf.name, data.reshape(-1).view(np.uint8).data, [(position, starts)], done)


class CountedStream:
    """The bytes of a remote object, each once and in order, with what a `Block` reports of them."""

    def __init__(self, location: Location, obj: RemoteObject) -> None:
        self.fetched = self.retries = 0
        self._location, self._obj, self._crc32c = location, obj, Crc32c()

    def __iter__(self) -> Iterator[bytes]:
        for piece in stream(self._location, self._obj, on_retry=self._count_retry):
            self.fetched += len(piece)
            self._crc32c.update(piece)
            yield piece

    @property
    def crc32c(self) -> str:
        """The crc32c of all bytes fetched so far."""
        return self._crc32c.hexdigest()

    def _count_retry(self, _: object) -> None:
        self.retries += 1


# -- staged rows --------------------------------------------------------------------------------------------------------


def unfinished(target: Path) -> Path:
    """The folder that becomes ``target`` when it is complete."""
    return target.with_name(target.name + ".part")


@contextmanager
def staging_folder(target: Path, *, keep: bool = False) -> Iterator[Path]:
    """A folder to stage into, which becomes ``target`` when it is complete: a new one, unless the existing one is kept."""
    partial = unfinished(target)
    if not keep:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=keep)
    yield partial
    sync_folder(partial)
    partial.rename(target)
    sync_folder(target.parent)


@dataclass(frozen=True)
class StagedRows:
    """``rows`` rows of a staged file from row ``first`` on; compressed where ``dictionary`` is given."""

    path: Path
    first: int
    rows: int
    dictionary: Path | None = None


@dataclass(frozen=True)
class StagedPart(RowSource):
    """A part whose rows are staged: for each leaf, runs of rows in order."""

    name: str
    leaves: Mapping[str, Sequence[StagedRows]]
    crc32c: str | None = None

    @property
    def rows(self) -> int:
        return sum(run.rows for runs in self.leaves.values() for run in runs)

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        done = 0
        for leaf in leaves:
            position = 0
            for run in self.leaves[leaf.name]:
                for rows in _row_blocks(run, leaf):
                    starts = np.arange(len(rows), dtype=np.int64) * leaf.row_bytes
                    done += len(rows)
                    yield Block(leaf.name, rows.reshape(-1).data, [(position, starts)], done, crc32c=self.crc32c)
                    position += len(rows)
        yield Block("", b"", (), self.rows, crc32c=self.crc32c)

    def adopt(self, leaf: Leaf, folder: Path, index: int) -> dict[str, Any] | None:
        """Compressed rows stay as they are: a file that holds this part alone is renamed, otherwise its rows are copied."""
        runs = self.leaves[leaf.name]
        if codec_of(leaf).fixed_rows or not all(run.dictionary for run in runs):
            return None
        codec = compressed_codec(leaf.codec)(leaf)
        lengths = [read_lengths(run.path) for run in runs]
        if len(runs) == 1 and runs[0].rows == len(lengths[0]):
            try:
                return codec.adopt_part(folder, index, runs[0].path, lengths[0])
            except FileNotFoundError as error:
                # An earlier run renamed it, and the part was lost: it must be staged again.
                staged = runs[0].path.parent
                shutil.rmtree(staged)
                message = f"the decoded rows of {self.name} are gone from {staged.parent}"
                raise RbdataError(message, hint="run the command again: it decodes them once more") from error
        part = codec.open_appender(folder, index)
        for run, every in zip(runs, lengths):
            stop = run.first + run.rows
            blob = map_array(run.path, np.dtype(np.uint8), int(every[:stop].sum()))
            part.append_encoded(blob[int(every[: run.first].sum()) :], every[run.first : stop])
        return part.finish()


def lengths_path(path: Path) -> Path:
    """The file of compressed lengths beside a staged file: int64 of all rows."""
    return path.with_name(path.name + ".lengths")


def read_lengths(path: Path) -> np.ndarray:
    """Compressed lengths of all rows of a staged file, int64."""
    return np.fromfile(lengths_path(path), np.int64)


def _row_blocks(run: StagedRows, leaf: Leaf) -> Iterator[np.ndarray]:
    """The rows in blocks, decompressed, uint8 ``[n, row_bytes]``."""
    if not run.rows:
        return
    data, stop = np.memmap(run.path, np.uint8, "r"), run.first + run.rows
    if run.dictionary:
        decode = compressed_codec(leaf.codec).decoder(run.dictionary.read_bytes(), leaf.row_bytes)
        lengths = read_lengths(run.path)
        starts = np.cumsum(lengths) - lengths
    size = max(1, BLOCK_BYTES // leaf.row_bytes)
    for low in range(run.first, stop, size):
        high = min(low + size, stop)
        if run.dictionary:
            yield decode(data, starts[low:high], lengths[low:high])
        else:
            yield np.ascontiguousarray(data.reshape(-1, leaf.row_bytes)[low:high])
