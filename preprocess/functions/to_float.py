"""Observations as floating-point numbers."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import choice, key_list, number
from .leaves import change, check_finite, covers, get, select
from .traits import Traits

#: Not bfloat16: it has no numpy dtype, so that no dataset can store it.
_DTYPES = ("float16", "float32", "float64")


def _check(keys: object, dtype: object, scale: object) -> None:
    key_list("keys", keys)
    choice("dtype", dtype, _DTYPES)
    if scale is not None and number("scale", scale) == 0:
        raise UsageError("scale=0 would set every value to zero")


def _map_states(name: str, rows: torch.Tensor, *, keys: object, dtype: str, scale: float | None) -> torch.Tensor:
    if not covers(key_list("keys", keys), name):
        return rows
    target: torch.dtype = getattr(torch, dtype)
    if scale is None:
        scale = 1 / 255 if rows.dtype == torch.uint8 else 1.0
    if scale == 1:
        out = rows.to(target)
    else:  # float16 has too few digits to multiply in
        out = (rows.to(torch.float64 if target == torch.float64 else torch.float32) * scale).to(target)
    never = rows.dtype == target or rows.dtype in (torch.uint8, torch.int8, torch.bool)
    return out if never and abs(scale) <= 1 else check_finite(rows, out, name)


@Traits("batch", map_states=_map_states, validate=_check)
def to_float(
    td: TensorDictBase, *, keys: str | list[str] | None = None, dtype: str = "float32", scale: float | None = None
) -> TensorDictBase:
    """Leaves are converted to ``dtype`` (float16, float32, float64) and multiplied by ``scale``; shapes stay.

    ``keys``: see `preprocess.functions`; here also keys without a successor, such as ``action``. ``scale`` defaults to
    1/255 for uint8 (frames in [0, 1]) and to 1 for all other dtypes. Raises UsageError for complex leaves.
    """
    names = select(td, keys)
    for name in names:
        if get(td, name).is_complex():
            raise UsageError(f"{name} is complex and cannot be converted to {dtype}")
    return change(td, names, _map_states, keys=keys, dtype=dtype, scale=scale)
