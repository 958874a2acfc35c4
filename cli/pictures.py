"""The files that ``rbdata inspect`` writes on request: figure, frames, animation and cards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from .progress import count_progress

if TYPE_CHECKING:
    from ..cards.overview import Overview
    from ..storage.episodes import EpisodeTable
    from ..storage.manifest import Manifest


@dataclass(frozen=True)
class Pictures:
    """What is asked for; None and empty where it is not."""

    plot: Path | None
    frames: Path | None
    episodes: list[int]
    video: tuple[int, Path] | None
    html: Path | None
    croissant: Path | None
    card: Path | None
    force: bool

    def check(self, folder: Path, manifest: Manifest) -> None:
        """Raise an error for any file that may not be written, before any of them is drawn."""
        from ..cards import animation, croissant, figure, frame_sheet, html_card, hub_card
        from ..cards.card_file import check_outside, check_target

        if self.episodes and self.frames is None:
            raise UsageError("--episode chooses what --frames draws", hint="add --frames FILE")
        chosen = [
            (self.plot, figure.SUFFIXES),
            (self.frames, frame_sheet.SUFFIXES),
            (self.video[1] if self.video else None, animation.SUFFIXES),
            (self.html, html_card.SUFFIXES),
            (self.croissant, croissant.SUFFIXES),
            (self.card, hub_card.SUFFIXES),
        ]
        seen: set[Path] = set()
        for target, suffixes in chosen:
            if target is not None:
                check_outside(target, folder, manifest)
                # Metadata and READMEs are made to be edited: none is replaced without --force.
                edited = suffixes in (croissant.SUFFIXES, hub_card.SUFFIXES)
                check_target(target, suffixes, force=self.force, edited=edited)
                if target.resolve() in seen:
                    raise UsageError(
                        f"{target} is named for two of the files", hint="choose another path for one of them"
                    )
                seen.add(target.resolve())

    def write(self, folder: Path, manifest: Manifest, table: EpisodeTable, found: Overview | None) -> Iterator[str]:
        """Write the files one after the other; yields what to print of each. Charts and cards need the overview."""
        from ..storage.durable import write_atomically

        if self.plot is not None and found:
            from ..cards.figure import draw_figure, render_figure

            write_atomically(self.plot, render_figure(draw_figure(manifest.id, found, table), self.plot.suffix))
            yield f"wrote {self.plot}"
        if self.frames is not None:
            from ..cards.frame_sheet import choose_strips, draw_sheet, encode
            from ..storage.dataset import Dataset

            dataset = Dataset(folder)
            write_atomically(
                self.frames, encode(draw_sheet(dataset, choose_strips(dataset, self.episodes)), self.frames.suffix)
            )
            yield f"wrote {self.frames}"
        if self.video is not None:
            from ..cards.animation import RATE, animate
            from ..storage.dataset import Dataset

            number, target = self.video
            with count_progress(f"episode {number}") as show:
                made = animate(Dataset(folder), number, target.suffix, show)
            write_atomically(target, made.data)
            every = f", one of {made.stride}" if made.stride > 1 else ""
            yield f"wrote {target}: episode {number}, {made.frames} frames{every}, {RATE} a second"
        yield from self._write_texts(folder, manifest, table, found)

    def _write_texts(
        self, folder: Path, manifest: Manifest, table: EpisodeTable, found: Overview | None
    ) -> Iterator[str]:
        from ..cards.croissant import make_croissant
        from ..cards.html_card import make_html
        from ..cards.hub_card import make_readme
        from ..storage.durable import write_atomically

        if self.html is not None and found:
            write_atomically(self.html, make_html(folder, manifest, found, table).encode())
            yield f"wrote {self.html}"
        if self.croissant is not None and found:
            write_atomically(self.croissant, make_croissant(folder, manifest, found).encode())
            yield f"wrote {self.croissant}"
        if self.card is not None and found:
            write_atomically(self.card, make_readme(manifest, found).encode())
            yield f"wrote {self.card}"
