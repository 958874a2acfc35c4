"""A dataset and a chain of Python functions make a new dataset.

A chunk passes through these modules:

    request    what the user asks for
    function   the functions: found, identified, given their arguments (built-in ones: `functions`)
    run        the reader of a run, for the one pipeline (`datasets.ingest`): it has workers try the functions, which decides
               the leaves (`layout`); its units are the `chunks` of the input; it states the `lineage`
    apply      a chunk through the chain, per batch, step or episode, in a worker; each `result` is checked
    worker     what the results of a chunk become: rows of the new dataset

``rbdata.preprocess`` is this package, which can be called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UsageError

if TYPE_CHECKING:
    from ..datasets.ingest.request import Listener
    from ..storage.dataset import Dataset

PathLike = str | os.PathLike[str]


def preprocess(
    dataset_id: PathLike | Dataset | Sequence[PathLike | Dataset],
    fn: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = (),
    *,
    dest: str,
    per: Literal["batch", "sample", "episode"] | None = None,
    frame_stack: int | None = None,
    n_step: int | None = None,
    gamma: float = 0.99,
    slice_len: int | None = None,
    num_frames: int | None = None,
    batch_size: int | None = None,
    procs: int | None = None,
    codec: str = "auto",
    layout: Literal["auto", "ted"] = "auto",
    seed: int = 0,
    args: Mapping[str, Any] | None = None,
    version: str | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    root: str | os.PathLike[str] | None = None,
    force: bool = False,
    wait: bool = True,
    progress: bool | None = None,
    listener: Listener | None = None,
    keys: Literal["all", "common"] = "all",
    split: Mapping[str, float] | None = None,
    keep: str | Sequence[str] = (),
    drop: str | Sequence[str] = (),
    trim: float | None = None,
) -> Path:
    """Make the dataset ``dest`` from another one, or several, with a function; returns its folder.

    The input is an id, a path, an open dataset (a view: `Dataset.select`), or several of these, which are read one after the
    other. Those must have the same leaves; with ``keys`` "common" the others are left out. ``fn`` takes a TED TensorDict and
    returns one: a callable, text such as ``"pkg.mod:fn"`` or ``"rbdata:to_float"``, or a sequence of them, applied one after
    the other; without one, the data are copied. ``args`` are their arguments (``{"scale": 2}``, or
    ``{"scale_rewards.scale": 2}`` for one of several).

    ``split`` (``{"train": 0.9, "val": 0.1}``) makes a dataset of each share of the episodes, ``DEST-train`` and ``DEST-val``,
    drawn by ``seed``; the folder that they are in is returned. ``keep`` or ``drop`` names the leaves that the result has, or
    has not; flags and rewards stay. ``trim`` leaves out the steps at the beginning and the end of each episode whose action has
    a Euclidean norm of at most this (``functions.trim``). ``num_frames`` takes the first steps alone, ``slice_len`` cuts
    episodes into pieces of so many steps, ``frame_stack`` and ``n_step`` with ``gamma`` are those of `load`. A ``codec`` such
    as ``"zstd:19"`` compresses frames again, at this level.

    Functions of yours run in worker processes, ``procs`` of them; 0 is this process, for a debugger. Text is identified by its
    file and the local files that this imports. An object is not: its run is never continued, and ``dest`` must be free, or
    replaced with ``force``, unless ``version`` states what the object is (``"reward v3"``). The rest is in
    `request.PreprocessRequest`. ``progress`` and ``listener`` are those of `download`. An interrupted run is continued
    by the same call. Where another process makes ``dest``, that one is waited for; ``wait=False`` raises DatasetBusyError.
    Raises what `run.preprocess` raises.
    """
    from ..datasets.ingest.bar import progress_listener
    from . import run
    from .request import make_requests

    if not (isinstance(fn, (str, Sequence)) or callable(fn)):
        message = f"fn is a function, its name or several of them, not {fn!r}"
        raise UsageError(message, hint='"rbdata:identity" copies the steps as they are')
    functions: Any = [fn] if isinstance(fn, str) or callable(fn) else list(fn)
    requests = make_requests(
        dataset_id,
        functions,
        dest,
        keys=keys,
        per=per,
        frame_stack=frame_stack,
        n_step=n_step,
        gamma=gamma,
        slice_len=slice_len,
        num_frames=num_frames,
        batch_size=batch_size,
        procs=procs,
        codec=codec,
        layout=layout,
        seed=seed,
        args=args,
        split=split,
        keep=keep,
        drop=drop,
        trim=trim,
        version=version,
        engine=engine,
        address=address,
        root=None if root is None else Path(root),
        force=force,
        wait=wait,
    )
    with progress_listener(dest, listener, progress) as events:
        paths = [run.preprocess(request, events).path for request in requests]
    return paths[0] if split is None else paths[0].parent


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return preprocess(*args, **options)

    @property
    def __signature__(self) -> Any:
        """The signature of the function, for `help` and completion in notebooks."""
        from inspect import signature

        return signature(preprocess)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The docstring of the function, then that of the package: ``help(rbdata.preprocess)`` shows how it is called."""
        from inspect import getdoc, signature
        from textwrap import fill

        head, _, rest = (getdoc(preprocess) or "").partition("\n\n")
        call = fill(f"rbdata.preprocess{signature(preprocess)}", 100, subsequent_indent="    ")
        return f"{head}\n\n{call}\n\n{rest}\n\n{vars(self)['__doc__']}"


sys.modules[__name__].__class__ = _CallablePackage
