"""What a job is: one conversion of a provider's raw objects into a dataset.

A source finds the raw objects and returns a ``Job`` (`datasets.sources.source.Source.open`). A job says what identifies its
result, plans the rows, and makes the tasks that fill them. Downloading and converting are the same job with raw data from
different places.

The protocols give what most jobs answer; a job that derives from them defines only what is different about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ...storage.schema import Schema
from ..fetch import Location, RemoteObject
from ..workers.task import Task

if TYPE_CHECKING:
    from ...storage.column_writer import ColumnWriter
    from ...storage.episodes import EpisodeTable


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert; part of what identifies a dataset's bytes.

    ``codec`` is that of large leaves (``auto``: zstd). ``layout`` ``ted`` writes large leaves twice, as plain TED.
    ``unknown_next``: see `datasets.atari.ring`. ``parts`` selects raw objects by number (None: all there are).
    """

    codec: Literal["auto", "raw", "zstd"] = "auto"
    layout: Literal["auto", "ted"] = "auto"
    unknown_next: Literal["truncate", "zero"] = "truncate"
    time_limit: int | None = None
    parts: tuple[int, ...] | None = None
    #: Options of one source only, by name; `Source.check` checks them against its declarations.
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RawObject:
    """A raw object, the place it is read from, and its ``path`` in a mirror laid out as the provider does it."""

    path: str
    item: RemoteObject
    location: Location


@dataclass
class Plan:
    """What a job will write: row counts, and where the bytes come from."""

    episodes: EpisodeTable
    counts: dict[str, Any]
    notes: list[str]
    parts: list[dict[str, Any]]
    #: Bytes still to be fetched from the source, by part.
    fetch_bytes: list[int]
    spaces: dict[str, Any] = field(default_factory=dict)
    #: Stands for all that the plan was made from: an interrupted run continues only what was planned from the same data.
    digest: str = ""

    @property
    def steps(self) -> int:
        return self.episodes.steps

    @property
    def states(self) -> int:
        return self.episodes.steps + len(self.episodes)


@dataclass(frozen=True)
class Expectation:
    """What a job expects that cannot plan before everything is read; bytes still to be fetched and written."""

    fetch_bytes: int
    steps: int
    episodes: int
    disk_bytes: int
    part_names: Sequence[str]


class Job(Protocol):
    """One conversion, bound to a place."""

    schema: Schema
    #: Names of the leaves that are filled in parts, after the plan.
    bulk: tuple[str, ...]
    location: Location
    #: Why it is taken from there, where that needs saying.
    why: str = ""
    #: Options that the job decided by itself, to be given when the same raw objects are opened at another place.
    decided: Mapping[str, Any] = {}

    def identity(self) -> dict[str, Any]:
        """Everything the resulting bytes depend on, as JSON."""

    def files(self) -> Sequence[RemoteObject]:
        """Raw objects that must lie whole on a disk to be read (HDF5 and the like); none where all is streamed."""

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Read what is cheap to read, append all step rows, and know all counts.

        ``files`` are where the objects that ``files()`` asked for lie, by url. Call ``columns.reserve`` before rows are
        appended, as soon as their number is known.
        """

    def parts(self) -> int:
        """Into how many parts the bulk leaves are divided."""

    def dictionary(self) -> bytes:
        """The dictionary for compressed bulk leaves; call after ``plan``."""

    def row_estimate(self, dictionary: bytes) -> float:
        """Bytes on disk of one state row; call after ``plan``."""

    def tasks(self, folder: Path, threads: int) -> Sequence[Task]:
        """The work that fills the parts of a working folder; call after ``plan``."""

    def objects(self) -> Iterable[dict[str, Any]]:
        """The raw objects as the manifest records them."""

    def raw_objects(self) -> list[RawObject]:
        """All raw objects, for a mirror to be complete."""

    def about(self) -> dict[str, Any]:
        """``source`` of the manifest, and ``licence``, ``citation``."""


class SettlingJob(Job, Protocol):
    """One whose leaves are decided by what its whole files hold (HDF5, tables): its schema is empty until then."""

    def settle(self, files: Mapping[str, Path]) -> None:
        """Look into the files that ``files()`` asked for, and set ``schema`` and ``bulk``; called before ``plan``."""

    def replaces(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Told, before anything is fetched, which objects the dataset about to be replaced was made from."""
        return  # where the place itself states what its files must hold


class SpoolingJob(Job, Protocol):
    """One whose counts are known only when all of its bytes have been read: these are decoded first, and planned then."""

    #: What it does before anything can be said about what it will do.
    first_stage: str = "sampling frames"

    def expect(self) -> Expectation:
        """An estimate, for what is said before the work begins; reads little."""

    def spooling(self, folder: Path, threads: int) -> Sequence[Task]:
        """The work that decodes into ``folder`` what is not there yet; `plan` and `tasks` find it there."""


def settling(job: Job) -> SettlingJob | None:
    """The job as one that settles its leaves late, if it is one."""
    return cast("SettlingJob", job) if hasattr(job, "settle") else None


def spooling(job: Job) -> SpoolingJob | None:
    """The job as one that spools, if it is one."""
    return cast("SpoolingJob", job) if hasattr(job, "spooling") else None
