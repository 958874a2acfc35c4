"""The interface of a job: one conversion of a provider's raw objects into a dataset.

A source finds the raw objects and returns a `Job` (`datasets.sources.source.Source.open`). The job states what identifies
its result, plans the rows, and gives the row sources that fill its large leaves; `run` does all the rest. Downloading and
converting are the same job with raw objects from different places.

    inspect_files   leaves become known         jobs with whole files (HDF5, tables)
    stage           everything is decoded       jobs whose row counts are unknown before (`run.stage_all`)
    plan            all small leaves, all counts
    sample_rows     rows to train a dictionary on
    row_sources     the rows of the large leaves, part by part (`FillTask`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import ChecksumError
from ...storage.codecs import resolve_choice
from ...storage.schema import Schema
from ..fetch import Location, RemoteObject
from ..workers.task import Task

if TYPE_CHECKING:
    from ...storage.episodes import EpisodeTable
    from ...storage.writer import ColumnWriter
    from .row_source import RowSource, SampleRows


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
    """A guess, for jobs that are staged, of the bytes still to be fetched and written.

    ``disk_bytes`` are needed while it runs; ``stored_bytes`` of them stay, at least and at most (None: all of them), and
    ``certain_bytes`` of them are needed in any case (None: all of them).
    """

    fetch_bytes: int
    steps: int
    episodes: int
    disk_bytes: int
    part_names: Sequence[str]
    stored_bytes: tuple[int, int] | None = None
    certain_bytes: int | None = None


class Job:
    """One conversion, bound to a place. A job overrides what differs from these defaults."""

    schema: Schema = Schema(())
    #: Names of the leaves that are filled in parts, after the plan.
    bulk: tuple[str, ...] = ()
    location: Location
    #: Why the data come from this location, where that is not obvious.
    why: str = ""
    #: What was `unverified` of raw objects that were fetched before the job was opened at the folder that they are in now.
    unverified_before: Sequence[str] = ()
    #: Options that the job decided by itself, to be given when the same raw objects are opened at another place.
    decided: Mapping[str, Any] = {}
    #: The modules of the native libraries that read its whole files: that is done in a sandbox (`raw_reading`).
    native: Sequence[str] = ()
    #: For a job whose counts are known only when all bytes have been read: a phrase for what happens before anything can
    #: be estimated. Such a job is *staged*: everything is decoded into files of the working folder, then planned.
    staging: str = ""

    def identity(self) -> dict[str, Any]:
        """Everything the resulting bytes depend on, as JSON."""
        raise NotImplementedError

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
        """Read the heads of the ``files()``, given by url, and set ``schema`` and ``bulk`` where they depend on them.

        Raises CorruptSourceError, ChecksumError, UsageError.
        """

    # -- staging ---------------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        """An estimate before the work begins; fetches little."""
        raise NotImplementedError

    def staging_tasks(self, folder: Path, threads: int) -> Sequence[Task]:
        """The tasks that decode into ``folder`` what is not there yet; `plan` and `row_sources` read it."""
        raise NotImplementedError

    def staged_parts(self, folder: Path) -> int:
        """How many parts an interrupted run has decoded into ``folder``. Changes nothing."""
        return 0

    def staged_dictionary(self) -> bytes:
        """The dictionary that staged rows are compressed with."""
        raise NotImplementedError

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

    def sample_rows(self) -> SampleRows:
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
        """Paths of the raw objects that came without anything to compare their bytes with: bytes that changed on the way went
        unnoticed. Jobs whose formats have checksums, or that know the file, override this. Called after ``plan``."""
        remote = (raw for raw in self.raw_objects() if "://" in raw.item.url)
        return [*self.unverified_before, *(raw.path for raw in remote if not raw.item.checksums)]

    def about(self) -> dict[str, Any]:
        """``source`` of the manifest, and ``licence``, ``citation``."""
        raise NotImplementedError


ACCEPT = "if it was replaced on purpose, take it with --accept-changed"


class WholeFileJob(Job):
    """A job with one raw file, which is fetched whole, checked and read in place.

    ``item`` is the object, ``path`` the file, set by `inspect_files`. Where the provider states no checksum, the one computed
    is recorded in the manifest; replacing the dataset then requires the same bytes.
    """

    item: RemoteObject
    path: Path
    #: Accept a file that is not the one recorded.
    accept_changed: bool
    _recorded: str | None = None

    def files(self) -> list[RemoteObject]:
        return [self.item]

    def set_previous_objects(self, objects: Sequence[Mapping[str, Any]]) -> None:
        same = [entry.get("sha256") for entry in objects if entry.get("name") == self.item.name]
        self._recorded = next((str(sha256) for sha256 in same if sha256), None)

    def check_recorded(self, sha256: str) -> None:
        """Raise ChecksumError for a file that is not the one that the dataset to be replaced was made from."""
        if self._recorded in (None, sha256) or self.accept_changed:
            return
        message = (
            f"{self.item.url} is not the file this dataset was made from before: its sha256 is {sha256}, "
            f"not {self._recorded}"
        )
        raise ChecksumError(message, hint=ACCEPT)
