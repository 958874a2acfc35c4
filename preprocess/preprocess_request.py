"""What is wanted, and what a dry run found out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..datasets.ingest.request import Listener as Listener
from ..datasets.ingest.request import Outcome, Outlook
from ..errors import UsageError
from .function_chain import Per
from .layout import Shapes
from .run_config import Windows


@dataclass(frozen=True)
class Request:
    """What is wanted.

    - ``id``: the dataset to read, an id or a folder. ``dest``: the id of the one to make.
    - ``functions``: text (`lookup`) or callables, applied one after the other; ``args``: their arguments (`arguments`).
    - ``per``: what they are given at a time, ``batch`` of steps, one ``sample``, one ``episode``; None: as they need it.
    - ``windows``: see `view`. ``num_frames``: only the first so many steps.
    - ``batch_size``: steps of a batch (None: about 8 MB of them, 16,384 at most). Part of what decides the result where a
      function draws random numbers, or looks at the whole batch.
    - ``codec`` of observations stored once for each state: ``auto`` compresses where that saves a third. ``layout`` ``ted``
      stores observations and successors both, raw.
    - ``seed``: every chunk's random numbers follow from it and from the chunk's number.
    - ``engine``, ``procs``, ``address``: where the work is done; they never change the result.
    - ``force`` begins anew and replaces what is there; ``dry_run`` tries one chunk and writes nothing.
    - ``folder``: where modules and files are looked for (None: the current directory).
    """

    id: str
    functions: Sequence[str | Callable[..., Any]]
    dest: str
    per: Per | None = None
    windows: Windows = field(default_factory=Windows)
    num_frames: int | None = None
    batch_size: int | None = None
    procs: int | None = None
    codec: Literal["auto", "raw", "zstd"] = "auto"
    layout: Literal["auto", "ted"] = "auto"
    seed: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "local"
    address: str | None = None
    root: Path | None = None
    force: bool = False
    dry_run: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        for name in ("num_frames", "batch_size", "procs"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is a whole number from 1 on, not {value!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UsageError(f"a seed is a whole number from 0 on, not {self.seed!r}")
        for name, allowed in (("per", (None, "batch", "sample", "episode")), ("codec", ("auto", "raw", "zstd"))):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} is {', '.join(map(str, allowed[-3:]))}, not {getattr(self, name)!r}")
        if self.layout not in ("auto", "ted"):
            raise UsageError(f"layout is auto or ted, not {self.layout!r}")
        if self.layout == "ted" and self.codec == "zstd":
            raise UsageError("layout ted is for readers that know no codec: it is raw", hint="leave out one of the two")
        if not self.functions:
            raise UsageError("no function is given", hint="for example --fn my.module:fn, or --fn rbdata:to_float")


@dataclass(frozen=True)
class Trial:
    """What a dry run found: trees before and after, and estimates for all of the data."""

    functions: Sequence[str]
    per: str
    before: Shapes
    after: Shapes
    #: How each leaf of the result would be stored: ``state zstd``.
    stored: Mapping[str, str]
    #: Leaves whose values or types are others than before; None where that cannot be told row by row.
    changed: Sequence[str] | None
    steps_in: int
    steps_out: int
    dropped: int
    nans: Mapping[str, int]
    seconds: float
    estimated_seconds: float


@dataclass(frozen=True)
class Preprocessed(Outcome):
    """What a run did; ``trial`` is there for dry runs, ``warnings`` for what should be looked at."""

    trial: Trial | None = None
    warnings: Sequence[str] = ()


__all__ = ["Listener", "Outcome", "Outlook", "Preprocessed", "Request", "Trial"]
