"""The forms of a request, from the user's arguments to what workers get.

Request       the user's arguments, with `ReadOptions`: how the steps of the input are read
Run           the request bound to its input and its destination: all that is known before anything is written
RunConfig     the part that workers need
Preprocessed  the outcome; `DryRun` is that of a dry run
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..datasets.ingest.request import Estimate, Outcome
from ..datasets.ingest.request import Listener as Listener
from ..datasets.local import find
from ..errors import DatasetExistsError, NotADatasetError, UsageError
from ..storage.amounts import MOST_RECORDS
from ..storage.codecs import codec_of, resolve_choice
from ..storage.episodes import open_episodes
from ..storage.folder import DatasetPlace, free_bytes
from ..storage.manifest import Manifest, read_manifest
from ..storage.schema import Schema
from .chunks import Episodes, choose_sizes, chunk_size, cut, cut_sections, view_episodes
from .function import Chain, Given, Per, describe, to_json
from .functions.checks import choice, positive, whole
from .layout import Shapes
from .lineage import describe_changes, versions

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
    - ``functions``: text or callables (`function`), applied one after the other; ``args``: their arguments.
    - ``version``: what functions and arguments that are objects are, in the user's words. Without one their result is never
      complete already, and never continued.
    - ``per``: the input of one call: a ``batch`` of steps, one ``sample``, one ``episode``; None: as the functions need it.
    - ``read_options``: frame stacks, n-step returns and slices. ``num_frames``: only the first steps are read.
    - ``batch_size``: steps of a batch (None: a 64th of the data, 32 at least, about 8 MB of them
      and 16,384 at most). It affects the result where a function
      draws random numbers or computes over the whole batch.
    - ``codec`` of observations that are stored once per state: ``auto`` compresses if that saves a third. ``layout``
      ``ted`` stores observations and successors, raw.
    - ``seed``: determines the random numbers of every batch or episode, together with the number of its first step.
    - ``engine``, ``procs``, ``address``: where the work is done; they do not affect the result. ``procs`` 0 is this process.
    - ``force`` starts over and replaces an existing dataset; ``dry_run`` tries a few chunks and writes nothing.
    - ``wait``: where another process writes ``dest``, wait for it instead of raising DatasetBusyError.
    - ``command``: the command line, if there is one, for hints about an unfinished dataset.
    - ``folder``: where modules and files are searched (None: the current directory).
    """

    id: str
    functions: Sequence[Given]
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
    version: str | None = None

    def __post_init__(self) -> None:
        for name, low in (("num_frames", 1), ("batch_size", 1), ("procs", 0)):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low=low, high=MOST_RECORDS if name == "batch_size" else math.inf)
        whole("seed", self.seed)
        if self.per is not None:
            choice("per", self.per, get_args(Per))
        choice("layout", self.layout, ("auto", "ted"))
        resolve_choice(self.codec, plain=self.layout == "ted")
        if not self.functions:
            raise UsageError("there is no function", hint="for example --fn my.module:fn, or --fn rbdata:to_float")


@dataclass(frozen=True)
class DryRun:
    """What a dry run found out, of the steps that it made.

    ``before``, ``after``: dtypes and shapes of the leaves; ``changed`` (None where functions get whole episodes): those of
    other values. ``stored``: how each leaf is stored, such as ``state zstd``. ``steps_in``, ``steps_out``;
    ``dropped``: episodes; ``nans``: NaN values by leaf that has none in the input. ``seconds``: the time it took, in one
    process; ``estimated_seconds``: for all steps, with several processes.
    """

    functions: Sequence[str]
    per: str
    before: Shapes
    after: Shapes
    changed: Sequence[str] | None
    stored: Mapping[str, str]
    steps_in: int
    steps_out: int
    dropped: int
    nans: Mapping[str, int]
    seconds: float
    estimated_seconds: float


@dataclass(frozen=True)
class Preprocessed(Outcome):
    """The outcome of a run. ``warnings`` are sentences for the user."""

    dry_run: DryRun | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class RunConfig:
    """What workers need of a run; functions that are objects are pickled with it.

    - ``path``, ``content``: the dataset that is read, where ``request.dataset`` is None.
    - ``code``: the folder in which functions are found; ``records``: what `function.describe` said of them.
    - ``copyable``: see `Run`. ``folder``: where parts are written. ``batch``: steps of a batch.
    - ``statistics``: those of each function, None if it needs none or if they are not known yet.
    """

    request: Request
    path: Path
    content: str
    code: Path
    records: Sequence[Mapping[str, Any]]
    chain: Chain
    copyable: Mapping[str, Path]
    folder: Path
    batch: int
    statistics: tuple[dict[str, Any] | None, ...]

    def open(self) -> Dataset:
        """The input."""
        from ..storage.dataset import open_folder

        return self.request.dataset or open_folder(self.path, content=self.content)

    @property
    def whole_episodes(self) -> bool:
        return self.chain.per == "episode"

    @property
    def ignoring(self) -> int:
        """How many functions at the beginning of the chain work without observations, on steps and episodes as stored."""
        return self.chain.ignoring if self.chain.per != "sample" and self.request.read_options == ReadOptions() else 0


