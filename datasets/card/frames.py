"""The frames of a dataset as pictures: a sheet with captions, or a video."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UsageError
from ...storage import amounts
from ...storage.episodes import OUTCOMES
from ...storage.leaf import Leaf

if TYPE_CHECKING:
    from PIL.Image import Image

    from ...storage.dataset import Dataset
    from ...storage.schema import Schema


# -- rows as pictures ----------------------------------------------------------------------------------------------------

#: Rows that are read at once.
_READ_AT_ONCE = 64
#: Minimum height and width of frames that are not bytes; smaller matrices are not pictures.
_MIN_SIDE = 16
#: Tiny frames with bytes up to this one are grids of codes (MiniGrid: 0 to 10); unscaled they would look black.
_MAX_CODE = 15
#: Maximum number of frames stacked in one row.
_MAX_STACKED = 8


def frame_leaves(schema: Schema) -> list[Leaf]:
    """The leaves shaped like pictures: height and width, optionally with 1 or 3 channels or a stack of frames; bytes of any
    size, or real numbers of at least 16 by 16."""
    leaves = []
    for leaf in schema:
        if leaf.key[0] not in ("next", "action") and _layout(leaf.shape) is not None:
            small = leaf.dtype != "uint8" and min(sorted(leaf.shape)[-2:]) < _MIN_SIDE
            if leaf.dtype in ("uint8", "float16", "float32", "float64") and not small:
                leaves.append(leaf)
    return leaves


def leaves_with_frames(dataset: Dataset) -> list[Leaf]:
    """Return the `frame_leaves` of a dataset, such as the cameras of a robot.

    Without one, raises UsageError naming the leaves.
    """
    if leaves := frame_leaves(dataset.schema):
        return leaves
    parts = [f"{leaf.name} {leaf.dtype} {list(leaf.shape)}" for leaf in dataset.schema if leaf.constant is None]
    held = ", ".join(part for part in parts if not part.startswith("next/"))
    raise UsageError(f"{dataset.id} holds no frames", hint=f"its tensors are {held}; --plot shows their distributions")


def read_pictures(dataset: Dataset, leaf: Leaf, steps: list[int]) -> Iterator[Image]:
    """Yield the frames at the given steps; read in blocks."""
    for first in range(0, len(steps), _READ_AT_ONCE):
        found = dataset.read(steps[first : first + _READ_AT_ONCE], keys=[leaf.name])
        for row in found[leaf.key][:, 0].numpy():
            yield picture(row)


def picture(row: np.ndarray) -> Image:
    """Return one row as a picture, grey or in colour; the last frame of a stack."""
    from PIL import Image

    kind = _layout(row.shape)
    if kind == "first":
        row = row.transpose(1, 2, 0)
    elif kind == "stack":
        row = row[-1] if row.shape[0] <= _MAX_STACKED else row[..., -1]
    row = row.reshape(*row.shape[:2], -1)
    if row.dtype == np.uint8:
        if max(row.shape[:2]) < _MIN_SIDE and row.max() <= _MAX_CODE:
            row = row * np.uint8(255 // _MAX_CODE)
    else:
        row = np.nan_to_num(row.astype(np.float64), nan=0, posinf=0, neginf=0)
        low, high = (0.0, 1.0) if row.min() >= 0 and row.max() <= 1 else (float(row.min()), float(row.max()))
        row = ((row / 2 - low / 2) * (255 / (high / 2 - low / 2 or 1))).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(row[..., 0] if row.shape[2] == 1 else row))


def enlarged(image: Image, side: int) -> Image:
    """The picture scaled so that its longer side is near ``side`` pixels; small ones by a whole factor, without smoothing."""
    from PIL import Image

    longer = max(image.size)
    if longer <= side:
        factor = max(1, round(side / longer))
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    size = (max(1, image.width * side // longer), max(1, image.height * side // longer))
    return image.resize(size, Image.Resampling.LANCZOS)


def _layout(shape: tuple[int, ...]) -> str | None:
    """Where the channels are: ``none``, ``last``, ``first``; ``stack`` for several grey frames; None if not a picture."""
    if len(shape) == 2:
        return "none" if min(shape) > 1 else None
    if len(shape) != 3:
        return None
    if shape[-1] in (1, 3):
        return "last"
    if shape[0] in (1, 3):
        return "first"
    return "stack" if min(shape[0], shape[-1]) <= _MAX_STACKED else None


# -- the sheet -----------------------------------------------------------------------------------------------------------

#: Frames in a row of the sheet, and rows of the sheet unless episodes are chosen.
ACROSS, ROWS = 8, 4
#: Maximum number of chosen episodes.
_MAX_STRIPS = 16
#: The longer side of a frame on the sheet, in pixels.
_SHEET_SIDE = 168
SHEET_SUFFIXES = (".png", ".jpg", ".jpeg")

_GAP, _MARGIN, _CAPTION, _TITLE = 6, 16, 17, 24
_INK, _FAINT = (30, 30, 30), (110, 110, 110)


@dataclass(frozen=True)
class Strip:
    """Steps of one episode, by their numbers in the dataset; ``first`` is the episode's first step."""

    episode: int
    first: int
    steps: list[int]


