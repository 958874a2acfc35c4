"""The exceptions that `rbdata` raises.

All derive from ``RbdataError``, and most also from the built-in exception for the same kind of error (a missing dataset is
a ``FileNotFoundError``, a wrong argument a ``ValueError``). Each has a stable ``code`` for programs (``--json`` prints it),
a ``hint`` for the user, and the exit code of the command line.

The message says what failed and for which id, file or URL; the hint says what to do about it. ``str(error)`` has both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

#: The login in a URL, and parameters that give access by themselves, as in the signed URLs of stores (``X-Amz-Signature=``).
_LOGIN = re.compile(r"""(:/{1,2})[^/\s"'<>]+@""")
_SECRET = re.compile(
    r"""([?&#](?:[\w-]*(?:token|signature|secret|password|credential|api_?key)|sig|key)=)[^&#\s"'<>]+""", re.I
)
#: Characters that control a terminal or change the order of text: control characters, direction marks, lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: Limit in characters of a message, which may quote megabytes of a file.
_LONGEST = 8000


def without_logins(text: str) -> str:
    """Return a text with ``***`` instead of logins, tokens and signatures in URLs: messages end up in logs and bug reports."""
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1***@", text))


def printable(text: str) -> str:
    """Untrusted text (names, notes, messages of servers) with control characters except tabs and newlines as escapes
    (``\\x1b``)."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _shown(text: str) -> str:
    """A message as shown: without logins and control characters, long ones shortened in the middle."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 4 :]}"
    return printable(without_logins(text))


class RbdataError(Exception):
    """Base of all errors raised by rbdata.

    Messages and hints read the same in a shell and in Python: an option ``--env-id`` is the argument ``env_id`` there.
    """

    code = "failed"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Messages quote files and servers, and end up on terminals and in logs.
        super().__init__(_shown(message))
        self.hint = None if hint is None else _shown(hint)

    @property
    def message(self) -> str:
        """What failed, without the hint."""
        # OSError formats its arguments in its own way; the message is always the first one.
        return str(self.args[0]) if self.args else type(self).__name__

    def __str__(self) -> str:
        """Message and hint on separate lines, for tracebacks."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


def page(name: str) -> str:
    """Return the path of a page of the docs, such as ``mirrors.md``, in the installed package."""
    return str(Path(__file__).parent / "docs" / name)


def reason(error: BaseException) -> str:
    """Return an error as part of another one's message: its text, without the hint."""
    return error.message if isinstance(error, RbdataError) else str(error)


class UsageError(RbdataError, ValueError, TypeError):
    """An argument is invalid, arguments contradict each other, or what they name cannot be found."""

    code, exit_code = "usage", 2


class DatasetNotFoundError(UsageError, FileNotFoundError):
    """There is no dataset: no source has the id, it is ambiguous, or what is there is none that this rbdata can read."""

    code = "not_found"


class UnknownKeyError(UsageError, KeyError, IndexError):
    """What is selected is not there: no leaf of this name, no step, episode or record of this number."""

    code = "unknown_key"


class MissingExtraError(RbdataError, ImportError):
    """An optional dependency is not installed, or a source of another package cannot be imported."""

    code = "missing_extra"


# -- locations and objects ------------------------------------------------------------------------------------------


class FetchError(RbdataError, OSError):
    """An object could not be fetched."""

    code = "fetch"
    #: The HTTP status that caused the error, None if there was none.
    status: int | None = None


class ForbiddenError(FetchError, PermissionError):
    """Access denied (HTTP 401, 403); not retried."""

    code = "forbidden"


class ObjectNotFoundError(FetchError, FileNotFoundError):
    """No such object, folder, bucket or mirror (404)."""

    code = "object_not_found"
    #: Whether the dataset is there, without a part of it that was asked for.
    partly_there: bool = False


class TransientFetchError(FetchError, ConnectionError):
    """The connection failed or timed out, or the server is temporarily unavailable; a retry may succeed."""

    code = "connection"
    #: Seconds that the server asked to wait before a retry, None if it did not.
    retry_after: float | None = None
    #: Whether the host name could not be resolved.
    unresolved: bool = False


class ChecksumError(FetchError, ValueError):
    """The received bytes are not the object that was found: size, checksum or version differ."""

    code = "checksum"


class CorruptSourceError(RbdataError, ValueError):
    """The content of a raw file is invalid (format, dtype, shape, length)."""

    code = "corrupt_source"


# -- datasets ----------------------------------------------------------------------------------------------------


class DamagedDatasetError(RbdataError, ValueError):
    """A dataset's files do not match its manifest."""

    code = "damaged"


class DatasetExistsError(RbdataError, FileExistsError):
    """A different dataset of this id exists, or is ``unfinished``: started with other options or from other data."""

    code = "exists"

    def __init__(self, message: str, *, hint: str | None = None, unfinished: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.unfinished = unfinished


class DatasetBusyError(RbdataError, BlockingIOError):
    """Another process is writing this dataset."""

    code = "busy"
    #: Whether the other process still holds the resource; None if waiting is useless.
    is_held: Callable[[], bool] | None = None


class DiskError(RbdataError, OSError):
    """The disk or the folder cannot hold the data: too little space, a limit that is too small, not writable."""

    code = "disk"


class SchemaError(RbdataError, ValueError):
    """Keys, dtypes, shapes or values that the format or a spec does not allow, or that differ from those before."""

    code = "schema"


class SamplingError(RbdataError, ValueError, RuntimeError):
    """The requested batch cannot be drawn from this dataset."""

    code, exit_code = "sampling", 2


class ReadOnlyError(RbdataError, RuntimeError):
    """A write to a dataset, or to a buffer over one: both are read-only."""

    code, exit_code = "read_only", 2


# -- users' functions --------------------------------------------------------------------------------------------


class FunctionError(RbdataError, RuntimeError):
    """A user's function raised an exception; ``detail`` is its traceback, as text."""

    code = "function"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.detail = detail


class WorkerLostError(RbdataError, RuntimeError):
    """A worker process was killed, perhaps by the system because of low memory."""

    code = "worker_lost"


# -- warnings ----------------------------------------------------------------------------------------------------


class PluginWarning(UserWarning):
    """A source of another package is ignored, for the reason in the message."""


class ExportWarning(UserWarning):
    """The format of an export cannot hold all of a dataset; the message says what is left out."""
