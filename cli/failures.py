"""Describes exceptions to the user: rbdata's own errors, errors of the system, and bugs."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any

from ..errors import RbdataError

INTERRUPTED = 130
#: What stands for the file in errors of stdout.
STANDARD_OUTPUT = "standard output"


class Interrupted(RbdataError):
    """Ctrl-C: the message says what is kept, the hint how to continue."""

    code = "interrupted"
    exit_code = INTERRUPTED


@dataclass(frozen=True)
class Failure:
    """A printable error: a stable code for programs, message and hint (one line each), the exit code.

    ``detail`` is the traceback of a user's own function, if that function failed.
    """

    code: str
    message: str
    hint: str | None
    exit_code: int
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        record = {"code": self.code, "message": self.message, "hint": self.hint}
        return {**record, "detail": self.detail} if self.detail else record


_PERMISSION = ("permission", "check the owner and permissions, or choose another folder with --root or RBDATA_ROOT")

#: Errors of the operating system, by errno: (code, hint).
_SYSTEM = {
    errno.ENOSPC: ("disk_full", "free some space and run the same command again: what is finished is kept"),
    errno.EDQUOT: ("disk_full", "the disk quota is used up; free some space and run the same command again"),
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: ("read_only", "choose another folder with --root or RBDATA_ROOT"),
    errno.EMFILE: ("too_many_files", "allow more open files (ulimit -n 4096), or lower --procs"),
    errno.ENFILE: ("too_many_files", "the system has too many open files; lower --procs"),
    errno.EFBIG: ("file_too_large", "allow larger files (ulimit -f unlimited), or choose a file system that has them"),
    errno.EIO: ("io", "the disk reports an error; `rbdata verify ID` shows which files are damaged"),
    errno.ENAMETOOLONG: ("name_too_long", "choose a shorter name, or a --root with a shorter path"),
    errno.ENOMEM: ("memory", "lower --procs or use smaller batches"),
}


def explain(error: BaseException) -> Failure:
    """The failure to print for an exception."""
    if isinstance(error, RbdataError):
        message, hint = vars(error).get("command_line", (error.message, error.hint))
        return Failure(error.code, message, hint, error.exit_code, getattr(error, "detail", None))
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", "interrupted", None, INTERRUPTED)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return Failure("memory", "out of memory", _SYSTEM[errno.ENOMEM][1], 1)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # out of memory, or a limit
        return Failure("memory", "the system allows no further thread", _SYSTEM[errno.ENOMEM][1], 1)
    from ..storage.durable import system_error

    error = system_error(error) or error
    if isinstance(error, OSError) and error.errno is not None:
        what = error.strerror or str(error)
        message = f"{what}: {error.filename}" if error.filename else what
        code, hint = _SYSTEM.get(error.errno, ("system", "--debug shows the traceback"))
        if error.filename == STANDARD_OUTPUT:
            hint = "what the command prints cannot be written where it goes: make room there, or send it elsewhere"
        elif "usable temporary directory" in what:
            hint = "set TMPDIR to a folder that can be written"
        elif message == os.strerror(errno.ENOENT):
            message, hint = "the working directory was removed", "change to another folder (cd), or back to it"
        return Failure(code, message, hint, 1)
    failure = _argument_failure(error)
    if failure:
        return failure
    if isinstance(error, SystemExit):
        message = f"code that rbdata called ended the program: SystemExit({error})"
        return Failure("failed", message, "it must raise an error, or return; --debug shows where", 1)
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Failure("internal", message, "this is a bug in rbdata; --debug shows the traceback", 1)


def _argument_failure(error: BaseException) -> Failure | None:
    """Typer's errors about arguments. Depending on its version they come from the package click or from Typer's own copy."""
    import typer

    usage_error, click_error = typer.BadParameter.__mro__[1:3]
    if not isinstance(error, click_error):
        return None
    complaint: Any = error
    # Typer checks values with pydantic, which says of some messages that they are of a ValueError.
    message = " ".join(complaint.format_message().replace("Value error, ", "").split())
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path if context else 'rbdata COMMAND'} --help` shows the usage"
    if message == "Missing argument 'ID'.":
        hint = f"name a dataset, as `rbdata list` shows them; {hint}"
    elif message.startswith(("Missing command", "No such command")) and "Did you mean" not in message:
        hint = f"commands: {', '.join(context.command.commands)}; {hint}" if context else hint
    return Failure("usage", message, hint, 2 if isinstance(error, usage_error) else complaint.exit_code)
