"""Every error `rbdata` raises on purpose.

One base class, so that ``except rbdata.RbdataError`` catches them all; each kin is also the built-in a caller would have
caught anyway (a missing dataset is a ``FileNotFoundError``, a wrong argument a ``ValueError``). An error carries a stable
``code`` for programs (``--json`` prints it), a ``hint`` that says what to try next, and the exit code the command line
ends with.

The message says what failed and for which id, file or URL; the hint says what to do about it.
"""

from __future__ import annotations


class RbdataError(Exception):
    """Base of all errors raised by rbdata."""

    code = "failed"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        # OSError formats its arguments in its own way; the message is always the first one.
        return str(self.args[0]) if self.args else type(self).__name__


class UsageError(RbdataError, ValueError):
    """The arguments make no sense, alone or together."""

    code = "usage"
    exit_code = 2


class UnknownDatasetError(UsageError):
    """No source knows this id (or more than one does)."""

    code = "unknown_dataset"


class UnknownKeyError(UsageError, KeyError):
    """There is no leaf of this name."""

    code = "unknown_key"


class MissingExtraError(RbdataError, ImportError):
    """An optional dependency is not installed; the hint names the extra."""

    code = "missing_extra"


class PluginError(RbdataError, ImportError):
    """A source that another package registers cannot be imported, or is no source."""

    code = "plugin"


class PluginWarning(UserWarning):
    """A source that another package registers is left out, for the reason in the message."""


# -- places and objects ------------------------------------------------------------------------------------------


class FetchError(RbdataError, OSError):
    """A source object could not be had."""

    code = "fetch"


class ForbiddenError(FetchError, PermissionError):
    """The server refuses (401, 403): trying again will not help."""

    code = "forbidden"


class ObjectNotFoundError(FetchError, FileNotFoundError):
    """No such object, folder, bucket or mirror (404)."""

    code = "object_not_found"


class TransientFetchError(FetchError, ConnectionError):
    """The connection broke, timed out, or the server asked to come back later: trying again may help."""

    code = "connection"

    #: Seconds the server asked to wait before the next try, where it did.
    retry_after: float | None = None


class ObjectChangedError(FetchError):
    """The object was replaced at the source while it was being read."""

    code = "object_changed"


class ChecksumError(FetchError, ValueError):
    """The bytes received are not the bytes the source states."""

    code = "checksum"


class CorruptSourceError(RbdataError, ValueError):
    """A provider's file arrived as stored but does not hold what it must (wrong format, dtype, shape, length)."""

    code = "corrupt_source"


# -- dataset folders ---------------------------------------------------------------------------------------------


class DatasetNotFoundError(RbdataError, FileNotFoundError):
    """The dataset is not on this machine."""

    code = "not_found"


class NotADatasetError(RbdataError, ValueError):
    """The folder exists but holds no (complete) rbdata dataset."""

    code = "not_a_dataset"


class FormatVersionError(NotADatasetError):
    """The folder was written by a newer rbdata."""

    code = "newer_format"


class DamagedDatasetError(RbdataError, ValueError):
    """A dataset's files do not match its manifest."""

    code = "damaged"


class DatasetExistsError(RbdataError, FileExistsError):
    """The dataset is already there, and is not what was asked for."""

    code = "exists"


class DatasetBusyError(RbdataError, BlockingIOError):
    """Another process is writing this dataset."""

    code = "busy"


class DiskSpaceError(RbdataError, OSError):
    """Not enough free disk for what is to be written."""

    code = "disk_space"


class RootNotWritableError(RbdataError, PermissionError):
    """The root folder cannot be written to."""

    code = "root_not_writable"


class SchemaError(RbdataError, ValueError):
    """Keys, dtypes or shapes outside what the dataset format allows or the schema says."""

    code = "schema"


class InvariantError(RbdataError, ValueError):
    """The data break one of TED's invariants."""

    code = "invariant"


class SamplingError(RbdataError, ValueError):
    """The batch asked for cannot be drawn from this dataset."""

    code = "sampling"
    exit_code = 2


# -- preprocessing -----------------------------------------------------------------------------------------------


class FunctionNotFoundError(UsageError, ImportError):
    """A preprocessing function is not where it was said to be."""

    code = "function_not_found"


class FunctionError(RbdataError, RuntimeError):
    """A user's function raised; ``detail`` is its own traceback, as text."""

    code = "function"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.detail = detail


class ResultError(RbdataError, ValueError):
    """A user's function returned something that cannot be stored, or other keys, dtypes or shapes than before."""

    code = "result"


class WorkerLostError(RbdataError, RuntimeError):
    """A worker process was killed, perhaps by the system for want of memory."""

    code = "worker_lost"


# ----------------------------------------------------------------------------------------------------------------


class ReadOnlyError(RbdataError, RuntimeError):
    """A write to something that is only read: a dataset, or a buffer over one."""

    code = "read_only"
    exit_code = 2
