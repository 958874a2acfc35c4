"""Checks of arguments. They may come from the command line, so types are checked as well. All raise UsageError."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...errors import UsageError


def number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """``value`` as a finite float in ``[low, high]``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{name} must be a number, and is {value!r}")
    if not low <= value <= high:
        raise UsageError(f"{name} must lie in [{low:g}, {high:g}], and is {value!r}")
    return float(value)


def positive(name: str, value: object, high: float = math.inf) -> float:
    """``value`` as a finite float in ``(0, high]``."""
    checked = number(name, value, high=high)
    if checked <= 0:
        raise UsageError(f"{name} must be more than 0, and is {value!r}")
    return checked


def whole(name: str, value: object, low: int = 0, high: float = math.inf) -> int:
    """``value`` as an int in ``[low, high]``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, and is {value!r}")
    if value < low:
        raise UsageError(f"{name} must be at least {low}, and is {value}")
    if value > high:
        raise UsageError(f"{name} must be at most {high:,}, and is {value}")
    return value


def boolean(name: str, value: object) -> bool:
    """``value`` as a bool."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false, and is {value!r}")
    return value


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """``value`` as one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{name} is {value!r}, not one of {', '.join(choices)}")
    return value


def key_list(name: str, value: object) -> list[str] | None:
    """Return paths from a string separated by commas, or from a list of paths and tuples; None stays None."""
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not parts:
        raise UsageError(f"{name} must be one key or several, and is {value!r}")
    paths = []
    for part in parts:
        path = "/".join(map(str, part)) if isinstance(part, (tuple, list)) else part
        if not isinstance(path, str) or not path.strip():
            raise UsageError(f"{name} must hold keys like 'observation/pixels', not {part!r}")
        path = path.strip().strip("/")
        if path == "next" or path.startswith("next/"):
            message = f"{name} holds {path!r}: a key also selects its successor"
            raise UsageError(message, hint=f"leave out next/: {path[5:] or 'observation'}")
        paths.append(path)
    return paths


def bounds(check: Callable[[str, object], object], **limits: object) -> None:
    """Two optional numbers, each valid for ``check``, the first not above the second."""
    for name, value in limits.items():
        if value is not None:
            check(name, value)
    (low_name, low), (high_name, high) = limits.items()
    if low is not None and high is not None and low > high:  # type: ignore[operator]
        raise UsageError(f"{low_name}={low} is more than {high_name}={high}: nothing would be left")
