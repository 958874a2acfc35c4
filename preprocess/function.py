"""A function of the chain: its name, arguments and identity, and how a worker loads and calls it.

A function given as text is looked up again in every worker (`functions.lookup`). A function given as a Python object is
pickled: by value if its module cannot be imported (a lambda, a closure, a notebook cell) or is the user's, together with the
present values of the globals that it uses. A worker compares the loaded function with the identity in the request.

`load_chain` makes copies of the functions, and only copies are called: each run, and each trial before it, begins with the
state that the functions had when the user passed them.

Fingerprint and lineage record the identity: for a built-in function the identity that `functions.traits` fixes, for any other
function its content and the local files that it reaches (`datasets.user_code`).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..datasets.user_code_old.identity import (
    Content,
    Identity,
    LostAttributesError,
    check_attributes,
    content_hash,
    defining_module,
    differing_values,
    global_reads,
    hash_files,
    labelled,
    qualified_name,
    strip_partials,
)
from ..datasets.user_code_old.identity import identify as identify_user_code
from ..datasets.user_code_old.loading import loaded_for_requests, note_opened_at_import, unpickled_copy
from ..datasets.user_code_old.opened_files import OpenedFiles, note_named
from ..datasets.user_code_old.process_state import pickled_by_value
from ..datasets.user_code_old.source_files import is_local_module, nested_codes
from ..errors import FunctionError, UsageError
from . import functions
from .functions.lookup import find_function, find_unused, is_builtin_name
from .functions.traits import Fit, Traits, recorded_identity, traits_of

if TYPE_CHECKING:
    import torch


def identify(fn: Callable[..., Any], what: str = "the function") -> Identity:
    """The identity of a function; ``what`` names it in errors. Raises what `user_code_old.identity.identify` raises."""
    traits = traits_of(fn)
    if traits is None or not is_builtin(fn):
        return identify_user_code(fn, what)
    recorded = recorded_identity(traits.name)
    if recorded is not None:
        return Identity(*recorded)
    source, file = inspect.getsource(fn).encode(), Path(inspect.getsourcefile(inspect.unwrap(fn)) or "").read_bytes()
    return Identity(qualified_name(fn), hashlib.sha256(source).hexdigest(), hashlib.sha256(file).hexdigest())


def is_builtin(fn: Callable[..., Any]) -> bool:
    """Whether a function is built in. A wrapper of a built-in function has its attributes, but is not built in."""
    traits = traits_of(fn)
    return traits is not None and functions.find_builtin(traits.name) is fn


def describe_arguments(
    args: Mapping[str, Any], name: str, fn: Callable[..., Any], *, builtin: bool
) -> tuple[dict[str, Any], str | None]:
    """The arguments of the function ``fn`` as JSON values, objects by their content; and the sha256 of all arguments if JSON
    loses a difference (tuple or list, the order of keys, objects shared with the function). Built-in functions ignore such
    differences.

    Raises UsageError for an argument whose content does not identify it.
    """
    described = {key: _to_json(value, _named(name, key)) for key, value in sorted(args.items())}
    if builtin or all(map(_is_json, args.values())):
        return described, None
    content = Content(f"an argument of {name}")
    content.add(fn)
    for key, value in sorted(args.items()):
        content.add(key)
        content.add(value, f" {key}")
    return described, content.sha256


def files_of_arguments(args: Mapping[str, Any], name: str) -> dict[str, str]:
    """sha256 of the local files that functions and objects among the arguments reach, by module."""
    files: dict[str, str] = {}
    for key, value in args.items():
        if not _is_json(value):
            content = Content(_named(name, key))
            content.add(value)
            files |= labelled(hash_files(content), content.files, None)
    return files


def _named(name: str, key: str) -> str:
    return f"the argument {key} of {name}"


def _is_json(value: Any) -> bool:
    """Whether JSON represents a value without loss."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return (
            all(type(key) is str for key in value) and [*value] == sorted(value) and all(map(_is_json, value.values()))
        )
    return type(value) in (bool, int, float, str, type(None))


def _to_json(value: Any, what: str) -> Any:
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, f"{what}[{key!r:.40}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item, f"{what}[{number}]") for number, item in enumerate(value)]
    return f"{type(value).__qualname__} sha256 {content_hash(value, what)}"


#: Arguments that rbdata passes to functions whose signature names them.
GENERATOR = "generator"
STATISTICS = "statistics"
#: Maximum bytes of the pickle of a function that could be imported instead: the pickle is sent with every task.
_LARGEST_BY_VALUE = 1 << 20
_PLAIN = (bool, int, float, str, type(None))
#: The numbers of episodes and steps: passed only where the parameter has no default, as ``step`` may mean something else.
EPISODE, STEP = "episode", "step"


