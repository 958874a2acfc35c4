"""From exceptions to what is said about them: one table for errors of our own, of the system, and of nobody's doing."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any

from ..errors import RbdataError

INTERRUPTED = 130


class Interrupted(RbdataError):
    """Ctrl-C: the message says what is kept, the hint how to go on."""

    code = "interrupted"
    exit_code = INTERRUPTED


@dataclass(frozen=True)
class Failure:
    """An error as it is told: a stable code for programs, at most two lines for people, the exit code.

    ``detail`` is the traceback of a user's own function, where that is what failed.
    """

    code: str
    message: str
    hint: str | None
    exit_code: int
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        record = {"code": self.code, "message": self.message, "hint": self.hint}
        return {**record, "detail": self.detail} if self.detail else record


#: What can be done about errors of the system, by errno: (code, hint).
_SYSTEM = {
    errno.ENOSPC: ("disk_full", "make room and run the same command again: what is finished is kept"),
    errno.EDQUOT: ("disk_full", "your quota is used up; what is finished is kept for the next run"),
    errno.EACCES: ("permission", "check who owns it, or choose another place with --root or RBDATA_ROOT"),
    errno.EPERM: ("permission", "check who owns it, or choose another place with --root or RBDATA_ROOT"),
    errno.EROFS: ("read_only", "choose another place with --root or RBDATA_ROOT"),
    errno.EMFILE: ("too_many_files", "allow more open files (ulimit -n 4096), or use fewer --procs"),
    errno.ENFILE: ("too_many_files", "the system has too many open files; use fewer --procs"),
    errno.EIO: ("io", "the disk reports an error; `rbdata verify` finds out which files suffered"),
    errno.ENOMEM: ("memory", "use fewer --procs or smaller batches"),
}


def explain(error: BaseException) -> Failure:
    """What to say about an exception."""
    if isinstance(error, RbdataError):
        return Failure(error.code, str(error), error.hint, error.exit_code, getattr(error, "detail", None))
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", "interrupted", None, INTERRUPTED)
    if isinstance(error, MemoryError):
        return Failure("memory", "out of memory", _SYSTEM[errno.ENOMEM][1], 1)
    if isinstance(error, OSError) and error.errno is not None:
        what = error.strerror or str(error)
        message = f"{what}: {error.filename}" if error.filename else what
        code, hint = _SYSTEM.get(error.errno, ("system", "--debug shows where it happened"))
        return Failure(code, message, hint, 1)
    wrong = _wrong_arguments(error)
    if wrong:
        return wrong
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Failure("internal", message, "this is a bug in rbdata; run it again with --debug to see where", 1)


def _wrong_arguments(error: BaseException) -> Failure | None:
    """Typer's complaints about the command line. Its Click is its own or the common one, depending on the version."""
    import typer

    usage_error, click_error = typer.BadParameter.__mro__[1:3]
    if not isinstance(error, click_error):
        return None
    told: Any = error
    message = " ".join(told.format_message().split())
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path} --help` shows how it is used" if context is not None else None
    return Failure("usage", message, hint, 2 if isinstance(error, usage_error) else told.exit_code)
