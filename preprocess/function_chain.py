"""The functions of a run, found and looked at: all that has to be known of them where they are not called.

Finding a function runs the user's module, which loads torch as a rule. Where workers do that anyway, one of them looks
(`tasks.Examine`), and the process that hands out the work needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from .arguments import assign
from .function import Function, Per, check_call, fit_of, how_to_run, is_blind


@dataclass(frozen=True)
class Program:
    """Functions with their arguments, one after the other; small and picklable.

    ``per`` is what they are given at a time, ``identities`` is what the lineage says of each, ``passes`` whether it needs to
    see all of the data first; the first ``blind`` of them work without observations.
    """

    functions: tuple[Function, ...]
    per: Per
    identities: tuple[dict[str, Any], ...]
    passes: tuple[bool, ...]
    blind: int


def examine(
    given: Sequence[str | Callable[..., Any]], args: Mapping[str, Any], folder: Path, per: Per | None
) -> Program:
    """Find the functions and see whether they can be called so.

    Raises FunctionNotFoundError, FunctionError for a module that cannot be loaded, UsageError for what is no function, takes
    other arguments or needs to be given something else than ``per``.
    """
    functions = tuple(assign([Function.find(one, folder) for one in given], args))
    for fn in functions:
        check_call(fn)
    return Program(
        functions,
        how_to_run(functions, per),
        tuple(fn.identity() for fn in functions),
        tuple(fit_of(fn) is not None for fn in functions),
        sum(1 for _ in takewhile(is_blind, functions)),
    )
