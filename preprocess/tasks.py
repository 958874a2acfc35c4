"""What is sent to workers: the ``work`` of an engine, picklable, called with a chunk as its task.

Nothing here loads torch: whoever only hands work out has no need of it, and workers load it while the rest gets ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage.schema import Schema
from .chunks import Chunk
from .function_chain import Per
from .layout import Shapes
from .run_config import Setting

OnRows = Callable[[int, int, int], None]

#: The module that does the work. It imports torch, so that workers are forked after it has been imported.
WORKER = f"{__package__}.worker"


@dataclass(frozen=True)
class Examine:
    """Find the functions that texts name, see `program`; the chunk does not matter."""

    given: tuple[str, ...]
    args: Mapping[str, Any]
    folder: Path
    per: Per | None

    def __call__(self, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
        from .function_chain import examine_functions

        return {"chain": examine_functions(self.given, self.args, self.folder, self.per)}


@dataclass(frozen=True)
class Fill:
    """Apply the functions to a chunk and write the results as a part. ``shapes`` are those every result must have.

    Leaves in ``unread`` are copied as they are stored, and no function gets them.
    """

    setting: Setting
    schema: Schema
    shapes: Shapes
    unread: frozenset[str]

    def __call__(self, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
        from .worker import fill

        return fill(self, chunk, on_rows)


@dataclass(frozen=True)
class Look:
    """Apply the functions to the first ``batches`` batches of a chunk (None: all) and say what came out; write nothing."""

    setting: Setting
    batches: int | None = 2

    def __call__(self, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
        from .worker import look

        return look(self, chunk, on_rows)


@dataclass(frozen=True)
class Sample:
    """Results from all over a chunk, a few rows of some leaves, for codecs and dictionaries; into files."""

    setting: Setting
    names: tuple[str, ...]

    def __call__(self, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
        from .worker import sample

        return sample(self, chunk, on_rows)


@dataclass(frozen=True)
class Collect:
    """The first pass that function ``number`` needs: what it collects of a chunk, into a file."""

    setting: Setting
    number: int

    def __call__(self, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
        from .worker import collect

        return collect(self, chunk, on_rows)
