"""The forms of a request, from the user's arguments to the configuration of workers.

Request       the user's arguments, with `ReadOptions`: how the steps of the input are read
RunContext    the request bound to its input, its destination and its chunks: all that is known before anything is written
RunConfig     the part that workers need; small and picklable, with the `CallerSettings` of the requesting process
Preprocessed  the outcome; `DryRun` is that of a dry run
"""

from __future__ import annotations

import math
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..datasets.ingest.request import Estimate, Outcome
from ..datasets.ingest.request import Listener as Listener
from ..datasets.user_code_old.opened_files import differing
from ..datasets.user_code_old.process_state import CallerSettings
from ..errors import DatasetExistsError, NotADatasetError, RbdataError, UsageError
from ..storage.amounts import MOST_RECORDS
from ..storage.codecs import codec_of, resolve_choice
from ..storage.episodes import EpisodeTable, open_episodes
from ..storage.folder import DatasetPlace, free_bytes
from ..storage.manifest import Manifest, read_manifest
from ..storage.schema import Schema
from ..storage.writer import fingerprint
from .chunks import Chunk, Episodes, choose_chunk_steps, choose_sizes, cut, cut_sections, view_episodes
from .function_chain import FunctionChain, Per
from .functions.checks import choice, positive, whole
from .layout import Shapes
from .lineage import describe_changes, versions
from .records import ProbeResult

if TYPE_CHECKING:
    from ..storage.dataset import Dataset


