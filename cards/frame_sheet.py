"""Frames of a dataset on one sheet, a row (or several) for each episode, with captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import amounts
from ..errors import UsageError
from ..storage.episodes import OUTCOMES
from .card_file import MARK
from .frame_rows import enlarged, frame_leaf, read_pictures

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..storage.dataset import Dataset
    from ..storage.leaf import Leaf

#: Frames in a row of the sheet, and rows of it where no episodes are chosen.
ACROSS, ROWS = 8, 4
#: Most episodes that can be chosen.
MOST_EPISODES = 16
#: The longer side of a frame on the sheet, in pixels.
SIDE = 168
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")

_GAP, _MARGIN, _CAPTION, _TITLE = 6, 16, 17, 24
_INK, _FAINT = (30, 30, 30), (110, 110, 110)


@dataclass(frozen=True)
class Strip:
    """Steps of one episode (numbers within the dataset), ``first`` that of the episode's first step."""

    episode: int
    first: int
    steps: list[int]


def choose_strips(dataset: Dataset, episodes: Sequence[int] = ()) -> list[Strip]:
    """What is on the sheet. Of chosen episodes consecutive steps around the middle; otherwise of evenly spaced episodes
    evenly spaced steps.

    Raises UsageError for episodes that are not there, or too many.
    """
    count = len(dataset.episodes)
    if len(episodes) > MOST_EPISODES:
        raise UsageError(f"a sheet has room for {MOST_EPISODES} episodes, not {len(episodes)}")
    if not count:
        raise UsageError(f"{dataset.id} holds no episodes")
    strips = []
    if not episodes:
        for number in np.unique(np.linspace(0, count - 1, ROWS).astype(np.int64)).tolist():
            first, length = extent(dataset, number)
            spread = np.unique(np.linspace(0, length - 1, ACROSS).astype(np.int64))
            strips.append(Strip(number, first, (first + spread).tolist()))
        return strips
    for number in dict.fromkeys(episodes):
        first, length = extent(dataset, number)
        shown = min(length, ACROSS * max(1, ROWS // len(set(episodes))))
        begin = first + (length - shown) // 2
        strips.append(Strip(number, first, list(range(begin, begin + shown))))
    return strips


def draw_sheet(dataset: Dataset, strips: Sequence[Strip]) -> Image:
    """The sheet. Raises UsageError for a dataset without frames."""
    from PIL import Image, ImageDraw, ImageFont

    leaf = frame_leaf(dataset)
    rewards = dataset.rows["next/reward"]
    pictures = [[enlarged(one, SIDE) for one in read_pictures(dataset, leaf, strip.steps)] for strip in strips]
    width, height = pictures[0][0].size
    wide = max(width, 116)  # room for a caption
    rows = sum(-(-len(strip.steps) // ACROSS) for strip in strips)
    across = min(ACROSS, max(len(strip.steps) for strip in strips))
    size = (
        max(2 * _MARGIN + across * (wide + _GAP) - _GAP, 560),
        2 * _MARGIN + 2 * _TITLE + len(strips) * (_TITLE + _GAP) + rows * (height + _CAPTION + _GAP),
    )
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    large, small, tiny = (ImageFont.load_default(points) for points in (17, 13, 11))
    pen.text((_MARGIN, _MARGIN - 4), dataset.id, _INK, large)
    captions = "a: action, r: reward" if _action(dataset, 0) else "r: reward"
    about = f"{_about(leaf)}; {amounts.plural(len(dataset.episodes), 'episode')}; {captions}"
    pen.text((_MARGIN, _MARGIN + 18), about, _FAINT, small)
    y = _MARGIN + 2 * _TITLE
    for strip, images in zip(strips, pictures):
        pen.text((_MARGIN, y), describe_strip(dataset, strip), _INK, small)
        y += _TITLE
        totals = rewards.block(strip.steps[0], strip.steps[-1] + 1)[:, 0]
        for number, (step, image) in enumerate(zip(strip.steps, images)):
            column = number % ACROSS
            if number and not column:
                y += height + _CAPTION + _GAP
            x = _MARGIN + column * (wide + _GAP)
            sheet.paste(image, (x, y))
            reward = f"{float(totals[step - strip.steps[0]]):.3g}"
            pen.text(
                (x, y + height + 2), f"step {step - strip.first}{_action(dataset, step)}  r={reward}", _FAINT, tiny
            )
        y += height + _CAPTION + 2 * _GAP
    return sheet


def encode(image: Image, suffix: str) -> bytes:
    """The sheet in the format of a file's suffix, with the mark of rbdata where the format has room for it."""
    from PIL import Image as images
    from PIL.PngImagePlugin import PngInfo

    kind = images.registered_extensions()[suffix.lower()]
    more: dict[str, Any] = {}
    if kind == "PNG":
        more = {"pnginfo": PngInfo(), "optimize": True}
        more["pnginfo"].add_text("Software", MARK)
    elif kind in ("JPEG", "GIF"):
        more = {"comment": MARK.encode(), "quality": 92}
    elif kind == "WEBP":
        more = {"xmp": MARK.encode(), "quality": 92}
    with BytesIO() as file:
        image.save(file, kind, **more)
        return file.getvalue()


def extent(dataset: Dataset, number: int) -> tuple[int, int]:
    table = dataset.episodes
    if not 0 <= number < len(table):
        there = f"episodes are numbered 0 to {len(table) - 1:,}"
        raise UsageError(f"there is no episode {number} in {dataset.id}", hint=there)
    return int(table.start[number]), int(table.length[number])


def _about(leaf: Leaf) -> str:
    stack = ", the last of each stack" if len(leaf.shape) == 3 and not {1, 3} & {leaf.shape[0], leaf.shape[-1]} else ""
    return f"{leaf.name}, {leaf.dtype} {list(leaf.shape)}{stack}"


def describe_strip(dataset: Dataset, strip: Strip) -> str:
    table = dataset.episodes
    outcome = OUTCOMES[int(table.outcome[strip.episode])]
    total = amounts.real(float(table.returns[strip.episode]))
    length = amounts.plural(int(table.length[strip.episode]), "step")
    return f"episode {strip.episode:,}: {length}, return {total}, {outcome}"


def _action(dataset: Dataset, step: int) -> str:
    """The action of a step, where it is one whole number."""
    leaf = dataset.schema.get("action")
    if (
        leaf is None
        or leaf.kind != "step"
        or leaf.row_bytes != leaf.np_dtype.itemsize
        or leaf.np_dtype.kind not in "iub"
    ):
        return ""
    return f"  a={int(dataset.rows['action'].block(step, step + 1).reshape(()))}"
