"""A function of the chain: its name and arguments, and how a worker loads and calls it.

A function given as text is looked up again in every worker (`functions.lookup`). One given as a Python object is pickled:
by value where its module cannot be imported (a lambda, a closure, a notebook cell).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .functions.lookup import find_function, is_builtin_name
from .functions.traits import Fit, Traits, traits_of
from .identity import content_hash, identify, qualified_name, strip_partials

if TYPE_CHECKING:
    import torch

#: Arguments that rbdata passes to functions whose signature names them.
GENERATOR = "generator"
STATISTICS = "statistics"


@dataclass(frozen=True)
class Function:
    """One function with its arguments; small and picklable. It is loaded from ``text`` or from ``payload``.

    ``source`` and ``file`` are the hashes of its identity (`identity`).
    """

    name: str
    text: str | None
    folder: Path
    payload: bytes | None
    source: str
    file: str | None
    args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, given: str | Callable[..., Any], folder: Path) -> Function:
        """A function given as text or as an object.

        Raises what `find_function` raises, and UsageError for objects that cannot be called or pickled.
        """
        if isinstance(given, str):
            fn = find_function(given, folder)
            name = f"{given.rpartition(':')[0]}:{getattr(fn, '__qualname__', type(fn).__name__)}"
            return cls(given if is_builtin_name(given) else name, given, folder, None, *identify(fn)[1:])
        if not callable(given):
            message = f"{given!r} of type {type(given).__name__} is no function"
            raise UsageError(message, hint="give something that can be called, or text such as 'pkg.mod:fn'")
        name, source, file = identify(given)
        return cls(name, None, folder, _pickle(given), source, file)

    @property
    def label(self) -> str:
        """The last part of its name, by which ``--args`` may address it."""
        return self.name.rpartition(":")[2].rpartition(".")[2]

    def load(self) -> Callable[..., Any]:
        """The function itself; loaded once in each process."""
        return _load(self.text, self.folder, self.payload)

    @property
    def signature(self) -> inspect.Signature | None:
        """None for functions written in C that have none."""
        try:
            return inspect.signature(self.load())
        except (TypeError, ValueError):
            return None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Those of its signature; none for functions written in C that have no signature."""
        return self.signature.parameters if self.signature is not None else {}

    @property
    def traits(self) -> Traits | None:
        """What a built-in function declares about itself; None for any other."""
        return traits_of(self.load())

    @property
    def fit(self) -> Fit | None:
        """The first pass that it needs with these arguments."""
        fit = self.traits.fit if self.traits else None
        return fit if fit is not None and fit.needed(**self.args) else None

    def identity(self) -> dict[str, Any]:
        """Its record in fingerprint and lineage: ``{function, source_sha256, file_sha256, args}``."""
        args = {name: _to_json(value) for name, value in sorted(self.args.items())}
        record = {"function": self.name, "source_sha256": self.source, "file_sha256": self.file, "args": args}
        inner = self.args.get("fn")
        if isinstance(inner, str) and ":" in inner and self.text is not None and is_builtin_name(self.text):
            record["fn_sha256"] = content_hash(find_function(inner, self.folder))  # relabel_rewards takes a function
        return record

    def check(self) -> None:
        """Raise UsageError unless it can be called with its arguments."""
        if self.traits is not None:
            self.traits.check(**self.args)
            return
        signature = self.signature
        if signature is None:
            return
        passed = {name: None for name in (GENERATOR,) if name in signature.parameters}
        try:
            signature.bind(None, **{**passed, **self.args})
        except TypeError as error:
            args = f" and {', '.join(self.args)}" if self.args else ""
            message = f"{self.name} cannot be called with one TensorDict{args}: {error}"
            raise UsageError(message, hint=f"its signature is {self.label}{signature}") from error


@functools.lru_cache(maxsize=32)
def _load(text: str | None, folder: Path, payload: bytes | None) -> Callable[..., Any]:
    if text is not None:
        return find_function(text, folder)
    import pickle

    assert payload is not None
    return pickle.loads(payload)  # pickled by the process that started this worker, never read from a file


def _pickle(fn: Callable[..., Any]) -> bytes:
    import cloudpickle  # a dependency of loky

    module = sys.modules.get(getattr(strip_partials(fn), "__module__", None) or "")
    by_value = module is not None and module.__name__ != "__main__" and not _is_importable(module.__name__)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(fn)
    except Exception as error:
        message = f"{qualified_name(fn)} cannot be sent to worker processes: {error}"
        raise UsageError(message, hint="define it in a file and give it as 'file.py:name'") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_importable(name: str) -> bool:
    """Whether another process can import a module by its name; being loaded here is not enough."""
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


def _to_json(value: Any) -> Any:
    """An argument as a JSON value; objects by their content hash."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return f"{type(value).__qualname__} sha256 {content_hash(value)}"


class BoundFunction:
    """A function loaded in a worker, with its arguments and statistics."""

    def __init__(self, fn: Function, statistics: dict[str, Any] | None) -> None:
        self.name, self.traits = fn.name, fn.traits
        self._function = fn.load()
        self._kwargs = dict(fn.args)
        if statistics is not None:
            self._kwargs[STATISTICS] = statistics
        self._takes_generator = GENERATOR in fn.parameters and GENERATOR not in self._kwargs

    def __call__(self, td: Any, generator: torch.Generator) -> Any:
        passed = {GENERATOR: generator} if self._takes_generator else {}
        return self._function(td, **passed, **self._kwargs)

    def applies_to_states(self, td: Any) -> bool:
        """Whether `map_states` may replace it: called once per state, not for observations and for successors."""
        return self.traits is not None and self.traits.applies_to_states(td, **self._kwargs)

    def map_states(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """The state rows ``[n, ...]`` of one leaf, mapped; only where it applies to states."""
        assert self.traits is not None and self.traits.map_states is not None
        return self.traits.map_states(name, rows, **self._kwargs)
