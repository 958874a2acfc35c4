"""The interface of a source's reader: one conversion of a provider's raw objects into a dataset.

A source (or own arrays, a recording, a function over a dataset) finds its raw data and returns a `Reader`; `pipeline` does the
rest:

    files        are fetched whole, where they must lie on a disk to be read
    lead         a unit that is read first: what it says makes the other units known (Atari: the small arrays of all shards)
    prepare      what else must be known before the units are
    units        each becomes a part, by any worker (`part.PartTask`)
    facts        what the manifest says of them

This module imports no NumPy: listings load the sources.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...storage.codecs import codec_of, level_of, resolve_choice
from ...storage.schema import Schema

if TYPE_CHECKING:
    from ...storage.episodes import EpisodeTable
    from ...storage.leaf import Leaf
    from ...storage.manifest import Manifest
    from ...storage.work import Work
    from ..fetch import Location, RemoteObject
    from .records import ConvertOptions, Expectation, RawObject
    from .trajectories import Column
    from .unit import Facts, Part, SampleRows, Unit


class Reader:
    """One conversion, bound to a place. A reader overrides what differs from these defaults.

    ``name`` is that of the dataset at its provider; None for raw files in a folder that the user names. ``columns``, ``schema``
    and ``bulk`` (`set_columns`) are known from the beginning, after `seen`, after `units`, or the first block of a unit states
    the schema.
    """

    #: What datasets record: the name of the source, and the upstream where it has several.
    source: str
    upstream: str = ""
    #: The name and version of the conversion: an interrupted run is continued only by the same conversion.
    converter: str
    licence: str | None = None
    citation: str | None = None
    #: The columns of the dataset, the leaves that they become, and the names of the large ones: these have a checksum range
    #: for each unit, all others one.
    columns: Sequence[Column] = ()
    schema: Schema = Schema(())
    bulk: tuple[str, ...] = ()
    #: Why the data come from this location, where that is not obvious.
    why: str = ""
    #: The `unverified` raw objects among those that were fetched before the reader was opened at their present folder.
    unverified_before: Sequence[str] = ()
    #: A hash of the names, sizes and times of modification of the raw files, where a later conversion compares it.
    files_state: str | None = None
    #: Options that the reader decided by itself, to be given when the same raw objects are opened at another place.
    resolved_options: Mapping[str, Any] = {}
    #: Whether a run can continue the work of an interrupted run.
    continues = True
    #: The modules of the C libraries that read its whole files, which they do in a worker process (`look`, units).
    native_libraries: Sequence[str] = ()
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

    def __init__(self, name: str | None, location: Location, options: ConvertOptions) -> None:
        self.name, self.location, self.options = name, location, options

    @property
    def title(self) -> str:
        """What messages call the dataset."""
        return self.name or self.location.url

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Set ``columns``, and the leaves that they become with the options. Raises SchemaError."""
        from .trajectories import schema_of

        self.columns = columns
        self.schema, self.bulk = schema_of(columns, self.options.codec, self.options.layout)

    def identity(self) -> dict[str, Any]:
        """What the resulting bytes depend on besides the data, as JSON; the data are in ``digest``."""
        options = self.options
        how = {"unknown_next": options.unknown_next, "codec": options.codec, "layout": options.layout}
        return {"converter": self.converter, "dataset": self.name, **how, **options.extra}

    def differences(self, manifest: Manifest) -> list[str]:
        """The inputs of an existing dataset that this reader would not use, in words; without the options, which are compared
        without a reader."""
        return []

    def shards(self) -> Sequence[int]:
        """The numbers of the raw objects that are taken, where users select by number; else empty."""
        return ()

    # -- what is read ----------------------------------------------------------------------------------------------------

    def files(self) -> Sequence[RemoteObject]:
        """Raw objects that are fetched whole before they are read (HDF5 and the like)."""
        return []

    @property
    def return_steps(self) -> int:
        """Rewards are summed in blocks of this many steps; the last bits of returns depend on it."""
        from .trajectories import BLOCK_STEPS, block_steps

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

    def prepare(self, work: Work) -> None:
        """Called before `units` in each run that writes, with the place's lock held; ``work`` remembers what need not be
        computed again."""

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

    def dictionaries(self) -> Mapping[str, bytes] | None:
        """The dictionary of each leaf whose codec uses one, where they are given; None: they are trained."""
        return None

    def check_input(self) -> None:
        """Called when the work has been announced, before units are read. Raises an error if what they read is damaged."""

    def checksum_range(self, unit: int, range: int) -> Any:
        """Which checksum range of a large leaf the rows of a unit's `Block.range` belong to: consecutive ones that are equal
        are one."""
        return unit, range

    def expect(self) -> Expectation | None:
        """An estimate before units are read; None where the whole files must be seen first, or the lead counts steps and
        episodes."""
        return None

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        """What the manifest says; ``parts`` are those of all units, in order, without the lead's."""
        raise NotImplementedError

    def check_append(self, old: Manifest) -> None:
        """Raise an error if what it gives must not be appended to a dataset with the same leaves: DatasetExistsError if that
        has it already."""

    def compressed(self) -> list[Leaf]:
        """The leaves whose rows are compressed."""
        return [leaf for leaf in self.schema.states if not codec_of(leaf).fixed_rows]

    # -- what the manifest records ---------------------------------------------------------------------------------

    def objects(self) -> Iterable[dict[str, Any]]:
        """Records of the raw objects that are not in the parts."""
        return []

    def raw_objects(self) -> list[RawObject]:
        """All raw objects, for a mirror to be complete."""
        return []

    def unverified(self) -> list[str]:
        """Paths of the raw objects that came without a checksum: damage in transfer went unnoticed. Jobs whose formats have
        checksums, or that know the file, override this. Called after `units`."""
        remote = (raw for raw in self.raw_objects() if "://" in raw.item.url)
        return [*self.unverified_before, *(raw.path for raw in remote if not raw.item.checksums)]

    def manifest(self, dataset_id: str, facts: Facts, episodes: EpisodeTable, url: str) -> Manifest:
        """The manifest of the dataset, without its files."""
        from ..._version import __version__
        from ...storage.manifest import Manifest

        names = {"name": self.source, "upstream": self.upstream or self.source, "dataset": self.name}
        objects, described = [*self.objects(), *(part.object for part in facts.parts)], self.describe()
        options, codec = described["options"], self.options.codec
        if level_of(codec) and resolve_choice(codec) == options.get("codec"):
            options["codec"] = codec  # a repair, or more shards, are encoded alike
        unverified, (returns, lengths) = self.unverified(), episodes.summary()
        provenance: dict[str, Any] = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rbdata_version": __version__,
            "location": url,
            **({"why": self.why} if self.why else {}),
            **({"files_state": self.files_state} if self.files_state else {}),
            **({"unverified": {"files": len(unverified), "first": unverified[0]}} if unverified else {}),
        }
        return Manifest(
            id=dataset_id,
            schema=self.schema,
            steps=episodes.steps,
            episodes=len(episodes),
            source={**names, **described, "objects": objects},
            parts=[part.to_json() for part in facts.parts],
            spaces=dict(facts.spaces),
            counts=dict(facts.counts),
            notes=list(facts.notes),
            returns=returns,
            lengths=lengths,
            licence=self.licence,
            citation=self.citation,
            provenance=provenance,
        )

    def describe(self) -> dict[str, Any]:
        """What ``source`` of the manifest states besides the names: at least the ``options``."""
        large = {"codec": self.schema[self.bulk[0]].codec, "layout": self.options.layout} if self.bulk else {}
        return {"options": {**self.options.extra, **large}}
