"""Parts become the files of a dataset: the commit.

Everything is decided first, from the records of the parts: offsets, the episode table, checksums of ranges and blocks, the
manifest. That is written (``join.json``); from then on the run needs nothing but the folder. Then the rows of each leaf are
joined in order: the first file is renamed, of the others the system copies ranges, and each is removed when what it held is
joined and synced. A run that is killed continues after the last file that is gone.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import DamagedDatasetError, RbdataError
from .checksums import Range, cut_file, join_ranges, place_cells, write_table
from .codecs import PLAIN, codec_of
from .durable import open_replacement, sync_files, sync_folder, write_atomically
from .episodes import EpisodeTable
from .folder import DatasetPlace
from .leaf import Leaf
from .manifest import BLOCK_TABLE, Manifest, parse_manifest, write_manifest
from .meta import write_meta
from .threads import map_in_threads
from .work import JOIN

#: Bytes that are joined before they are synced and their files are removed: they need this much disk twice.
_TOGETHER = 256 << 20
#: Bytes of a constant leaf that are written at once, and that are copied at once where the system cannot copy ranges.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a leaf in a file: ``length`` bytes from ``offset``, with their `Cells`.

    ``lengths``: the stored lengths of compressed rows. Pieces next to each other with one ``range`` are one checksum range.
    """

    path: Path
    offset: int
    length: int
    cells: str
    rows: int
    range: Any
    lengths: Sequence[int] | np.ndarray | None = None


def begin_join(
    place: DatasetPlace,
    manifest: Manifest,
    episodes: EpisodeTable,
    pieces: Mapping[str, Sequence[Piece]],
    ranged: Sequence[str],
    original: Manifest | None = None,
) -> None:
    """Decide everything, and record it. ``pieces``: those of each leaf that is not constant, in order; the leaves ``ranged``
    have a checksum range for each ``Piece.range``, all others one.

    With ``original``, the files must be those that it lists, and it is written unchanged. Raises DamagedDatasetError if they
    differ, RbdataError where a leaf lacks rows.
    """
    folder = place.working
    #: The cuts of each checksum range of each file; the files that are written here, as one range.
    cuts: dict[str, list[list[Range]]] = {}
    written: list[str] = []
    for leaf in manifest.schema:
        codec, some = codec_of(leaf), pieces.get(leaf.name, ())
        if leaf.constant is not None:
            written.append(_write_constant(folder, leaf, manifest.rows(leaf)))
            continue
        rows = sum(piece.rows for piece in some)
        if rows != manifest.rows(leaf):
            raise RbdataError(f"key {leaf.name} has {rows} rows, the dataset {manifest.rows(leaf)}")
        kept = [piece.range if leaf.name in ranged else None for piece in some]
        begins = accumulate((piece.length for piece in some), initial=0)
        placed = [place_cells(one.path, one.offset, one.length, one.cells, at) for one, at in zip(some, begins)]
        # Pieces without rows leave no trace where all rows have one length.
        cuts[codec.path("blob")] = [one for one in _join(kept, placed) if not codec.fixed_rows or join_ranges(one)[0]]
        if not codec.fixed_rows:
            lengths = _write_offsets(folder / codec.path("offsets"), leaf, some)
            cuts[codec.path("offsets")] = _join(kept, cut_file(folder / codec.path("offsets"), lengths))
        written += [codec.path("dictionary")] if codec.uses_dictionary else []
    shown = {leaf.name: (leaf.dtype, leaf.shape) for leaf in manifest.schema.steps if leaf.codec == PLAIN}
    written += [*episodes.write(folder), *write_meta(folder, "", shown, manifest.steps)]
    cuts |= {path: cut_file(folder / path, [(folder / path).stat().st_size]) for path in written}
    files = {path: [join_ranges(one) for one in ranges] for path, ranges in cuts.items()}
    if original is None or original.blocks:
        manifest.blocks, table = write_table(folder / BLOCK_TABLE, cuts)
        files.update({BLOCK_TABLE: table} if table else {})
    manifest.files = dict(sorted(files.items()))
    if original is not None:
        _check_same(place, manifest, original)
        manifest = original
    sources = {
        codec_of(manifest.schema[name]).path("blob"): [
            [_shown(folder, one.path), one.offset, one.length] for one in some if one.length
        ]
        for name, some in pieces.items()
    }
    own = (one.path for some in pieces.values() for one in some if one.length and folder in one.path.parents)
    _sync_sources({*own})
    sync_files(folder, manifest.files.keys() - sources.keys())
    write_manifest(folder, manifest, _MANIFEST)
    write_atomically(folder / JOIN, json.dumps(sources).encode())


def _sync_sources(paths: Collection[Path]) -> None:
    """Make the files of parts and their names durable: from now on nothing else has their rows. Many at a time: the disk joins
    what it has to write for them."""

    def sync(path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())

    list(map_in_threads(sync, sorted(paths), 8, "rbdata-sync"))
    parts = {path.parent for path in paths}
    for folder in sorted(parts | {part.parent for part in parts}):
        sync_folder(folder)


def _join(kept: Sequence[Any], cuts: Sequence[list[Range]]) -> list[list[Range]]:
    """The cuts of ranges: pieces next to each other that are ``kept`` in the same one are one."""
    groups = groupby(zip(kept, cuts), key=lambda one: one[0])
    return [[cut for _, some in group for cut in some] for _, group in groups]


#: The manifest, until everything is joined.
_MANIFEST = "join.manifest.json"


