"""Whether a process that left something behind is still there."""

from __future__ import annotations

import os


def is_running(pid: int) -> bool:
    """Whether there is a process of this number on this machine, of any user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's
    return True
