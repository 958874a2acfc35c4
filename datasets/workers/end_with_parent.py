"""A process that the system kills when the process that started it ends, for whatever reason and at once."""

import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Ask for it; only on Linux. The parent is the thread that started this process: see prctl(2), PR_SET_PDEATHSIG."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
