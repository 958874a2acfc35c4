"""Values in the dtype of their leaf: the same values, or an error.

Floating-point numbers may be rounded (float64 to float32). All else stays what it is: whole numbers and booleans exactly,
finite numbers finite. NaN and infinity stay as they are where the dtype has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class LossyCastError(ValueError):
    """A value does not fit a dtype; ``row`` is its row, ``value`` the value."""

    def __init__(self, value: Any, dtype: np.dtype, row: int) -> None:
        super().__init__(f"{value} does not fit {dtype}")
        self.value, self.row = value, row


def cast(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers or booleans ``[n, ...]`` in another dtype, not copied where they have it. Raises LossyCastError."""
    target = np.dtype(dtype)
    if values.dtype == target:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(target)
    lost = _lost(values, stored)
    if lost is not None and lost.any():
        at = int(lost.argmax())
        row = at // max(1, values[:1].size) if values.ndim else 0
        raise LossyCastError(values.reshape(-1)[at].item(), target, row)
    return stored


def _lost(values: np.ndarray, stored: np.ndarray) -> np.ndarray | None:
    """Which values are others now; None where the dtypes alone tell that none is."""
    source, target = values.dtype, stored.dtype
    exact = np.can_cast(source, target, "safe")
    if source.kind == "b" or (exact and not (source.kind in "iu" and target.kind == "f")):
        return None
    if target.kind == "b":
        return (values != 0) & (values != 1)
    if target.kind == "f" and source.kind == "f":
        return np.isinf(stored) & np.isfinite(values)
    if target.kind == "f":
        if source.itemsize < target.itemsize:
            return None
        with np.errstate(invalid="ignore"):
            return ~np.isfinite(stored) | (stored.astype(source) != values)
    info = np.iinfo(target)
    if source.kind == "f":
        high = 2.0 ** (info.bits - (target.kind == "i"))  # iinfo's own limit may have no float
        return ~((values >= float(info.min)) & (values < high)) | (values != np.trunc(values))
    return (values < info.min) | (values > info.max)
