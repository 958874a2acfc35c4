"""What the user asks for, and what comes of it.

PreprocessRequest  the user's arguments
Preprocessed       the outcome; `DryRun` is that of a dry run
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..datasets.ingest.request import Listener as Listener
from ..datasets.ingest.request import Outcome
from ..errors import UsageError
from ..storage.amounts import MOST_RECORDS
from ..storage.codecs import resolve_choice
from .functions.checks import choice, key_list, positive, whole
from .functions.traits import traits_of

if TYPE_CHECKING:
    import numpy as np

    from ..storage.dataset import Dataset
    from .layout import Shapes

#: What the names of built-in functions begin with.
BUILTIN = "rbdata:"
Per = Literal["batch", "sample", "episode"]
Given = str | Callable[..., Any]


def make_requests(
    given: Any,
    functions: Sequence[Given],
    dest: str,
    *,
    keys: Literal["all", "common"] = "all",
    select: Callable[[Dataset], np.ndarray] | None = None,
    num_frames: int | None = None,
    slice_len: int | None = None,
    split: Mapping[str, float] | None = None,
    keep: str | Sequence[str] = (),
    drop: str | Sequence[str] = (),
    trim: float | None = None,
    args: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[PreprocessRequest]:
    """Return the requests of a call of `preprocess`: one, or one for each part of a ``split`` (shares by name), ``DEST-NAME``.

    ``given`` is one dataset or several, which are read one after the other; ``select`` returns the numbers of the episodes to
    read, ``num_frames`` is the most steps of them, and ``slice_len`` that of the pieces that they are cut into. ``trim`` and
    ``keep`` or ``drop`` are the built-in functions ``trim``, before all others, and ``select_keys``, after them. ``options``
    are other fields of `PreprocessRequest`. Raises UsageError, and what `datasets.local.find` raises.
    """
    functions, args = _as_text(functions, args or {})
    if trim is not None:
        functions, args["trim.threshold"] = ["rbdata:trim", *functions], trim
    if keep and drop:
        raise UsageError("keep names the leaves that stay, and drop those that do not", hint="choose one of them")
    if keep or drop:
        functions.append("rbdata:select_keys")
        option, key = ("keep", "keys") if keep else ("drop", "drop")
        args[f"select_keys.{key}"] = key_list(option, keep or drop)
    for name in ("rbdata:trim", "rbdata:select_keys"):
        if functions.count(name) > 1:
            raise UsageError(f"{name} is given twice", hint="as a function, or as an option")
    functions, options["args"] = functions or ["rbdata:identity"], args
    inputs = [given] if isinstance(given, (str, os.PathLike)) or not isinstance(given, Sequence) else list(given)
    if not inputs:
        raise UsageError("there is no dataset to read")
    for name, value in (("num_frames", num_frames), ("slice_len", slice_len)):
        if value is not None:
            whole(name, value, low=1)
    is_cut, is_chosen = bool(num_frames or slice_len), select is not None or split is not None
    if len(inputs) == 1 and not is_cut and not is_chosen and isinstance(inputs[0], (str, os.PathLike)):
        # A single id stays an id: workers open the folder, and this process does not load torch.
        return [PreprocessRequest(os.fspath(inputs[0]), functions, dest, **options)]
    import numpy as np

    from ..datasets.local import open_dataset
    from ..storage.dataset import concat
    from ..storage.view import Segments

    root = options.get("root")
    opened = [open_dataset(one, root) if isinstance(one, (str, os.PathLike)) else one for one in inputs]
    dataset = opened[0] if len(opened) == 1 else concat(opened, keys)

    chosen = select(dataset) if select is not None else np.arange(len(dataset.episodes))
    parts = {dest: chosen}
    if split is not None:
        drawn = _split(len(chosen), split, options.get("seed", 0))
        parts, options["is_part"] = {f"{dest}-{name}": chosen[part] for name, part in drawn.items()}, True
    requests = []
    for name, numbers in parts.items():
        read, first = dataset.select(episodes=numbers) if is_chosen else dataset, dataset.episodes.starts[numbers]
        if is_cut:
            pieces = Segments.pieces(read.episodes, num_frames or len(read), slice_len)
            read, numbers, first = read._view(pieces), numbers[pieces.episode], first[pieces.episode] + pieces.offset
        origin = np.stack([numbers, first - read.episodes.starts])
        requests.append(PreprocessRequest(dataset.id, functions, name, dataset=read, origin=origin, **options))
    return requests


def _as_text(functions: Sequence[Given], args: Mapping[str, Any]) -> tuple[list[Given], dict[str, Any]]:
    """Built-in functions by their names, with the arguments that partials bind to them; any other as it is."""
    named, bound = list(functions), dict[str, Any]()
    for number, given in enumerate(functions):
        fn: Any = given
        keywords: dict[str, Any] = {}
        while isinstance(fn, partial) and not fn.args:
            fn, keywords = fn.func, {**fn.keywords, **keywords}
        if callable(fn) and (traits := traits_of(fn)) is not None:
            named[number] = BUILTIN + traits.name
            bound |= {f"{traits.name}.{key}": value for key, value in keywords.items()}
    for name in (BUILTIN + key.partition(".")[0] for key in bound):
        if named.count(name) > 1:
            raise UsageError(
                f"{name} is given twice, with arguments", hint="run the second on what the first one makes"
            )
    return named, {**{key: value for key, value in bound.items() if key.partition(".")[2] not in args}, **args}


_SPLIT = "for example train=0.9,val=0.1"


def parse_split(text: str) -> dict[str, float]:
    """``train=0.9,val=0.1`` as shares by name. Raises UsageError."""
    try:
        pairs = [(name.strip(), float(share)) for name, share in (part.split("=") for part in text.split(","))]
    except ValueError:
        pairs = []
    if len(dict(pairs)) != 1 + text.count(","):
        raise UsageError(f"--split {text!r} is not NAME=SHARE,NAME=SHARE", hint=_SPLIT)
    return dict(pairs)


def _split(count: int, split: Any, seed: int) -> dict[str, np.ndarray]:
    """The numbers of the episodes of each part, sorted: consecutive pieces of an order that is drawn by the seed.

    Raises UsageError for shares that make no sense, and for a part without an episode.
    """
    import numpy as np

    if not isinstance(split, Mapping) or not split:
        raise UsageError(f"split is shares of the episodes by name, not {split!r}", hint=_SPLIT)
    shares = {str(name): positive(f"the share of {name}", share, high=1) for name, share in split.items()}
    if sum(shares.values()) > 1 + 1e-9:
        raise UsageError(f"the shares of a split come to {sum(shares.values()):g}, more than 1", hint=_SPLIT)
    for name in shares:
        if not (name.isascii() and name.replace("_", "").isalnum()):
            raise UsageError(f"the part of a split cannot be called {name!r}", hint="letters, digits and underscores")
    order = np.random.default_rng(whole("seed", seed)).permutation(count)
    edges = [0, *np.round(np.cumsum([*shares.values()]) * count).astype(int).tolist()]
    parts = {name: np.sort(order[low:high]) for name, low, high in zip(shares, edges, edges[1:])}
    empty = [name for name, numbers in parts.items() if not len(numbers)]
    if empty:
        raise UsageError(f"a share of {shares[empty[0]]:g} of {count:,} episodes is none for {empty[0]}")
    return parts


@dataclass(frozen=True)
class PreprocessRequest:
    """What the user asks for.

    - ``id``: the dataset to read, an id or a folder; or ``dataset``, one that is open (a view). ``dest``: the id of the
      dataset to make.
    - ``functions``: text or callables (`function`), applied one after the other; ``args``: their arguments.
    - ``version``: what functions and arguments that are objects are, in the user's words. Without one their result is never
      complete already, and never continued.
    - ``per``: the input of one call: a ``batch`` of steps, one ``sample``, one ``episode``; None: as the functions need it.
    - ``frame_stack``, ``n_step``, ``gamma``: steps are read as a sampler with these options reads them.
    - ``batch_size``: steps of a batch (None: a 64th of the data, 32 at least, about 8 MB of them and
      16,384 at most). It affects the result where a function draws random numbers or computes over the whole batch.
    - ``codec`` of observations that are stored once per state: ``auto`` compresses if that saves a third, and copies rows that
      are compressed and unchanged; another codec than theirs, or a level (``zstd:19``), encodes them again. ``layout`` ``ted``
      stores observations and successors, raw.
    - ``seed``: determines the random numbers of every batch or episode, together with the number of its first step.
    - ``engine``, ``procs``, ``address``: where the work is done; they do not affect the result. ``procs`` 0 is this process.
    - ``force`` starts over and replaces an existing dataset; ``dry_run`` tries a few chunks and writes nothing.
    - ``wait``: where another process writes ``dest``, wait for it instead of raising DatasetBusyError.
    - ``command``: the command line, if there is one, for hints about an unfinished dataset.
    - ``is_part``: it makes one part of a split; functions that need a first pass over all data are refused.
    - ``origin``: where ``dataset`` has some of the input, the number that each of its episodes has there, and how many steps
      later it begins there (int64 ``[2, episodes]``).
    """

    id: str
    functions: Sequence[Given]
    dest: str
    per: Per | None = None
    frame_stack: int | None = None
    n_step: int | None = None
    gamma: float = 0.99
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
    dataset: Dataset | None = None
    version: str | None = None
    is_part: bool = False
    origin: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            whole("batch_size", self.batch_size, low=1, high=MOST_RECORDS)
        if self.procs is not None:
            whole("procs", self.procs)
        for name in ("frame_stack", "n_step"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low=1, high=MOST_RECORDS)
        positive("gamma", self.gamma, high=1)
        whole("seed", self.seed)
        if self.per is not None:
            choice("per", self.per, get_args(Per))
        choice("layout", self.layout, ("auto", "ted"))
        resolve_choice(self.codec, plain=self.layout == "ted")

    @property
    def windows(self) -> dict[str, Any]:
        """What makes a step depend on others, as JSON; empty where nothing does."""
        found = {"frame_stack": self.frame_stack} if self.frame_stack is not None else {}
        return found if self.n_step is None else {**found, "n_step": self.n_step, "gamma": self.gamma}


@dataclass(frozen=True)
class DryRun:
    """What a dry run found out, of the steps that it made.

    ``before``, ``after``: dtypes and shapes of the leaves; ``changed``: those of other values. ``stored``: how each leaf is
    stored, such as ``state zstd``. ``steps_in``, ``steps_out``; ``dropped``: episodes. ``seconds``: the time it took, in one
    process; ``estimated_seconds``: for all steps, with several processes.
    """

    functions: Sequence[str]
    per: str
    before: Shapes
    after: Shapes
    changed: Sequence[str]
    stored: Mapping[str, str]
    steps_in: int
    steps_out: int
    dropped: int
    seconds: float
    estimated_seconds: float


@dataclass(frozen=True)
class Preprocessed(Outcome):
    """The outcome of a run."""

    dry_run: DryRun | None = None
