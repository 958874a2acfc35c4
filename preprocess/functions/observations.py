"""Functions of observations: as floating-point numbers, normalized to mean 0 and standard deviation 1, selected by key.

`normalize_observations` takes two passes. The first pass computes, for each chunk of steps, the number n of states, their mean
m and the sum M of squared differences from it. Two chunks are merged exactly (Chan, Golub & LeVeque, 1983):

    n = n1 + n2      d = m2 - m1      m = m1 + d n2 / n      M = M1 + M2 + d^2 n1 n2 / n

in float64, so that sums of squares do not lose digits, and in the order of the chunks, so that the result does not depend on
the number of processes.

**Which states count.** Those at the root: every state in which an action was taken, once, whether a leaf is stored once per
state or twice as plain TED. TD3+BC, IQL and CORL take the mean over fewer rows of D4RL's files, see docs/functions.md.
``final=True`` also counts the state after the last step of each episode. Where the source has no final state (Atari), it is
zeros.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.schema import FLAGS, LARGE_ROW
from .checks import boolean, choice, key_list, number, positive
from .leaves import below, change, check_finite, covers, get, paths, select
from .traits import Fit, Partial, Traits

#: Not bfloat16: it has no numpy dtype, so that no dataset can store it.
_DTYPES = ("float16", "float32", "float64")


def _check_to_float(keys: object, dtype: object, scale: object) -> None:
    key_list("keys", keys)
    choice("dtype", dtype, _DTYPES)
    if scale is not None and number("scale", scale) == 0:
        raise UsageError("scale=0 would set every value to zero")


def _map_states_to_float(
    name: str, rows: torch.Tensor, *, keys: object, dtype: str, scale: float | None
) -> torch.Tensor:
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


@Traits("batch", map_states=_map_states_to_float, validate=_check_to_float)
def to_float(
    td: TensorDictBase, *, keys: str | list[str] | None = None, dtype: str = "float32", scale: float | None = None
) -> TensorDictBase:
    """Convert leaves to ``dtype`` (float16, float32, float64) and multiply them by ``scale``; shapes stay.

    ``keys``: see `preprocess.functions`; here also keys without a successor, such as ``action``. ``scale`` defaults to
    1/255 for uint8 (frames in [0, 1]) and to 1 for all other dtypes. Raises UsageError for complex leaves.
    """
    names = select(td, keys)
    for name in names:
        if get(td, name).is_complex():
            raise UsageError(f"{name} is complex and cannot be converted to {dtype}")
    return change(td, names, _map_states_to_float, keys=keys, dtype=dtype, scale=scale)


#: Rows are converted to float64 in blocks of about this many bytes.
_BLOCK_BYTES = 1 << 24

_OVER = ("auto", "element", "leaf")


def _check_normalize(keys: object, eps: object, clip: object, over: object, final: object, dtype: object) -> None:
    key_list("keys", keys)
    number("eps", eps, low=0)
    if clip is not None:
        positive("clip", clip)
    choice("over", over, _OVER)
    choice("dtype", dtype, ("float16", "float32", "float64"))
    boolean("final", final)


# -- the first pass ----------------------------------------------------------------------------------------------------


def _collect(td: TensorDictBase, *, keys: object, over: str, final: bool, **_: Any) -> Partial:
    """``<leaf>/count`` int64 ``[]``; ``<leaf>/mean`` and ``<leaf>/squares`` float64, shaped like a row or ``[]``."""
    partial: Partial = {}
    ends = get(td, "next/done").reshape(-1).nonzero().squeeze(1) if final else None
    for name in select(td, keys):
        rows = get(td, name)
        if rows.is_complex():
            raise UsageError(f"{name} is complex and cannot be normalized")
        whole = over == "leaf" or (over == "auto" and rows.ndim > 2)
        parts = [rows]
        if ends is not None and "next/" + name in paths(td):
            parts.append(get(td, "next/" + name).index_select(0, ends))
        merged: Partial | None = None
        for part in parts:
            size = max(1, _BLOCK_BYTES // (8 * max(1, part[:1].numel())))
            for block in part.split(size):
                moments = _moments(name, block.double(), whole)
                merged = moments if merged is None else _merge(merged, moments)
        assert merged is not None
        partial.update(merged)
    return partial


def _moments(name: str, block: torch.Tensor, whole: bool) -> Partial:
    values = block.reshape(-1) if whole else block
    count = len(values)
    mean = values.mean(0) if count else torch.zeros(values.shape[1:], dtype=torch.float64)
    squares = (values - mean).square_().sum(0)
    return {f"{name}/count": torch.tensor(count), f"{name}/mean": mean, f"{name}/squares": squares}


def _merge(a: Partial, b: Partial) -> Partial:
    merged: Partial = {}
    for name in (key.removesuffix("/count") for key in a if key.endswith("/count")):
        n1, n2 = int(a[f"{name}/count"]), int(b[f"{name}/count"])
        n = max(1, n1 + n2)
        delta = b[f"{name}/mean"] - a[f"{name}/mean"]
        merged[f"{name}/count"] = torch.tensor(n1 + n2)
        merged[f"{name}/mean"] = a[f"{name}/mean"] + delta * (n2 / n)
        merged[f"{name}/squares"] = a[f"{name}/squares"] + b[f"{name}/squares"] + delta.square() * (n1 / n * n2)
    return merged


def _finish(partial: Partial, **_: Any) -> dict[str, Any]:
    statistics: dict[str, Any] = {}
    for name in (key.removesuffix("/count") for key in partial if key.endswith("/count")):
        count, mean = int(partial[f"{name}/count"]), partial[f"{name}/mean"]
        std = (partial[f"{name}/squares"] / max(1, count)).sqrt()
        if not (torch.isfinite(mean).all() and torch.isfinite(std).all()):
            message = f"{name} holds NaN or infinite values and has no mean"
            raise UsageError(message, hint="remove them with a function before normalize_observations")
        statistics[name] = {"mean": mean.tolist(), "std": std.tolist(), "count": count}
    return statistics


# -- the second pass --------------------------------------------------------------------------------------------------------


def _map_states_normalize(
    name: str, rows: torch.Tensor, *, statistics: Any, eps: float, clip: float | None, dtype: str, **_: Any
) -> torch.Tensor:
    moments = statistics.get(name)
    if moments is None:
        return rows
    mean, std = (torch.tensor(moments[key], dtype=torch.float64) for key in ("mean", "std"))
    if not math.isfinite(eps) or (eps == 0 and bool((std == 0).any())):
        message = f"{name} has constant elements: their standard deviation is 0"
        raise UsageError(message, hint="give an eps above 0")
    # float64 is cheap for small rows only.
    precision = torch.float64 if rows[:1].numel() * 8 < LARGE_ROW or dtype == "float64" else torch.float32
    out = (rows.to(precision) - mean.to(precision)).div_((std + eps).to(precision))
    if clip is not None:
        out.clamp_(-clip, clip)
    return out.to(getattr(torch, dtype))


@Traits(
    "batch",
    fit=Fit(_collect, _merge, _finish),
    map_states=_map_states_normalize,
    validate=_check_normalize,
)
def normalize_observations(
    td: TensorDictBase,
    *,
    statistics: dict[str, Any] | None = None,
    keys: str | list[str] | None = None,
    eps: float = 1e-3,
    clip: float | None = None,
    over: str = "auto",
    final: bool = False,
    dtype: str = "float32",
) -> TensorDictBase:
    """Normalize observations: ``(observation - mean) / (std + eps)`` (TD3+BC, Fujimoto & Gu, 2021), in ``dtype``, same shape.

    - ``keys``: see `preprocess.functions`.
    - ``over``: ``element`` computes a mean for each element of a row, ``leaf`` one for the whole row; ``auto`` is ``element``
      for scalars and vectors and ``leaf`` for rows of two dimensions or more.
    - ``clip``: limits the result to ``[-clip, clip]``.
    - ``final``: whether final states count, see the module.
    - ``statistics``: ``{leaf: {"mean", "std", "count"}}`` with population standard deviations (as ``numpy.std``). The first
      pass computes them and the manifest keeps them. Passed explicitly, they normalize other data alike, such as a live
      observation: ``normalize_observations(TensorDict({"observation": rows}, [n]), statistics=..., eps=...)``.

    Raises UsageError for leaves with NaN or infinite values, and for constant elements with ``eps=0``.
    """
    assert statistics is not None
    names = select(td, keys) if "next" in td.keys() else list(statistics)  # noqa: SIM118
    return change(td, names, _map_states_normalize, statistics=statistics, eps=eps, clip=clip, dtype=dtype)


#: Leaves of every dataset.
_REQUIRED = (*FLAGS, *(f"next/{flag}" for flag in FLAGS), "next/reward")


def _check_select(keys: object, drop: object) -> None:
    if (keys is None) == (drop is None):
        raise UsageError("select_keys needs either keys or drop", hint="for example --args keys=observation,action")
    key_list("keys", keys)
    required = [key for key in key_list("drop", drop) or [] if key in (*FLAGS, "reward")]
    if required:
        raise UsageError(f"{', '.join(required)} cannot be dropped: every dataset has flags and rewards")


@Traits("batch", validate=_check_select)
def select_keys(
    td: TensorDictBase, *, keys: str | list[str] | None = None, drop: str | list[str] | None = None
) -> TensorDictBase:
    """Keep only ``keys``, or all leaves except ``drop``; flags and the reward always stay.

    A key selects the leaves below it and their successors: ``keys=["observation", "action"]`` keeps ``next/observation``.
    Leaves that exist under ``next`` only are named without ``next/``. Raises UsageError for missing keys.
    """
    present = paths(td)
    roots = list(dict.fromkeys(path.removeprefix("next/") for path in present))
    given = key_list("keys", keys if keys is not None else drop) or []
    selected = {path for key in given for path in below(roots, key)}
    kept = [
        path for path in present if path in _REQUIRED or (path.removeprefix("next/") in selected) == (keys is not None)
    ]
    return td.select(*(tuple(path.split("/")) for path in kept))
