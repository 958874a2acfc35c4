"""The interface of a job: one conversion of a provider's raw objects into a dataset.

A source finds the raw objects and returns a `Job` (`datasets.sources.source.Source.open`). The job states what identifies
its result, plans the rows, and gives the row sources that fill its large leaves; `run` does all the rest. Downloading and
converting are the same job with raw objects from different places.

    inspect_files   leaves become known         jobs with whole files (HDF5, tables)
    stage           everything is decoded       `StagedJob`: row counts are unknown before (`run.stage_all`)
    plan            all small leaves, all counts
    sample_rows     rows to train a dictionary on
    row_sources     the rows of the large leaves, part by part (`FillTask`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...storage.amounts import listed
from ...storage.codecs import resolve_choice
from ...storage.schema import Schema
from ..fetch import Location, RemoteObject
from ..workers.task import Task

if TYPE_CHECKING:
    from ...storage.episodes import EpisodeTable
    from ...storage.manifest import Manifest
    from ...storage.writer import ColumnWriter
    from .row_source import RowSource, SampleRows
    from .trajectories import Column


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert; part of what identifies a dataset's bytes.

    ``codec`` is that of large leaves (`storage.codecs.choices`). ``layout`` ``ted`` writes large leaves twice, as plain TED.
    ``unknown_next``: what becomes of a step whose successor is not in the data (`sources.atari.ring`). ``parts`` selects
    raw objects by number (None: all there are).
    """

    codec: str = "auto"
    layout: Literal["auto", "ted"] = "auto"
    unknown_next: Literal["truncate", "zero"] = "truncate"
    time_limit: int | None = None
    parts: tuple[int, ...] | None = None
    #: An existing folder for data that must be unpacked to be read. None: the system's folder for temporary files.
    scratch: Path | None = None
    #: Options of one source only, by name; `Source.check` checks them against its declarations.
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError for options that exclude each other."""
        resolve_choice(self.codec, plain=self.layout == "ted")


@dataclass(frozen=True)
class RawObject:
    """A raw object, the place it is read from, and its ``path`` in a mirror laid out as the provider does it."""

    path: str
    item: RemoteObject
    location: Location


@dataclass(frozen=True)
class PartSpec:
    """One part of the large leaves: consecutive state rows, filled by one task.

    ``object`` describes the remote object it comes from: name, size, crc32c. ``layout`` identifies which rows of the object
    become which state rows: a part of equal layout and object has equal rows. ``number`` and ``first_state`` are None
    for the only part of a D4RL dataset, whose manifests have never had them.
    """

    name: str
    states: int
    layout: str
    object: dict[str, Any]
    number: int | None = None
    first_state: int | None = None
    #: Bytes to be fetched to fill it.
    fetch_bytes: int = 0

    def with_checksum(self, crc32c: str | None) -> PartSpec:
        """The part with the checksum that was computed while its object was read, if any."""
        return replace(self, object={**self.object, "crc32c": crc32c or self.object["crc32c"]})

    def to_json(self) -> dict[str, Any]:
        """The record in the manifest."""
        names = ("name", "number", "first_state", "states", "layout", "object")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass
class Plan:
    """What a job will write: the episodes, and the parts of the large leaves."""

    episodes: EpisodeTable
    counts: dict[str, Any]
    notes: list[str]
    parts: list[PartSpec] = field(default_factory=list)
    spaces: dict[str, Any] = field(default_factory=dict)
    #: Identifies the data the plan was made from: an interrupted run continues only with the same data.
    digest: str = ""

    @property
    def steps(self) -> int:
        return self.episodes.steps

    @property
    def states(self) -> int:
        return self.episodes.steps + len(self.episodes)


@dataclass(frozen=True)
class Expectation:
    """A guess, for jobs that are staged, of the bytes to be fetched and those that the dataset will take, and ``notes`` that
    are known already."""

    fetch_bytes: int
    steps: int
    episodes: int
    disk_bytes: int
    part_names: Sequence[str]
    notes: Sequence[str] = ()


class Job:
    """One conversion, bound to a place. A job overrides what differs from these defaults.

    ``name`` is that of the dataset at its provider; None for raw files in a folder that the user names.
    """

    #: What datasets record: the name of the source, and the upstream where it has several.
    source: str
    upstream: str = ""
    #: The name and version of the conversion: an interrupted run is continued only by the same conversion.
    converter: str
    licence: str | None = None
    citation: str | None = None
    #: The columns of the dataset, the leaves that they become, and the names of those that are filled in parts after the plan.
    columns: Sequence[Column] = ()
    schema: Schema = Schema(())
    bulk: tuple[str, ...] = ()
    #: Why the data come from this location, where that is not obvious.
    why: str = ""
    #: The `unverified` raw objects among those that were fetched before the job was opened at their present folder.
    unverified_before: Sequence[str] = ()
    #: A hash of the names, sizes and times of modification of the raw files, where a later conversion compares it.
    files_state: str | None = None
    #: Options that the job decided by itself, to be given when the same raw objects are opened at another place.
    resolved_options: Mapping[str, Any] = {}
    #: Whether a run can continue the work of an interrupted run.
    continues = True
    #: The modules of the C libraries that read its whole files, which they do in a worker process (`raw_files.RawReading`).
    native_libraries: Sequence[str] = ()

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
        """What the resulting bytes depend on besides the data, as JSON; the data are in the plan's digest."""
        options = self.options
        how = {"unknown_next": options.unknown_next, "codec": options.codec, "layout": options.layout}
        return {"converter": self.converter, "dataset": self.name, **how, **options.extra}

    def differences(self, manifest: Manifest) -> list[str]:
        """The inputs of an existing dataset that this job would not use, in words; without the options, which are compared
        without a job."""
        return []

    def shards(self) -> Sequence[int]:
        """The numbers of the raw objects that are taken, where users select by number; else empty."""
        return ()

    # -- whole files -----------------------------------------------------------------------------------------------

    def files(self) -> Sequence[RemoteObject]:
        """Raw objects that must lie whole on a disk to be read (HDF5 and the like)."""
        return []

    def set_previous_objects(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Called before anything is fetched, with the records of the objects that the dataset to be replaced was made
        from: for places that do not state what their files must hold."""

    def inspect_files(self, files: Mapping[str, Path]) -> None:
        """Read the heads of the ``files()``, given by url, and `set_columns` where they depend on them.

        Raises CorruptSourceError, ChecksumError, UsageError.
        """

    # -- plan and fill ---------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Append all small rows to ``columns``, and count everything.

        ``files`` are the paths of ``files()`` by url. Call ``columns.reserve`` before rows are appended, as soon as their
        number is known.
        """
        raise NotImplementedError

    def parts(self) -> int:
        """Into how many parts the large leaves are divided; known when the leaves are."""
        return 0

    def sample_rows(self) -> SampleRows | None:
        """Rows of the large leaves from all over the data, uint8 ``[row_bytes]`` each: a dictionary is trained on them,
        and the size of the dataset estimated. Deterministic. Called after ``plan``."""
        raise NotImplementedError

    def row_sources(self) -> Sequence[RowSource]:
        """Where the rows of each part come from. Called after ``plan``."""
        return []

    # -- what the manifest records ---------------------------------------------------------------------------------

    def objects(self) -> Iterable[dict[str, Any]]:
        """Records of the raw objects that are not in the parts."""
        return []

    def raw_objects(self) -> list[RawObject]:
        """All raw objects, for a mirror to be complete."""
        return []

    def unverified(self) -> list[str]:
        """Paths of the raw objects that came without a checksum: damage in transfer went unnoticed. Jobs whose formats have
        checksums, or that know the file, override this. Called after ``plan``."""
        remote = (raw for raw in self.raw_objects() if "://" in raw.item.url)
        return [*self.unverified_before, *(raw.path for raw in remote if not raw.item.checksums)]

    def describe(self) -> dict[str, Any]:
        """What ``source`` of the manifest states besides the names: at least the ``options``."""
        large = {"codec": self.schema[self.bulk[0]].codec, "layout": self.options.layout} if self.bulk else {}
        return {"options": {**self.options.extra, **large}}


class StagedJob(Job):
    """A job whose counts are known only when all bytes have been read: everything is decoded into files of the working folder
    first, then planned.
    """

    #: A phrase for what happens before anything can be estimated.
    staging: str
    #: Whether its tasks run in a worker process even where there is only one of them: user code.
    in_worker = False

    def expect(self) -> Expectation:
        """An estimate before the work begins; fetches little."""
        raise NotImplementedError

    def staging_tasks(self, folder: Path, threads: int) -> Sequence[Task]:
        """The tasks that decode into ``folder`` what it lacks, and that can run now. Called again when they are done, until it
        returns none; then `plan` and `row_sources` read the folder."""
        raise NotImplementedError

    def staged_parts(self, folder: Path) -> int:
        """How many parts an interrupted run has decoded into ``folder``. Changes nothing."""
        return 0

    def holds_staged(self, folder: Path) -> bool:
        """Whether a run that ended before its first part was decoded left anything in ``folder`` to continue from."""
        return False

    def staged_dictionary(self) -> bytes:
        """The dictionary that staged rows are compressed with."""
        raise NotImplementedError


# -- notes ---------------------------------------------------------------------------------------------------------------


def count_notes(sentences: Mapping[str, str], counts: Mapping[str, Any]) -> list[str]:
    """The sentences whose count is not 0; ``{n}`` in a sentence is that count, ``{rows}`` and so on are the others."""
    return [sentence.format(n=counts[name], **counts) for name, sentence in sentences.items() if counts.get(name)]


def name_left_out(left_out: Mapping[str, str], most: int = 8) -> str:
    """What is left out and why, in a few words: ``a (its dtype is object), b (it is text) and 3 more``."""
    return listed((f"{name} ({why})" for name, why in left_out.items()), most)