@dataclass(frozen=True)
class Function:
    """One function with its arguments; small and picklable. It is loaded from ``text`` or from ``payload``.

    ``identity`` covers the function, `record` also its arguments. `resolve` sets the rest: ``named``, the functions that
    arguments name; ``argument_files``, the hashes of the local files that arguments reach; ``together``, one pickle of the
    function and its arguments that are objects, so that an object shared by them stays shared.
    """

    name: str
    text: str | None
    folder: Path
    payload: bytes | None
    identity: Identity
    args: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, Function] = field(default_factory=dict)
    argument_files: Mapping[str, str] = field(default_factory=dict)
    together: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for other processes, which unpickle object arguments from ``together``."""
        state = dict(vars(self))
        if self.together is not None and self.traits is None:
            state["args"] = {name: None if name in _objects(self.args) else value for name, value in self.args.items()}
        return state

    @classmethod
    def find(cls, given: str | Callable[..., Any], folder: Path) -> Function:
        """A function given as text or as an object.

        Raises what `find_function` raises, and UsageError for objects that cannot be called or pickled.
        """
        if isinstance(given, str):
            fn = find_function(given, folder)
            name = f"{given.rpartition(':')[0]}:{getattr(fn, '__qualname__', type(fn).__name__)}"
            name = given if is_builtin_name(given) else name
            return cls(name, given, folder, None, identify(fn, name), _bound_arguments(fn))
        if not callable(given):
            message = f"{given!r} of type {type(given).__name__} is not a function"
            raise UsageError(message, hint="give something that can be called, or text such as 'pkg.mod:fn'")
        args, given = _bound_arguments(given), _without_arguments(given)
        name, payload = qualified_name(given), _pickle(given)
        # Use the object as workers get it: state that pickling leaves out must not affect results.
        copy = _unpickle(payload, name)
        _check_globals(given, copy, name)
        return cls(name, None, folder, payload, identify(copy, name), args)

    @property
    def label(self) -> str:
        """The last part of the function's name, by which ``--args`` may address the function."""
        return self.name.rpartition(":")[2].rpartition(".")[2]

    def load(self) -> Callable[..., Any]:
        """The function itself, for inspection; loaded once in each process.

        Raises FunctionError if the loaded function is not the one that the request recorded.
        """
        return _load(self.name, self.text, self.folder, self.payload, self.identity)

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature; None for functions written in C without one."""
        try:
            return inspect.signature(self.load())
        except (TypeError, ValueError):
            return None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of its signature; empty for functions written in C without a signature."""
        return self.signature.parameters if self.signature is not None else {}

    @property
    def numbers(self) -> frozenset[str]:
        """Which of EPISODE and STEP the function takes as arguments."""
        if self.traits is not None:
            return frozenset()
        empty = inspect.Parameter.empty
        asked = (name for name in (EPISODE, STEP) if name in self.parameters and name not in self.args)
        return frozenset(name for name in asked if self.parameters[name].default is empty)

    @property
    def traits(self) -> Traits | None:
        """What a built-in function declares about itself; None for any other."""
        return traits_of(self.load())

    @property
    def fit(self) -> Fit | None:
        """The first pass that the function needs with these arguments, None if it needs none."""
        fit = self.traits.fit if self.traits else None
        return fit if fit is not None and fit.needed(**self.args) else None

    def resolve(self, given: str | Callable[..., Any]) -> Function:
        """This function with the functions and files that its arguments refer to; ``given`` is the argument of `find`. Raises
        what `find` raises, and UsageError for an argument that cannot be identified."""
        try:
            all(map(_is_json, self.args.values()))
        except RecursionError as error:
            message = f"an argument of {self.name} contains itself, or is nested too deeply to be recorded"
            raise UsageError(message, hint="pass it as a part of an object, or make it inside the function") from error
        inner, named = self.args.get("fn"), dict[str, Function]()
        if isinstance(inner, str) and ":" in inner and is_builtin(self.load()):  # relabel_rewards
            named["fn"] = Function.find(inner, self.folder)
        together, objects = None, _objects(self.args)
        if objects:
            try:
                payload = _pickle(_without_arguments(given) if callable(given) else len, objects)
                together = payload if callable(given) else None
            except LostAttributesError:
                raise
            except UsageError:  # they are used as they are
                pass
        markers = [name for name, value in objects.items() if type(value) is object]
        if markers and not callable(given):
            given_as = f"the argument {markers[0]} of {self.name}"
            message = f"{given_as} is an object(), which only its identity tells from another one"
            raise UsageError(message, hint="give the function as an object, not as text, or use another value")
        return replace(self, named=named, argument_files=files_of_arguments(self.args, self.name), together=together)

    def record(self) -> dict[str, Any]:
        """The record in fingerprint and lineage: ``{function, source_sha256, file_sha256, args}``; call after `resolve`.

        Optional: ``files``, the hashes of other local files that the function or an argument reaches; ``values``, short hashes
        of the globals that it reads, by name (`Identity`); ``args_sha256``, the hash of arguments that JSON does not represent
        without loss; ``fn_sha256``, the hash of a function that an argument names.
        """
        fn, args = self.load(), self.args
        if self.together is not None:
            fn, objects = _unpickle(self.together, self.name)
            args = {**args, **objects}
        args, digest = describe_arguments(args, self.name, fn, builtin=is_builtin(fn))
        identity, files = self.identity, {**self.identity.files, **self.argument_files}
        hashes = {"source_sha256": identity.content, "file_sha256": identity.file}
        record = {"function": self.name, **hashes, "args": args}
        if identity.values:
            record["values"] = dict(identity.values)
        if digest is not None:
            record["args_sha256"] = digest
        for inner in self.named.values():
            record["fn_sha256"] = inner.identity.content
            files |= inner.identity.files
            if inner.identity.file is not None:
                files[inner.name.rpartition(":")[0]] = inner.identity.file
        if files:
            record["files"] = dict(sorted(files.items()))
        return record

    def check(self) -> None:
        """Raise UsageError unless the function can be called with its arguments."""
        if self.traits is not None:
            self.traits.check(**self.args)
            return
        signature = self.signature
        if signature is None:
            return
        passed = {name: None for name in (GENERATOR, *self.numbers) if name in signature.parameters}
        try:
            signature.bind(None, **{**passed, **self.args})
        except TypeError as error:
            args = f" and {', '.join(self.args)}" if self.args else ""
            message = f"{self.name} cannot be called with one TensorDict{args}: {error}"
            raise UsageError(message, hint=f"its signature is {self.label}{signature}") from error
        for name, value in self.args.items():
            wanted = _plain_type(signature.parameters[name]) if name in signature.parameters else None
            if wanted and isinstance(value, str):
                example = {"bool": "true or false", "int": "3", "float": "0.5"}[wanted]
                message = (
                    f"{self.name}: argument {name} is the text {value!r}, and its default or annotation is {wanted}"
                )
                hint = f"for example {name}={example}; if it may be a text as well, annotate it: {name}: {wanted} | str"
                raise UsageError(message, hint=hint)


