"""Observations as floating-point numbers."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from .checks import choice, key_list, number
from .leaves import change, covers, get, named, observations
from .traits import ready

#: bfloat16 has no numpy dtype, so no dataset can hold it.
_DTYPES = ("float16", "float32", "float64")


def _check(keys: object = None, dtype: object = "float32", scale: object = None) -> None:
    key_list("keys", keys)
    choice("dtype", dtype, _DTYPES)
    if scale is not None and number("scale", scale) == 0:
        raise UsageError("scale=0 would make everything zero")


def _on_state(
    name: str,
    rows: torch.Tensor,
    *,
    keys: str | list[str] | None = None,
    dtype: str = "float32",
    scale: float | None = None,
) -> torch.Tensor:
    if not covers(key_list("keys", keys), name):
        return rows
    target: torch.dtype = getattr(torch, dtype)
    if scale is None:
        scale = 1 / 255 if rows.dtype == torch.uint8 else 1.0
    if scale == 1:
        return rows.to(target)
    # Half precision has too few digits for a product of its own.
    return (rows.to(torch.float64 if target == torch.float64 else torch.float32) * scale).to(target)


@ready("batch", on_state=_on_state, check=_check)
def to_float(
    td: TensorDictBase,
    *,
    keys: str | list[str] | None = None,
    dtype: str = "float32",
    scale: float | None = None,
) -> TensorDictBase:
    """Leaves become ``dtype`` (float16, float32, float64), multiplied by ``scale``; shapes stay.

    ``keys``: see `preprocess.functions`; here also keys without a successor, such as ``action``. ``scale`` is by default
    1/255 for uint8 (frames: 0 to 1) and 1 for all else, so that float64 observations become float32 and integers keep their
    values.
    """
    _check(keys, dtype, scale)
    wanted = key_list("keys", keys)
    names = observations(td) if wanted is None else named(td, wanted)
    for name in names:
        if get(td, name).is_complex():
            raise UsageError(f"{name} is complex: no {dtype} can hold it")
    return change(td, names, lambda name, rows: _on_state(name, rows, dtype=dtype, scale=scale))
