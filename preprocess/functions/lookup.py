"""Functions looked up by name.

    pkg.mod:fn        a module that can be imported; the current directory is searched last
    path/file.py:fn   a file; it may import modules beside it
    rbdata:NAME       a built-in function

``fn`` may be a dotted path (``Class.method``). Workers look functions up themselves, in the folder of the command, so that the
user's code need not be sent to them.
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

from ...errors import FunctionError, FunctionNotFoundError, UsageError
from ...settings import expanded
from . import find_builtin

_FORMS = "write pkg.mod:function, file.py:function, or rbdata:NAME"


def is_builtin_name(text: str) -> bool:
    """Whether ``text`` names a built-in function, ``rbdata:NAME``."""
    return text.startswith("rbdata:")


def find_function(text: str, folder: Path) -> Callable[..., Any]:
    """The function that ``text`` names, relative to ``folder``.

    Raises FunctionNotFoundError with the places that were searched, UsageError for text of another form and for objects that
    cannot be called, FunctionError where importing the user's module fails.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{text!r} names no function", hint=_FORMS)
    if is_builtin_name(text):
        return find_builtin(name)
    is_file = where.endswith(".py") or "/" in where
    module = _load_file(where, folder, text) if is_file else _import_module(where, folder, text)
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


def _load_file(where: str, folder: Path, text: str) -> ModuleType:
    path = (folder / expanded(where)).resolve()
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = f"there are {', '.join(near[:6])}" if near else _FORMS
        raise FunctionNotFoundError(f"{text}: there is no file {path}", hint=hint)
    # A unique name, so that a file json.py does not replace the module json.
    name = f"_rbdata_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    _append_to_path(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FunctionNotFoundError(f"{text}: {path} is not a Python file", hint=_FORMS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _import_failed(error, text, str(path)) from error
    return module


def _import_module(where: str, folder: Path, text: str) -> ModuleType:
    _append_to_path(folder)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
            raise _import_failed(error, text, where) from error  # the module exists, one of its imports does not
        message = f"{text}: there is no module {error.name!r} in the installed packages and in {folder}"
        file = folder.joinpath(*where.split(".")).with_suffix(".py")
        near = difflib.get_close_matches(where, sorted(other.stem for other in folder.glob("*.py")), n=1)
        hint = f"did you mean {near[0]}:{text.rpartition(':')[2]}?" if near else _FORMS
        if file.is_file():
            hint = f"it is a file: {file.relative_to(folder)}:{text.rpartition(':')[2]}"
        raise FunctionNotFoundError(message, hint=hint) from error
    except BaseException as error:
        raise _import_failed(error, text, where) from error


def _append_to_path(folder: Path) -> None:
    """Make the modules in ``folder`` importable, after all others: it may hold folders named ``datasets`` or ``storage``."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _import_failed(error: BaseException, text: str, where: str) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    description = " ".join(f"{type(error).__name__}: {error}".split())
    detail = "".join(traceback.format_exception(error))
    return FunctionError(f"{text} cannot be loaded: importing {where} raised {description}", detail=detail)


def _suggest(name: str, owner: Any) -> str:
    callables = [one for one in dir(owner) if not one.startswith("_") and callable(getattr(owner, one, None))]
    near = difflib.get_close_matches(name, callables, n=3) or callables[:6]
    return f"there are {', '.join(near)}" if near else "it holds nothing that can be called"