def _plain_type(parameter: inspect.Parameter) -> str | None:
    """``bool``, ``int`` or ``float`` if a parameter has this annotation, or no annotation and a default of this type."""
    annotation = parameter.annotation
    found = annotation if annotation is not inspect.Parameter.empty else type(parameter.default)
    name = found if isinstance(found, str) else getattr(found, "__name__", "")
    return name if name in ("bool", "int", "float") else None


@functools.lru_cache(maxsize=32)
def _load(name: str, text: str | None, folder: Path, payload: bytes | None, identity: Identity) -> Callable[..., Any]:
    fn: Callable[..., Any] = _unpickle(payload or b"", name) if text is None else find_function(text, folder)
    _check_identity(fn, name, identity)
    return fn


def _check_identity(fn: Callable[..., Any], name: str, wanted: Identity) -> None:
    """Raise FunctionError unless the function is the one that the request recorded."""
    found, own = identify(fn, name), f"the file of {name}"
    check_files({**found.files, own: found.file}, {**wanted.files, own: wanted.file})
    if found.content != wanted.content:
        values = ", ".join(differing_values(found.values, wanted.values))
        message = f"{name} is another function in this process: a global that it reads has another value"
        message += f" ({values})" if values else ""
        hint = "pass what changes as an argument, and set what is random or set by hand inside the function"
        raise FunctionError(message, hint=hint)


