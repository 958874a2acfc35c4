"""Failed requests and retries: options, rbdata's errors for those of the libraries, waits between attempts.

A failure is transient or permanent; a transient one is retried as `FetchOptions` say. There is one retry for all places, since
a stream continues at its byte, and every wait is announced (`announce`) to a listener of the process (`listen`): the progress
display, or in a worker process the code that reports them to its parent. The libraries' own retries are off.
"""

from __future__ import annotations

import errno
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar, cast

from ...errors import (
    ChecksumError,
    FetchError,
    ForbiddenError,
    MissingExtraError,
    ObjectNotFoundError,
    RbdataError,
    TransientFetchError,
)

T = TypeVar("T")

#: Bytes per second: a connection that delivered fewer made no progress, and counts as a further failure when it is lost.
MIN_RATE = 1024
#: Seconds to wait for a connection.
CONNECT_TIMEOUT = 10.0
# Seconds: the longest wait, unless the server asks for a longer one; and the longest for which it may ask.
_BACKOFF_CAP, _LONGEST_WAIT = 30.0, 300.0
# Attempts at a host whose name does not resolve. A host that this process has reached before gets all attempts: its name is
# right, and the network is down.
_MAX_LOOKUPS = 3
# Hosts, with their schemes, that answered this process.
_reached: set[str] = set()


@dataclass(frozen=True)
class FetchOptions:
    """Retries, time-outs and credentials of requests."""

    attempts: int = 6
    """Failures in a row without progress after which there is no retry."""
    backoff: float = 0.5
    """Seconds to wait after the first failure; doubles with each further one."""
    silence_timeout: float = 60.0
    """Seconds without a byte after which a connection is considered lost."""
    user_project: str | None = None
    """Google Cloud project billed for requester-pays buckets."""

    @property
    def timeouts(self) -> tuple[float, float]:
        """For connecting and between two bytes, as requests and Google's client expect them."""
        return CONNECT_TIMEOUT, self.silence_timeout


LATER = "try again later, or use another mirror (--mirror)"
DENIED = "log in, ask the owner for access, or use another mirror (--mirror)"
MISSING = "check the spelling; a mirror must have the provider's layout"
OTHER = "use another mirror (--mirror)"
NO_RANGES = f"the server does not support byte ranges: {OTHER}"


def transient(message: str, *, hint: str = LATER, retry_after: float | None = None) -> TransientFetchError:
    """A temporary failure. `retry_after`: seconds that the server asks to wait."""
    error = TransientFetchError(message, hint=hint)
    error.retry_after = retry_after
    return error


def replaced(url: str, change: str = "") -> ChecksumError:
    """The error for an object that the location has in another version; ``change`` states the difference."""
    message = f"{url} was replaced while it was being read" + (f": {change}" if change else "")
    return ChecksumError(message, hint="run the command again; the bytes of the old version are discarded")


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """The Retry-After header, a number or a date, in seconds from now."""
    if "Retry-After" not in headers:
        return None
    from urllib3 import Retry as Policy
    from urllib3.exceptions import InvalidHeader

    with suppress(InvalidHeader, ValueError, OverflowError):
        return Policy().parse_retry_after(headers["Retry-After"])
    return None


def status_error(status: int, url: str, headers: Mapping[str, str], *, explanation: str = "") -> FetchError:
    """The error for an HTTP status that is not success; `explanation` is the server's."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "")
    text = f"access denied (HTTP {status})" if status in (401, 403) else f"HTTP {status} {phrase}".strip()
    message = f"{url}: {text}" + (f": {explanation}" if explanation else "")
    error: FetchError
    if status in (401, 403, 407):
        error = ForbiddenError(message, hint=DENIED)
    elif status in (404, 410):
        error = ObjectNotFoundError(message, hint=MISSING)
    elif status in (408, 425, 429) or status >= 500:
        error = transient(message, retry_after=retry_after_seconds(headers))
    else:
        error = FetchError(message, hint=f"check the URL, or {OTHER}")
    error.status = status
    return error


def fetch_error(error: Exception, url: str) -> RbdataError:
    """rbdata's error for one of the system, or of a library that reads ``url``. Raises MemoryError unchanged."""
    if isinstance(error, RbdataError):
        return error
    if isinstance(error, MemoryError):
        raise error
    cause, response = reason(error), cast("Any", getattr(error, "response", None))
    kinds = {kind.__name__ for kind in type(error).__mro__}  # requests, urllib3 and botocore need not be imported
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return ObjectNotFoundError(f"{url}: no such file or folder", hint=MISSING)
    if isinstance(error, PermissionError) or kinds & NO_LOGIN:
        return ForbiddenError(f"{url}: access denied ({cause})", hint=DENIED)
    if isinstance(error, (ImportError, NotImplementedError)):  # fsspec's, for what a store needs or cannot do
        return MissingExtraError(f"{url}: {cause}", hint="pip install 'rbdata[remote]'")
    if isinstance(error, OSError) and error.filename is not None and error.errno not in _TEMPORARY:
        return FetchError(f"{url}: {cause}", hint="check the disk or the mount")
    if "SSLError" in kinds:
        hint = "check the clock and the certificates of this machine (REQUESTS_CA_BUNDLE)"
        return FetchError(f"{url}: TLS connection failed ({cause})", hint=hint)
    if kinds & _REDIRECTED:  # the user's address was checked, so this one came from the server
        what = "too many redirects" if "TooManyRedirects" in kinds else "redirected to an unusable address"
        return FetchError(f"{url}: {what}", hint=f"{OTHER}, and check the proxy settings of this machine")
    if isinstance(getattr(response, "status_code", None), int):
        return status_error(response.status_code, url, response.headers, explanation=_explanation(response))
    if isinstance(error, _MALFORMED):
        return transient(f"{url}: the server's response is malformed ({type(error).__name__}: {cause})")
    hint = "check the network and the host name, or use another mirror (--mirror)"
    failure = transient(f"{url}: the server did not answer ({cause})", hint=hint)
    failure.unresolved = isinstance(_innermost(error), socket.gaierror)
    return failure