def _digest(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


class Run:
    """A request bound to its input (``path``, ``manifest``, ``episodes``) and its destination ``place``.

    ``folders``: those that hold the stored rows of the input, with their manifests; empty if some rows are in none.
    ``identity`` is everything that decides the bytes of the result, as far as it is known (``is_identified``); ``fingerprint``
    is its digest.
    """

    #: Whether functions get whole episodes; known after `configure`.
    whole_episodes = False

    def __init__(self, request: Request, place: DatasetPlace) -> None:
        self.request, self.place = request, place
        dataset, options = request.dataset, request.read_options
        if dataset is not None:
            self.path, self.manifest, self.folders = dataset.path, dataset.manifest, dataset.folders
            table = dataset.episodes
        else:
            self.path = find(request.id, request.root)
            self.manifest = read_manifest(self.path)
            self.folders = ((self.path, self.manifest),)
            table = open_episodes(self.path, self.manifest.episodes, self.manifest.steps)
        self.episodes: Episodes = view_episodes(table, request.num_frames, options.slice_len)
        if not self.episodes.steps:
            raise UsageError(f"{self.manifest.id} has no steps: there is nothing to preprocess")
        self.code = (request.folder or Path.cwd()).absolute()
        step_bytes = options.step_bytes(self.manifest.schema)
        self.batch, self.section = choose_sizes(request.batch_size, step_bytes, self.episodes.steps)
        self.records, self.is_text = describe(request.functions, request.args, self.code)
        self.is_identified = self.is_text or request.version is not None
        self.identity = {
            "preprocess": 4,
            "id": place.id,
            "input": self.manifest.content,
            "functions": self.records,
            "args": to_json(request.args),
            "version": request.version,
            "per": request.per,
            "batch": self.batch,
            "section": self.section,
            "windows": options.to_json(),
            "num_frames": request.num_frames,
            "seed": request.seed,
            "codec": request.codec,
            "layout": request.layout,
            "versions": versions(),
        }
        self.fingerprint = _digest(self.identity) if self.is_identified else uuid.uuid4().hex

    @property
    def runs_own_code(self) -> bool:
        """Whether a function of the user is called."""
        return not self.is_text or any("files" in record for record in self.records)

    @property
    def where(self) -> str:
        """The folders that are read."""
        return ", ".join(dict.fromkeys(str(path) for path, _ in self.folders)) or str(self.path)

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

    def configure(self, chain: Chain) -> RunConfig:
        """Bind the functions as they were found; sets ``whole_episodes``, ``sections`` and ``chunks``."""
        self.whole_episodes, request = chain.per == "episode", self.request
        self.sections = cut(self.episodes, self.section, self.whole_episodes)
        self.chunks = cut_sections(self.sections, self.episodes, self.chunk_size(), self.whole_episodes)
        none = (None,) * len(chain.names)
        about = (self.path, self.manifest.content, self.code, self.records, chain, self.copyable, self.place.working)
        return RunConfig(request, *about, self.batch, none)

    def chunk_size(self) -> int:
        """Steps of a chunk. Built-in functions are too fast for more chunks than sections."""
        steps = self.episodes.steps
        return chunk_size(steps, self.batch, self.section, self.whole_episodes) if self.runs_own_code else self.section

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
        if lineage.get("fingerprint") == self.fingerprint:
            return manifest
        if not self.is_identified:
            message = (
                f"{self.place.id} exists already, and nothing tells whether these functions made it: one is an object"
            )
            hint = "replace it with force=True; give the function as text ('file.py:name'), or state version='...'"
            raise DatasetExistsError(message, hint=hint)
        before = {**(manifest.source.get("options") or {}), **lineage} if lineage else {}
        message = f"{self.place.id} exists already and was made with another request{self.differs(before)}"
        raise DatasetExistsError(message, hint="choose another --dest, or replace it with --force")

    def differs(self, before: Mapping[str, Any]) -> str:
        """In what the request of a run (its identity, or the lineage of its result) differs from this one, in brackets."""
        changed = describe_changes(before, self.identity) if before else []
        return f" (differs in {', '.join(changed)})" if changed else ""

    def estimate(self, steps: int, disk_bytes: int, done: int, *, measured: bool) -> Estimate:
        """The remaining work: ``steps`` of the result, ``disk_bytes`` to write; ``done`` chunks are finished.

        Without ``measured``, functions that may drop steps were tried on a few episodes only: both are upper bounds.
        """
        return Estimate(
            id=self.place.id,
            path=self.place.path,
            location=self.where,
            shards=len(self.chunks),
            fetch_bytes=0,
            steps=steps,
            episodes=len(self.episodes),
            disk_bytes=disk_bytes,
            free_bytes=free_bytes(self.place.path),
            done_parts=done,
            parts=len(self.chunks),
            part_names=[chunk.describe() for chunk in self.chunks],
            estimated=self.whole_episodes,
            at_most=self.whole_episodes and not measured,
        )