def check_files(found: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> None:
    """Raise FunctionError for files whose hash differs from the recorded one, if both are known."""
    edited = sorted(label for label, digest in wanted.items() if found.get(label, digest) != digest)
    if edited:
        message = f"{', '.join(edited)} was edited while the run started: this process would run other code"
        raise FunctionError(message, hint="run it again")


def _unpickle(payload: bytes, name: str) -> Any:
    try:
        return unpickled_copy(payload)
    except Exception as error:
        message = f"{name} cannot be sent to worker processes: {type(error).__name__}: {error}"
        raise UsageError(message, hint="define it in a file and give it as 'file.py:name'") from error


def _check_globals(given: Callable[..., Any], copy: Callable[..., Any], name: str) -> None:
    """Raise UsageError if a copy lacks globals: pickles of functions omit globals that only class bodies inside them name."""
    given, copy = strip_partials(given), strip_partials(copy)
    if not isinstance(given, FunctionType) or not isinstance(copy, FunctionType):
        return
    read = {one for code in nested_codes(given.__code__) for one in global_reads(code)}
    lost = sorted(one for one in read if one in given.__globals__ and one not in copy.__globals__)
    if lost:
        message = f"{name} reads {', '.join(lost)} in the body of a class: workers do not get it"
        hint = "assign it to a variable of the function before the class, or pass it as an argument"
        raise UsageError(message, hint=hint)


def _bound_arguments(fn: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a partial of a built-in function, in the form of ``args``."""
    traits = traits_of(fn)
    bound: dict[str, Any] = {}
    while traits is not None and isinstance(fn, functools.partial):
        if fn.args:
            message = f"a partial of {traits.name} has positional arguments"
            raise UsageError(message, hint=f"name them: partial({traits.name}, name=value)")
        bound = {**fn.keywords, **bound}
        fn = fn.func
    return bound


def _without_arguments(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The built-in function inside partials; any other function unchanged."""
    return strip_partials(fn) if traits_of(fn) is not None else fn


def _pickle(fn: Callable[..., Any], objects: Mapping[str, Any] | None = None) -> bytes:
    """The pickle of a function, or of ``(function, objects)``. Raises UsageError if it cannot be pickled."""
    module = sys.modules.get(getattr(strip_partials(fn), "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        ways = [False]
    elif not _is_importable(module.__name__):
        ways = [True]
    else:  # of the user's own module the globals as they are, unless they are large or cannot be pickled
        ways = [True, False] if is_local_module(module.__name__) else [False]
    others = {other for other in map(_local_module, (objects or {}).values()) if other is not None}
    for by_value in ways:
        modules = [module] if module is not None and by_value else []
        modules += others - {module}
        importable = {one.__name__ for one in modules if one is not module or len(ways) > 1}
        try:
            with pickled_by_value(modules):
                payload = _pickled(fn, importable)
                if len(payload) <= _LARGEST_BY_VALUE or by_value is ways[-1]:
                    return payload if objects is None else _pickled((fn, objects), importable)
        except LostAttributesError:
            raise
        except Exception as error:
            problem = error
    message = f"{qualified_name(fn)} cannot be sent to worker processes: {problem}"
    raise UsageError(message, hint="define it in a file and give it as 'file.py:name'") from problem


def _local_module(value: Any) -> ModuleType | None:
    """The user's module that defines a function, if it can be imported."""
    name = getattr(strip_partials(value), "__module__", None) if callable(value) else None
    module = sys.modules.get(name or "")
    if module is None or module.__name__ == "__main__" or not is_local_module(module.__name__):
        return None
    return module if _is_importable(module.__name__) else None


def _pickled(value: Any, importable: Collection[str]) -> bytes:
    """Pickle functions by value, but classes of the modules ``importable`` by name: copied classes would differ from the
    classes of the arguments."""
    import io

    import cloudpickle

    tensordict = sys.modules.get("tensordict")

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, obj: Any) -> Any:
            check_attributes(obj)
            if isinstance(obj, type) and obj.__module__ in importable and "<locals>" not in obj.__qualname__:
                return NotImplemented
            if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
                return import_module, (obj.__name__,)  # cloudpickle takes only plain modules by name
            if tensordict is not None and isinstance(obj, tensordict.MemoryMappedTensor):
                # It would be pickled as the name of its file, whose content may change during the run.
                return obj.detach().as_subclass(sys.modules["torch"].Tensor).clone().__reduce_ex__(2)
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _is_importable(name: str) -> bool:
    """Whether another process can import a module by its name; that it is loaded here is not enough."""
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


class BoundFunction:
    """A function loaded to be called, with its arguments and statistics.

    ``runs_users_code``: the function may return memory that it reuses, and may change the process.
    ``takes``: which of EPISODE and STEP it gets.
    """

    def __init__(
        self, fn: Function, function: Callable[..., Any], args: dict[str, Any], statistics: dict[str, Any] | None
    ) -> None:
        self.name, self.traits, self.takes = fn.name, fn.traits, fn.numbers
        self.runs_users_code = self.traits is None or callable(args.get("fn"))
        self._function, self._kwargs = function, args
        if statistics is not None:
            self._kwargs[STATISTICS] = statistics
        self._takes_generator = GENERATOR in fn.parameters and GENERATOR not in self._kwargs

    @property
    def modules(self) -> set[str | None]:
        """The names of the modules that define it and the functions among its arguments."""
        return {defining_module(one) for one in (self._function, *self._kwargs.values()) if callable(one)}

    def generators(self) -> list[Any]:
        """The random generators of the user that it reaches: of NumPy, torch and Python."""
        content = Content(self.name)
        for value in (self._function, *self._kwargs.values()) if self.runs_users_code else ():
            content.add(value)
        return content.generators

    def __call__(self, td: Any, generator: torch.Generator, **numbers: Any) -> Any:
        passed = {GENERATOR: generator} if self._takes_generator else {}
        return self._function(td, **passed, **numbers, **self._kwargs)

    def applies_to_states(self, td: Any) -> bool:
        """Whether `map_states` may replace the function: called once per state, not for observations and for successors."""
        return self.traits is not None and self.traits.applies_to_states(td, **self._kwargs)

    def map_states(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """The state rows ``[n, ...]`` of one leaf, mapped; only if `applies_to_states`."""
        assert self.traits is not None and self.traits.map_states is not None
        return self.traits.map_states(name, rows, **self._kwargs)


def load_chain(
    functions: Sequence[Function], statistics: Sequence[dict[str, Any] | None], opened: OpenedFiles
) -> list[BoundFunction]:
    """The functions as if they had never been called: from modules that run again, or from their pickles.

    ``opened`` gets the files that they open when they are loaded, now or earlier in this process.

    Changes that functions made to installed packages, or to modules that their own modules import, are not undone. Raises
    FunctionError if this process would run code other than the request recorded.
    """
    with opened:
        chain = _load_chain(functions, statistics)
        for one in functions:
            for fn in (one, *one.named.values()):
                args = [str(value) for value in fn.args.values() if isinstance(value, (str, Path))]
                note_named([*fn.identity.named, *args], fn.folder)
        note_opened_at_import(files_of_chain(functions), set[str | None]().union(*(one.modules for one in chain)))
    return chain


def files_of_chain(functions: Sequence[Function]) -> dict[str, str]:
    """The hashes of the local files that functions and their arguments reach, by module; the functions' own files excluded."""
    files: dict[str, str] = {}
    for one in functions:
        for fn in (one, *one.named.values()):
            files |= {**fn.identity.files, **fn.argument_files}
    return files


def check_loaded(functions: Sequence[Function]) -> None:
    """Raise FunctionError if the functions have meanwhile imported files that differ from the recorded ones."""
    check_files({label: loader.sha256 for label, loader in loaded_for_requests().items()}, files_of_chain(functions))


def _load_chain(functions: Sequence[Function], statistics: Sequence[dict[str, Any] | None]) -> list[BoundFunction]:
    named = [fn for one in functions for fn in (one, *one.named.values()) if fn.text is not None]
    found = find_unused([(str(fn.text), fn.folder) for fn in named])
    unused = {id(fn): function for fn, function in zip(named, found)}
    for fn, function in zip(named, found):
        _check_identity(function, fn.name, fn.identity)
    chain = []
    for fn, statistic in zip(functions, statistics):
        args = dict(fn.args)
        if fn.together is not None:
            called, objects = _unpickle(fn.together, fn.name)
        else:
            called = unused[id(fn)] if fn.payload is None else _unpickle(fn.payload, fn.name)
            objects = _copied(_objects(args))
        args |= objects
        check_files(files_of_arguments(args, fn.name), fn.argument_files)
        args |= {key: unused[id(inner)] for key, inner in fn.named.items()}
        chain.append(BoundFunction(fn, called, args, statistic))
    return chain


def _objects(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that functions may change, or compare by identity."""
    return {name: value for name, value in args.items() if not isinstance(value, _PLAIN)}


def _copied(objects: dict[str, Any]) -> dict[str, Any]:
    """A copy of arguments that keeps shared objects shared; objects that cannot be pickled are not copied."""
    with suppress(UsageError):
        return _unpickle(_pickle(len, objects), "an argument")[1]
    copies = dict(objects)
    for name, value in objects.items():
        with suppress(UsageError):
            copies |= _unpickle(_pickle(len, {name: value}), "an argument")[1]
    return copies