# Errors of a network file system whose server is unavailable for a while.
_TEMPORARY = {errno.EAGAIN, errno.EINTR, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENETDOWN, errno.EHOSTDOWN}
#: botocore's errors if there are no credentials.
NO_LOGIN = {"NoCredentialsError", "PartialCredentialsError"}
# Those of requests for the address of a redirect.
_REDIRECTED = {"TooManyRedirects", "MissingSchema", "InvalidSchema", "InvalidURL"}
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise `fetch_error` in place of what libraries raise inside the block."""
    try:
        yield
    except RbdataError:
        raise
    except Exception as error:
        raise fetch_error(error, url) from error


def _explanation(response: Any) -> str:
    """A server's explanation of an error: of JSON, or a line of text; '' for anything else."""
    try:
        return str(response.json()["error"]["message"])
    except Exception:
        text = str(getattr(response, "text", "")).strip()
        return text if len(text) < 200 and "\n" not in text and "<" not in text else ""


def reason(error: BaseException) -> str:
    """The message of the innermost cause; the exceptions of requests and urllib3 around it have long and vague ones."""
    cause = _innermost(error)
    if type(cause).__name__ == "IncompleteRead":  # of http.client and of urllib3
        return f"{getattr(cause, 'expected', 'some')} bytes missing"
    text = str(getattr(cause, "strerror", None) or cause).strip()
    # urllib3 starts its messages with the object's address.
    text = text.partition(">: ")[2] or text
    return text.rstrip(".")[:160] or type(cause).__name__


def _innermost(error: BaseException) -> BaseException:
    cause = error
    for _ in range(8):
        inner = getattr(cause, "reason", None) or cause.__cause__ or cause.__context__
        if not isinstance(inner, BaseException):
            break
        cause = inner
    return cause


def failure_at(error: FetchError, url: str) -> str:
    """The reason for a failed request to a location, without its URL: "access denied (HTTP 403)"."""
    status = f" (HTTP {error.status})" if error.status else ""
    if isinstance(error, ForbiddenError):
        return f"access denied{status}"
    if isinstance(error, ObjectNotFoundError):
        return f"not found{status}"
    # Messages begin with the URL of the requested object.
    return error.message.partition(": ")[2] if error.message.startswith(url) else error.message


# -- retries ------------------------------------------------------------------------------------------------------------


#: Receives the reason of a wait, and its seconds.
WaitListener: TypeAlias = Callable[[str, float], None]

_listener: WaitListener = lambda text, seconds: None  # noqa: E731


def announce(text: str, seconds: float) -> None:
    """Report a wait: ``HTTP 503 Service Unavailable: retry 2 of 8 in 4.0 s``. Called in any thread."""
    _listener(text, seconds)


@contextmanager
def listen(listener: WaitListener) -> Iterator[None]:
    """Call ``listener`` with every wait of this process inside the block."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@dataclass(frozen=True)
class Retry:
    """A retry about to be made, as passed to `on_retry` callbacks."""

    offset: int
    """Byte of the object from which it continues."""
    failures: int
    """Failures in a row without a new byte, including this one."""
    wait: float
    """Seconds until the next attempt."""
    error: TransientFetchError


def wait_before_retry(failures: int, options: FetchOptions, *, asked: float | None, jitter: float) -> float | None:
    """Seconds to wait after the `failures`-th failure in a row; None to give up.

    Exponential and capped. `jitter` (0 to 1) spreads it over the upper half, so that many workers do not retry at the
    same time. `asked` (Retry-After, in seconds) is a lower bound.
    """
    if failures >= options.attempts or (asked or 0.0) > _LONGEST_WAIT:
        return None
    full = min(_BACKOFF_CAP, options.backoff * 2.0 ** min(failures - 1, 60))
    return max(full * (0.5 + 0.5 * jitter), asked or 0.0)


def next_retry(error: TransientFetchError, url: str, offset: int, failures: int, options: FetchOptions) -> Retry:
    """The retry after this failure, which is announced (`announce`).

    If there is no further attempt, raises the error with the number of attempts.
    """
    asked = error.retry_after
    wait = wait_before_retry(failures, options, asked=asked, jitter=random.random())
    if wait is not None:
        why = error.message.removeprefix(url).lstrip(": ")
        announce(f"{why}: retry {failures} of {options.attempts - 1} in {wait:.1f} s", wait)
        return Retry(offset, failures, wait, error)
    if failures >= options.attempts:
        why = f"gave up after {failures} attempt{'s' if failures > 1 else ''}"
    else:
        why = f"the server asks to wait {asked:.0f} seconds"
    raise TransientFetchError(f"{error.message}; {why}", hint=error.hint) from error


def call_with_retries(call: Callable[[], T], *, url: str, options: FetchOptions) -> T:
    """The result of `call`, which is repeated while it raises TransientFetchError, as often as `options` allow; at most
    `_MAX_LOOKUPS` times if the name of a host that was never reached does not resolve."""
    failures, host = 0, "/".join(url.split("/", 3)[:3])
    while True:
        try:
            result = call()
            _reached.add(host)
            return result
        except TransientFetchError as error:
            failures += 1
            if error.unresolved and host not in _reached:
                options = replace(options, attempts=min(options.attempts, _MAX_LOOKUPS))
            retry = next_retry(error, url, 0, failures, options)
        time.sleep(retry.wait)
