"""The Python function ``rbdata.preprocess``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..datasets.ingest.progress_bar import progress_listener
from ..datasets.ingest.request import Listener
from ..storage.keywords import check_keywords


@check_keywords
def preprocess(
    dataset_id: str | os.PathLike[str],
    fn: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
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
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    root: str | os.PathLike[str] | None = None,
    force: bool = False,
    wait: bool = True,
    progress: bool | None = None,
    listener: Listener | None = None,
) -> Path:
    """Make the dataset ``dest`` from another one with a function; returns its folder.

    ``fn`` takes a TED TensorDict and returns one: a callable, text such as ``"pkg.mod:fn"`` or ``"rbdata:to_float"``, or a
    sequence of them, applied one after the other. ``args`` are their arguments (``{"scale": 2}``, or
    ``{"scale_rewards.scale": 2}`` for one of several). For the rest see `request.Request`.
    ``progress`` and ``listener`` are those of `download`. An interrupted run is continued by the same call. Where another
    process makes ``dest``, that one is waited for; ``wait=False`` raises DatasetBusyError. Raises what `driver.preprocess`
    raises.
    """
    from . import driver
    from .request import ReadOptions, Request

    request = Request(
        os.fspath(dataset_id),
        [fn] if isinstance(fn, str) or callable(fn) else list(fn),
        dest,
        per=per,
        read_options=ReadOptions(frame_stack, n_step, gamma, slice_len),
        num_frames=num_frames,
        batch_size=batch_size,
        procs=procs,
        codec=codec,
        layout=layout,
        seed=seed,
        args=args or {},
        engine=engine,
        address=address,
        root=None if root is None else Path(root),
        force=force,
        wait=wait,
    )
    with progress_listener(dest, listener, progress) as events:
        return driver.preprocess(request, events).path
