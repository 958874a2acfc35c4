"""What a dataset is made from: units, which workers read as blocks, and the reader that knows them.

A source (or own arrays, a recording, a function over a dataset) finds its raw data and returns a `Reader`; `pipeline` does the
rest:

    files        are fetched whole, where they must lie on a disk to be read
    lead         a unit that is read first: what it says makes the other units known (Atari: the small arrays of all shards)
    units        each becomes a part, by any worker (`part.PartTask`)
    facts        what the manifest says of them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...storage.checksums import crc32c, sum_cells
from ...storage.codecs import codec_of
from ...storage.leaf import Leaf
from ...storage.part_file import lengths_path, read_plain_rows, rows_path
from .job import Expectation, Job, PartSpec
from .trajectories import BLOCK_STEPS

if TYPE_CHECKING:
    from ...storage.episodes import EpisodeTable
    from ..workers.task import OnBlock
    from .block import Block
    from .row_source import SampleRows

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

    def objects(self) -> list[dict[str, Any]]:
        """Records of the raw objects that it reads, as their place states them."""
        return [] if self.spec is None else [self.spec.object]

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Whether a part with this record is one of this unit."""
        return record["identity"] == self.identity


@dataclass(frozen=True)
class Part:
    """A finished part of a unit. ``record``: what `part.PartWriter` wrote."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def unit(self) -> int:
        """The index of its unit."""
        return int(self.record["unit"])

    @property
    def about(self) -> Mapping[str, Any]:
        """What the unit said of itself (`Block.record`)."""
        about: Mapping[str, Any] = self.record["about"]
        return about

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return sum(section["bits"]["rows"] for section in self.sections() if section["bits"])

    def sections(self) -> list[dict[str, Any]]:
        """The records of its sections."""
        sections: list[dict[str, Any]] = self.record["sections"]
        return sections

    def rows(self, section: Mapping[str, Any], leaf: Leaf) -> np.ndarray:
        """The rows of an uncompressed leaf in a section, mapped, flat."""
        written = section["leaves"][leaf.name] if leaf is not BITS else section["bits"]
        count = written["rows"] * (leaf.row_bytes // leaf.np_dtype.itemsize)
        return read_plain_rows(rows_path(self.folder / written["stem"]), count, leaf.np_dtype)

    def is_sound(self) -> bool:
        """Whether its files hold what the record says. Reads all of them."""
        for section in self.sections():
            for written in (*section["leaves"].values(), *([section["bits"]] if section["bits"] else ())):
                stem, length = self.folder / written["stem"], written["length"]
                try:
                    if sum_cells(rows_path(stem), 0, length) != (length, written["cells"]):
                        return False
                    lengths = written.get("lengths")
                    if lengths and crc32c(lengths_path(stem).read_bytes()[: 8 * written["rows"]]) != lengths:
                        return False
                except FileNotFoundError:
                    return False
        return True


@dataclass(frozen=True)
class Facts:
    """What the manifest says besides what the blocks hold."""

    counts: Mapping[str, Any]
    notes: Sequence[str] = ()
    parts: Sequence[PartSpec] = ()
    spaces: Mapping[str, Any] = field(default_factory=dict)
    #: Which episodes began before the data do, bool ``[episodes]``, where no unit by itself can know it (`END_MIDWAY`).
    midway: np.ndarray | None = None


class Reader(Job):
    """One conversion, bound to a place. A reader overrides what differs from these defaults.

    ``columns``, ``schema`` and ``bulk`` (`Job.set_columns`) are known from the beginning, after `seen`, after `units`, or the
    first block of a unit states the schema. ``bulk`` leaves have a checksum range for each unit, all others one.
    """

    #: Whether units are read in this process: arrays in memory, open files.
    here: bool = False
    #: Whether they are read in another process even where there is only one: user code, C libraries (`native_libraries`).
    in_worker: bool = False
    #: Whether units are read as the first one with a step says (`decided`).
    first_decides: bool = False
    #: Of the dataset, as far as the lead has seen them, for estimates.
    notes: Sequence[str] = ()
    #: Identifies the data, as far as the lead has read them: an interrupted run is continued with the same data only.
    digest: str = ""

    @property
    def return_steps(self) -> int:
        """Rewards are summed in blocks of this many steps; the last bits of returns depend on it."""
        from .trajectories import block_steps

        return block_steps(self.columns) if self.columns else BLOCK_STEPS

    def look(self, files: Mapping[str, Path]) -> Any:
        """Read the heads of the ``files()``, given by url; returns what `seen` takes. Sets nothing: where C libraries read, it
        runs in a worker process, and so do units. Raises CorruptSourceError, ChecksumError, UsageError."""

    def seen(self, found: Any) -> None:
        """Take what `look` returned: `set_columns`."""

    def native_bytes(self, files: Mapping[str, Path]) -> int:
        """Bytes that C libraries read at most for one unit."""
        return sum(path.stat().st_size for path in files.values() if path.is_file())

    def lead(self) -> Unit | None:
        """The unit (of index LEAD) that is read before the others, every time. It is quick."""
        return None

    def units(self, lead: Part | None) -> Sequence[Unit]:
        """The units in order, with their places in it as ``index``; called once, when the lead is read."""
        raise NotImplementedError

    def decided(self, unit: Unit, first: Part) -> Unit:
        """A unit as it is read when the ``first`` part with a step is there; where that `first_decides`."""
        return unit

    def sample_rows(self) -> SampleRows | None:
        """Rows to train a dictionary on, of all large leaves, uint8 ``[row_bytes]`` each; deterministic. None: the first rows
        of the first unit. Called after `units`."""
        return None

    def expect(self) -> Expectation | None:
        """An estimate before units are read; None where the lead has counted steps and episodes."""
        return None

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        """What the manifest says; ``parts`` are those of all units, in order, without the lead's."""
        raise NotImplementedError

    def compressed(self) -> list[Leaf]:
        """The leaves whose rows are compressed."""
        return [leaf for leaf in self.schema.states if not codec_of(leaf).fixed_rows]
