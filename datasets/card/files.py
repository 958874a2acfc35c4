"""The pictures and cards of a dataset as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import DatasetExistsError, UsageError
from ...storage.durable import write_atomically
from ...storage.episodes import EpisodeTable
from ...storage.manifest import Manifest
from . import figure, frames, writers
from .overview import Overview


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
    for name, target in targets.items():
        check_target(target, makers[name][0], force=force)
    for name, target in targets.items():
        write_atomically(target, makers[name][1](target.suffix))


def check_target(target: Path, suffixes: tuple[str, ...], *, force: bool = False) -> None:
    """Raise UsageError unless the folder of a file exists and its name ends in one of ``suffixes``.

    Without ``force``, raises DatasetExistsError for an existing file.
    """
    if target.suffix.lower() not in suffixes:
        *others, last = suffixes
        ends = f"{', '.join(others)} or {last}" if others else last
        hint = f"choose a name that ends in {ends}, such as {target.stem or 'card'}{suffixes[0]}"
        what = f"{target.suffix} files are not written here" if target.suffix else "the name has no suffix"
        raise UsageError(f"{target}: {what}", hint=hint)
    if not target.parent.is_dir():
        raise UsageError(f"no such folder: {target.parent}", hint="create it, or choose another path")
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is not a file", hint="choose another path")
    if target.is_file() and not force:
        raise DatasetExistsError(f"{target} already exists", hint="choose another path, or replace it with --force")
