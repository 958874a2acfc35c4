"""First passes: statistics that a function needs of all data before it can be called.

Each chunk's partial statistics are a small file in the working folder, so that an interrupted pass can be continued. They are
merged in the order of the chunks, so that sums do not depend on the order in which workers finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from ..datasets.workers.engines import Engine
from ..errors import ResultError
from ..storage.writer import DatasetWriter
from .chunks import Chunk
from .preprocess_request import Listener
from .run_config import RunConfig
from .tasks import call_worker


def collect_statistics(
    config: RunConfig, chunks: Sequence[Chunk], engine: Engine, listener: Listener, writer: DatasetWriter | None = None
) -> RunConfig:
    """The configuration with the statistics of every function; each pass gets the results of the functions before it.

    Statistics are read from and added to the journal of ``writer``.
    """
    known = writer.remembered("statistics") if writer is not None else {}
    for number, needs_fit in enumerate(config.chain.needs_fit):
        if not needs_fit:
            continue
        statistics = list(config.statistics)
        if number in known:
            statistics[number] = known[number]["statistics"]
        else:
            statistics[number] = _collect_one(config, number, chunks, engine, listener)
            if writer is not None:
                writer.remember("statistics", {"statistics": statistics[number]}, number)
        config = replace(config, statistics=tuple(statistics))
    return config


def _collect_one(
    config: RunConfig, number: int, chunks: Sequence[Chunk], engine: Engine, listener: Listener
) -> dict[str, Any]:
    """The statistics of one function."""
    import torch

    from .records import collected_path, load_arrays

    fn = config.chain.functions[number]
    fit = fn.fit
    assert fit is not None
    listener.on_stage(f"first pass for {fn.label}")
    paths = {chunk.index: collected_path(config.folder, number, chunk.index) for chunk in chunks}
    left = [chunk for chunk in chunks if not paths[chunk.index].is_file()]
    done = len(chunks) - len(left)
    for _ in engine.run(call_worker("collect_statistics", config, number=number), left, lambda progress: None):
        done += 1
        listener.on_stage(f"first pass for {fn.label}, {done} of {len(chunks)} chunks")
    loaded = (load_arrays(paths[chunk.index]) for chunk in chunks)
    partials = ({name: torch.from_numpy(array) for name, array in arrays.items()} for arrays in loaded if arrays)
    first = next(partials, None)
    if first is None:
        raise ResultError(f"there is nothing left for {fn.name}: the functions before it dropped every episode")
    finished = fit.finish(reduce(fit.merge, partials, first), **fn.args)
    for path in paths.values():
        path.unlink(missing_ok=True)
    return finished
