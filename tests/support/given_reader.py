"""A reader of a `Recipe`: the pipeline makes its dataset.

run = Making(Recipe(episodes, "zstd", parts=4), root)
with pytest.raises(KeyboardInterrupt):
    run.make(stop_after=2)
run.make()
run.made                                   # the units that were read, in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rbdata.datasets.fetch.directory import DirectoryLocation
from rbdata.datasets.ingest import pipeline
from rbdata.datasets.ingest.reader import Reader
from rbdata.datasets.ingest.records import ConvertOptions, PartSpec
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.ingest.unit import LEAD, Facts, Part, Unit
from rbdata.storage.episodes import EpisodeTable
from rbdata.storage.folder import DatasetPlace
from storage_tools import GivenBlocks, Recipe, state_rows


class GivenReader(Reader):
    """A lead with the small leaves, and a unit for each part of the large ones; ``changed``: what other objects state."""

    source, converter, here = "test", "test 1", True
    return_steps = 4  # an episode goes on in the next block

    def __init__(self, recipe: Recipe, changed: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__(None, DirectoryLocation("this machine"), ConvertOptions())
        self.schema, self.bulk = recipe.schema, recipe.bulk
        self._recipe, self._changed = recipe, changed

    def describe(self) -> dict[str, Any]:
        return {"options": {}}

    def lead(self) -> Unit:
        return GivenBlocks(LEAD, "lead", 0, "", given=[self._recipe.steps()])

    def units(self, lead: Part | None) -> Sequence[Unit]:
        units = []
        for number, (low, high) in enumerate(pairwise(self._recipe.bounds)):
            change = {**self._changed.get(number, {})}
            layout = change.pop("layout", f"rows {low}")
            stated = {"name": f"object {number}", "size": 100 + number, "crc32c": f"{number:08x}", **change}
            spec = PartSpec(f"part {number}", high - low, layout, stated, number, low)
            given = self._recipe.states()[number]
            units.append(GivenBlocks(number, spec.name, high - low, "", spec=spec, given=given))
        return units

    def sample_rows(self) -> Any:
        rows = state_rows(self._recipe.episodes, "observation")
        return list(np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8))

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        return Facts({}, parts=[unit.spec for unit in self.units(None) if unit.spec])


@dataclass
class Making:
    """Runs that make one dataset."""

    recipe: Recipe
    root: Path
    changed: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    made: list[int] = field(default_factory=list)

    @property
    def place(self) -> DatasetPlace:
        return DatasetPlace(self.root, self.recipe.id)

    def make(self, stop_after: int | None = None) -> Path:
        """Make it, or go on with it; with ``stop_after`` until so many parts are made."""

        def note(index: int) -> None:
            self.made.append(index)
            if len(self.made) == stop_after:
                raise KeyboardInterrupt

        reader = GivenReader(self.recipe, self.changed)
        place, request, listener = self.place, Request(self.recipe.id, self.root), Listener(on_part_done=note)
        with place.lock():
            place.recover()
            pipeline.make(reader, place, request, listener, "this machine")
        return place.path
