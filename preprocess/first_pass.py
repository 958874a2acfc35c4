"""First passes: statistics that a function needs of all data before it can be called.

The partial statistics of each section are a small file in the working folder, so that an interrupted pass can be continued.
They are merged in order, so that sums do not depend on the order in which workers finish. Where functions come before it,
which may be slow, few sections are cut into more pieces, which follow from the data alone as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from ..datasets.workers.engines import Engine
from ..errors import ResultError
from ..storage.writer import DatasetWriter
from .chunks import Chunk, cut_sections
from .episode_view import Episodes
from .preprocess_request import Listener
from .run_config import RunConfig
from .tasks import call_worker

#: The pieces of a pass through other functions, at least, where there are as many batches or episodes.
LEAST_PIECES = 32


def collect_statistics(
    config: RunConfig,
    sections: Sequence[Chunk],
    episodes: Episodes,
    engine: Engine,
    listener: Listener,
    writer: DatasetWriter | None = None,
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
            pieces = sections if not number else _pieces(config, sections, episodes)
            statistics[number] = _collect_one(config, number, pieces, engine, listener)
            if writer is not None:
                writer.remember("statistics", {"statistics": statistics[number]}, number)
        config = replace(config, statistics=tuple(statistics))
    return config


def _pieces(config: RunConfig, sections: Sequence[Chunk], episodes: Episodes) -> Sequence[Chunk]:
    if len(sections) >= LEAST_PIECES:
        return sections
    steps = -(-sum(section.rows for section in sections) // LEAST_PIECES)
    size = steps if config.whole_episodes else config.batch * -(-steps // config.batch)
    return cut_sections(sections, episodes, size, config.whole_episodes)


def _collect_one(
    config: RunConfig, number: int, pieces: Sequence[Chunk], engine: Engine, listener: Listener
) -> dict[str, Any]:
    """The statistics of one function."""
    import torch

    from .records import collected_path, is_whole, load_arrays

    fn = config.chain.functions[number]
    fit = fn.fit
    assert fit is not None
    listener.on_stage(f"first pass for {fn.label}")
    paths = {piece.index: collected_path(config.folder, number, piece.index) for piece in pieces}
    left = [piece for piece in pieces if not is_whole(paths[piece.index])]
    done = len(pieces) - len(left)
    for _ in engine.run(call_worker("collect_statistics", config, number=number), left, lambda progress: None):
        done += 1
        listener.on_stage(f"first pass for {fn.label}, {done} of {len(pieces)}")
    loaded = (load_arrays(paths[piece.index]) for piece in pieces)
    partials = ({name: torch.from_numpy(array) for name, array in arrays.items()} for arrays in loaded if arrays)
    first = next(partials, None)
    if first is None:
        raise ResultError(f"there is nothing left for {fn.name}: the functions before it dropped every episode")
    finished = fit.finish(reduce(fit.merge, partials, first), **fn.args)
    for path in paths.values():
        path.unlink(missing_ok=True)
    return finished
