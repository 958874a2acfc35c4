"""Results of functions: checked, completed, and compared with the input.

A result must be a TensorDict on the CPU with a valid key for every tensor and one row per step. If a function dropped reward
or flags, they are copied from the input, provided that the number of steps is the same. The checked result is called
*columns*: tensors by path, ``[steps, ...]``, with reward and flags in the form of TED.

Functions may modify their input in place, and return views of memory that they reuse: what checks need of the input is copied
before the call, and results that are kept until the next call are `copied`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from ..errors import SchemaError
from ..storage.leaf import DTYPES, check_key
from ..storage.memory_map import flattened, widest_word
from ..storage.schema import FLAGS
from ..storage.window import nest
from .layout import RESULT_FLAGS, REWARD, Shapes, observation_pairs

Columns = dict[str, torch.Tensor]
_BOOKKEEPING = {path: tuple(path.split("/")) for path in (REWARD, *RESULT_FLAGS)}


def bookkeeping_of(td: TensorDictBase) -> Columns:
    """Return copies of reward and flags."""
    return {path: td.get(key).clone() for path, key in _BOOKKEEPING.items()}


def leaves_of(td: TensorDictBase, above: str = "") -> Columns:
    """Return all tensors by path."""
    leaves: Columns = {}
    for name, value in td.items():
        if isinstance(value, TensorDictBase):
            leaves.update(leaves_of(value, f"{above}{name}/"))
        elif isinstance(value, torch.Tensor):
            leaves[above + name] = value
    return leaves


# -- what a function returned --------------------------------------------------------------------------------------------


def _fault(name: str, what: str, where: str, hint: str | None = None) -> SchemaError:
    return SchemaError(f"{name} returned {what}, for {where}", hint=hint)


def check_batch(returned: Any, name: str, where: str, steps: int | None) -> TensorDictBase:
    """Check that a function returned a TensorDict with a batch of ``steps`` (None: any number, at least one).

    Raises SchemaError.
    """
    size = list(returned.batch_size) if isinstance(returned, TensorDictBase) else None
    if size is None or (size[:1] != [steps] if steps is not None else not (size and size[0])):
        what = f"batch size {size}" if size is not None else f"a {type(returned).__name__}"
        wanted = "a TensorDict of at least one step" if steps is None else f"a TensorDict of batch size [{steps}]"
        hint = "only with --per episode it may return any number of steps, or None to drop the episode"
        raise _fault(name, f"{what} instead of {wanted}", where, hint)
    checked: TensorDictBase = returned
    return checked


def columns_of(returned: TensorDictBase, name: str, where: str) -> Columns:
    """Return the tensors of a result by path, checked one by one: ``[steps, ...]``, dense, on the CPU.

    Raises SchemaError naming the key.
    """
    steps = returned.batch_size[0]
    columns: Columns = {}
    for key, value in returned.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        parts = (key,) if isinstance(key, str) else key
        path = "/".join(parts)
        problem = _problem(parts, value, steps)
        if problem is not None:
            raise _fault(name, f"{path!r} {problem[0]}", where, problem[1])
        columns[path] = value.detach().resolve_neg()  # torch defers negations until the tensor is read
    return columns


def _problem(parts: tuple[str, ...], value: Any, steps: int) -> tuple[str, str | None] | None:
    """Why a value cannot be stored as a leaf, and a hint."""
    if not isinstance(value, torch.Tensor):
        return f"as a {type(value).__name__}, not a tensor", "remove it with .exclude(...)"
    try:
        check_key("/".join(part.replace("/", " ") for part in parts))
    except SchemaError as error:
        return f"under a key that cannot be stored ({error.message})", error.hint
    if value.device.type != "cpu":
        return f"on the device {value.device}", "return .cpu()"
    if value.layout != torch.strided or value.is_nested:
        return "as a sparse or nested tensor", "convert it to a dense tensor"
    dtype = dtype_name(value.dtype)
    if dtype not in DTYPES:
        return f"with dtype {dtype}", f"dtypes that can be stored: {', '.join(DTYPES)}"
    if value.shape[:1] != (steps,):
        return f"with {len(value) if value.ndim else 'no'} rows instead of {steps}", None
    if 0 in value.shape[1:]:
        return f"with an empty row of shape {list(value.shape[1:])}", "leave it out with .exclude(...)"
    return None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- reward and flags ------------------------------------------------------------------------------------------------------


def complete(
    columns: Columns, before: Columns, name: str, where: str, ends: torch.Tensor, tally: Counter[str]
) -> Columns:
    """Return the columns with reward and flags in the form of TED, copied from the input where the function dropped them.

    ``before``: reward and flags of the input. ``ends`` (int64): the rows where an episode of the input ends, which must be
    done; ``tally["ended"]`` counts those that were not. Raises SchemaError.
    """
    given, steps = len(before[REWARD]), len(next(iter(columns.values()), before[REWARD]))
    for path in _BOOKKEEPING:
        if path not in columns and steps != given:
            hint = "return reward and flags for the same steps"
            raise _fault(name, f"{steps} of {given} steps without {path!r}", where, hint)
        found, dtype = columns.setdefault(path, before[path]), "float32" if path == REWARD else "bool"
        if dtype_name(found.dtype) != dtype or found.shape[1:] != (1,):
            what = f"{path!r} as {dtype_name(found.dtype)} {list(found.shape)} instead of {dtype} [n, 1]"
            raise _fault(name, what, where, "rewards and flags must keep their types")
    if "reward" in columns:
        raise _fault(name, "a reward at the root", where, "rewards belong under next: ('next', 'reward')")
    reward = columns[REWARD]
    if (row := _first(~torch.isfinite(reward))) is not None:
        what = f"a reward that is {reward[row].item()}, at row {row}"
        raise _fault(name, what, where, "rewards must be finite numbers")
    for flag in FLAGS:
        root = columns.pop(flag, None)
        if root is not None and (row := _first(root)) is not None:
            hint = f"an episode ends with ('next', {flag!r}); at the root it is always false"
            raise SchemaError(f"{name} set {flag!r} at the root, at row {row} of {where}", hint=hint)
    done, terminated, truncated = (columns[path] for path in RESULT_FLAGS)
    either = terminated | truncated
    # If only the other two changed, done is computed from them.
    if not torch.equal(done, either) and not torch.equal(done, before["next/done"]):
        what = f"'next/done' that is not terminated | truncated, at row {_first(done != either)}"
        raise _fault(name, what, where, "set ('next', 'terminated') or ('next', 'truncated') as well")
    open_ = ends[~either.view(-1)[ends]]
    if len(open_):
        tally["ended"] += len(open_)
        truncated, either = truncated.clone(), either.clone()
        truncated[open_] = either[open_] = True
    columns["next/done"], columns["next/truncated"] = either, truncated
    return columns


def _first(mask: torch.Tensor) -> int | None:
    """Return the first row whose bit is set; None if there is none."""
    return int(mask.nonzero()[0, 0]) if bool(mask.any()) else None


# -- all results are alike, and as they would be read ------------------------------------------------------------------------


def shapes_of(columns: Columns) -> Shapes:
    return {path: (dtype_name(tensor.dtype), tuple(tensor.shape[1:])) for path, tensor in columns.items()}


def check_same(columns: Columns, expected: Mapping[str, Any], name: str, where: str) -> None:
    """Check that a result has the keys, dtypes and shapes of the first one. Raises SchemaError naming the key."""
    hint = "every result must have the keys, dtypes and shapes of the first one"
    missing = [path for path in expected if path not in columns]
    extra = [path for path in columns if path not in expected]
    if missing or extra:
        what = f"without {missing[0]!r}" if missing else f"with a new key {extra[0]!r}"
        wanted, found = (", ".join(sorted(paths)) for paths in (expected, columns))
        message = f"{name} returned a TensorDict {what}, for {where}: expected {wanted}; it has {found}"
        raise SchemaError(message, hint=hint)
    for path, (dtype, shape) in shapes_of(columns).items():
        before, shape_before = expected[path]
        if (dtype, shape) != (before, tuple(shape_before)):
            now, then = f"{dtype} {list(shape)}", f"{before} {list(shape_before)}"
            raise SchemaError(f"{name} returned {path!r} as {now}, and before as {then}, for {where}", hint=hint)


def as_stored(columns: Columns) -> TensorDict:
    """Return a checked result as the TensorDict that would be read if it had been stored: with the flags at the root."""
    done = columns["next/done"]
    flags = {flag: torch.zeros_like(done) for flag in FLAGS}
    nested = nest({**columns, **flags}, (len(done),))
    # The order of the keys is that of the leaves of the new dataset.
    names = dict.fromkeys([*(path.partition("/")[0] for path in columns), *flags])
    return TensorDict._new_unsafe({name: nested.get(name) for name in names}, batch_size=nested.batch_size)


def copied(columns: Columns) -> Columns:
    """Return a result in new memory."""
    return {path: rows.clone(memory_format=torch.contiguous_format) for path, rows in columns.items()}


# -- rows by their bits ------------------------------------------------------------------------------------------------------


def as_bytes(rows: torch.Tensor) -> np.ndarray:
    """Return the bytes of rows as they are stored, uint8 ``[n, row_bytes]``."""
    array = np.ascontiguousarray(rows.numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(array), -1)


def digest(columns: Columns) -> str:
    """Return a hash of all values and their types."""
    made = hashlib.blake2b(digest_size=12)
    for path, rows in columns.items():
        made.update(f"{path} {rows.dtype} {list(rows.shape)}".encode())
        made.update(as_bytes(rows).data)
    return made.hexdigest()


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return which rows differ in any bit, bool ``[n]``: -0.0 from 0.0, but no NaN from itself.

    Rows of other dtypes or shapes do.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return torch.ones(min(len(a), len(b)), dtype=torch.bool, device="cpu")
    if not a.nbytes or torch.equal(*(words := _as_words(a, b))):
        return torch.zeros(len(a), dtype=torch.bool, device="cpu")
    return (words[0] != words[1]).any(1)


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether tensors have the same dtype, shape and bits."""
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and (not a.nbytes or torch.equal(*_as_words(a, b)))


