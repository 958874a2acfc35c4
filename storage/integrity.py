"""Compares the bytes of a dataset's files with their checksums.

The manifest has the crc32c of every *range* of every file: a piece of any length that was written at once. A dataset with large
files also has a file ``blocks.crc32c``: uint32, little-endian, the crc32c of every block of 4 MiB (the last block of a file is
shorter) of the files that ``blocks`` of the manifest names, in that order, from the beginning of each. With it, a reader of one
block, a repair and a partial copy can verify what they have without the rest of the file. The manifest covers the table itself.
The blocks of a file that is not in the table are its ranges: `BlockChecksums` has the blocks of all files.

    verify              a whole dataset: sizes, and checksums of every block
    check_leaves        the files of some leaves

Whether the values make sense is the question of `datasets.audit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import DamagedDatasetError, DatasetBusyError
from .checksums import BLOCK, Crc32c, crc32c, join_ranges, sum_pieces, sum_range
from .codecs import codec_of
from .durable import is_about_reader
from .leaf import Leaf
from .manifest import BLOCK_TABLE, Manifest, Problem, check_sizes
from .memory_map import map_array, read_file, verify_hint
from .snapshot import read_snapshot, state_of
from .threads import map_in_threads

#: Maximum number of ranges that are read together.
_MAX_JOINED = 4096


# -- the expected bytes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedBlock:
    """Consecutive bytes of a file with a checksum (8 hex digits): a block of the table or, without a table, a range."""

    path: str
    number: int
    begin: int
    length: int
    crc32c: str

    @property
    def end(self) -> int:
        """The offset of the first byte after the block."""
        return self.begin + self.length

    def is_in(self, folder: Path) -> bool:
        """Return whether the file in a folder has these bytes. Raises OSError if it cannot be read."""
        return sum_range(folder / self.path, self.begin, self.length) == (self.length, self.crc32c)

    def is_sound(self, pieces: Iterable[bytes]) -> bool:
        """Return whether these bytes match the length and checksum of the block."""
        checksum = Crc32c()
        for piece in pieces:
            checksum.update(piece)
        return checksum.range == (self.length, self.crc32c)


class BlockChecksums:
    """The blocks of all files of a dataset, from its manifest and the bytes of its table (None: ranges only)."""

    def __init__(self, manifest: Manifest, table: bytes | None) -> None:
        """Raises DamagedDatasetError if the table does not match its checksum, or contradicts the manifest."""
        #: The values of the table: for each of its files, the crc32c of each block in order, uint32.
        self.tabled: dict[str, np.ndarray] = {}
        #: Bytes of a block, for files in the table.
        self.size = BLOCK
        #: By file: the first byte of each block and, last, the size of the file, int64; the crc32c of each, uint32.
        self.edges: dict[str, np.ndarray] = {}
        self._sums: dict[str, np.ndarray] = {}
        for path, ranges in manifest.files.items():
            self.edges[path] = np.cumsum([0, *(length for length, _ in ranges)])
            self._sums[path] = np.array([int(checksum, 16) for _, checksum in ranges], np.uint32)
        if table is None or not manifest.blocks:
            return
        if (len(table), crc32c(table)) != join_ranges(manifest.files[BLOCK_TABLE]):
            raise DamagedDatasetError(f"{BLOCK_TABLE} of {manifest.id} has a checksum mismatch")
        self.size = manifest.blocks["size"]
        values, at = np.frombuffer(table, "<u4"), 0
        for path in manifest.blocks["files"]:
            size = manifest.size_of(path)
            self.edges[path] = np.append(np.arange(0, size, self.size), size)
            count = len(self.edges[path]) - 1
            self.tabled[path] = self._sums[path] = values[at : at + count]
            at += count
            blocks = [(block.length, block.crc32c) for block in self.all(path)]
            if join_ranges(blocks) != join_ranges(manifest.files[path]):
                raise DamagedDatasetError(f"{BLOCK_TABLE} of {manifest.id} contradicts its manifest about {path}")

    def count(self, path: str) -> int:
        """Return how many blocks a file has."""
        return len(self._sums[path])

    def block(self, path: str, number: int) -> CheckedBlock:
        """Return one block of a file."""
        begin, end = self.edges[path][number : number + 2].tolist()
        return CheckedBlock(path, number, begin, end - begin, f"{self._sums[path][number]:08x}")

    def all(self, path: str) -> Iterator[CheckedBlock]:
        """Return the blocks of a file in order."""
        return (self.block(path, number) for number in range(self.count(path)))

    def covering(self, path: str, begin: int, end: int) -> Iterator[CheckedBlock]:
        """Return the blocks that hold bytes ``begin..end-1`` of a file, in order; none for an empty range."""
        edges = self.edges[path]
        first, stop = np.searchsorted(edges, begin, "right") - 1, np.searchsorted(edges, min(end, edges[-1]))
        blocks = (self.block(path, number) for number in range(first, stop if begin < end else first))
        return (block for block in blocks if block.length)

    def where(self, block: CheckedBlock) -> str:
        """Return the number and byte range of a block, for messages."""
        number = f" in block {block.number}" if block.path in self.tabled else ""
        return f"{number}, bytes {block.begin}-{block.end}"


def read_block_checksums(folder: Path, manifest: Manifest) -> BlockChecksums:
    """Return the blocks of a dataset folder. Raises DamagedDatasetError if its table is missing or damaged."""
    if not manifest.blocks:
        return BlockChecksums(manifest, None)
    return BlockChecksums(manifest, read_file(folder / BLOCK_TABLE))


# -- a whole dataset -----------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """The result of ``verify``."""

    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    folder: Path,
    *,
    quick: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a dataset folder; ``quick`` compares only sizes. Works without torch, and uses all processors.

    ``on_progress(bytes checked, all bytes)`` is called after every block. Raises DatasetNotFoundError and DamagedDatasetError
    for a folder whose manifest cannot be used, DatasetBusyError for one that is replaced or deleted during the check, OSError
    if this process lacks the rights, memory or descriptors to read; everything else is in the report.
    """
    before = state_of(folder)
    report = _verify(folder, quick, on_progress)
    if report.ok or state_of(folder) == before:
        return report
    raise DatasetBusyError(f"{folder} was replaced or deleted while it was verified", hint="verify it again")


