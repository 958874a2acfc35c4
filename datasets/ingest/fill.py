"""Fill: the rows of the large leaves, from a provider's objects to the dataset, part by part in worker processes.

A provider's `RowSource` yields the rows in blocks. A `FillTask` opens a sink for each leaf, writes the blocks, reports
progress, and returns the record of the part for the journal.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...storage.schema import Schema
from ...storage.writer import open_sink
from ..workers.task import OnBlock
from .protocol import Job, Plan
from .row_source import RowSource


@dataclass(frozen=True)
class FillTask:
    """Fills one part; picklable. ``all_states`` are the state rows of the whole dataset."""

    index: int
    source: RowSource
    folder: Path
    schema: Schema
    leaves: tuple[str, ...]
    first_state: int
    states: int
    all_states: int
    threads: int

    @property
    def rows(self) -> int:
        return self.source.rows

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        """Write all rows of the part. Returns its record: what each sink returns, and the object's checksum if computed."""
        records = {name: self.source.adopt(self.schema[name], self.folder, self.index) for name in self.leaves}
        where = (self.index, self.first_state, self.states, self.all_states, self.threads)
        rest = [name for name, record in records.items() if record is None]
        sinks = {name: open_sink(self.folder, self.schema[name], *where) for name in rest}
        crc32c = None
        with closing(self.source.blocks([self.schema[name] for name in sinks], self.threads)) as blocks:
            for block in blocks:
                for position, starts in block.runs:
                    sinks[block.leaf].write(position, block.buffer, starts)
                crc32c = block.crc32c
                on_block(block.done, block.fetched, block.retries)
        return {"leaves": {**records, **{name: sink.finish() for name, sink in sinks.items()}}, "crc32c": crc32c}


def fill_tasks(job: Job, plan: Plan, folder: Path, threads: int) -> list[FillTask]:
    """The tasks that fill the parts of a plan."""
    leaves = tuple(name for name in job.bulk if not name.startswith("next/"))  # a sink writes both twins
    return [
        FillTask(index, source, folder, job.schema, leaves, part.first_state or 0, part.states, plan.states, threads)
        for index, (source, part) in enumerate(zip(job.row_sources(), plan.parts))
    ]
