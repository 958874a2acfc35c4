"""Results of functions: the checks of what a function returned, successors, rows that no function changed.

A result must be a TensorDict on the CPU with a valid key for every tensor and one row per step. If a function dropped reward
or flags, they are copied from the input, provided that the number of steps is the same. The checked result is called
*columns*: tensors by path,
``[steps, ...]``, with reward and flags in the form of TED.

Data of the input that the checks need are copied before the call, because the function may modify its input in place.
A function may return views of memory that it reuses for its next result: results that are kept until then are `copied`.
The next function of a chain gets the result as it would be read if it had been stored (`as_stored`).

Compressed rows that no function changed are copied as they are stored, because most of the time goes into compression.

Every batch is compared with the decoded rows to find out whether a function changed an observation. The rows of the result must
be whole rows of the input in the same order, so episodes may have been dropped. Copied rows must have been compressed with
the dictionary of the new dataset, which `planning` takes from the input where it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from ..errors import SchemaError
from ..storage.codecs.codec import Rows
from ..storage.leaf import DTYPES, check_key
from ..storage.memory_map import flattened, widest_word
from ..storage.schema import FLAGS
from ..storage.window import nest
from .layout import RESULT_FLAGS, REWARD, Shapes, observation_pairs

Columns = dict[str, torch.Tensor]
_BOOKKEEPING = (REWARD, *RESULT_FLAGS)
_BOOKKEEPING_KEYS = {path: tuple(path.split("/")) for path in _BOOKKEEPING}


def bookkeeping_of(td: TensorDictBase) -> Columns:
    """Copies of reward and flags."""
    return {path: td.get(key).clone() for path, key in _BOOKKEEPING_KEYS.items()}


@dataclass
class ResultCounts:
    """Counts over the results of a chunk, for the manifest."""

    #: NaN values by leaf.
    nans: Counter[str] = field(default_factory=Counter)
    #: Episodes whose last step was no longer done, and was truncated.
    ended: int = 0

    def add_nans(self, columns: Columns, before: Mapping[str, int]) -> None:
        """Count the NaN values of a result in leaves that have none in its input."""
        self.nans += Counter({name: number for name, number in count_nans(columns).items() if not before.get(name)})


def leaves_of(td: TensorDictBase) -> Columns:
    """All tensors by path."""
    items = td.items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, str) else "/".join(key): value for key, value in items}


def count_nans(leaves: Mapping[str, torch.Tensor]) -> Counter[str]:
    """The number of NaN values by path, of leaves with floating-point numbers."""
    floats = {name: tensor for name, tensor in leaves.items() if tensor.is_floating_point()}
    return Counter({name: int(tensor.isnan().count_nonzero()) for name, tensor in floats.items()})


def check_batch(returned: Any, name: str, where: str, steps: int | None) -> TensorDictBase:
    """Check that a function returned a TensorDict with a batch of ``steps`` (None: any number, at least one).

    Raises SchemaError.
    """
    if returned is None:
        message = f"{name} returned None for {where}"
        raise SchemaError(message, hint="it must return the TensorDict; only with --per episode None drops the episode")
    if not isinstance(returned, TensorDictBase):
        wanted = "" if steps is None else f" with batch size [{steps}]"
        message = f"{name} returned a {type(returned).__name__} instead of a TensorDict{wanted}, for {where}"
        raise SchemaError(message, hint="change the TensorDict that it gets, and return it")
    size = tuple(returned.batch_size)
    if size[:1] == (steps,) or (steps is None and size and size[0] >= 1):
        return returned
    wanted = "at least one step" if steps is None else f"[{steps}]"
    message = f"{name} returned batch size {list(size)} instead of {wanted} for {where}"
    longer = "--per episode may return any number of steps, or None to drop the episode"
    raise SchemaError(message, hint=longer if steps is not None else "return None to drop the episode")


def columns_of(returned: TensorDictBase, name: str, where: str) -> Columns:
    """The tensors of a result by path, checked one by one: ``[steps, ...]``, dense, on the CPU.

    Raises SchemaError naming the key.
    """
    steps = returned.batch_size[0]
    columns: Columns = {}
    for key, value in returned.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        parts = (key,) if isinstance(key, str) else key
        path = "/".join(parts)
        problem = _problem(parts, value, steps)
        if problem is not None:
            raise SchemaError(f"{name} returned {path!r} {problem[0]}, for {where}", hint=problem[1])
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
        hint = "rows need elements: of one step (per sample) len(td) is 0; a leaf that has none is left out with .exclude(...)"
        return f"with an empty row of shape {list(value.shape[1:])}", hint
    return None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def complete(
    columns: Columns, before: Columns, name: str, where: str, ends: torch.Tensor, counts: ResultCounts
) -> Columns:
    """The columns with reward and flags in the form of TED, copied from the input where the function dropped them.

    ``before``: reward and flags of the input. ``ends`` (int64): the rows where an episode of the input ends, which must be
    done. Raises SchemaError.
    """
    given = len(before[REWARD])
    steps = len(next(iter(columns.values()))) if columns else given
    for path in _BOOKKEEPING:
        if path not in columns:
            if steps != given:
                message = f"{name} returned {steps} of {given} steps without {path!r}, for {where}"
                raise SchemaError(message, hint="return reward and flags for the same steps")
            columns[path] = before[path]
    _check_types(columns, name, where)
    reward = columns[REWARD]
    if not bool(torch.isfinite(reward).all()):
        row = int((~torch.isfinite(reward)).nonzero()[0, 0])
        message = f"{name} returned a reward that is {reward[row].item()}, at row {row} of {where}"
        raise SchemaError(message, hint="rewards must be finite numbers")
    for flag in FLAGS:
        root = columns.pop(flag, None)
        if root is not None and bool(root.any()):
            row = int(root.reshape(len(root), -1).any(1).nonzero()[0])
            message = f"{name} set {flag!r} at the root, at row {row} of {where}"
            raise SchemaError(message, hint=f"an episode ends with ('next', {flag!r}); at the root it is always false")
    _complete_flags(columns, before, name, where, ends, counts)
    return columns


def _check_types(columns: Columns, name: str, where: str) -> None:
    for path in _BOOKKEEPING:
        dtype = "float32" if path == REWARD else "bool"
        tensor = columns[path]
        if dtype_name(tensor.dtype) != dtype or tensor.shape[1:] != (1,):
            what = f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"
            message = f"{name} returned {path!r} as {what} instead of {dtype} [n, 1], for {where}"
            raise SchemaError(message, hint="rewards and flags must keep their types")
    if "reward" in columns:
        message = f"{name} returned a reward at the root, for {where}"
        raise SchemaError(message, hint="rewards belong under next: ('next', 'reward')")


def _complete_flags(
    columns: Columns, before: Columns, name: str, where: str, ends: torch.Tensor, counts: ResultCounts
) -> None:
    """``done = terminated | truncated``, and done where an episode ends."""
    done, terminated, truncated = (columns[path] for path in RESULT_FLAGS)
    either = terminated | truncated
    # If only the other two changed, done is computed from them.
    if not torch.equal(done, either) and not torch.equal(done, before["next/done"]):
        row = int((done != either).nonzero()[0, 0])
        message = f"{name} returned 'next/done' that is not terminated | truncated, at row {row} of {where}"
        raise SchemaError(message, hint="set ('next', 'terminated') or ('next', 'truncated') as well")
    open_ = ends[~either.view(-1)[ends]]
    if len(open_):
        counts.ended += len(open_)
        truncated, either = truncated.clone(), either.clone()
        truncated[open_] = True
        either[open_] = True
    columns["next/done"], columns["next/truncated"] = either, truncated


# -- equal types of all results -----------------------------------------------------------------------------------------


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


# -- results that are kept while functions are called ---------------------------------------------------------------------


def as_stored(columns: Columns) -> TensorDict:
    """A checked result as the TensorDict that would be read if it had been stored: with the flags at the root."""
    done = columns["next/done"]
    flags = {flag: torch.zeros_like(done) for flag in FLAGS}
    nested = nest({**columns, **flags}, (len(done),))
    # The order of the keys is that of the leaves of the new dataset.
    names = dict.fromkeys([*(path.partition("/")[0] for path in columns), *flags])
    return TensorDict._new_unsafe({name: nested.get(name) for name in names}, batch_size=nested.batch_size)


def copied(columns: Columns) -> Columns:
    """A result in new memory."""
    return {path: rows.clone(memory_format=torch.contiguous_format) for path, rows in columns.items()}


#: Up to this many episodes in a batch it is faster to compare them one by one.
_FEW_EPISODES = 64


def find_unchained(columns: Columns, done: torch.Tensor) -> dict[str, int]:
    """Observations whose successor is not the observation of the following step, with the first such row.

    ``columns`` are consecutive rows; ``done`` bool ``[n]``: after which of them an episode ends.
    """
    broken: dict[str, int] = {}
    inner = (~done[:-1]).nonzero().squeeze(1)
    if not len(inner):
        return broken
    ends = [0, *(done[:-1].nonzero().squeeze(1) + 1).tolist(), len(done)]
    for name in observation_pairs(columns):
        here, after = columns["next/" + name], columns[name]
        if here.shape != after.shape or here.dtype != after.dtype:
            broken[name] = 0
            continue
        if len(ends) < _FEW_EPISODES and all(identical(here[a : b - 1], after[a + 1 : b]) for a, b in pairwise(ends)):
            continue
        rows = (differing(here[:-1], after[1:]) & ~done[:-1]).nonzero()
        if len(rows):
            broken[name] = int(rows[0])
    return broken


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors of one shape and dtype hold the same bits; four times faster than ``torch.equal`` for uint8."""
    if not a.nbytes:
        return True
    a, b = a.contiguous(), b.contiguous()
    size = a.element_size()
    _, word = widest_word(gcd(a.nbytes // len(a), a.storage_offset() * size, b.storage_offset() * size))
    return torch.equal(*(flattened(tensor).view(word) for tensor in (a, b)))


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which rows differ in any bit, bool ``[n]``: -0.0 from 0.0, but no NaN from itself."""
    if identical(a, b):
        return torch.zeros(len(a), dtype=torch.bool)
    if a.is_floating_point() or a.is_complex():
        a, b = (flattened(tensor.contiguous()).view(torch.uint8).view(len(tensor), -1) for tensor in (a, b))
    unequal = a != b
    return unequal.flatten(1).any(1) if unequal.ndim > 1 else unequal


def as_bytes(rows: torch.Tensor) -> np.ndarray:
    """The bytes of rows as they are stored, uint8 ``[n, row_bytes]``."""
    array = np.ascontiguousarray(rows.numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(array), -1)


@dataclass(frozen=True)
class SourceRows:
    """Rows of a state leaf of the input: ``rows`` ``[n, ...]``, the first is number ``first`` of ``leaf``.

    ``rows`` is None where they were not decoded.
    """

    leaf: Rows
    first: int
    rows: torch.Tensor | None


@dataclass(frozen=True)
class SourceStates:
    """The states that the steps of a batch come from: ``place`` (int64 ``[steps]``) is the row of ``leaves`` that each step
    begins with."""

    place: torch.Tensor
    leaves: Mapping[str, SourceRows]


@dataclass(frozen=True)
class StepRun:
    """Steps ``start..stop-1`` of a batch whose states are consecutive rows of the input, beginning with row ``first``."""

    start: int
    stop: int
    first: int


def split_runs(place: torch.Tensor, done: torch.Tensor) -> list[StepRun] | None:
    """The steps of a batch in runs; None if the states of the result are not consecutive rows of the input.

    ``done`` (bool ``[steps]``): after which steps an episode of the result ends. The states differ if an episode ends where
    the episode of the input continues, or continues where that ends.
    """
    gaps = place[1:] - place[:-1]
    consecutive = torch.where(done[:-1], gaps >= 2, gaps == 1)  # between two episodes there is a final state
    if not bool(consecutive.all()):
        return None
    edges = [0, *((done[:-1]).nonzero().squeeze(1) + 1).tolist(), len(place)]
    return [StepRun(start, stop, int(place[start])) for start, stop in pairwise(edges)]


def find_passthrough(
    source: SourceStates, columns: Mapping[str, torch.Tensor], names: Collection[str]
) -> tuple[list[str], list[StepRun]]:
    """The leaves among ``names`` whose rows and successors in a result are bit by bit those of the input.

    Also returns the runs that the result consists of; no leaves if it does not consist of runs.
    """
    runs = split_runs(source.place, columns["next/done"].view(-1)) or []
    found = [
        name
        for name, leaf in source.leaves.items()
        if runs and name in names and _is_unchanged(leaf.rows, columns.get(name), columns.get("next/" + name), runs)
    ]
    return found, runs


def _is_unchanged(
    rows: torch.Tensor | None, root: torch.Tensor | None, successors: torch.Tensor | None, runs: list[StepRun]
) -> bool:
    if rows is None:
        return True
    if root is None or successors is None:
        return False
    if any(one.dtype != rows.dtype or one.shape[1:] != rows.shape[1:] for one in (root, successors)):
        return False
    return all(
        identical(tensor[run.start : run.stop], rows[first : first + run.stop - run.start])
        for run in runs
        for tensor, first in ((root, run.first), (successors, run.first + 1))
    )
