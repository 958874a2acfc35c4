"""Readers that crash, hang or take all memory, for `Sandbox` to call. A fork server finds them in a module of sys.path."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import numpy as np
from rbdata.errors import UsageError


def add(subject, on_progress, number):
    on_progress(number, 10)
    return subject + number


def crash(*_):
    ctypes.string_at(0)


def abort(*_):
    os.abort()


def leave(*_):
    os._exit(3)


def be_killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(*_):
    while True:
        pass


def sleep(*_):
    time.sleep(1000)


def swallow(*_):
    kept = []
    while True:
        kept.append(np.ones(1 << 24))


def answer_at_length(*_):
    return bytes(400 << 20)


def refuse(*_):
    raise UsageError("no", hint="yes")


def be_wrong(*_):
    raise ZeroDivisionError("a fault of ours")


def raise_what_cannot_be_sent(*_):
    class Local(Exception):
        pass

    raise Local("no")
