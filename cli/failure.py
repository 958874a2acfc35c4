"""What went wrong, as the user is told: `explain` makes a message, a hint and an exit code of any exception."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any

from ..errors import RbdataError

INTERRUPTED = 130
#: The file name in errors about stdout.
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


_FULL = ("disk_full", "free some space and run the same command again: what is finished is kept")
_RIGHTS = ("permission", "check the owner and permissions, or choose another place: --root or RBDATA_ROOT for datasets")
_MEMORY = ("memory", "lower --procs or use smaller batches")
#: Errors of the operating system that a user can do something about, by errno: (code, hint).
_SYSTEM = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.EMFILE: ("too_many_files", "allow more open files (ulimit -n 4096), or lower --procs"),
    errno.EFBIG: ("file_too_large", "allow larger files (ulimit -f unlimited), or use another file system"),
    errno.ENAMETOOLONG: ("name_too_long", "choose a shorter name, or a --root with a shorter path"),
    errno.ENOMEM: _MEMORY,
}


def explain(error: BaseException) -> Failure:
    """Return the failure to print for an exception."""
    from ..storage.durable import system_error

    if isinstance(error, RbdataError):
        return Failure(error.code, error.message, error.hint, error.exit_code, getattr(error, "detail", None))
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", "interrupted", None, INTERRUPTED)
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "can't start new thread" in text:
        return Failure(_MEMORY[0], text or "out of memory", _MEMORY[1], 1)
    error = system_error(error) or error
    if isinstance(error, OSError) and error.errno is not None:
        what = error.strerror or str(error)
        code, hint = _SYSTEM.get(error.errno, ("system", "--debug shows the traceback"))
        if error.filename == STANDARD_OUTPUT:
            hint = "the command's output cannot be written: free space there, or redirect it"
        return Failure(code, f"{what}: {error.filename}" if error.filename else what, hint, 1)
    failure = _argument_failure(error)
    if failure:
        return failure
    if isinstance(error, SystemExit):
        message = f"code that rbdata called ended the program: SystemExit({error})"
        return Failure("failed", message, "it must raise an error, or return; --debug shows where", 1)
    return Failure(
        "internal", f"{type(error).__name__}: {text}", "this is a bug in rbdata; --debug shows the traceback", 1
    )


def _argument_failure(error: BaseException) -> Failure | None:
    """Typer's errors about arguments. Depending on its version they are classes of click or of Typer's copy of click."""
    import typer

    usage_error, click_error = typer.BadParameter.__mro__[1:3]
    if not isinstance(error, click_error):
        return None
    complaint: Any = error
    # Typer checks values with pydantic, which starts some messages with "Value error".
    message = " ".join(complaint.format_message().replace("Value error, ", "").split())
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path if context else 'rbdata COMMAND'} --help` shows the usage"
    if message == "Missing argument 'ID'.":
        hint = f"name a dataset, as `rbdata list` shows them; {hint}"
    elif message.startswith("Got unexpected extra argument") and context and context.info_name == "convert":
        hint = f"of several files give the folder: it becomes one dataset; {hint}"
    elif message.startswith(("Missing command", "No such command")) and "Did you mean" not in message:
        hint = f"commands: {', '.join(context.command.commands)}; {hint}" if context else hint
    return Failure("usage", message, hint, 2 if isinstance(error, usage_error) else complaint.exit_code)
