"""The pictures and cards of a dataset as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import UsageError
from ...storage.durable import write_atomically
from ...storage.episodes import EpisodeTable
from ...storage.manifest import Manifest
from . import figure, frames, writers
from .overview import Overview
from .target import check_outside, check_target


def write_cards(
    targets: Mapping[str, Path],
    episodes: Sequence[int],
    folder: Path,
    manifest: Manifest,
    table: EpisodeTable,
    found: Overview,
    *,
    force: bool,
) -> None:
    """Write the files that are asked for: ``plot``, ``frames`` (of these ``episodes``), ``html``, ``croissant``, ``card``.

    Raises an error for any file that may not be written before the first one is drawn.
    """
    from ...storage.dataset import Dataset

    def sheet(suffix: str) -> bytes:
        dataset = Dataset(folder)
        if suffix.lower() in frames.VIDEO_SUFFIXES:
            return frames.encode_video(dataset, episodes)
        return frames.encode_image(frames.draw_sheet(dataset, frames.choose_strips(dataset, episodes)), suffix)

    makers: dict[str, tuple[tuple[str, ...], Callable[[str], bytes]]] = {
        "plot": (figure.SUFFIXES, lambda end: figure.render_figure(figure.draw_figure(manifest.id, found, table), end)),
        "frames": ((*frames.SHEET_SUFFIXES, *frames.VIDEO_SUFFIXES), sheet),
        "html": (writers.HTML_SUFFIXES, lambda _: writers.make_html(folder, manifest, found, table).encode()),
        "croissant": (writers.CROISSANT_SUFFIXES, lambda _: writers.make_croissant(folder, manifest, found).encode()),
        "card": (writers.README_SUFFIXES, lambda _: writers.make_readme(manifest, found).encode()),
    }
    seen: set[Path] = set()
    for name, target in targets.items():
        check_outside(target, folder, manifest)
        # Users edit metadata and READMEs: they are replaced only with ``force``.
        check_target(target, makers[name][0], force=force, edited=name in ("croissant", "card"))
        if target.resolve() in seen:
            raise UsageError(f"{target} is named for two of the files", hint="choose another path for one of them")
        seen.add(target.resolve())
    for name, target in targets.items():
        write_atomically(target, makers[name][1](target.suffix))
