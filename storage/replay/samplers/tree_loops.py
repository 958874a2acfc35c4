"""The loops of `sum_tree`, compiled by numba where it is installed (the extra ``fast``) and a process draws often.

They do the same operations on the same numbers in the same order as the NumPy code of the tree: draws, sums and the least
value are equal to the last bit, so that a tree may change over between any two calls. (Powers stay with NumPy, whose last
bit depends on the processor.) All levels of a tree lie in one array ``nodes``; ``begins`` says where each one begins, the
leaves first.

Importing numba and compiling take 2 s, once in a process, in the draw after which it pays: a draw and an update of a million
priorities are about 0.1 ms faster with the loops. numba could keep the compiled code in files, and does not: they are
pickles in a folder that environment variables choose, and of two kinds of processors that compile at the same moment one
might load the code of the other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

FANOUT_BITS = 4
FANOUT = 1 << FANOUT_BITS
#: So many draws of this process, by NumPy, are compiled for: what they would have saved is what compiling takes.
OFTEN = 20_000
_BLOCK = 64  # the running sum of the top level is searched by blocks of so many, then within one
_U = np.uint64  # an index that is no signed number needs no test for being negative


class Loops(NamedTuple):
    """The compiled functions."""

    find: Callable[..., float]
    update: Callable[..., tuple[float, int]]


def find(
    nodes: np.ndarray, begins: np.ndarray, running: np.ndarray, mass: np.ndarray, found: np.ndarray, values: np.ndarray
) -> float:
    """For each ``mass`` the leaf whose stretch of the running sum it falls in, and its value; returns the least value.

    ``running``: float64 ``[4097]``, the running sum of the top level with a zero before it, and infinity behind it.
    """
    blocks = np.empty(_BLOCK)
    for place in range(_BLOCK):
        blocks[place] = running[(place + 1) * _BLOCK]
    inner = np.zeros(FANOUT)
    last = len(begins) - 1
    top = len(nodes) - begins[last]
    for number in range(len(mass)):
        rest = mass[number]
        block = 0
        for place in range(_BLOCK - 1):
            block += blocks[_U(place)] <= rest
        child = block * _BLOCK
        first = child + 1
        for place in range(_BLOCK):
            child += running[_U(first + place)] <= rest
        child = min(child, top - 1)
        found[number] = child
        values[number] = rest - running[_U(child)]
    # Level by level, not mass by mass: the processor then waits for the memory of many of them at once.
    for level in range(last - 1, -1, -1):
        begin = begins[level]
        highest = (begins[level + 1] - begin) // FANOUT - 1
        for number in range(len(mass)):
            rest = values[number]
            row = min(found[number], highest)
            first = begin + row * FANOUT
            total = 0.0
            for place in range(FANOUT - 1):
                total += nodes[_U(first + place)]
                inner[_U(place + 1)] = total
            inside = 0
            for place in range(1, FANOUT):
                inside += inner[_U(place)] <= rest
            found[number] = row * FANOUT + inside
            values[number] = rest - inner[_U(inside)]
    least = np.inf
    for number in range(len(mass)):
        value = nodes[_U(found[number])]
        values[number] = value
        least = min(least, value)
    return least


def update(
    nodes: np.ndarray, begins: np.ndarray, index: np.ndarray, values: np.ndarray, least: float, where: int
) -> tuple[float, int]:
    """Set leaves and the sums above them; returns the least positive leaf and its place, 0 and -1 where not known.

    ``least`` and ``where`` are the same, before the change. Raises IndexError, before anything is set.
    """
    leaves = begins[1] if len(begins) > 1 else len(nodes)
    for place in range(len(index)):
        if not 0 <= index[place] < leaves:
            raise IndexError("no such leaf")
    for place in range(len(index)):
        nodes[_U(index[place])] = values[place]
    bits = 0
    for level in range(len(begins) - 1):
        begin, above = begins[level], begins[level + 1]
        bits += FANOUT_BITS
        for place in range(len(index)):
            row = index[place] >> bits
            first = begin + row * FANOUT
            total = 0.0
            for child in range(FANOUT):
                total += nodes[_U(first + child)]
            nodes[_U(above + row)] = total
    if least == 0:
        return least, where
    for place in range(len(index)):
        value = values[place]
        if value > 0 and value <= least:
            if nodes[_U(index[place])] != value:  # the same index came again with another value
                return 0.0, -1
            least, where = value, index[place]
        elif index[place] == where and value != least:
            return 0.0, -1
    return least, where


_draws = 0
_loaded: list[Loops | None] = []  # one, once it is known
_loading = threading.RLock()

if hasattr(os, "register_at_fork"):
    # A fork waits for the compiler: in the child its locks, numba's own among them, would be held for ever.
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def count_draw() -> Loops | None:
    """The loops, once this process has called it often; None before, and without a numba that works here."""
    global _draws
    _draws += 1
    return load() if _draws >= OFTEN else None


def load() -> Loops | None:
    """The loops; None without a numba that works here, or while another thread compiles."""
    if not _loaded and _loading.acquire(blocking=False):
        try:
            if not _loaded:
                _loaded.append(_compile())
        finally:
            _loading.release()
    return _loaded[0] if _loaded else None


def _compile() -> Loops | None:
    try:
        import numba

        if numba.config.DISABLE_JIT:
            return None
        tree, floats, rows = "float64[::1], int64[::1]", "float64[::1]", "int64[::1]"
        return Loops(
            numba.njit(f"float64({tree}, {floats}, {floats}, {rows}, {floats})")(find),
            numba.njit(f"Tuple((float64, int64))({tree}, {rows}, {floats}, float64, int64)")(update),
        )
    except Exception as error:  # not installed, not for this NumPy or processor: NumPy does the same
        logging.getLogger(__name__).debug("priorities are drawn without numba: %s: %s", type(error).__name__, error)
        return None
