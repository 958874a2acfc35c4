"""Compare a dataset's files with its manifest: sizes, checksums of every block, and the invariants of TED.

TED is the TorchRL Episode Data format (https://docs.pytorch.org/rl/stable/reference/data.html): a flat, time-ordered
TensorDict, whose root is what is known at time t (observation, action, done, terminated, truncated), and whose ``next`` is
what the action led to (observation, reward, done, terminated, truncated). ``done = terminated | truncated``; flags are bool
``[..., 1]``, rewards float32 ``[..., 1]``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DamagedDatasetError, DatasetBusyError, RbdataError
from .amounts import html_table, plural
from .amounts import size as amount
from .block_checksums import Block, BlockChecksums, read_block_checksums
from .checksums import BLOCK, damaged_ranges, join_ranges, sum_pieces
from .codecs import codec_of
from .durable import is_about_reader
from .episodes import TERMINATED, open_episodes
from .leaf import Leaf
from .manifest import BLOCK_TABLE, Manifest, Problem, check_sizes
from .memory_map import map_array, verify_hint
from .schema import FLAGS
from .snapshot import pinned, read_snapshot

#: Ranges that are read together.
_MOST_JOINED = 4096


@dataclass
class Report:
    """What ``verify`` found."""

    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def _repr_html_(self) -> str:
        state = "good" if self.ok else "damaged"
        title = f"{state}: {plural(self.files, 'file')}, {amount(self.bytes)} read"
        return html_table(title, [(problem.path or "data", problem.what) for problem in self.problems])


@dataclass(frozen=True)
class _Piece:
    """What one thread sums at a time: a block, or some MiB of a long range."""

    block: Block
    begin: int
    length: int


def verify(
    folder: Path,
    *,
    quick: bool = False,
    invariants: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a dataset folder; ``quick`` looks at sizes only. Does without torch, and uses all processors.

    ``on_progress(bytes checked, bytes in all)`` is called after every block. Raises NotADatasetError, FormatVersionError and
    DamagedDatasetError for a folder whose manifest cannot be used, DatasetBusyError for one that is replaced or deleted
    meanwhile, OSError where this process lacks the rights, memory or descriptors to read; everything else is in the report.
    """
    with pinned(folder) as pin:
        report = _verify(folder, quick, invariants, on_progress)
        if report.ok or pin.is_unchanged():
            return report
    raise DatasetBusyError(f"{folder} was replaced or deleted while it was verified", hint="verify it again")


def _verify(folder: Path, quick: bool, invariants: bool, on_progress: Callable[[int, int], None] | None) -> Report:
    manifest, problems = read_snapshot(folder, lambda manifest: (manifest, check_sizes(folder, manifest)))
    report = Report(files=len(manifest.files), problems=problems)
    if not quick:
        wrong = {problem.path for problem in report.problems}
        _check_contents(
            folder, manifest, [path for path in sorted(manifest.files) if path not in wrong], report, on_progress
        )
        report.problems.sort(key=lambda problem: (problem.path, problem.begin))
    if report.ok and invariants and not quick:
        try:
            report.problems += [Problem("", what) for what in check_invariants(folder, manifest)]
        except RbdataError as error:
            report.problems.append(Problem("", error.message))
    return report