@dataclass(frozen=True)
class ReadOptions:
    """The options of a sampler: ``frame_stack`` k, ``n_step`` n with ``gamma``, ``slice_len`` L (steps)."""

    frame_stack: int | None = None
    n_step: int | None = None
    gamma: float = 0.99
    slice_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("frame_stack", "n_step", "slice_len"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low=1, high=MOST_RECORDS)
        positive("gamma", self.gamma, high=1)

    @property
    def reads_neighbours(self) -> bool:
        """Whether a step depends on other steps."""
        return self.frame_stack is not None or self.n_step is not None

    def to_json(self) -> dict[str, Any]:
        """The options that are set."""
        names = ("frame_stack", "n_step", "slice_len", *(["gamma"] if self.n_step is not None else []))
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def step_bytes(self, schema: Schema) -> int:
        """The approximate size of a step as functions get it, in bytes."""
        total = 0
        for leaf in schema:
            top = leaf.name.removeprefix("next/").partition("/")[0]
            is_stacked = leaf.kind == "state" or top in ("observation", "pixels")
            total += leaf.row_bytes * len(leaf.names) * (self.frame_stack or 1 if is_stacked else 1)
        return max(1, total)


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    - ``id``: the dataset to read, an id or a folder; or ``dataset``, one that is open (a view). ``dest``: the id of the
      dataset to make.
    - ``functions``: text (`functions.lookup`) or callables, applied one after the other; ``args``: their `arguments`.
    - ``per``: the input of one call: a ``batch`` of steps, one ``sample``, one ``episode``; None: as the functions need it.
    - ``read_options``: frame stacks, n-step returns and slices. ``num_frames``: only the first steps are read.
    - ``batch_size``: steps of a batch (None: a 64th of the data, 32 at least, about 8 MB of them
      and 16,384 at most). It affects the result where a function
      draws random numbers or computes over the whole batch.
    - ``codec`` of observations that are stored once per state: ``auto`` compresses if that saves a third. ``layout``
      ``ted`` stores observations and successors, raw.
    - ``seed``: determines the random numbers of every batch or episode, together with the number of its first step.
    - ``engine``, ``procs``, ``address``: where the work is done; they do not affect the result.
    - ``force`` starts over and replaces an existing dataset; ``dry_run`` tries a few chunks and writes nothing.
    - ``wait``: where another process writes ``dest``, wait for it instead of raising DatasetBusyError.
    - ``command``: the command line, if there is one, for hints about an unfinished dataset.
    - ``folder``: where modules and files are searched (None: the current directory).
    """

    id: str
    functions: Sequence[str | Callable[..., Any]]
    dest: str
    per: Per | None = None
    read_options: ReadOptions = field(default_factory=ReadOptions)
    num_frames: int | None = None
    batch_size: int | None = None
    procs: int | None = None
    codec: str = "auto"
    layout: Literal["auto", "ted"] = "auto"
    seed: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "local"
    address: str | None = None
    root: Path | None = None
    force: bool = False
    dry_run: bool = False
    wait: bool = False
    command: str = ""
    folder: Path | None = None
    dataset: Dataset | None = None

    def __post_init__(self) -> None:
        for name in ("num_frames", "batch_size", "procs"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low=1, high=MOST_RECORDS if name == "batch_size" else math.inf)
        whole("seed", self.seed)
        if self.per is not None:
            choice("per", self.per, get_args(Per))
        choice("layout", self.layout, ("auto", "ted"))
        resolve_choice(self.codec, plain=self.layout == "ted")
        if not self.functions:
            raise UsageError("there is no function", hint="for example --fn my.module:fn, or --fn rbdata:to_float")


@dataclass(frozen=True)
class DryRun:
    """The outcome of a dry run: the probe, with the counts of the chunks that were made, and how the result would be stored.

    ``after``: dtypes and shapes of the stored leaves. ``stored``: how each of them is stored, such as ``state zstd``.
    ``seconds``: the time of these chunks, one after the other; ``estimated_seconds``: for all chunks, with several processes.
    """

    functions: Sequence[str]
    per: str
    probe: ProbeResult
    after: Shapes
    stored: Mapping[str, str]
    seconds: float
    estimated_seconds: float


@dataclass(frozen=True)
class Preprocessed(Outcome):
    """The outcome of a run. ``warnings`` are sentences for the user."""

    dry_run: DryRun | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Input:
    """The input of a run: the dataset in the folder ``path``, whose content is ``content``, or an open dataset.

    ``folders``: the folders that hold its stored rows, with their manifests; empty if some rows are not in such a folder.
    """

    path: Path
    manifest: Manifest
    folders: tuple[tuple[Path, Manifest], ...]
    dataset: Dataset | None = None

    @classmethod
    def at(cls, path: Path) -> Input:
        """The dataset in a folder as an input. Raises as `storage.manifest.read_manifest`."""
        manifest = read_manifest(path)
        return cls(path, manifest, ((path, manifest),))

    @classmethod
    def of(cls, dataset: Dataset) -> Input:
        """An open dataset as an input. Raises UsageError for a subclass that overrides methods that read steps."""
        dataset._check_reading()
        return cls(dataset.path, dataset.manifest, dataset.folders, dataset)

    @cached_property
    def copyable(self) -> dict[str, Path]:
        """The compressed leaves that all folders encode alike, so that rows can be copied, each with one of the folders."""
        if not self.folders:
            return {}
        (first, manifest), *others = self.folders
        alike: dict[str, Path] = {}
        for leaf in manifest.schema.states:
            codec = codec_of(leaf)
            its = [(other.schema.get(leaf.name), path) for path, other in others]
            if not codec.fixed_rows and all(one is not None and codec.is_like(first, one, path) for one, path in its):
                alike[leaf.name] = first
        return alike

    def open_episodes(self) -> EpisodeTable:
        if self.dataset is not None:
            return self.dataset.episodes
        return open_episodes(self.path, self.manifest.episodes, self.manifest.steps)

    @property
    def opener(self) -> Callable[[], Dataset]:
        """A function that opens the dataset in another process; small and picklable."""
        if self.dataset is not None:
            return partial(_itself, self.dataset)
        return partial(_open, self.path, self.manifest.content)

    def describe(self) -> str:
        """The location of the dataset, for messages."""
        return ", ".join(dict.fromkeys(str(path) for path, _ in self.folders)) or str(self.path)

    def replaced(self) -> bool:
        """Whether the content of one of its folders has changed meanwhile."""
        with suppress(RbdataError, OSError):
            return any(read_manifest(path).content != manifest.content for path, manifest in self.folders)
        return False


def _open(path: Path, content: str) -> Dataset:
    from ..storage.dataset import open_folder

    return open_folder(path, content=content)


def _itself(dataset: Dataset) -> Dataset:
    return dataset


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run; small and picklable.

    - ``run``: the fingerprint of the run. ``attempt`` differs in every run: a worker reuses open objects within one attempt.
    - ``open``: opens the input; ``copyable``: see `Input`; ``inputs``: its folders. ``folder``: where parts and samples are
      written.
    - ``num_frames``: only the first steps are read (None: all). ``batch``: steps of a batch.
    - ``statistics``: the statistics of each function, None if it needs none or if they are not known yet.
    """

    run: str
    open: Callable[[], Dataset]
    copyable: Mapping[str, Path]
    inputs: tuple[Path, ...]
    folder: Path
    chain: FunctionChain
    read_options: ReadOptions
    num_frames: int | None
    batch: int
    seed: int
    statistics: tuple[dict[str, Any] | None, ...]
    caller: CallerSettings = field(default_factory=CallerSettings)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)

    @cached_property
    def key(self) -> str:
        """Equal for configurations that read and call alike: a worker reuses open objects while the key stays the same."""
        return fingerprint({"run": self.run, "attempt": self.attempt, "statistics": list(self.statistics)})

    @property
    def whole_episodes(self) -> bool:
        return self.chain.per == "episode"

    @property
    def ignores_observations(self) -> int:
        """How many functions at the beginning of the chain work without observations, on steps and episodes as stored."""
        as_stored = self.chain.per != "sample" and self.read_options == ReadOptions()
        return self.chain.ignores_observations if as_stored else 0