def is_joining(place: DatasetPlace) -> bool:
    """Return whether an earlier run has begun to join."""
    return (place.working / JOIN).is_file()


def join(place: DatasetPlace) -> Manifest:
    """Join, or go on with it, and make the folder the dataset. Raises DamagedDatasetError where files are missing."""
    folder = place.working
    try:
        sources = json.loads((folder / JOIN).read_bytes())
        manifest = parse_manifest((folder / _MANIFEST).read_bytes(), os.fspath(folder))
    except (OSError, ValueError) as error:
        raise DamagedDatasetError(f"{folder / JOIN} cannot be read", hint="start over with --force") from error
    for path, some in sources.items():
        _join_file(folder / path, [(folder / name, int(offset), int(length)) for name, offset, length in some], folder)
    for path in manifest.files:
        size, wanted = (folder / path).stat().st_size, manifest.size_of(path)
        if size > wanted:  # another program appended to it
            os.truncate(folder / path, wanted)
        elif size < wanted:
            message = f"{folder / path} has {size} bytes, {wanted} were written"
            raise DamagedDatasetError(message, hint="start over with --force")
    sync_files(folder, manifest.files)
    write_manifest(folder, manifest)
    place.install(manifest.files)
    return manifest


def _join_file(target: Path, sources: Sequence[tuple[Path, int, int]], folder: Path) -> None:
    """Sources outside of ``folder`` are copied, all others are removed when they are joined."""
    begins = np.cumsum([0, *(length for *_, length in sources)]).tolist()
    last = {path: number for number, (path, _, _) in enumerate(sources)}
    own = {path for path in last if folder in path.parents}
    gone = [number for path, number in last.items() if path in own and not path.exists()]
    first = max(gone, default=-1) + 1  # files are removed in order, when all before them is synced
    target.parent.mkdir(parents=True, exist_ok=True)
    if not first:
        path, offset, _ = sources[0]
        target.unlink(missing_ok=True)
        if path in own and not offset and last[path] == 0:
            path.rename(target)
            first = 1
    with target.open("r+b") if target.exists() else open_replacement(target) as file:
        file.truncate(begins[first])
        file.seek(begins[first])
        waiting: list[Path] = []
        pending = 0
        for number in range(first, len(sources)):
            path, offset, length = sources[number]
            _copy_range(path, offset, length, file)
            pending += length
            waiting += [path] if last[path] == number and path in own else []
            if pending >= _TOGETHER or number == len(sources) - 1:
                os.fsync(file.fileno())
                for done in waiting:
                    done.unlink()
                waiting, pending = [], 0


def _copy_range(path: Path, offset: int, length: int, file: BinaryIO) -> None:
    """Append a range of a file to another, at its position."""
    with path.open("rb") as source:
        while length:
            try:
                count = os.copy_file_range(source.fileno(), file.fileno(), length, offset, file.tell())
            except (OSError, AttributeError) as error:
                if getattr(error, "errno", errno.ENOSYS) not in _NO_RANGES:
                    raise
                source.seek(offset)
                block = source.read(min(length, _BLOCK))
                file.write(block)
                file.flush()
                count = len(block)
            else:
                file.seek(count, os.SEEK_CUR)
            if not count:
                raise DamagedDatasetError(f"{path} is too short", hint="start over with --force")
            offset, length = offset + count, length - count


#: Errors of systems and file systems that cannot copy ranges between these files.
_NO_RANGES = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EIO}


def _shown(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix() if folder in path.parents else os.fspath(path)


def _write_offsets(path: Path, leaf: Leaf, pieces: Sequence[Piece]) -> list[int]:
    """Write where the rows of pieces begin and end; returns the bytes of each piece's table. The first has the offset of the
    first row, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begin, sizes = 0, []
    with open_replacement(path) as file:
        for number, piece in enumerate(pieces):
            table = begin + np.cumsum(np.asarray(piece.lengths, np.int64))
            begin += piece.length
            if len(table) and int(table[-1]) != begin:
                raise RbdataError(f"key {leaf.name}: the lengths of its rows are not those of {piece.path}")
            sizes.append(file.write((table if number else np.concatenate([[0], table])).astype("<i8").tobytes()))
    return sizes


def _write_constant(folder: Path, leaf: Leaf, rows: int) -> str:
    """Write the file of a constant leaf, a hole if the value is zero; returns its path in the folder."""
    (folder / leaf.memmap).parent.mkdir(parents=True, exist_ok=True)
    value, left = np.full((), leaf.constant, leaf.np_dtype), rows * leaf.row_bytes
    block = np.full(min(left, _BLOCK) // leaf.np_dtype.itemsize, value).tobytes()
    with open_replacement(folder / leaf.memmap) as file:
        if not any(value.tobytes()):
            file.truncate(left)
            left = 0
        while left:
            left -= file.write(block[:left])
    return leaf.memmap


def _check_same(place: DatasetPlace, manifest: Manifest, original: Manifest) -> None:
    """Raise DamagedDatasetError if files differ from those of ``original``; their ranges may differ."""
    found = {name: join_ranges(ranges) for name, ranges in manifest.files.items()}
    other = [name for name, ranges in original.files.items() if found.get(name) != join_ranges(ranges)]
    if other or len(manifest.files) != len(original.files):
        message = f"the data that {place.id} was made from now result in other bytes: {', '.join(other)}"
        raise DamagedDatasetError(message, hint="start over with --force")
