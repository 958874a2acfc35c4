"""When to try again: a pure decision, and the loop that acts on it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ...errors import TransientFetchError
from ..waits import announce
from .location import FetchOptions

T = TypeVar("T")

# Seconds; if a server asks for a longer wait, there is no retry.
LONGEST_WAIT = 300.0
# Attempts at a host whose name does not resolve, unless this process has reached it before: a wrong name stays wrong, whereas
# names that were known a minute ago are unknown while the network is down.
MOST_LOOKUPS = 3
# Hosts, with their schemes, that answered this process.
_reached: set[str] = set()


@dataclass(frozen=True)
class Retry:
    """A retry about to be made, as passed to `on_retry` callbacks."""

    url: str
    offset: int
    """Byte of the object from which it continues."""
    failures: int
    """Failures in a row without a new byte, this one included."""
    attempts: int
    """Failures in a row after which there is no further retry."""
    wait: float
    """Seconds until the next attempt."""
    error: TransientFetchError


def wait_before_retry(failures: int, options: FetchOptions, *, asked: float | None, jitter: float) -> float | None:
    """Seconds to wait after the `failures`-th failure in a row; None to give up.

    Exponential and capped. `jitter` (0 to 1) spreads it over the upper half, so that many workers do not retry at the
    same time. `asked` (Retry-After, in seconds) is a lower bound.
    """
    if failures >= options.attempts:
        return None
    if asked is not None and asked > LONGEST_WAIT:
        return None
    full = min(options.backoff_cap, options.backoff * 2.0 ** min(failures - 1, 60))
    return max(full * (0.5 + 0.5 * jitter), asked or 0.0)


def next_try(error: TransientFetchError, url: str, offset: int, failures: int, options: FetchOptions) -> Retry:
    """The retry to make after this failure, which is announced (`waits`).

    Raises the error with the number of attempts if there is none to make.
    """
    asked = error.retry_after
    wait = wait_before_retry(failures, options, asked=asked, jitter=random.random())
    if wait is not None:
        why = error.message.removeprefix(url).lstrip(": ")
        announce(f"{why}: retry {failures} of {options.attempts - 1} in {wait:.1f} s", wait)
        return Retry(url, offset, failures, options.attempts, wait, error)
    if failures >= options.attempts:
        why = f"gave up after {failures} attempt{'s' if failures > 1 else ''}"
    else:
        why = f"the server asks to wait {asked:.0f} seconds"
    raise TransientFetchError(f"{error.message}; {why}", hint=error.hint) from error


def call_with_retries(call: Callable[[], T], *, url: str, options: FetchOptions) -> T:
    """The result of `call`, which is repeated while it raises TransientFetchError, as often as `options` allow;
    at most `MOST_LOOKUPS` times where the name of a new host does not resolve."""
    failures, host = 0, "/".join(url.split("/", 3)[:3])
    while True:
        try:
            result = call()
            _reached.add(host)
            return result
        except TransientFetchError as error:
            failures += 1
            if error.unresolved and host not in _reached:
                options = replace(options, attempts=min(options.attempts, MOST_LOOKUPS))
            retry = next_try(error, url, 0, failures, options)
        time.sleep(retry.wait)
