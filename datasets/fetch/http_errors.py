"""How a broken connection or an HTTP status becomes one of rbdata's errors: what can pass, and what cannot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import NoReturn

from ...errors import FetchError, ForbiddenError, ObjectNotFoundError, TransientFetchError, UsageError

LATER = "try again later, or use another mirror (--mirror)"
CLOSED = "log in or ask the owner for access, or use a mirror that is open to you (--mirror)"
MISSING = "check the spelling; the mirror must have the provider's own layout"


def transient(message: str, *, hint: str = LATER, retry_after: float | None = None) -> TransientFetchError:
    """A failure that may pass. `retry_after`: seconds the server asks to be left alone."""
    error = TransientFetchError(message, hint=hint)
    # Kept in the error's own dictionary, so that it survives the trip between processes.
    vars(error)["retry_after"] = retry_after
    return error


def retry_after(error: BaseException) -> float | None:
    """Seconds the server asked to be left alone, if it did."""
    value = vars(error).get("retry_after")
    return float(value) if isinstance(value, (int, float)) else None


def retry_after_seconds(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """The Retry-After header, a number or a date, in seconds from now."""
    text = headers.get("Retry-After")
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(0.0, date.timestamp() - (time.time() if now is None else now))


def status_error(status: int, url: str, headers: Mapping[str, str], *, said: str = "") -> FetchError:
    """The error for an HTTP status that is not success; `said` is the server's own explanation."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "")
    answer = f"{status} {phrase}".strip()
    message = f"{url}: the server answered {answer}" + (f" ({said})" if said else "")
    error = _status_error(status, message, headers)
    vars(error)["status"] = status
    return error


def status_of(error: BaseException) -> int | None:
    """The HTTP status the error stands for."""
    value = vars(error).get("status")
    return value if isinstance(value, int) else None


def _status_error(status: int, message: str, headers: Mapping[str, str]) -> FetchError:
    if status in (401, 403, 407):
        return ForbiddenError(message, hint=CLOSED)
    if status in (404, 410):
        return ObjectNotFoundError(message, hint=MISSING)
    if status in (408, 425, 429) or status >= 500:
        return transient(message, retry_after=retry_after_seconds(headers))
    return FetchError(message, hint="check the URL, or use another mirror (--mirror)")


def raise_network_error(error: Exception, url: str) -> NoReturn:
    """Raise our error for this one, or this one itself where it has nothing to do with the network."""
    translated = network_error(error, url)
    if translated is None or translated is error:
        raise error
    raise translated from error


def network_error(error: BaseException, url: str) -> FetchError | UsageError | None:
    """The error for an exception of requests, urllib3 or the socket; None for one that has nothing to do with them."""
    import http.client

    import requests
    import urllib3

    if isinstance(error, (FetchError, UsageError)):
        return error
    if isinstance(error, (requests.exceptions.SSLError, urllib3.exceptions.SSLError)):
        message = f"{url}: the secure connection was refused ({reason(error)})"
        return FetchError(message, hint="check the clock and the certificates of this machine (REQUESTS_CA_BUNDLE)")
    if isinstance(
        error, (requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL)
    ):
        message = f"{url}: not a URL that can be asked ({error})"
        return UsageError(
            message, hint="check the URL, the proxy settings and STORAGE_EMULATOR_HOST (http://host:port)"
        )
    if isinstance(error, requests.exceptions.TooManyRedirects):
        return FetchError(f"{url}: the server sends us in circles", hint="use another mirror (--mirror)")
    if isinstance(
        error, (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)
    ) or "timed out" in str(error):
        return transient(f"{url}: the server fell silent ({reason(error)})")
    if isinstance(
        error,
        (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError),
    ):
        hint = "check the network and the host name, or use another mirror (--mirror)"
        return transient(f"{url}: the connection broke ({reason(error)})", hint=hint)
    return None


def reason(error: BaseException) -> str:
    """The innermost cause in a few words: the wrappers of requests and urllib3 say little in many."""
    seen = error
    for _ in range(8):
        inner = getattr(seen, "reason", None) or seen.__cause__ or seen.__context__
        if not isinstance(inner, BaseException):
            break
        seen = inner
    if type(seen).__name__ == "IncompleteRead":  # of http.client and of urllib3
        return f"{getattr(seen, 'expected', 'some')} bytes were still to come"
    text = str(getattr(seen, "strerror", None) or seen).strip()
    # urllib3 starts its texts with the object's address.
    text = text.partition(">: ")[2] or text
    return text.rstrip(".")[:160] or type(seen).__name__