def _check_contents(
    folder: Path,
    manifest: Manifest,
    paths: Sequence[str],
    report: Report,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Sum every block of files of the right size, and name the blocks that are not what was written."""
    contradiction = None
    try:
        checksums = read_block_checksums(folder, manifest)
    except DamagedDatasetError as error:
        checksums, contradiction = BlockChecksums(manifest, None), error.message

    def read(pieces: Sequence[_Piece]) -> list[list[Any]]:
        path, begin = folder / pieces[0].block.path, pieces[0].begin
        try:
            return sum_pieces(path, begin, [piece.length for piece in pieces])
        except OSError as error:
            if is_about_reader(error):
                raise
            # A failing disk: which of them, if there are several.
            if len(pieces) > 1:
                return [summed for piece in pieces for summed in read([piece])]
            return [[0, "00000000", f"cannot be read after byte {begin}: {error.strerror}"]]

    found: list[list[Any]] = []
    for piece, summed in _map_in_order(read, _joined(_pieces(checksums, paths))):
        found.append(summed)
        block = piece.block
        report.bytes += summed[0]
        if on_progress is not None:
            on_progress(report.bytes, manifest.bytes)
        if piece.begin + piece.length < block.end:
            continue
        failure = next((more[0] for _, _, *more in found if more), None)
        if failure or join_ranges(found) != [block.length, block.crc32c]:
            what = failure or f"checksum mismatch{_where(manifest, checksums, block)}"
            report.problems.append(Problem(block.path, what, block.begin, block.length))
        found = []
    if contradiction and not any(problem.path == BLOCK_TABLE for problem in report.problems):
        report.problems.append(Problem(BLOCK_TABLE, contradiction))


def _pieces(checksums: BlockChecksums, paths: Iterable[str]) -> Iterator[_Piece]:
    for path in paths:
        for block in checksums.all(path):
            for begin in range(block.begin, max(block.end, block.begin + 1), BLOCK):
                yield _Piece(block, begin, min(BLOCK, block.end - begin))


def _joined(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Consecutive pieces of one file, up to a block in all: short ranges are read together."""
    some, size = list[_Piece](), 0
    for piece in pieces:
        size += piece.length
        if some and (size > BLOCK or len(some) == _MOST_JOINED or piece.block.path != some[0].block.path):
            yield some
            some, size = [], piece.length
        some.append(piece)
    if some:
        yield some


def _map_in_order(
    read: Callable[[Sequence[_Piece]], list[list[Any]]], batches: Iterable[Sequence[_Piece]]
) -> Iterator[tuple[_Piece, list[Any]]]:
    """What ``read`` makes of each piece, by one thread for each processor, a few batches ahead: there may be 100,000."""
    threads = min(16, (os.cpu_count() or 1) + 1)
    pool = ThreadPoolExecutor(threads, "rbdata-verify")
    waiting: deque[tuple[Sequence[_Piece], Future[list[list[Any]]]]] = deque()
    try:
        for batch in batches:
            waiting.append((batch, pool.submit(read, batch)))
            if len(waiting) > 4 * threads:
                batch, future = waiting.popleft()
                yield from zip(batch, future.result())
        for batch, future in waiting:
            yield from zip(batch, future.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def check_leaves(folder: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Compare the leaves ``names`` with their checksums. Raises DamagedDatasetError where they differ."""
    for name in sorted(names):
        for path in codec_of(manifest.schema[name]).files:
            for _ in damaged_ranges(folder / path, manifest.files[path]):
                raise DamagedDatasetError(f"{folder / path} has a checksum mismatch", hint=verify_hint(folder))


def find_damage(path: Path, ranges: Sequence[Sequence[Any]]) -> str | None:
    """How a file differs from its ``ranges`` (length, crc32c) in the manifest, None if it does not."""
    expected = sum(length for length, _ in ranges)
    try:
        found = path.stat().st_size
    except OSError:
        return "file missing"
    if found != expected:
        return f"{found} bytes, expected {expected}"
    try:
        for begin, length in damaged_ranges(path, ranges):
            return f"checksum mismatch, bytes {begin}-{begin + length}"
    except OSError as error:  # a pipe or folder, or a failing disk
        return f"cannot be read: {error.strerror}"
    return None


def _where(manifest: Manifest, checksums: BlockChecksums, block: Block) -> str:
    """Which bytes a block is and, where the ranges of a file are parts, the source objects that they were made from."""
    codecs = [codec_of(leaf) for leaf in manifest.schema.states]
    appended = {codec.path(name) for codec in codecs if not codec.fixed_rows for name in codec.appended}
    names: list[str] = []
    end = 0
    if block.path in appended and len(manifest.files[block.path]) == len(manifest.parts):
        for (length, _), part in zip(manifest.files[block.path], manifest.parts):
            begin, end = end, end + length
            if begin < block.end and block.begin < end:
                names.append(str(part.get("name")))
    return checksums.where(block) + (f" ({', '.join(names)})" if names else "")


# -- invariants ----------------------------------------------------------------------------------------------------------


def check_invariants(folder: Path, manifest: Manifest, block: int = 65_536) -> list[str]:
    """Everything that must hold in a dataset; returns what does not, in words (an empty list when all is well).

    Each kind of problem is reported once, with the first step where it is met.

    Checked for every row, in bounded memory and without torch: ``done == terminated | truncated``; rewards are finite; root
    flags are False; every episode ends with done and has none before; outcomes agree with the flags; inside an episode the
    next observation of a step is the observation of the following one (except for leaves that the lineage names as
    ``unchained``); returns are the sums of rewards. Keys are checked with the manifest, the episode table when it is opened.
    """
    schema, count = manifest.schema, manifest.steps
    if "reward" in schema:
        return ["a reward at the root: rewards belong under next"]
    episodes = open_episodes(folder, manifest.episodes, count)
    first: dict[str, int] = {}
    unchained = (manifest.lineage or {}).get("unchained", ())
    twins = [
        (leaf.name, "next/" + leaf.name)
        for leaf in schema.steps
        if "next/" + leaf.name in schema and leaf.name not in (*FLAGS, *unchained)
    ]
    for name, successor in twins:
        if schema[name].shape != schema[successor].shape:
            return [f"{name} and {successor} have different shapes"]
    needed = {*FLAGS, "next/reward", *("next/" + flag for flag in FLAGS), *(name for pair in twins for name in pair)}
    rows = {name: open_array(folder, schema[name], count) for name in needed}
    returns = np.zeros(len(episodes))
    start = np.asarray(episodes.start)
    last = np.append(start[1:], count) - 1
    for low in range(0, count, block):
        high = min(low + block, count)
        flags = {name: rows["next/" + name][low:high].reshape(-1) for name in FLAGS}
        reward = rows["next/reward"][low:high].reshape(-1)
        ending = slice(*np.searchsorted(last, (low, high)))  # episodes that end in this block
        at = last[ending] - low
        ends, unlike = np.zeros((2, high - low), bool)
        ends[at] = True
        unlike[at] = flags["terminated"][at] != (episodes.outcome[ending] == TERMINATED)
        found = {
            "done differs from terminated | truncated": flags["done"] != (flags["terminated"] | flags["truncated"]),
            "an episode does not end with done, or goes on after it": flags["done"] != ends,
            "a reward is not finite": ~np.isfinite(reward),
            "the episode table says terminated, the flags do not (or the reverse)": unlike,
        }
        for name in FLAGS:
            found[f"root {name} is set"] = rows[name][low:high].reshape(-1)
        for name, successor in twins:
            inner = np.zeros(high - low, bool)
            after = rows[name][low + 1 : high + 1]
            here = rows[successor][low : low + len(after)]
            differs = (after != here) & ~((after != after) & (here != here))  # NaN is like NaN
            inner[: len(after)] = differs.any(axis=tuple(range(1, differs.ndim)))
            found[f"{successor} is not the following {name}"] = inner & ~ends
        for what, bad in found.items():
            if what not in first and bad.any():
                first[what] = low + int(bad.argmax())
        met = slice(ending.start, ending.stop + (not ends[-1]))  # and the one that continues after it
        begins = np.maximum(start[met], low) - low
        with np.errstate(all="ignore"):  # rewards that are not finite
            returns[met] += np.add.reduceat(reward, begins, dtype=np.float64)
    problems = [f"{what} (step {step})" for what, step in first.items()]
    if not np.allclose(returns, episodes.returns, rtol=1e-9, atol=1e-6):
        problems.append("episode returns are not the sums of the rewards")
    return problems


def open_array(folder: Path, leaf: Leaf, count: int) -> np.ndarray:
    """The rows of a step leaf, ``[count, *shape]``, mapped. Raises DamagedDatasetError."""
    if leaf.constant is not None:
        return np.broadcast_to(np.array(leaf.constant or 0, leaf.np_dtype), (count, *leaf.shape))
    if codec_of(leaf).fixed_rows:
        items = count * leaf.row_bytes // leaf.np_dtype.itemsize
        return map_array(folder / leaf.memmap, leaf.np_dtype, items).reshape(count, *leaf.shape)
    return codec_of(leaf).open_rows(folder, count).block(0, count).numpy()