def choose_strips(dataset: Dataset, episodes: Sequence[int] = ()) -> list[Strip]:
    """The strips of a sheet: consecutive steps around the middle of chosen ``episodes``; by default, evenly spaced steps of
    evenly spaced episodes.

    Raises UsageError for unknown episodes, or too many.
    """
    table = dataset.episodes
    count = len(table)
    if len(episodes) > _MAX_STRIPS:
        raise UsageError(f"a sheet has room for {_MAX_STRIPS} episodes, not {len(episodes)}")
    if not count:
        raise UsageError(f"{dataset.id} holds no episodes")
    strips = []
    evenly = np.unique(np.linspace(0, count - 1, ROWS).astype(np.int64)).tolist()
    for number in dict.fromkeys(episodes or evenly):
        if not 0 <= number < count:
            there = f"episodes are numbered 0 to {count - 1:,}"
            raise UsageError(f"there is no episode {number} in {dataset.id}", hint=there)
        first, length = int(table.starts[number]), int(table.lengths[number])
        if episodes:
            shown = min(length, ACROSS * max(1, ROWS // len(set(episodes))))
            steps = np.arange(shown) + (length - shown) // 2
        else:
            steps = np.unique(np.linspace(0, length - 1, ACROSS).astype(np.int64))
        strips.append(Strip(number, first, (first + steps).tolist()))
    return strips


def draw_sheet(dataset: Dataset, strips: Sequence[Strip]) -> Image:
    """Draw the steps of each strip in rows of ``ACROSS``, for each leaf with frames one below the other.

    Raises UsageError for a dataset without frames.
    """
    from PIL import Image, ImageDraw, ImageFont

    leaves = leaves_with_frames(dataset)
    rewards = dataset.rows["next/reward"]
    pictures = [
        [[enlarged(one, _SHEET_SIDE) for one in read_pictures(dataset, leaf, strip.steps)] for leaf in leaves]
        for strip in strips
    ]
    wide = max(116, *(images[0].width for images in pictures[0]))  # at least room for a caption
    across = min(ACROSS, max(len(strip.steps) for strip in strips))
    named = _CAPTION if len(leaves) > 1 else 0  # the name of the leaf
    room = sum(images[0].height + _CAPTION + _GAP for images in pictures[0])
    rows = sum(-(-len(strip.steps) // ACROSS) for strip in strips)
    size = (
        max(2 * _MARGIN + across * (wide + _GAP) - _GAP, 560),
        2 * _MARGIN + 2 * _TITLE + len(strips) * (_TITLE + len(leaves) * named + _GAP) + rows * room,
    )
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    large, small, tiny = (ImageFont.load_default(points) for points in (17, 13, 11))
    pen.text((_MARGIN, _MARGIN - 4), dataset.id, _INK, large)
    captions = "a: action, r: reward" if _action(dataset, 0) else "r: reward"
    held = ", ".join(map(_describe_leaf, leaves))
    about = f"{held}; {amounts.plural(len(dataset.episodes), 'episode')}; {captions}"
    pen.text((_MARGIN, _MARGIN + 18), about, _FAINT, small)
    y = _MARGIN + 2 * _TITLE
    for strip, of_leaves in zip(strips, pictures):
        pen.text((_MARGIN, y), describe_strip(dataset, strip), _INK, small)
        y += _TITLE
        totals = rewards.block(strip.steps[0], strip.steps[-1] + 1)[:, 0]
        for leaf, images in zip(leaves, of_leaves):
            if named:
                pen.text((_MARGIN, y), leaf.name, _FAINT, tiny)
                y += named
            for first in range(0, len(images), ACROSS):
                for column, image in enumerate(images[first : first + ACROSS]):
                    step, x = strip.steps[first + column], _MARGIN + column * (wide + _GAP)
                    sheet.paste(image, (x, y))
                    reward = f"{float(totals[step - strip.steps[0]]):.3g}"
                    caption = f"step {step - strip.first}{_action(dataset, step)}  r={reward}"
                    pen.text((x, y + image.height + 2), caption, _FAINT, tiny)
                y += images[0].height + _CAPTION + _GAP
        y += _GAP
    return sheet


def _describe_leaf(leaf: Leaf) -> str:
    stack = ", the last of each stack" if _layout(leaf.shape) == "stack" else ""
    return f"{leaf.name} {leaf.dtype} {list(leaf.shape)}{stack}"


def encode_image(image: Image, suffix: str) -> bytes:
    """Return the sheet in the format of a file's suffix."""
    with BytesIO() as file:
        if suffix.lower() == ".png":
            image.save(file, "PNG", optimize=True)
        else:
            image.save(file, "JPEG", quality=92)
        return file.getvalue()


# -- the video -----------------------------------------------------------------------------------------------------------

VIDEO_SUFFIXES = (".mp4",)

#: Steps a second.
_RATE = 30


def encode_video(dataset: Dataset, episodes: Sequence[int] = ()) -> bytes:
    """Encode every step of the chosen episodes (default: the first) as an MP4 file; leaves with frames are side by side.

    Raises UsageError for a dataset without frames and unknown episodes, MissingExtraError without PyAV.
    """
    from ..formats.video import VideoWriter, require_av

    require_av("the file")
    leaves, length = leaves_with_frames(dataset), dataset.episodes.lengths
    steps = [
        strip.first + step
        for strip in choose_strips(dataset, episodes or [0])
        for step in range(int(length[strip.episode]))
    ]
    frames = map(_side_by_side, zip(*(read_pictures(dataset, leaf, steps) for leaf in leaves)))
    first = next(frames)
    file = BytesIO()
    with closing(VideoWriter(file, first.height, first.width, _RATE)) as writer:
        for image in chain([first], frames):
            writer.write(np.asarray(image)[None])
    return file.getvalue()


def _side_by_side(pictures: Sequence[Image]) -> Image:
    """Return enlarged pictures as one in colour, from left to right."""
    from PIL import Image

    parts = [enlarged(one, _SHEET_SIDE) for one in pictures]
    joined = Image.new("RGB", (sum(one.width for one in parts), max(one.height for one in parts)))
    x = 0
    for one in parts:
        joined.paste(one, (x, 0))
        x += one.width
    return joined


def describe_strip(dataset: Dataset, strip: Strip) -> str:
    table = dataset.episodes
    outcome = OUTCOMES[int(table.outcomes[strip.episode])]
    total = amounts.real(float(table.returns[strip.episode]))
    length = amounts.plural(int(table.lengths[strip.episode]), "step")
    return f"episode {strip.episode:,}: {length}, return {total}, {outcome}"


def _action(dataset: Dataset, step: int) -> str:
    """The action of a step, if it is a single integer; otherwise ''."""
    leaf = dataset.schema.get("action")
    if leaf is None or leaf.kind != "step" or math.prod(leaf.shape) != 1 or leaf.np_dtype.kind not in "iub":
        return ""
    return f"  a={int(dataset.rows['action'].block(step, step + 1).reshape(()))}"
