"""A function of the chain: what it is called, how a worker comes by it, and what it is given.

A function named by text is looked up again in every worker (`lookup`); one given as a Python object is sent there, by value
where its module cannot be imported (a lambda, a closure, a notebook cell).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UsageError
from .identity import content_hash, file_hash, qualified_name
from .lookup import READY, find_function

if TYPE_CHECKING:
    import torch

    from .functions.traits import Fit

Per = Literal["batch", "sample", "episode"]

#: What the core passes to a function by itself, if its signature names it.
GENERATOR = "generator"
STATISTICS = "statistics"


@dataclass(frozen=True)
class Function:
    """One function with its arguments; small and picklable. ``text`` or ``payload`` says how to come by it."""

    name: str
    text: str | None
    folder: Path
    payload: bytes | None
    source: str
    file: str | None
    args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, given: str | Callable[..., Any], folder: Path) -> Function:
        """From what the user gave. Raises as `find_function`, and UsageError for what cannot be called or sent."""
        if isinstance(given, str):
            fn = find_function(given, folder)
            ready = given.startswith(READY + ":")
            name = given if ready else f"{given.rpartition(':')[0]}:{getattr(fn, '__qualname__', type(fn).__name__)}"
            return cls(name, given, folder, None, content_hash(fn), file_hash(fn))
        if not callable(given):
            message = f"a function is wanted, and {given!r} is a {type(given).__name__}"
            raise UsageError(message, hint="give something that can be called, or text such as 'pkg.mod:fn'")
        return cls(qualified_name(given), None, folder, _pickled(given), content_hash(given), file_hash(given))

    @property
    def label(self) -> str:
        """The last part of its name, by which ``--args`` may address it."""
        return self.name.rpartition(":")[2].rpartition(".")[2]

    def load(self) -> Callable[..., Any]:
        """The function itself; found once in each process."""
        return _load(self.text, self.folder, self.payload)

    def identity(self) -> dict[str, Any]:
        """What it is, for the fingerprint and the lineage."""
        args = {name: _plain(value) for name, value in sorted(self.args.items())}
        record = {"function": self.name, "source_sha256": self.source, "file_sha256": self.file, "args": args}
        inner = self.args.get("fn")
        if isinstance(inner, str) and ":" in inner and self.text is not None and self.text.startswith(READY + ":"):
            record["fn_sha256"] = content_hash(find_function(inner, self.folder))  # relabel_rewards takes one by name
        return record


@functools.lru_cache(maxsize=32)
def _load(text: str | None, folder: Path, payload: bytes | None) -> Callable[..., Any]:
    if text is not None:
        return find_function(text, folder)
    import pickle

    assert payload is not None
    return pickle.loads(payload)  # made by this very program, for its own workers: never read from a file


def _pickled(fn: Callable[..., Any]) -> bytes:
    import cloudpickle  # comes with loky

    inner: Any = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    by_value = module is not None and module.__name__ != "__main__" and not _can_be_imported(module.__name__)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(fn)
    except Exception as error:
        message = f"{qualified_name(fn)} cannot be sent to worker processes: {error}"
        raise UsageError(message, hint="put it into a file and give it as 'file.py:name'") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    """Whether another process finds a module by its name; that it is loaded here says nothing."""
    path: Any = sys.path
    parts = name.split(".")
    for number in range(len(parts)):
        try:
            spec = PathFinder.find_spec(".".join(parts[: number + 1]), path)
        except (ImportError, ValueError, AttributeError):
            return False
        if spec is None:
            return parts[0] in sys.builtin_module_names or parts[0] == __package__.partition(".")[0]
        path = spec.submodule_search_locations
        if path is None:
            break
    return True


def _plain(value: Any) -> Any:
    """An argument as JSON can hold it."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return f"{type(value).__qualname__} sha256 {content_hash(value)}"


# -- what it says about itself ------------------------------------------------------------------------------------------


def how_to_run(functions: Sequence[Function], wanted: Per | None) -> Per:
    """``batch``, ``sample`` or ``episode``: as wanted, or as the functions need it.

    Raises UsageError where they need something else than is wanted.
    """
    needs = {fn.name: _trait(fn, "per") for fn in functions}
    for name, per in needs.items():
        if wanted is not None and per == "episode" and wanted != "episode":
            message = f"{name} needs whole episodes, not --per {wanted}"
            raise UsageError(message, hint="leave --per out, or say --per episode")
        if wanted == "sample" and per is not None:
            raise UsageError(f"{name} works on many steps at once, not --per sample", hint="leave --per out")
    return wanted or ("episode" if "episode" in needs.values() else "batch")


def fit_of(fn: Function) -> Fit | None:
    """The first pass that a function needs with these arguments."""
    fit: Fit | None = _trait(fn, "fit")
    return fit if fit is not None and fit.needed(**fn.args) else None


def is_blind(fn: Function) -> bool:
    """Whether it works without observations, on steps and episodes as they are."""
    return bool(_trait(fn, "blind"))


def _trait(fn: Function, name: str) -> Any:
    """What a ready-made function says of itself (`functions.metadata.Ready`); None for all others."""
    return getattr(getattr(fn.load(), "ready", None), name, None)


def check_call(fn: Function) -> None:
    """Raise UsageError unless the function can be called with its arguments."""
    loaded = fn.load()
    ready = getattr(loaded, "ready", None)
    if ready is not None and hasattr(ready, "check"):
        ready.check(**fn.args)
        return
    try:
        signature = inspect.signature(loaded)
    except (TypeError, ValueError):
        return  # written in C: the call will tell
    extra = {name: None for name in (GENERATOR,) if name in signature.parameters}
    try:
        signature.bind(None, **{**extra, **fn.args})
    except TypeError as error:
        message = f"{fn.name} cannot be called with one TensorDict" + (
            f" and {', '.join(fn.args)}: {error}" if fn.args else f": {error}"
        )
        raise UsageError(message, hint=f"its signature is {fn.label}{signature}") from error


class Bound:
    """A function with everything it is to be called with, in a worker."""

    def __init__(self, fn: Function, statistics: dict[str, Any] | None) -> None:
        self.name, self.loaded = fn.name, fn.load()
        self.kwargs = dict(fn.args)
        if statistics is not None:
            self.kwargs[STATISTICS] = statistics
        self.on_state = getattr(self.loaded, "on_state", None)
        try:
            parameters = inspect.signature(self.loaded).parameters
        except (TypeError, ValueError):
            parameters = {}  # type: ignore[assignment]
        self._wants_generator = GENERATOR in parameters and GENERATOR not in self.kwargs

    def stateful(self, td: Any) -> bool:
        """Whether each stored state can be given to ``on_state`` once, instead of observation and successor to it."""
        ready = getattr(self.loaded, "ready", None)
        return ready is not None and self.on_state is not None and bool(ready.stateful(td, **self.kwargs))

    def __call__(self, td: Any, generator: torch.Generator) -> Any:
        extra = {GENERATOR: generator} if self._wants_generator else {}
        return self.loaded(td, **extra, **self.kwargs)
