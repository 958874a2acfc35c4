"""The request of a run, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ..datasets.ingest.request import Listener as Listener
from ..datasets.ingest.request import Outcome
from ..errors import UsageError
from ..storage.amounts import MOST_RECORDS
from ..storage.codecs import resolve_choice
from .function_chain import Per
from .functions.checks import choice, whole
from .layout import Shapes
from .read_options import ReadOptions
from .records import ProbeResult


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    - ``id``: the dataset to read, an id or a folder. ``dest``: the id of the dataset to make.
    - ``functions``: text (`functions.lookup`) or callables, applied one after the other; ``args``: their `arguments`.
    - ``per``: what they get at a time: a ``batch`` of steps, one ``sample``, one ``episode``; None: as they need it.
    - ``read_options``: frame stacks, n-step returns and slices. ``num_frames``: only the first steps are read.
    - ``batch_size``: steps of a batch (None: a 64th of the data, 32 at least, about 8 MB of them
      and 16,384 at most). It affects the result where a function
      draws random numbers or computes over the whole batch.
    - ``codec`` of observations that are stored once per state: ``auto`` compresses where that saves a third. ``layout``
      ``ted`` stores observations and successors, raw.
    - ``seed``: the random numbers of every batch or episode follow from it and from the number of its first step.
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
    """What a dry run found: the probe, with the counts of the chunks that were made, and how the result would be stored.

    ``after``: dtypes and shapes of the stored leaves. ``stored``: how each of them is stored, such as ``state zstd``.
    ``seconds``: what the chunks took, one after the other; ``estimated_seconds`` is for all of them, in processes.
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
    """What a run did. ``warnings`` are sentences for the user."""

    dry_run: DryRun | None = None
    warnings: Sequence[str] = ()
