"""The Python function ``rbdata.preprocess``, and the choice of the steps and datasets that a run reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..datasets.ingest.bar import progress_listener
from ..datasets.ingest.request import Listener
from ..errors import UsageError

if TYPE_CHECKING:
    from ..storage.dataset import Dataset
    from .request import Request

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
) -> Path:
    """Make the dataset ``dest`` from another one, or several, with a function; returns its folder.

    The input is an id, a path, an open dataset (a view: `Dataset.select`), or several of these, which are read one after the
    other. Those must have the same leaves; with ``keys`` "common" the others are left out. ``fn`` takes a TED TensorDict and
    returns one: a callable, text such as ``"pkg.mod:fn"`` or ``"rbdata:to_float"``, or a sequence of them, applied one after
    the other; without one, the data are copied. ``args`` are their arguments (``{"scale": 2}``, or
    ``{"scale_rewards.scale": 2}`` for one of several).

    Functions of yours run in worker processes, ``procs`` of them; 0 is this process, for a debugger. Text is identified by its
    file and the local files that this imports. An object is not: its run is never continued, and ``dest`` must be free, or
    replaced with ``force``, unless ``version`` states what the object is (``"reward v3"``). For the rest see `request.Request`.
    ``progress`` and ``listener`` are those of `download`. An interrupted run is continued by the same call. Where another
    process makes ``dest``, that one is waited for; ``wait=False`` raises DatasetBusyError. Raises what `run.preprocess`
    raises.
    """
    from . import run
    from .request import ReadOptions

    if not (isinstance(fn, (str, Sequence)) or callable(fn)):
        message = f"fn is a function, its name or several of them, not {fn!r}"
        raise UsageError(message, hint='"rbdata:identity" copies the steps as they are')
    functions: Any = [fn] if isinstance(fn, str) or callable(fn) else list(fn)
    request = make_request(
        dataset_id,
        functions,
        dest,
        keys=keys,
        per=per,
        read_options=ReadOptions(frame_stack, n_step, gamma, slice_len),
        num_frames=num_frames,
        batch_size=batch_size,
        procs=procs,
        codec=codec,
        layout=layout,
        seed=seed,
        args=args or {},
        version=version,
        engine=engine,
        address=address,
        root=None if root is None else Path(root),
        force=force,
        wait=wait,
    )
    with progress_listener(dest, listener, progress) as events:
        return run.preprocess(request, events).path


def make_request(
    given: Any,
    functions: Sequence[str | Callable[..., Any]],
    dest: str,
    *,
    keys: Literal["all", "common"] = "all",
    select: Callable[[Dataset], Dataset] | None = None,
    root: Path | None = None,
    **options: Any,
) -> Request:
    """The request of a run over one dataset, or over several one after the other; ``select`` chooses what is read of them.

    A single id stays an id: workers open the folder, and this process does not load torch. Raises as `datasets.local.find`.
    """
    from ..datasets.local import open_dataset
    from .request import Request

    inputs = [given] if isinstance(given, (str, os.PathLike)) or not isinstance(given, Sequence) else list(given)
    if not inputs:
        raise UsageError("there is no dataset to read")
    options |= {"root": root}
    functions = functions or ["rbdata:identity"]
    if len(inputs) == 1 and select is None and isinstance(inputs[0], (str, os.PathLike)):
        return Request(os.fspath(inputs[0]), functions, dest, **options)
    from ..storage.dataset import concat

    opened = [open_dataset(one, root) if isinstance(one, (str, os.PathLike)) else one for one in inputs]
    whole = opened[0] if len(opened) == 1 else concat(opened, keys)
    chosen = whole if select is None else select(whole)
    return Request(chosen.id, functions, dest, dataset=chosen, **options)
