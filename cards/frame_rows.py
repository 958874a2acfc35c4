"""Which leaf of a dataset holds frames, and its rows as pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from ..storage.leaf import Leaf

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..storage.dataset import Dataset

#: Rows that are read at once.
BLOCK = 64
#: The least height and width of frames that are not bytes; smaller matrices are no pictures.
_LEAST_SIDE = 16
#: Tiny frames with no larger byte are grids of codes (MiniGrid: 0 to 10); unscaled they would be black.
_MOST_CODE = 15
#: Most frames that are stacked in one row.
_MOST_STACKED = 8


def frame_leaf(dataset: Dataset) -> Leaf:
    """The first leaf with the shape of pictures: height and width, and with them 1 or 3 channels or a stack of frames.

    Bytes of any size, and real numbers of at least 16 by 16. Raises UsageError, naming what there is, for none.
    """
    for leaf in dataset.schema:
        if leaf.key[0] not in ("next", "action") and _layout(leaf.shape) is not None:
            small = leaf.dtype != "uint8" and min(sorted(leaf.shape)[-2:]) < _LEAST_SIDE
            if leaf.dtype in ("uint8", "float16", "float32", "float64") and not small:
                return leaf
    parts = [f"{leaf.name} {leaf.dtype} {list(leaf.shape)}" for leaf in dataset.schema if leaf.constant is None]
    held = ", ".join(part for part in parts if not part.startswith("next/"))
    raise UsageError(f"{dataset.id} holds no frames", hint=f"its tensors are {held}; --plot shows their distributions")


def read_pictures(dataset: Dataset, leaf: Leaf, steps: list[int], *, last: bool = False) -> Iterator[Image]:
    """The frames at the given steps, and with ``last`` the one that the last of them leads to; read in blocks."""
    for first in range(0, len(steps), BLOCK):
        some = steps[first : first + BLOCK]
        ends = last and first + BLOCK >= len(steps)
        state = leaf.kind == "state" or not ends or f"next/{leaf.name}" not in dataset.schema
        found = dataset.read(some, keys=[leaf.name] if state else [leaf.name, f"next/{leaf.name}"])
        rows = found[leaf.key][:, 0].numpy()
        following = ("next", *leaf.key)
        if ends and following in found.keys(include_nested=True):
            rows = np.concatenate([rows, found[following][-1:, 0].numpy()])
        for row in rows:
            yield picture(row)


def picture(row: np.ndarray) -> Image:
    """One row as a picture, grey or in colours; of stacked frames the last one."""
    from PIL import Image

    kind = _layout(row.shape)
    if kind == "first":
        row = row.transpose(1, 2, 0)
    elif kind == "stack":
        row = row[-1] if row.shape[0] <= _MOST_STACKED else row[..., -1]
    row = row.reshape(*row.shape[:2], -1)
    if row.dtype == np.uint8:
        if max(row.shape[:2]) < _LEAST_SIDE and row.max() <= _MOST_CODE:
            row = row * np.uint8(255 // _MOST_CODE)
    else:
        row = np.nan_to_num(row.astype(np.float64), nan=0, posinf=0, neginf=0)
        low, high = (0.0, 1.0) if row.min() >= 0 and row.max() <= 1 else (float(row.min()), float(row.max()))
        row = ((row / 2 - low / 2) * (255 / (high / 2 - low / 2 or 1))).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(row[..., 0] if row.shape[2] == 1 else row))


def enlarged(image: Image, side: int) -> Image:
    """The picture with its longer side near ``side`` pixels: small ones by a whole factor, pixel by pixel."""
    from PIL import Image

    longer = max(image.size)
    if longer <= side:
        factor = max(1, round(side / longer))
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    size = (max(1, image.width * side // longer), max(1, image.height * side // longer))
    return image.resize(size, Image.Resampling.LANCZOS)


def _layout(shape: tuple[int, ...]) -> str | None:
    """Where the channels are: ``none``, ``last``, ``first``; ``stack`` for several grey frames; None for no picture."""
    if len(shape) == 2:
        return "none" if min(shape) > 1 else None
    if len(shape) != 3:
        return None
    if shape[-1] in (1, 3):
        return "last"
    if shape[0] in (1, 3):
        return "first"
    return "stack" if min(shape[0], shape[-1]) <= _MOST_STACKED else None
