"""Reads the first episodes of a dataset while it is being written."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from ..errors import DatasetBusyError, DatasetNotFoundError, RbdataError, StoppedError, StoppedWarning, UsageError
from .amounts import plural
from .codecs.codec import Rows
from .dataset import Dataset, first_episodes, open_leaf
from .episodes import EpisodeTable, open_episodes
from .folder import JOURNAL, DatasetPlace
from .journal import PLAN, Journal, finished_in_order
from .manifest import Manifest, read_manifest
from .memory_map import keep_freed_memory
from .snapshot import pinned

#: Seconds between two checks of what a writer has finished.
POLL = 0.1
#: How often to look, every 10 ms, for a folder that a writer is renaming.
_TRIES = 20


class Download(Protocol):
    """A writer that this process has started."""

    #: The exception that it raised, None if none (yet).
    error: BaseException | None

    @property
    def has_ended(self) -> bool: ...


class _Found(NamedTuple):
    """A consistent view of one folder: ``finished`` parts of the ``plan``."""

    path: Path
    rows: dict[str, Rows]
    plan: Manifest
    finished: int
    complete: bool
    table: EpisodeTable
    manifest: Manifest


class PartialDataset(Dataset):
    """The finished beginning of a dataset that is being written, or the complete one: a `Dataset` that grows by `refresh`.

    It holds the first whole episodes of the future dataset; their steps and rows have the same numbers and values as there.
    ``plan`` is the manifest of the whole dataset. Nothing changes between two calls of `refresh`. It stays readable if the
    writer is interrupted, and if the files are renamed or deleted.

    ``plan``: that of the expected dataset, if there may be another one. ``unfinished``: prefer the dataset that is being
    written to a complete one that it will replace. ``download``: the writer; `refresh` raises its error.

    Raises DatasetNotFoundError if no episode can be read yet, and as `Dataset`.
    """

    #: Its files may still be written.
    folders = ()

    def __init__(
        self,
        place: DatasetPlace,
        plan: Manifest | None = None,
        *,
        unfinished: bool = False,
        download: Download | None = None,
    ) -> None:
        self.place, self.download, self._warned = place, download, False
        keep_freed_memory()
        found = self._look(plan, unfinished=unfinished)
        if found is None or not (found.complete or found.manifest.episodes):
            finished = "none of its parts" if found is None else f"{found.finished} of {len(found.plan.parts)} parts"
            message = f"no episode of {place.id} can be read yet: {finished} are finished"
            hint = "wait for it: partial=True, wait=SECONDS. A dataset from a single file can be read only when it is complete"
            raise DatasetNotFoundError(message, hint=hint)
        self._take(found)

    def _take(self, found: _Found) -> None:
        # Rows first: a thread that reads at the same time may find too many rows, never too few.
        self.path, self._rows, self.plan, self.finished, self.complete, self._table, self.manifest = found
        for name in ("episodes", "_starts"):
            self.__dict__.pop(name, None)

    def _look(self, plan: Manifest | None, *, unfinished: bool = False) -> _Found | None:
        """What can be read now; None if that is nothing, or not the planned dataset."""
        folder = self.place.working
        for _ in range(_TRIES):
            if not unfinished and self.place.exists():
                whole = Dataset(self.place.path)
                if plan is None or is_outcome(plan, whole.manifest):
                    parts = len(whole.manifest.parts)
                    return _Found(whole.path, whole._rows, whole.manifest, parts, True, whole._table, whole.manifest)
            with pinned(folder, PLAN) as pin:
                try:
                    found = _map_finished(folder) if (folder / PLAN).exists() else None
                    if pin.is_unchanged() and (found is not None or not folder.exists()):
                        return found if found is None or plan is None or is_outcome(plan, found.plan) else None
                except (RbdataError, OSError):
                    if pin.is_unchanged():
                        raise
            time.sleep(0.01)  # the plan is not written yet, or the finished folder is about to be renamed
        return None

    # -- growing -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Literal["complete", "being written", "interrupted"]:
        """Whether all of it is shown; otherwise whether its writer is running."""
        if self.complete:
            return "complete"
        return "being written" if self._is_written() else "interrupted"

    def _is_written(self) -> bool:
        is_downloaded = self.download is not None and not self.download.has_ended
        return is_downloaded or self.place.lock().is_held()

    @property
    def progress(self) -> str:
        """How much of it is shown, such as "12 of 50 parts"."""
        return f"{self.finished} of {plural(len(self.plan.parts), 'part')}"

    def refresh(self, wait: float = 0.0) -> bool:
        """Show what was finished since the last call; returns whether the dataset grew or became complete.

        ``wait``: seconds to wait for more. If the dataset is no longer being written, raises StoppedError; without ``wait``,
        issues a StoppedWarning once. Raises DatasetNotFoundError if the dataset was deleted or started over with other options.
        What was shown before stays readable in any case.
        """
        until = time.monotonic() + wait
        while not self.complete:
            is_written = self._is_written()  # before the look, which then sees everything that was written
            found = self._look(self.plan)
            if found is not None and (found.complete or found.manifest.episodes > self.manifest.episodes):
                self._take(found)
                return True
            if self._is_another_written() or not (is_written or self.place.working.is_dir()):
                message = f"the unfinished {self.id} was deleted, or replaced by another dataset"
                hint = "episodes shown before can still be read; open it again for the other dataset"
                raise DatasetNotFoundError(message, hint=hint)
            if not is_written:
                self._report_stop(as_error=wait > 0)
                return False
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(POLL, left))
        return False

    def _is_another_written(self) -> bool:
        try:
            return not is_outcome(self.plan, read_manifest(self.place.working, PLAN))
        except (RbdataError, OSError):
            return False  # no plan, or none yet

    def _report_stop(self, *, as_error: bool) -> None:
        error = self.download and self.download.error
        if isinstance(error, RbdataError) and not isinstance(error, DatasetBusyError):
            raise error
        message = f"{self.id} is no longer being written, with {self.progress} finished"
        line = Journal(self.place.working / JOURNAL).command
        hint = f"continue it with `{line}`" if line else "continue it with the call that started it"
        if as_error:
            raise StoppedError(message, hint=hint)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{message}; {hint}", StoppedWarning, stacklevel=3)

    # -- as a dataset ------------------------------------------------------------------------------------------------

    def _count(self, name: str) -> int:
        # Over all planned steps: step leaves are written before the first part.
        leaf = self.schema[name]
        if self.complete or leaf.kind == "state":
            return super()._count(name)
        return int(open_leaf(self.path, leaf, self.plan.steps).block(0, self.plan.steps).max()) + 1

    def __repr__(self) -> str:
        shown = f"steps={len(self)} of {self.plan.steps}, episodes={self.manifest.episodes} of {self.plan.episodes}"
        return f"PartialDataset({self.id!r}, {self.state}, {self.progress}, {shown}, path={str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.place.root.absolute(), self.place.id, self.plan, self.manifest.episodes)


def open_partial(place: DatasetPlace, *, wait: float) -> PartialDataset:
    """A `PartialDataset` as soon as it has an episode. Raises as it does after ``wait`` seconds."""
    until = time.monotonic() + wait
    while True:
        try:
            return PartialDataset(place)
        except DatasetNotFoundError:
            if time.monotonic() >= until:
                raise
        time.sleep(POLL)


def _map_finished(folder: Path) -> _Found:
    plan, finished = read_manifest(folder, PLAN), finished_in_order(folder)
    table = open_episodes(folder, plan.episodes, plan.steps)
    manifest, table = first_episodes(plan, table, whole_episodes(table, plan.parts[:finished]))
    leaves = manifest.schema if manifest.episodes else ()  # without episodes, some files do not exist yet
    rows = {leaf.name: open_leaf(folder, leaf, manifest.rows(leaf)) for leaf in leaves}
    return _Found(folder, rows, plan, finished, False, table, manifest)


def _reopen(root: Path, dataset_id: str, plan: Manifest, episodes: int) -> PartialDataset:
    """A dataset from its pickle, which may have grown since. Raises UsageError if another one replaced it."""
    try:
        opened = PartialDataset(DatasetPlace(root, dataset_id), plan)
    except DatasetNotFoundError as error:
        message = f"{dataset_id} under {root} was deleted or replaced since it was pickled"
        raise UsageError(message, hint="open it again, and pickle that") from error
    if opened.manifest.episodes < episodes:
        raise UsageError(f"{opened!r} had {episodes} episodes when it was pickled")
    return opened


# -- the first episodes of a dataset --------------------------------------------------------------------------------------


def whole_episodes(table: EpisodeTable, parts: Sequence[dict[str, int]]) -> int:
    """How many episodes lie wholly in the first parts (as the manifest records them); ``table`` is of the whole dataset."""
    states = sum(part.get("states", 0) for part in parts)
    ends = table.start + table.length + np.arange(1, len(table) + 1)  # an episode of n steps has n + 1 states
    return int(np.searchsorted(ends, states, "right"))


def is_outcome(plan: Manifest, manifest: Manifest) -> bool:
    """Whether a finished dataset, or another plan, is the planned one: with the same small leaves and parts."""
    if (plan.id, plan.steps, plan.episodes) != (manifest.id, manifest.steps, manifest.episodes):
        return False
    same_files = all(manifest.files.get(path) == ranges for path, ranges in plan.files.items())
    return same_files and _layouts(plan) == _layouts(manifest) and plan.schema == manifest.schema


def _layouts(manifest: Manifest) -> list[tuple[object, object]]:
    return [(part.get("layout"), part.get("states")) for part in manifest.parts]
