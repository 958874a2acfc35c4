"""What a dataset is made from: units, which workers read as blocks, and the parts that they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import numpy as np

from ...storage.checksums import crc32c, sum_cells
from ...storage.codecs import codec_of
from ...storage.durable import is_about_reader
from ...storage.join import Piece
from ...storage.leaf import Leaf
from ...storage.part_file import lengths_path, read_plain_rows, rows_path
from .records import PartSpec

if TYPE_CHECKING:
    from ..workers.task import OnBlock
    from .block import Block

#: Sample rows, uint8 ``[row_bytes]`` each; those of several leaves may differ in size.
SampleRows: TypeAlias = Sequence[np.ndarray] | np.ndarray

#: The index of a lead.
LEAD = -1
#: The bits of steps (`block`), in the sections of a part.
BITS = Leaf("bits", "step", "uint8", ())


@dataclass(frozen=True)
class Unit:
    """What one worker reads: a shard, a file, a slice of one, a section of a dataset. Picklable, unless its reader is `here`.

    ``name`` is for messages, ``rows`` what progress counts in all. ``identity``: all that its rows depend on, as far as it is
    known before they are read; a part with another one is made again. ``spec``: what the manifest says of it, if that is known
    before it is read; an older dataset that begins with the same ones gives their rows.
    """

    index: int
    name: str
    rows: int
    identity: str
    spec: PartSpec | None = field(default=None, kw_only=True)

    #: Seconds after which a unit that can be continued (`Block.mark`) becomes a part.
    keep_seconds: ClassVar[float] = 1.0

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        """All of its blocks, or those after the mark ``resume``. ``threads`` may be used to decode."""
        raise NotImplementedError

    def prepared(self, folder: Path, on_block: OnBlock) -> AbstractContextManager[Unit]:
        """The unit with all that `blocks` needs in the working folder, such as whole raw files; entered by the worker, and left
        when the part is there, or with what went wrong."""
        return nullcontext(self)

    def fits(self, part: Part) -> bool:
        """Whether a part is one of this unit."""
        return part.identity == self.identity


class PartRows(msgspec.Struct, frozen=True):
    """The rows of a leaf in a section: their files begin with ``stem``; ``length`` bytes, with their `Cells`; ``lengths``: of
    compressed rows, the crc32c of the file of their lengths."""

    stem: str
    rows: int
    length: int
    cells: str
    lengths: str = ""


class PartSection(msgspec.Struct, frozen=True):
    """Consecutive rows, with their place in the order of all sections (`Block.place`) and their checksum range."""

    place: tuple[int, ...]
    range: int
    leaves: dict[str, PartRows]

    @property
    def steps(self) -> int:
        """How many steps it has; none where it holds states alone."""
        bits = self.leaves.get(stem_of(BITS))
        return bits.rows if bits else 0


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished part of a unit, as its record states it: its leaves and sections, what the unit said of itself
    (`Block.record`), the steps and the ends of episodes in it, and where the next part goes on (None: the unit ends here).

    ``where`` is its folder, which the record does not state.
    """

    unit: int
    identity: str
    leaves: list[dict[str, Any]]
    sections: list[PartSection]
    about: dict[str, Any]
    steps: int
    episodes: int
    goes_on: Any = None
    where: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.where)

    @property
    def is_last(self) -> bool:
        """Whether the unit ends with it."""
        return self.goes_on is None

    @property
    def is_empty(self) -> bool:
        """Whether it has no row."""
        return not any(written.rows for section in self.sections for written in section.leaves.values())

    def rows(self, section: PartSection, leaf: Leaf) -> np.ndarray:
        """The rows of an uncompressed leaf in a section, mapped, flat."""
        written = section.leaves[stem_of(leaf)]
        count = written.rows * (leaf.row_bytes // leaf.np_dtype.itemsize)
        return read_plain_rows(rows_path(self.folder / written.stem), count, leaf.np_dtype)

    def pieces(self, section: PartSection, leaf: Leaf, range: Any) -> Sequence[Piece]:
        """The rows of a leaf in a section, to be joined in this checksum range."""
        written = section.leaves.get(stem_of(leaf))
        if written is None:
            return []
        stem, lengths = self.folder / written.stem, None
        if not codec_of(leaf).fixed_rows:
            lengths = read_plain_rows(lengths_path(stem), written.rows, "<i8")
        return [Piece(rows_path(stem), 0, written.length, written.cells, written.rows, range, lengths)]

    def is_sound(self) -> bool:
        """Whether its files hold what the record says. Reads all of them."""
        return all(self._is_sound(written) for section in self.sections for written in section.leaves.values())

    def _is_sound(self, written: PartRows) -> bool:
        stem, length = self.folder / written.stem, written.length
        try:
            if sum_cells(rows_path(stem), 0, length) != (length, written.cells):
                return False
            lengths = written.lengths and crc32c(lengths_path(stem).read_bytes()[: 8 * written.rows])
            return lengths == written.lengths
        except OSError as error:
            if is_about_reader(error):
                raise
            return False


def stem_of(leaf: Leaf) -> str:
    """What the files of a leaf are called in a part."""
    return ".bits" if leaf is BITS else ".".join(leaf.key)


@dataclass(frozen=True)
class Facts:
    """What the manifest says besides what the blocks hold."""

    counts: Mapping[str, Any]
    notes: Sequence[str] = ()
    parts: Sequence[PartSpec] = ()
    spaces: Mapping[str, Any] = field(default_factory=dict)
    #: Which episodes began before the data do, bool ``[episodes]``, where no unit by itself can know it (`END_MIDWAY`).
    midway: np.ndarray | None = None
