"""First passes: what a function must know of all of the data before it can begin.

Each chunk's part is a small file in the working folder, so that an interrupted pass goes on; parts are merged in the order
of chunks, so that sums do not depend on who was first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..datasets.workers.engines import Engine
from ..errors import ResultError
from ..storage.writer import DatasetWriter, fingerprint
from .preprocess_request import Listener

if TYPE_CHECKING:
    import torch

    from .driver import _Run


def collect_statistics(
    run: _Run, writer: DatasetWriter, engine: Engine, listener: Listener
) -> tuple[dict[str, Any] | None, ...]:
    """The statistics of every function that needs some; each pass sees what the functions before it returned."""
    known = writer.remembered("statistics")
    found: list[dict[str, Any] | None] = [None] * len(run.functions)
    for number, fn in enumerate(run.functions):
        if not run.program.needs_fit[number]:
            continue
        if number in known:
            found[number] = known[number]["statistics"]
            continue
        listener.stage(f"first pass for {fn.label}")
        found[number] = collect_one(run, number, tuple(found), engine, listener)
        writer.remember("statistics", {"statistics": found[number]}, number)
    return tuple(found)


def collect_one(
    run: _Run, number: int, known: tuple[dict[str, Any] | None, ...], engine: Engine, listener: Listener
) -> dict[str, Any]:
    """The statistics of one function, from all chunks."""
    import torch

    from .records import collected_path, load_arrays
    from .tasks import Collect

    fn = run.functions[number]
    fit = fn.fit
    assert fit is not None
    key = fingerprint({"run": run.fingerprint, "number": number, "statistics": list(known)})
    setting = replace(run.setting, statistics=known, key=key)
    paths = {chunk.index: collected_path(setting.folder, number, chunk.index) for chunk in run.chunks}
    left = [chunk for chunk in run.chunks if not paths[chunk.index].is_file()]
    done = len(run.chunks) - len(left)
    for _ in engine.run(Collect(setting, number), left, lambda progress: None):
        done += 1
        listener.stage(f"first pass for {fn.label}, {done} of {len(run.chunks)} chunks")
    merged: dict[str, torch.Tensor] | None = None
    for chunk in run.chunks:
        arrays = load_arrays(paths[chunk.index])
        if arrays:
            partial = {name: torch.from_numpy(array) for name, array in arrays.items()}
            merged = partial if merged is None else fit.merge(merged, partial)
    if merged is None:
        raise ResultError(f"{fn.name} has nothing to look at: every episode was dropped before it")
    finished = fit.finish(merged, **fn.args)
    for path in paths.values():
        path.unlink(missing_ok=True)
    return finished