def _verify(folder: Path, quick: bool, on_progress: Callable[[int, int], None] | None) -> Report:
    manifest, problems = read_snapshot(folder, lambda manifest: (manifest, check_sizes(folder, manifest)))
    report = Report(files=len(manifest.files), problems=problems)
    if quick:
        return report
    paths = sorted(manifest.files.keys() - {problem.path for problem in problems})
    _check_contents(folder, manifest, paths, report, on_progress)
    report.problems.sort(key=lambda problem: (problem.path, problem.begin))
    return report


def _check_contents(
    folder: Path,
    manifest: Manifest,
    paths: Sequence[str],
    report: Report,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Compare every block of files of the right size with its checksum, and report those that differ."""
    try:
        checksums = read_block_checksums(folder, manifest)
    except DamagedDatasetError as error:
        checksums = BlockChecksums(manifest, None)
        if not any(problem.path == BLOCK_TABLE for problem in report.problems):
            report.problems.append(Problem(BLOCK_TABLE, error.message))

    def check(blocks: Sequence[CheckedBlock]) -> tuple[int, list[Problem]]:
        first, wanted = blocks[0], [(block.length, block.crc32c) for block in blocks]
        try:
            sums = sum_pieces(folder / first.path, first.begin, [block.length for block in blocks])
        except OSError as error:
            if is_about_reader(error):
                raise
            # A failing disk: of several blocks, find the ones that cannot be read.
            if len(blocks) > 1:
                each = [check([block]) for block in blocks]
                return sum(size for size, _ in each), [problem for _, some in each for problem in some]
            what = f"cannot be read after byte {first.begin}: {error.strerror}"
            return 0, [Problem(first.path, what, first.begin, first.length)]
        unlike = [block for block, good, found in zip(blocks, wanted, sums) if found != good]
        problems = [
            Problem(block.path, f"checksum mismatch{_where(manifest, checksums, block)}", block.begin, block.length)
            for block in unlike
        ]
        return sum(size for size, _ in sums), problems

    jobs = (job for path in paths for job in _read_together(checksums.all(path)))
    for size, problems in map_in_threads(check, jobs, min(16, (os.cpu_count() or 1) + 1), "rbdata-verify"):
        report.bytes += size
        report.problems += problems
        if on_progress is not None:
            on_progress(report.bytes, manifest.bytes)


def _read_together(blocks: Iterable[CheckedBlock]) -> Iterator[list[CheckedBlock]]:
    """Consecutive blocks of a file in groups that are read at once: ranges may be short."""
    some, size = list[CheckedBlock](), 0
    for block in blocks:
        size += block.length
        if some and (size > BLOCK or len(some) == _MAX_JOINED):
            yield some
            some, size = [], block.length
        some.append(block)
    if some:
        yield some


def _where(manifest: Manifest, checksums: BlockChecksums, block: CheckedBlock) -> str:
    """The byte range of a block and, if the ranges of its file are parts, the source objects that they were made from."""
    codecs = [codec_of(leaf) for leaf in manifest.schema.states]
    joined = {codec.path(name) for codec in codecs if not codec.fixed_rows for name in codec.joined}
    names: list[str] = []
    end = 0
    if block.path in joined and len(manifest.files[block.path]) == len(manifest.parts):
        for (length, _), part in zip(manifest.files[block.path], manifest.parts):
            begin, end = end, end + length
            if begin < block.end and block.begin < end:
                names.append(str(part.get("name")))
    return checksums.where(block) + (f" ({', '.join(names)})" if names else "")


# -- some files ----------------------------------------------------------------------------------------------------------


def check_leaves(folder: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Compare the leaves ``names`` with their checksums. Raises DamagedDatasetError if they differ."""
    paths = [path for name in sorted(names) for path in codec_of(manifest.schema[name]).files]
    report = Report(problems=[problem for problem in check_sizes(folder, manifest) if problem.path in paths])
    if report.ok:
        _check_contents(folder, manifest, paths, report, None)
    for problem in report.problems:
        raise DamagedDatasetError(f"{folder / problem.path}: {problem.what}", hint=verify_hint(folder))


def open_array(folder: Path, leaf: Leaf, count: int) -> np.ndarray:
    """Return the rows of a step leaf, ``[count, *shape]``, mapped. Raises DamagedDatasetError."""
    if leaf.constant is not None:
        return np.broadcast_to(np.array(leaf.constant or 0, leaf.np_dtype), (count, *leaf.shape))
    if codec_of(leaf).fixed_rows:
        items = count * leaf.row_bytes // leaf.np_dtype.itemsize
        return map_array(folder / leaf.memmap, leaf.np_dtype, items).reshape(count, *leaf.shape)
    return codec_of(leaf).open_rows(folder, count).block(0, count).numpy()
