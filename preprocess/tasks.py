"""The work that engines send to workers: picklable objects that are called with a chunk.

Nothing here imports torch, so that the process that distributes the work does not load it; workers do (`worker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..datasets.workers.task import OnBlock
from .chunks import Chunk
from .function_chain import Per
from .run_config import RunConfig

#: The module that does the work. It imports torch, so that workers are forked after it has been imported.
WORKER = f"{__package__}.worker"


@dataclass(frozen=True)
class ExamineFunctions:
    """Look up functions, see `function_chain.examine_functions`; the chunk is not used. Returns ``{chain}``."""

    given: tuple[str, ...]
    args: Mapping[str, Any]
    folder: Path
    per: Per | None

    def __call__(self, chunk: Chunk, on_block: OnBlock) -> dict[str, Any]:
        from .function_chain import examine_functions

        return {"chain": examine_functions(self.given, self.args, self.folder, self.per)}


@dataclass(frozen=True)
class WorkerCall:
    """Calls ``worker.FUNCTION(config, chunk, on_block, **options)``."""

    function: Literal["collect_statistics", "probe_chunk", "sample_results", "write_part"]
    config: RunConfig
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, chunk: Chunk, on_block: OnBlock) -> dict[str, Any]:
        from . import worker

        record: dict[str, Any] = getattr(worker, self.function)(self.config, chunk, on_block, **self.options)
        return record