def _as_words(*rows: torch.Tensor) -> list[torch.Tensor]:
    """Rows of one form as integers ``[n, k]``, of the widest type that fits: six times faster to compare than bytes."""
    flat = [flattened(tensor.contiguous()).view(torch.uint8) for tensor in rows]
    size = rows[0].nbytes // len(rows[0])
    _, word = widest_word(gcd(size, *(tensor.storage_offset() for tensor in flat)))
    return [tensor.view(word).view(-1, size // word.itemsize) for tensor in flat]


def find_unchained(columns: Columns, done: torch.Tensor) -> dict[str, int]:
    """Return observations whose successor is not the observation of the following step, with the first such row.

    ``columns`` are consecutive rows; ``done`` bool ``[n]``: after which of them an episode ends.
    """
    broken = {}
    for name in observation_pairs(columns) if not bool(done[:-1].all()) else ():
        rows = (differing(columns["next/" + name][:-1], columns[name][1:]) & ~done[:-1]).nonzero()
        if len(rows):
            broken[name] = int(rows[0])
    return broken


def in_state_order(rows: torch.Tensor, successors: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
    """Return the rows of steps, with the successor inserted after the last one of each episode (``done`` bool ``[n]``)."""
    ends = done.nonzero().squeeze(1)
    if not len(ends):
        return rows
    place = torch.arange(len(rows), device="cpu") + done.cumsum(0) - done.long()
    out = torch.empty(len(rows) + len(ends), *rows.shape[1:], dtype=rows.dtype, device="cpu")
    out[place] = rows
    out[place[ends] + 1] = successors[ends]
    return out


def runs_of(numbers: torch.Tensor) -> list[tuple[int, int]]:
    """Return numbers (int64 ``[n]``) as ranges: the first of each run of consecutive ones, and the number after its last."""
    edges = [0, *((numbers[1:] - numbers[:-1] != 1).nonzero().view(-1) + 1).tolist(), len(numbers)]
    return [(int(numbers[low]), int(numbers[high - 1]) + 1) for low, high in pairwise(edges)]