@dataclass(frozen=True)
class RunContext:
    """One run. ``identity`` is everything that decides the bytes of the result; ``config.run`` is its fingerprint."""

    request: Request
    config: RunConfig
    source: Input
    place: DatasetPlace
    episodes: Episodes
    sections: list[Chunk]
    #: Steps of a section; with whole episodes, about as many.
    section_steps: int
    identity: dict[str, Any]
    #: None until the functions have been tried.
    chunks: tuple[Chunk, ...] = ()

    @property
    def input(self) -> Manifest:
        """The manifest of the input."""
        return self.source.manifest

    def choose_chunk_steps(self, step_seconds: float, parallel: int) -> int:
        """The steps of a chunk for functions that take ``step_seconds`` for a step, see `chunks.choose_chunk_steps`."""
        config, steps = self.config, self.episodes.steps
        return choose_chunk_steps(
            step_seconds, steps, config.batch, self.section_steps, config.whole_episodes, parallel
        )

    def with_chunks(self, steps: int) -> RunContext:
        """The run with chunks of about ``steps`` steps."""
        chunks = cut_sections(self.sections, self.episodes, steps, self.config.whole_episodes)
        return replace(self, chunks=tuple(chunks))

    @property
    def chunks_of_sections(self) -> list[tuple[int, int]]:
        """For each section, the number of its first chunk and of the first chunk after it."""
        starts = [chunk.start for chunk in self.chunks]
        firsts = [bisect_left(starts, section.start) for section in self.sections]
        return list(pairwise([*firsts, len(starts)]))

    def find_existing(self) -> Manifest | None:
        """The manifest at the destination if the same run made it. Raises DatasetExistsError for any other dataset."""
        if not self.place.exists():
            self.place.check_free()
            return None
        if self.request.force:
            return None
        try:
            manifest = read_manifest(self.place.path)
        except NotADatasetError:
            return None
        lineage = manifest.lineage or {}
        edited = differing(lineage.get("opened"), self.config.chain.folder)
        if lineage.get("fingerprint") == self.config.run and not edited:
            return manifest
        options = manifest.source.get("options") or {}
        changed = [*describe_changes({**options, **lineage}, self.identity), *edited] if lineage else []
        message = f"{self.place.id} exists already and was made with another request{listed(changed)}"
        raise DatasetExistsError(message, hint="choose another --dest, or replace it with --force")

    def estimate(self, steps: int, disk_bytes: int, done: int, *, measured: bool) -> Estimate:
        """The remaining work: ``steps`` of the result, ``disk_bytes`` to write; ``done`` chunks are finished.

        Without ``measured``, functions that may drop steps were tried on a few episodes only: both are upper bounds.
        """
        return Estimate(
            id=self.place.id,
            path=self.place.path,
            location=self.source.describe(),
            shards=len(self.chunks),
            fetch_bytes=0,
            steps=steps,
            episodes=len(self.episodes),
            disk_bytes=disk_bytes,
            free_bytes=free_bytes(self.place.path),
            done_parts=done,
            parts=len(self.chunks),
            part_names=[chunk.describe() for chunk in self.chunks],
            estimated=self.config.whole_episodes,
            at_most=self.config.whole_episodes and not measured,
        )


def listed(changed: Sequence[str]) -> str:
    return f" (differs in {', '.join(changed)})" if changed else ""


def make_context(request: Request, chain: FunctionChain, source: Input, place: DatasetPlace) -> RunContext:
    """The context of a request whose input lies at ``path``. Raises UsageError for an input without steps."""
    options, manifest = request.read_options, source.manifest
    episodes = view_episodes(source.open_episodes(), request.num_frames, options.slice_len)
    if not episodes.steps:
        raise UsageError(f"{manifest.id} has no steps: there is nothing to preprocess")
    batch, size = choose_sizes(request.batch_size, options.step_bytes(manifest.schema), episodes.steps)
    # The keys and values are part of the fingerprints of existing datasets.
    identity = {
        "preprocess": 3,
        "id": place.id,
        "input": manifest.content,
        "functions": list(chain.identities),
        "per": chain.per,
        "batch": batch,
        "section": size,
        "windows": options.to_json(),
        "num_frames": request.num_frames,
        "seed": request.seed,
        "codec": request.codec,
        "layout": request.layout,
        "versions": versions(),
    }
    caller = replace(CallerSettings.read(), **chain.settings)
    if caller.to_json():
        identity["process"] = caller.to_json()
    config = RunConfig(
        run=fingerprint(identity),
        open=source.opener,
        copyable=source.copyable,
        inputs=tuple(path for path, _ in source.folders),
        folder=place.working,
        chain=chain,
        read_options=options,
        num_frames=request.num_frames,
        batch=batch,
        seed=request.seed,
        statistics=(None,) * len(chain.functions),
        caller=caller,
    )
    sections = cut(episodes, size, config.whole_episodes)
    return RunContext(request, config, source, place, episodes, sections, size, identity)
