"""Functions looked up by name.

    pkg.mod:fn        a module that can be imported; the current directory is searched last
    path/file.py:fn   a file; it may import modules beside it
    rbdata:NAME       a built-in function

``fn`` may be a dotted path (``Class.method``). Workers look functions up themselves, in the folder of the command, so that the
user's code need not be sent to them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ...datasets.user_code_old.identity import content_hash
from ...datasets.user_code_old.loading import imported_from, is_for_request, load_fresh, load_module, run_again
from ...datasets.user_code_old.source_files import is_local_module
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
    return _find_in(load_module(where, folder, text, _FORMS), text)


def _find_in(module: ModuleType, text: str) -> Callable[..., Any]:
    where, _, name = text.rpartition(":")
    found: Any = module
    for part in name.split("."):
        owner = found
        found = getattr(owner, part, None)
        if found is None:
            message = f"there is no {part!r} in {getattr(module, '__file__', None) or where}"
            raise FunctionNotFoundError(message, hint=_suggest(part, owner))
    if not callable(found):
        raise UsageError(f"{text} is of type {type(found).__name__} and cannot be called", hint=_FORMS)
    function: Callable[..., Any] = found
    return function


def check_session(text: str, folder: Path) -> None:
    """Raise UsageError if modules of the function hold values in this process that differ from those that their files set.

    Other processes would run the function with the values from the files.
    """
    where, _, name = text.rpartition(":")
    if is_builtin_name(text) or not where or not name:
        return
    others = [load_fresh(where, folder, text, _FORMS), imported_from(where, folder) if where.endswith(".py") else None]
    if not any(others):
        return
    found = find_function(text, folder)
    try:
        is_same = all(content_hash(found) == content_hash(_find_in(one, text)) for one in others if one is not None)
    except (UsageError, FunctionNotFoundError):
        return  # reported when the function is identified, or not of the program's module
    if not is_same:
        message = f"{text} reads a variable that this program has set to something else than its file does"
        hint = "give the function as an object, which has the variables as they are now, or pass what changes as an argument"
        raise UsageError(message, hint=hint)


#: The modules of this process whose functions may have been called.
_used: set[str] = set()


def find_unused(named: Sequence[tuple[str, Path]]) -> list[Callable[..., Any]]:
    """The functions that texts name, each relative to a folder, from modules whose functions have not been called.

    A user's module runs again if an earlier `find_unused` returned functions of it, or if the program has imported it; other
    modules keep importing the first copy. Functions of one module share its state. Raises as `find_function`.
    """
    modules: dict[str, ModuleType] = {}
    functions = []
    for text, folder in named:
        if is_builtin_name(text):
            functions.append(find_function(text, folder))
            continue
        module = load_module(text.rpartition(":")[0], folder, text, _FORMS)
        name = module.__name__
        if name not in modules:
            is_used = name in _used or not is_for_request(name)
            modules[name] = run_again(module, text) if is_used and is_local_module(name) else module
            _used.add(name)
        functions.append(_find_in(modules[name], text))
    return functions


def _suggest(name: str, owner: Any) -> str:
    callables = [one for one in dir(owner) if not one.startswith("_") and callable(getattr(owner, one, None))]
    near = difflib.get_close_matches(name, callables, n=3) or callables[:6]
    return f"there are {', '.join(near)}" if near else "it holds nothing that can be called"
