"""An episode as an animation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from .card_file import MARK
from .frame_rows import enlarged, frame_leaf, read_pictures
from .frame_sheet import extent

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..storage.dataset import Dataset

SUFFIXES = (".gif", ".webp", ".png", ".apng")

#: Frames a second. Atari shows 15 decisions a second (60 Hz, every 4th frame).
RATE = 15
#: Most frames of an animation, so that memory stays bounded: of longer episodes every 2nd, 3rd, ...
MOST_FRAMES = 600
#: The longer side in pixels.
SIDE = 336


@dataclass(frozen=True)
class Animation:
    """The bytes of the file, its frames, and which frames of the episode they are: every ``stride``-th."""

    data: bytes
    frames: int
    stride: int


def animate(
    dataset: Dataset, episode: int, suffix: str, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Animation:
    """An episode from its first frame to the one that its last step leads to, as GIF, WebP or animated PNG.

    ``on_progress`` is called with the frames done and those in all.

    Raises UsageError for a dataset without frames or without the episode.
    """
    from PIL.PngImagePlugin import PngInfo

    leaf = frame_leaf(dataset)
    first, length = extent(dataset, episode)
    stride = -(-(length + 1) // MOST_FRAMES)
    steps = list(range(first, first + length, stride))
    # The frame after the last step is shown where the stride reaches it.
    frames = len(steps) + (stride == 1)

    def draw() -> Iterator[Image]:
        for number, one in enumerate(read_pictures(dataset, leaf, steps, last=stride == 1)):
            on_progress(number, frames)
            yield enlarged(one, SIDE)

    pictures = draw()
    head = next(pictures)
    more: dict[str, Any] = {"save_all": True, "append_images": pictures, "duration": round(1000 / RATE), "loop": 0}
    kind = {".gif": "GIF", ".webp": "WEBP"}.get(suffix.lower(), "PNG")
    if kind == "GIF":
        more |= {"comment": MARK.encode(), "optimize": False}
    elif kind == "WEBP":
        more |= {"xmp": MARK.encode(), "quality": 80}
    else:
        more["append_images"] = list(pictures)  # Pillow goes through them twice
        more["pnginfo"] = PngInfo()
        more["pnginfo"].add_text("Software", MARK)
    with BytesIO() as file:
        head.save(file, kind, **more)
        return Animation(file.getvalue(), frames, stride)
