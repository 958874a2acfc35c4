"""A request bound to its input, its destination and its chunks: everything that is known before anything is written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..datasets.ingest.request import Estimate
from ..errors import DatasetExistsError, NotADatasetError, UsageError
from ..storage.episodes import open_episodes
from ..storage.folder import DatasetPlace, free_bytes
from ..storage.manifest import Manifest, read_manifest
from ..storage.writer import fingerprint
from .chunks import Chunk, choose_chunk_steps, choose_sizes, cut, cut_sections
from .episode_view import Episodes, view_episodes
from .function_chain import FunctionChain
from .lineage import describe_changes, versions
from .preprocess_request import Request
from .run_config import CallerSettings, RunConfig


@dataclass(frozen=True)
class RunContext:
    """One run. ``identity`` is everything that decides the bytes of the result; ``config.run`` is its fingerprint."""

    request: Request
    config: RunConfig
    input: Manifest
    place: DatasetPlace
    episodes: Episodes
    sections: list[Chunk]
    #: Steps of a section; with whole episodes, about so many.
    section_steps: int
    identity: dict[str, Any]
    #: None until the functions have been tried.
    chunks: tuple[Chunk, ...] = ()

    def choose_chunk_steps(self, step_seconds: float, parallel: int) -> int:
        """The steps of a chunk for functions that take ``step_seconds`` for a step, see `chunks.choose_chunk_steps`."""
        config, steps = self.config, self.episodes.steps
        return choose_chunk_steps(
            step_seconds, steps, config.batch, self.section_steps, config.whole_episodes, parallel
        )

    def with_chunks(self, steps: int) -> RunContext:
        """The run with chunks of about ``steps`` steps."""
        chunks = cut_sections(self.sections, self.episodes, steps, self.config.whole_episodes)
        return replace(self, chunks=tuple(chunks))

    @property
    def chunks_of_sections(self) -> list[tuple[int, int]]:
        """The number of the first chunk of each section, and of the first one after it."""
        starts = [chunk.start for chunk in self.chunks]
        firsts = [bisect_left(starts, section.start) for section in self.sections]
        return list(pairwise([*firsts, len(starts)]))

    def find_existing(self) -> Manifest | None:
        """The manifest at the destination if this very run has made it. Raises DatasetExistsError for other datasets."""
        if not self.place.exists():
            self.place.check_free()
            return None
        if self.request.force:
            return None
        try:
            manifest = read_manifest(self.place.path)
        except NotADatasetError:
            return None
        if (manifest.lineage or {}).get("fingerprint") == self.config.run:
            return manifest
        options = manifest.source.get("options") or {}
        changed = describe_changes({**options, **(manifest.lineage or {})}, self.identity) if manifest.lineage else []
        message = f"{self.place.id} exists already and was made with another request{listed(changed)}"
        raise DatasetExistsError(message, hint="choose another --dest, or replace it with --force")

    def estimate(self, steps: int, disk_bytes: int, done: int, *, measured: bool) -> Estimate:
        """What remains to be done: ``steps`` of the result, ``disk_bytes`` to be written; ``done`` chunks are finished.

        Without ``measured``, functions that may drop steps were tried on a few episodes only: both are upper bounds.
        """
        return Estimate(
            id=self.place.id,
            path=self.place.path,
            location=str(self.config.path),
            shards=len(self.chunks),
            fetch_bytes=0,
            steps=steps,
            episodes=len(self.episodes),
            disk_bytes=disk_bytes,
            free_bytes=free_bytes(self.place.path),
            done_parts=done,
            parts=len(self.chunks),
            part_names=[chunk.describe() for chunk in self.chunks],
            estimated=self.config.whole_episodes,
            at_most=self.config.whole_episodes and not measured,
        )


def listed(changed: Sequence[str]) -> str:
    return f" (differs in {', '.join(changed)})" if changed else ""


def make_context(
    request: Request, chain: FunctionChain, path: Path, manifest: Manifest, place: DatasetPlace
) -> RunContext:
    """The context of a request whose input lies at ``path``. Raises UsageError for an input without steps."""
    options = request.read_options
    episodes = view_episodes(
        open_episodes(path, manifest.episodes, manifest.steps), request.num_frames, options.slice_len
    )
    if not episodes.steps:
        raise UsageError(f"{manifest.id} has no steps: there is nothing to preprocess")
    batch, size = choose_sizes(request.batch_size, options.step_bytes(manifest.schema), episodes.steps)
    # The keys and values are part of the fingerprints of existing datasets.
    identity = {
        "preprocess": 3,
        "id": place.id,
        "input": manifest.content,
        "functions": list(chain.identities),
        "per": chain.per,
        "batch": batch,
        "section": size,
        "windows": options.to_json(),
        "num_frames": request.num_frames,
        "seed": request.seed,
        "codec": request.codec,
        "layout": request.layout,
        "versions": versions(),
    }
    caller = CallerSettings.read()
    if caller.to_json():
        identity["process"] = caller.to_json()
    config = RunConfig(
        run=fingerprint(identity),
        path=path,
        content=manifest.content,
        folder=place.working,
        chain=chain,
        read_options=options,
        num_frames=request.num_frames,
        batch=batch,
        seed=request.seed,
        statistics=(None,) * len(chain.functions),
        caller=caller,
    )
    sections = cut(episodes, size, config.whole_episodes)
    return RunContext(request, config, manifest, place, episodes, sections, size, identity)
