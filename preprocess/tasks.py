"""The tasks of workers: picklable objects that an engine calls with a chunk.

Nothing here imports torch, so that the process that distributes the work does not load it; workers do (`worker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..datasets.workers.task import OnBlock
from ..storage.schema import Schema
from .chunks import Chunk
from .function_chain import Per
from .layout import Shapes
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
class WritePart:
    """Apply the functions to a chunk and write the results as a part. Returns the record of the part.

    ``shapes`` are those that every result must have. The leaves ``undecoded`` are copied as they are stored, and functions
    do not get them.
    """

    config: RunConfig
    schema: Schema
    shapes: Shapes
    undecoded: frozenset[str]

    def __call__(self, chunk: Chunk, on_block: OnBlock) -> dict[str, Any]:
        from .worker import write_part

        return write_part(self.config, self.schema, self.shapes, self.undecoded, chunk, on_block)


@dataclass(frozen=True)
class ProbeChunk:
    """Apply the functions to the first ``batches`` batches of a chunk (None: all) and write nothing.

    Returns ``{probe}``, the JSON of a `records.ProbeResult`, or None where every episode was dropped.
    """

    config: RunConfig
    batches: int | None

    def __call__(self, chunk: Chunk, on_block: OnBlock) -> dict[str, Any]:
        from .worker import probe_chunk

        return probe_chunk(self.config, self.batches, chunk, on_block)


@dataclass(frozen=True)
class SampleResults:
    """Write a few rows of the leaves ``names`` of the results of a chunk to files, for codecs and dictionaries."""

    config: RunConfig
    names: tuple[str, ...]

    def __call__(self, chunk: Chunk, on_block: OnBlock) -> dict[str, Any]:
        from .worker import sample_results

        return sample_results(self.config, self.names, chunk, on_block)


@dataclass(frozen=True)
class CollectStatistics:
    """Write the partial statistics of a chunk for function ``number`` to a file."""

    config: RunConfig
    number: int

    def __call__(self, chunk: Chunk, on_block: OnBlock) -> dict[str, Any]:
        from .worker import collect_statistics

        return collect_statistics(self.config, self.number, chunk, on_block)
