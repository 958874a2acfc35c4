"""What a user's function, policy or environment is: its content, and the local files that it reaches."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from .content_hash import Content
from .loading import ContentLoader, edited_error, is_edited
from .source_files import code_digest, reached_modules, read_source, sha256_of


@dataclass(frozen=True)
class Identity:
    """What something is, the same in every process.

    - ``name``: ``package.module:function``.
    - ``content``: sha256 of code, arguments and state (`content_hash`).
    - ``file``: sha256 of the file that defines it; None where there is none (a console, a notebook).
    - ``files``: sha256 of the other local files that it reaches by imports, by module: ``{"pkg/helpers.py": ...}``.
    """

    name: str
    content: str
    file: str | None
    files: Mapping[str, str] = field(default_factory=dict, hash=False)


def identify(value: Any, what: str = "the function") -> Identity:
    """The identity of a function, class or object; ``what`` names it in errors.

    Raises UsageError for what cannot be told from another one, and for code whose file was edited since it was imported.
    """
    content = Content(what)
    content.add(value)
    hashes = hash_files(content)
    own = defining_module(value)
    file = next((digest for name, digest in hashes.items() if name == own), None)
    return Identity(qualified_name(value), content.sha256, file, labelled(hashes, content.files, own))


def hash_files(content: Content) -> dict[str, str]:
    """sha256 of the local files that code reaches, by module, as they were when they were loaded.

    Raises UsageError for a file that was edited since. The main module is then left out: its functions are sent to other
    processes as they are.
    """
    hashes: dict[str, str] = {}
    edited = {name for name, function in content.functions if _is_outdated(name, function)}
    content.files = reached_modules(content.files.items())
    for name, path in content.files.items():
        module = sys.modules.get(name)
        if name in edited or (module is not None and name != "__main__" and is_edited(name, path)):
            if name != "__main__":
                raise edited_error(name, path)
            continue
        loader = getattr(module, "__loader__", None)
        digest = loader.sha256 if isinstance(loader, ContentLoader) else sha256_of(path)
        if digest is not None:
            hashes[name] = digest
    return hashes


def labelled(hashes: Mapping[str, str], files: Mapping[str, Path], own: str | None) -> dict[str, str]:
    """Hashes of modules other than ``own`` by the module as a path: ``pkg/helpers.py``."""
    labels = {}
    for name in sorted(set(hashes) - {own}):
        path = files[name]
        last = "/__init__.py" if path.name == "__init__.py" else path.suffix
        labels[path.name if name == "__main__" else name.replace(".", "/") + last] = hashes[name]
    return labels


def _is_outdated(name: str, function: FunctionType) -> bool:
    """Whether a function is not in its file as that is now, or is one of a module that was loaded again since."""
    loader = getattr(sys.modules.get(name), "__loader__", None)
    if type(loader) not in (SourceFileLoader, ContentLoader) and name != "__main__":
        return False  # compiled in another way, as pytest does it
    source = read_source(Path(function.__code__.co_filename))
    return source is None or code_digest(function.__code__) not in source.codes


def strip_partials(fn: Callable[..., Any]) -> Any:
    """The function inside partials of it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def qualified_name(fn: Any) -> str:
    """``package.module:function``; of an object that of its class."""
    fn = strip_partials(fn)
    if inspect.ismodule(fn):
        return fn.__name__
    named = fn if isinstance(getattr(fn, "__qualname__", None), str) else type(fn)
    return f"{getattr(named, '__module__', None) or '?'}:{named.__qualname__}"


def defining_module(fn: Any) -> str | None:
    """The name of the module with the code of a function or class, or of the class of an object."""
    fn = strip_partials(fn)
    if inspect.ismodule(fn):
        return fn.__name__
    if callable(fn):
        fn = inspect.unwrap(fn)
    if isinstance(fn, MethodType):
        fn = fn.__func__
    if isinstance(fn, FunctionType):
        found = fn.__globals__.get("__name__")
    else:
        found = getattr(fn if isinstance(fn, type) else type(fn), "__module__", None)
    return found if isinstance(found, str) else None
