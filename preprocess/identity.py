"""The identity of a function: its name, a hash of its content, and a hash of its file.

The content of a function is its source, its defaults and the values in its closure; of a partial also the arguments; of an
object (such as a ``torch.nn.Module``) the source of its class and its state. The file is part of the identity because a
function may call others in it, and a run must not be continued with another version of them.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from . import functions
from .functions.recorded_identities import recorded_identity
from .functions.traits import traits_of


def identify(fn: Callable[..., Any]) -> tuple[str, str, str | None]:
    """Qualified name, content hash and file hash; for a built-in function those that were recorded (see there)."""
    traits = traits_of(fn)
    if traits is not None and functions.find_builtin(traits.name) is not fn:
        traits = None  # a wrapper, which has its attributes
    return (recorded_identity(traits.name) if traits else None) or (qualified_name(fn), content_hash(fn), file_hash(fn))


def strip_partials(fn: Callable[..., Any]) -> Any:
    """The function inside partials of it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def qualified_name(fn: Callable[..., Any]) -> str:
    """``package.module:function``."""
    fn = strip_partials(fn)
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{getattr(named, '__module__', None) or '?'}:{named.__qualname__}"


def content_hash(value: Any) -> str:
    """sha256 (hex) of a function, or of a value it depends on, by content: the same in every process."""
    digest = hashlib.sha256()
    _add(digest, value, set())
    return digest.hexdigest()


def file_hash(fn: Callable[..., Any]) -> str | None:
    """sha256 (hex) of the file that defines a function; None where there is no file (a console, a notebook)."""
    inner = strip_partials(fn)
    inner = inspect.unwrap(inner) if callable(inner) else inner
    try:
        path = inspect.getsourcefile(inner if hasattr(inner, "__code__") or isinstance(inner, type) else type(inner))
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else None
    except (OSError, TypeError):
        return None


def _add(digest: Any, value: Any, seen: set[int]) -> None:
    """Add a value to a hash, by content."""
    if id(value) in seen:
        digest.update(b"again;")
        return
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        digest.update(f"{type(value).__name__}:{value!r};".encode())
        return
    seen = seen | {id(value)}
    digest.update(f"{type(value).__module__}.{type(value).__qualname__}(".encode())
    parts: Iterable[Any] = ()
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        parts = (value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        _add_function(digest, value, seen)
    elif isinstance(value, types.CodeType):
        digest.update(value.co_code)
        parts = (value.co_names, value.co_consts)
    elif isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        digest.update(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}".encode())
        if isinstance(value, type):
            digest.update((_source(value) or "").encode())
    elif isinstance(value, Mapping):
        parts = (part for key in sorted(value, key=repr) for part in (key, value[key]))
    elif isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, (set, frozenset)):
        parts = sorted(value, key=repr)
    else:
        _add_object(digest, value, seen)
    for part in parts:
        _add(digest, part, seen)
    digest.update(b");")


def _add_function(digest: Any, fn: types.FunctionType, seen: set[int]) -> None:
    source = _source(fn)
    if source is None:
        _add(digest, fn.__code__, seen)
    else:
        digest.update(source.encode())
    _add(digest, fn.__defaults__, seen)
    _add(digest, fn.__kwdefaults__, seen)
    for cell in fn.__closure__ or ():
        try:
            _add(digest, cell.cell_contents, seen)
        except ValueError:  # a name that is not bound yet
            digest.update(b"empty;")


def _add_object(digest: Any, value: Any, seen: set[int]) -> None:
    import numpy as np

    torch: Any = sys.modules.get("torch")  # where torch is not loaded, the value is no tensor
    if torch is not None and isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif torch is not None and isinstance(value, torch.nn.Module):
        digest.update((_source(type(value)) or "").encode())
        digest.update(repr(value).encode())
        _add(digest, dict(value.state_dict()), seen)
    else:
        digest.update((_source(type(value)) or "").encode())
        _add(digest, getattr(value, "__dict__", {}), seen)


def _source(thing: Any) -> str | None:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return None
