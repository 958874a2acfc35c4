"""A request bound to its input, its destination and its chunks: everything that is known before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..datasets.ingest.request import Estimate
from ..errors import DatasetExistsError, NotADatasetError, UsageError
from ..storage.episodes import open_episodes
from ..storage.folder import DatasetPlace, free_bytes
from ..storage.manifest import Manifest, read_manifest
from ..storage.writer import fingerprint
from .chunks import Chunk, choose_sizes, cut
from .episode_view import Episodes, view_episodes
from .function_chain import FunctionChain
from .lineage import content_id, versions
from .preprocess_request import Request
from .run_config import RunConfig


@dataclass(frozen=True)
class RunContext:
    """One run. ``identity`` is everything that decides the bytes of the result; ``config.run`` is its fingerprint."""

    request: Request
    config: RunConfig
    input: Manifest
    place: DatasetPlace
    episodes: Episodes
    chunks: list[Chunk]
    #: Steps of a chunk; with whole episodes, about so many.
    chunk_steps: int
    identity: dict[str, Any]

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
        message = f"{self.place.id} exists already and was made with another request"
        raise DatasetExistsError(message, hint="choose another --dest, or replace it with --force")

    def estimate(self, steps: int, disk_bytes: int, done: int) -> Estimate:
        """What remains to be done: ``steps`` of the result, ``disk_bytes`` to be written; ``done`` chunks are finished."""
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
        )


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
    batch, size = choose_sizes(request.batch_size, options.step_bytes(manifest.schema))
    # The keys and values are part of the fingerprints of existing datasets.
    identity = {
        "preprocess": 2,
        "id": place.id,
        "input": content_id(manifest),
        "functions": list(chain.identities),
        "per": chain.per,
        "batch": batch,
        "chunk": size,
        "windows": options.to_json(),
        "num_frames": request.num_frames,
        "seed": request.seed,
        "codec": request.codec,
        "layout": request.layout,
        "versions": versions(),
    }
    config = RunConfig(
        run=fingerprint(identity),
        path=path,
        folder=place.working,
        chain=chain,
        read_options=options,
        num_frames=request.num_frames,
        batch=batch,
        seed=request.seed,
        statistics=(None,) * len(chain.functions),
    )
    chunks = cut(episodes, size, config.whole_episodes)
    return RunContext(request, config, manifest, place, episodes, chunks, size, identity)
