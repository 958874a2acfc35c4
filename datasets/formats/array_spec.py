"""What a raw array must be, for those who only name it: reading one needs numpy (`npy`), listing datasets does not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """What an array must be: dtype, and shape with -1 where any size will do."""

    dtype: str
    shape: tuple[int, ...]
