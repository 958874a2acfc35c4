"""Functions looked up by name.

    pkg.mod:fn        a module that can be imported; the current directory is searched last
    path/file.py:fn   a file; it may import modules beside it
    rbdata:NAME       a built-in function

``fn`` may be a dotted path (``Class.method``). Workers look functions up themselves, in the folder of the command, so that the
user's code need not be sent to them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...datasets.user_code.loading import load_module
from ...errors import FunctionNotFoundError, UsageError
from . import find_builtin

_FORMS = "write pkg.mod:function, file.py:function, or rbdata:NAME"


def is_builtin_name(text: str) -> bool:
    """Whether ``text`` names a built-in function, ``rbdata:NAME``."""
    return text.startswith("rbdata:")


def find_function(text: str, folder: Path) -> Callable[..., Any]:
    """The function that ``text`` names, relative to ``folder``.

    Raises UsageError for text of another form and for objects that cannot be called, and what `load_module` raises.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{text!r} names no function", hint=_FORMS)
    if is_builtin_name(text):
        return find_builtin(name)
    module = load_module(where, folder, text, _FORMS)
    found: Any = module
    for part in name.split("."):
        owner = found
        found = getattr(owner, part, None)
        if found is None:
            message = f"there is no {part!r} in {getattr(module, '__file__', None) or where}"
            raise FunctionNotFoundError(message, hint=_suggest(part, owner))
    if not callable(found):
        raise UsageError(f"{text} is of type {type(found).__name__} and cannot be called", hint=_FORMS)
    return found


def _suggest(name: str, owner: Any) -> str:
    callables = [one for one in dir(owner) if not one.startswith("_") and callable(getattr(owner, one, None))]
    near = difflib.get_close_matches(name, callables, n=3) or callables[:6]
    return f"there are {', '.join(near)}" if near else "it holds nothing that can be called"
