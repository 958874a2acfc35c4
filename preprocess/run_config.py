"""What all workers of a run need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..storage.writer import fingerprint
from .function_chain import FunctionChain
from .read_options import ReadOptions


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run; small and picklable.

    - ``run``: the fingerprint of the run.
    - ``path``: the folder of the input; ``content``: what identifies its data. ``folder``: where parts and samples are written.
    - ``num_frames``: only the first steps are read (None: all). ``batch``: steps of a batch.
    - ``statistics``: those of each function, None where it needs none or where they are not known yet.
    """

    run: str
    path: Path
    content: str
    folder: Path
    chain: FunctionChain
    read_options: ReadOptions
    num_frames: int | None
    batch: int
    seed: int
    statistics: tuple[dict[str, Any] | None, ...]

    @cached_property
    def key(self) -> str:
        """Equal for configurations that read and call alike: a worker keeps what it opened for one."""
        return fingerprint({"run": self.run, "statistics": list(self.statistics)})

    @property
    def whole_episodes(self) -> bool:
        return self.chain.per == "episode"

    @property
    def ignores_observations(self) -> int:
        """How many functions at the beginning of the chain work without observations, on steps and episodes as stored."""
        as_stored = self.chain.per != "sample" and self.read_options == ReadOptions()
        return self.chain.ignores_observations if as_stored else 0
