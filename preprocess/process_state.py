"""What a user's function may change of the process that calls it, put back: results do not depend on which calls came before in
the same process, and in Python the caller finds the process as it was.
"""

from __future__ import annotations

import decimal
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch

from .run_config import CallerSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class unchanged_process:
    """Around calls: default dtype, default device, gradients and the current directory are restored.

    A process that the function forked ends here: it must not do the work of this one a second time. (A class, as it is
    faster than a generator.)
    """

    __slots__ = ("_before", "_pid")

    def __enter__(self) -> None:
        self._pid, self._before = os.getpid(), _settings()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
        dtype, device, gradients, folder = self._before
        if _settings() == self._before:
            return
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if _default_device() is not device:
            torch.set_default_device(None if device is None else device.device)
        if folder is not None:
            with suppress(OSError):
                os.chdir(folder)


def _settings() -> tuple[torch.dtype, Any, bool, str | None]:
    try:
        folder = os.getcwd()  # noqa: PTH109  (Path.cwd takes five times as long)
    except OSError:  # it was removed
        folder = None
    return torch.get_default_dtype(), _default_device(), torch.is_grad_enabled(), folder


def _default_device() -> Any:
    """What torch keeps of `torch.set_default_device`, None where it was not called; to ask torch takes ten times as long."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


@contextmanager
def as_caller(settings: CallerSettings) -> Iterator[None]:
    """In a worker: the settings of the process that asked for the run."""
    if settings == CallerSettings.read():
        yield
        return
    dtype, context = torch.get_default_dtype(), decimal.getcontext()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        torch.set_default_dtype(getattr(torch, settings.dtype or "float32"))
        torch.use_deterministic_algorithms(bool(settings.deterministic))
        if settings.decimal is not None:
            *values, traps = settings.decimal
            prec, rounding, low, high, capitals, clamp = values
            raised = [getattr(decimal, name) for name in traps]
            decimal.setcontext(decimal.Context(prec, rounding, low, high, capitals, clamp, traps=raised))
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic)
        decimal.setcontext(context)


@contextmanager
def unchanged_program() -> Iterator[None]:
    """Around many calls: what only matters to the caller is restored. Threads of torch, NumPy's errors, filters of warnings,
    signal handlers, standard streams. ``os._exit`` raises: the process would end without a word, and with any exit code.
    """
    pid, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() == pid and threading.current_thread() is threading.main_thread():
            raise SystemExit(f"os._exit({status})")
        leave(status)

    threads, errors, filters = torch.get_num_threads(), np.geterr(), warnings.filters[:]
    streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    handlers: dict[Any, Any] = {one: signal.getsignal(one) for one in _SIGNALS}
    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave
        torch.set_num_threads(threads)
        np.seterr(**errors)
        if warnings.filters != filters:
            warnings.filters[:] = filters  # type: ignore[index]
        for name, stream in streams.items():
            setattr(sys, name, stream)
        if threading.current_thread() is threading.main_thread():
            for one, handler in handlers.items():
                if handler is not None and signal.getsignal(one) is not handler:
                    signal.signal(one, handler)
