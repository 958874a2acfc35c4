"""From what a user typed to a function.

    pkg.mod:fn        an importable module; the current directory counts, last
    path/file.py:fn   a file; modules beside it can be imported, too
    rbdata:NAME       one of the functions that come with rbdata (`functions`)

``fn`` may be a dotted path (``Class.method``). Workers look functions up for themselves, in the folder the command was
given in: nothing of the user's code needs to be sent to them.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import FunctionError, FunctionNotFoundError, UsageError

READY = "rbdata"
_FORMS = "write pkg.mod:function, file.py:function, or rbdata:NAME"


def find_function(text: str, folder: Path) -> Callable[..., Any]:
    """The function that ``text`` names, seen from ``folder``.

    Raises FunctionNotFoundError saying where it was looked for, UsageError for what is no name of a function or cannot
    be called, FunctionError where the user's module itself fails.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{text!r} names no function", hint=_FORMS)
    if where == READY:
        return _ready(name)
    is_file = where.endswith(".py") or "/" in where
    module = _from_file(where, folder, text) if is_file else _from_module(where, folder, text)
    found: Any = module
    for part in name.split("."):
        owner = found
        found = getattr(owner, part, None)
        if found is None:
            message = f"there is no {part!r} in {getattr(module, '__file__', None) or where}"
            raise FunctionNotFoundError(message, hint=_near(part, owner))
    if not callable(found):
        raise UsageError(f"{text} is a {type(found).__name__}, not something that can be called", hint=_FORMS)
    return found


def _ready(name: str) -> Callable[..., Any]:
    from . import functions

    if name not in functions.READY:
        near = difflib.get_close_matches(name, functions.READY, n=3)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        message = f"rbdata has no function {name!r}"
        raise FunctionNotFoundError(message, hint=f"{meant}there are {', '.join(functions.READY)}")
    return functions.ready(name)


def _from_file(where: str, folder: Path, text: str) -> ModuleType:
    path = (folder / Path(where).expanduser()).resolve()
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = f"there are {', '.join(near[:6])}" if near else _FORMS
        raise FunctionNotFoundError(f"{text}: there is no file {path}", hint=hint)
    # A name of its own: a file called json.py must not become the module json.
    name = f"_rbdata_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    _importable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FunctionNotFoundError(f"{text}: {path} is not a Python file", hint=_FORMS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _failed(error, text, str(path)) from error
    return module


def _from_module(where: str, folder: Path, text: str) -> ModuleType:
    _importable(folder)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
            raise _failed(error, text, where) from error  # it is there; something it needs is not
        message = f"{text}: there is no module {error.name!r}: looked in the installed packages and in {folder}"
        file = folder.joinpath(*where.split(".")).with_suffix(".py")
        near = difflib.get_close_matches(where, sorted(other.stem for other in folder.glob("*.py")), n=1)
        hint = f"did you mean {near[0]}:{text.rpartition(':')[2]}?" if near else _FORMS
        if file.is_file():
            hint = f"it is a file: {file.relative_to(folder)}:{text.rpartition(':')[2]}"
        raise FunctionNotFoundError(message, hint=hint) from error
    except BaseException as error:
        raise _failed(error, text, where) from error


def _importable(folder: Path) -> None:
    """Last on the path: in a checkout the current directory holds folders named ``datasets`` and ``storage``."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _failed(error: BaseException, text: str, where: str) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    told = " ".join(f"{type(error).__name__}: {error}".split())
    detail = "".join(traceback.format_exception(error))
    return FunctionError(f"{text} cannot be loaded: importing {where} raised {told}", detail=detail)


def _near(name: str, owner: Any) -> str:
    there = [one for one in dir(owner) if not one.startswith("_") and callable(getattr(owner, one, None))]
    near = difflib.get_close_matches(name, there, n=3) or there[:6]
    return f"there are {', '.join(near)}" if near else "there is nothing in it that can be called"
