"""The work that engines send to workers.

Nothing here imports torch, so that the process that distributes the work does not load it; workers do (`worker`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..datasets.workers.task import OnBlock, Work
from .chunks import Chunk
from .run_config import RunConfig

#: The module that does the work. It imports torch, so that workers are forked after it has been imported.
WORKER = f"{__package__}.worker"


def call_worker(function: str, config: RunConfig, **options: Any) -> Work[Chunk]:
    """The work ``worker.FUNCTION(config, chunk, on_block, **options)`` of each chunk; picklable."""
    return partial(_call, function, config, **options)


def _call(function: str, config: RunConfig, chunk: Chunk, on_block: OnBlock, **options: Any) -> dict[str, Any]:
    from . import worker

    record: dict[str, Any] = getattr(worker, function)(config, chunk, on_block, **options)
    return record
