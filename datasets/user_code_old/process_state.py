"""What users' code shares with its process: functions, policies and environments run one at a time, with the caller's settings.

The global random generators, the default dtype, the current directory, warning filters and standard streams are seeded or put
back around them. Between two threads, each would draw from the generators that the other has seeded. Which modules cloudpickle
sends by value is also kept for the whole process.

`CallerSettings.read` takes the settings of torch and Python that change what the code computes, of the process that asks for a
run. They are part of what identifies its result, and workers apply them (`as_caller`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from ...errors import UsageError

_turn, _pickling = threading.RLock(), threading.RLock()


@contextmanager
def own_turn() -> Iterator[None]:
    """Wait until no other thread of this process is in here."""
    with _turn:
        yield


@contextmanager
def pickled_by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Let cloudpickle send these modules by value, in one thread at a time."""
    import cloudpickle

    with _pickling, ExitStack() as stack:
        for one in modules:
            if one.__name__ not in cloudpickle.list_registry_pickle_by_value():  # or the program has registered it
                cloudpickle.register_pickle_by_value(one)
                stack.callback(cloudpickle.unregister_pickle_by_value, one)
        yield


def _after_fork() -> None:
    """In the child no other thread goes on, which might hold the locks."""
    global _turn, _pickling
    _turn, _pickling = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class CallerSettings:
    """Settings of a process; None for defaults."""

    dtype: str | None = None
    deterministic: bool | None = None
    decimal: tuple[Any, ...] | None = None
    flush_denormal: bool | None = None

    @staticmethod
    def check_autocast() -> None:
        """Raise UsageError inside ``torch.autocast``: it changes what user code computes, in this thread alone."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return
        one = torch.ones(1, 1, dtype=torch.float32, device="cpu")
        # The first is that of CUDA; torch 2.3 does not tell about "cpu" by the same name.
        if torch.is_autocast_enabled() or (one @ one).dtype is not torch.float32:
            message = "torch.autocast is on here, and functions, policies and environments are called without it"
            raise UsageError(message, hint="leave it before the call, or enter it inside the function or policy")

    @staticmethod
    def check() -> None:
        """Raise UsageError inside ``torch.autocast``, and for a default device of torch: data is in the memory of the machine,
        here and in workers."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return
        device = torch.empty(0).device
        if device.type != "cpu":
            message = f"the default device of torch is {device} here, and functions are called with cpu"
            hint = "torch.set_default_device(None) before it, and name the device inside the function"
            raise UsageError(message, hint=hint)
        CallerSettings.check_autocast()

    @classmethod
    def read(cls) -> CallerSettings:
        """The settings of this process. Modules that are not imported have their defaults."""
        torch: Any = sys.modules.get("torch")
        found: dict[str, Any] = {}
        if torch is not None:
            dtype = str(torch.get_default_dtype()).removeprefix("torch.")
            found["dtype"] = dtype if dtype != "float32" else None
            found["deterministic"] = torch.are_deterministic_algorithms_enabled() or None
        decimal: Any = sys.modules.get("decimal")
        if decimal is not None:
            values = [_decimal_values(context) for context in (decimal.getcontext(), decimal.Context())]
            found["decimal"] = values[0] if values[0] != values[1] else None
        found["flush_denormal"] = flushes_denormals() or None
        return cls(**found)

    def to_json(self) -> dict[str, str]:
        """The settings that are not the defaults."""
        return {name: str(value) for name, value in asdict(self).items() if value is not None}

    def changes(self, before: CallerSettings) -> dict[str, Any]:
        """The settings that differ from those ``before``."""
        return {name: value for name, value in vars(self).items() if value != vars(before)[name]}


def flushes_denormals() -> bool:
    """Whether this thread takes numbers next to zero for zero (``torch.set_flush_denormal``), which torch does not tell."""
    smallest = sys.float_info.min
    return smallest * float("0.5") == 0.0


def _decimal_values(context: Any) -> tuple[Any, ...]:
    traps = tuple(sorted(one.__name__ for one, is_set in context.traps.items() if is_set))
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps


@contextmanager
def as_caller(settings: CallerSettings) -> Iterator[None]:
    """In a worker: apply the settings of the process that requested the run."""
    import decimal

    import torch

    before = CallerSettings.read()
    if settings == before:
        yield
        return
    dtype, context = torch.get_default_dtype(), decimal.getcontext()
    try:
        torch.set_default_dtype(getattr(torch, settings.dtype or "float32"))
        torch.use_deterministic_algorithms(bool(settings.deterministic))
        torch.set_flush_denormal(bool(settings.flush_denormal))
        if settings.decimal is not None:
            *values, traps = settings.decimal
            prec, rounding, low, high, capitals, clamp = values
            raised = [getattr(decimal, name) for name in traps]
            decimal.setcontext(decimal.Context(prec, rounding, low, high, capitals, clamp, traps=raised))
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(bool(before.deterministic))
        torch.set_flush_denormal(bool(before.flush_denormal))
        decimal.setcontext(context)
