"""Identifies a user's function, policy or environment: a sha256 of its content, and the local files that it reaches.

The content is the same in every process, and differs wherever the value does:

- A function is its code (whatever file and line it stands in), defaults, closure, attributes, the globals that it reads, and
  the environment variables that it names.
- A local module (`source_files`) is its name, its file, and those of its attributes that code reads, or texts name. Of a module
  that a function imports when it runs, only what the program has set counts: another process has the rest from its file.
- Globals that begin empty in their file, or that functions assign, are state, and do not count, if one of the functions met
  changes them itself.
- An object is its class and its state, as ``pickle`` takes it (``__reduce_ex__``).
- A local class is its bases and attributes. A function or class of an installed package is its name.
- Arrays and tensors are their dtype, shape and values; how these lie in memory does not count.

A value that cannot be identified this way (an open file, a lock, a generator) is refused. Only globals of a local file may be
such values: the file, whose hash is recorded too, decides how they are made.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import hashlib
import inspect
import os
import pickle
import random
import re
import struct
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ...errors import UsageError
from ...storage.memory_map import element_bytes
from .loading import ContentLoader, as_file_sets, edited_error, is_edited, is_imported_before, shown_name
from .opened_files import is_read_unseen
from .source_files import (
    code_digest,
    code_parts,
    imported_names,
    is_local_module,
    label_of_module,
    local_file,
    local_imports,
    names_in,
    nested_codes,
    reached_modules,
    read_source,
)

_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
#: Attributes of a class that follow from its other attributes, or from its position in its file.
_DERIVED = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__static_attributes__", "__firstlineno__", "__slotnames__"),
    *("_abc_impl", "__abstractmethods__", "__parameters__"),
}
#: Names by which code reads environment variables.
_ENVIRONMENT = frozenset({"environ", "environb", "getenv"})
#: CPython's Py_TPFLAGS_HEAPTYPE: set for types that are made at run time, as by a class statement, and not for built-in ones.
_MADE_BY_CLASS = 1 << 9
#: Modules of objects that do not affect what code does: locks, and references to values that are identified elsewhere.
_NEUTRAL = ("_thread", "weakref", "_abc")
_CACHED = type(functools.lru_cache(len))
_HINT = "give it what it is made from (numbers, text, arrays) and make it inside the function"


@dataclass(frozen=True)
class Identity:
    """The identity of a value, the same in every process.

    - ``name``: ``package.module:function``.
    - ``content``: sha256 of code, arguments and state (`Content`).
    - ``file``: sha256 of the file that defines it; None without one (a console, a notebook).
    - ``files``: sha256 of the other local files that it reaches by imports, by module: ``{"pkg/helpers.py": ...}``.
    - ``named``: texts in it that may be names of files which are read unseen (`opened_files`).
    - ``values``: the beginning of the sha256 of every global and attribute of a module that counts, except functions, classes
      and modules, by its name: ``{"pkg.helpers.GAIN": ...}``. They say which value differs.
    """

    name: str
    content: str
    file: str | None
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    named: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict, hash=False)


def identify(value: Any, what: str = "the function") -> Identity:
    """The identity of a function, class or object; ``what`` names it in errors.

    Raises UsageError for a value that cannot be identified, and for code whose file was edited since it was imported.
    """
    content = Content(what)
    content.add(value)
    hashes = hash_files(content)
    own = defining_module(value)
    file = next((digest for name, digest in hashes.items() if name == own), None)
    files, named = labelled(hashes, content.files, own), tuple(sorted(content.named))
    return Identity(qualified_name(value), content.sha256, file, files, named, dict(sorted(content.values.items())))


def differing_values(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    """The names of the values, of `Identity`, that two identities do not share."""
    return sorted({name for name, _ in (before or {}).items() ^ (now or {}).items()})


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
        if isinstance(loader, ContentLoader):
            hashes[name] = loader.sha256
            continue
        if module is not None and _other_constants(module, path):
            if is_imported_before(module):
                raise edited_error(name, path)
            continue  # the program set them: the content says what runs
        with contextlib.suppress(OSError):  # it does not exist
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def _other_constants(module: ModuleType, path: Path) -> dict[str, Any]:
    """A module's literals that differ from those that its file sets now: it was edited, or the program set them."""
    source = read_source(path) if module.__name__ != "__main__" else None
    other: dict[str, Any] = {}
    for name, value in source.constants.items() if source is not None else ():
        found = vars(module).get(name, value)
        is_same = found == value if type(found) is type(value) is set else repr(found) == repr(value)
        if not is_same:
            other[name] = found
    return other


def labelled(hashes: Mapping[str, str], files: Mapping[str, Path], own: str | None) -> dict[str, str]:
    """Hashes of modules other than ``own`` by the module as a path: ``pkg/helpers.py``."""
    return {label_of_module(name, files[name]): hashes[name] for name in sorted(set(hashes) - {own})}


def _is_outdated(name: str, function: FunctionType) -> bool:
    """Whether a function is missing from its file as that is now, or belongs to a module that was loaded again since."""
    loader = getattr(sys.modules.get(name), "__loader__", None)
    if type(loader) not in (SourceFileLoader, ContentLoader) and name != "__main__":
        return False  # compiled differently, as by pytest
    source = read_source(Path(function.__code__.co_filename))
    return source is None or code_digest(function.__code__) not in source.codes


def _text_of(value: Any) -> str:
    """An atom as text: NaNs, which differ in sign and payload and are all written alike, with their bits."""
    numbers = (value.real, value.imag) if type(value) in (float, complex) else ()
    bits = [struct.pack("<d", number).hex() for number in numbers if number != number]
    return " ".join([repr(value), *bits])


def strip_partials(fn: Callable[..., Any]) -> Any:
    """The function inside partials of it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def qualified_name(fn: Any) -> str:
    """``package.module:function``; for an object, the name of its class."""
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


# -- content ------------------------------------------------------------------------------------------------------------


def content_hash(value: Any, what: str = "the value") -> str:
    """sha256 (hex) of a value by its content; ``what`` names it in errors. Raises UsageError for a value that cannot be
    identified."""
    content = Content(what)
    content.add(value)
    return content.sha256


class _Unidentified(UsageError):
    """A value cannot be identified."""


class Content:
    """Collects the content of values.

    ``files``: the files of the local code that was met, by module. ``functions``: the local functions with a file that were
    met, with their modules. ``named``: texts and paths that end as names of files which are read unseen (`opened_files`).
    ``values``: as in `Identity`. ``generators``: the random generators of NumPy, torch and Python that were met.

    With ``changing`` (the attributes that instances of a class change while they are used) the content is that of a value as it
    was made: those attributes do not count, nor do the random numbers of Gymnasium's spaces, and a value that would be refused
    counts by its type. ``untold`` says where such values are, except locks, values inside objects of installed packages, and
    values that a file decides.

    ``unpickled``: the value itself is used, not what its pickle holds. Then numbers, texts and arrays that a class of the user
    leaves out of its pickle count as well.
    """

    def __init__(
        self, what: str, *, changing: Callable[[type], Collection[str]] | None = None, unpickled: bool = False
    ) -> None:
        self._changing, self._unpickled = changing, unpickled
        self.files: dict[str, Path] = {}
        self.functions: list[tuple[str, FunctionType]] = []
        self.named: set[str] = set()
        self.values: dict[str, str] = {}
        self.generators: list[Any] = []
        self.untold: list[str] = []
        self._digest = hashlib.sha256()
        #: The numbers of objects that were met before; they are kept alive, so that no other object gets their id.
        self._numbers: dict[Any, int] = {}
        self._kept: list[Any] = []
        self._path = [what]
        #: Globals that some function assigns and containers that begin empty in their files, by module and name: state and
        #: caches of the functions that were met, or settings and tables of the program.
        self._variables: dict[tuple[str, str], Any] = {}
        #: The local modules that were met, and all texts that were met, among them the attributes that code reads: of a module
        #: only the attributes of these names count (`_add_reached`).
        self._modules: dict[int, ModuleType] = {}
        self._names: set[str] = set()
        #: Local modules that functions import when they run, with their files.
        self._imported: dict[str, Path] = {}
        #: The attributes and variables of modules that were looked at.
        self._done: set[tuple[Any, str]] = set()

    @property
    def sha256(self) -> str:
        """The sha256 of everything that was added."""
        return self._digest.hexdigest()

    def add(self, value: Any, step: str = "") -> None:
        """Add a value; ``step`` is how it is reached from the one around it, for errors."""
        self._path.append(step)
        try:
            if self._changing is None:
                self._add(value)
            else:
                with self._lenient(value, True, _Unidentified):
                    self._add(value)
            if len(self._path) == 2:
                self._add_reached()
        except RecursionError as error:
            raise UsageError(f"{self._where} is nested too deeply to be identified") from error
        finally:
            self._path.pop()

    # -- writing -------------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return "".join(self._path)

    def _put(self, tag: str, *texts: str | bytes | memoryview) -> None:
        for text in (tag, *texts):
            data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
            self._digest.update(b"%d:" % len(data))
            self._digest.update(data)

    def _is_known(self, key: Any, value: Any) -> bool:
        """Whether an object was met before: shared objects and cycles are written as its number."""
        number = self._numbers.setdefault(key, len(self._numbers))
        if number < len(self._kept):
            self._put("again", str(number))
            return True
        self._kept.append((key, value))
        return False

    def _refuse(self, value: Any, error: BaseException | None = None) -> UsageError:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        why = f" ({error})" if error is not None and str(error) else ""
        message = f"{self._where} is a {kind}, which cannot be told from another one{why}"
        return _Unidentified(message, hint=_HINT)

    @contextmanager
    def _lenient(self, value: Any, allowed: bool, refused: type[UsageError] = UsageError) -> Iterator[None]:
        """Where ``allowed``, a value that is refused counts by its type."""
        digest, count = self._digest.copy(), len(self._kept)
        try:
            yield
        except refused:
            if not allowed:
                raise
            self._digest = digest
            for key, _ in self._kept[count:]:
                del self._numbers[key]
            del self._kept[count:]
            self._put("unidentified", f"{type(value).__module__}.{type(value).__qualname__}")
            if type(value).__module__ not in _NEUTRAL:
                self.untold.append(f"{self._where} is a {type(value).__module__}.{type(value).__qualname__}")

    @contextmanager
    def _trusted(self, is_trusted: bool) -> Iterator[None]:
        """If ``is_trusted``, values that cannot be identified are not listed."""
        count = len(self.untold)
        yield
        if is_trusted:
            del self.untold[count:]

    # -- kinds of values -----------------------------------------------------------------------------------------------

    def _add(self, value: Any) -> None:
        kind = type(value)
        if (kind is str or isinstance(value, PurePath)) and is_read_unseen(str(value)):
            self.named.add(str(value))
        if kind is str:
            self._names.update(value.split("."))
        if kind in _ATOMS:
            self._put(kind.__name__, value if kind is bytes else value if kind is str else _text_of(value))
        elif kind is tuple:
            self._add_all("tuple", value)
        elif kind is frozenset:
            self._add_set(value)
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif kind is types.MethodType:
            self._add_method(value)
        elif kind is ModuleType or isinstance(value, ModuleType):
            self._add_module(value)
        elif (name := _global_name(value)) is not None:
            self._put("global", name)
        elif id(value) in self._numbers:
            self._is_known(id(value), value)
        else:
            self._add_object(value)

    def _add_method(self, method: types.MethodType) -> None:
        """A bound method: if its class has the same code, pickled or not, the class identifies the method's code."""
        function, kind = method.__func__, type(method.__self__)
        found = inspect.getattr_static(kind, getattr(function, "__name__", ""), None)
        if getattr(found, "__code__", None) == getattr(function, "__code__", function):
            self._put("method", function.__name__)
        else:
            self._put("method of another class")
            self.add(function)
        self.add(method.__self__, ".__self__")

    def _add_object(self, value: Any) -> None:
        """An object that may be shared, or part of a cycle."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        kind = type(value)
        if _is_generator(value):
            self.generators.append(value)
        if kind in (list, dict, set) or isinstance(value, (FunctionType, type)):
            self._is_known(id(value), value)
            if kind is list:
                self._add_all("list", value)
            elif kind is dict:
                self._add_pairs("dict", value)
            elif kind is set:
                self._add_set(value)
            elif isinstance(value, FunctionType):
                self._add_function(value)
            else:
                self._add_class(value)
        elif numpy is not None and isinstance(value, (numpy.generic, numpy.dtype, numpy.ndarray)):
            self._add_numpy(value, numpy)
        elif torch is not None and isinstance(value, torch.Tensor) and _has_plain_bytes(value, torch):
            self._add_tensor(value, torch)
        else:
            parts = _parts_of(value, self._changing is not None)
            if parts is None:
                self._add_reduced(value)
            else:
                self._is_known(id(value), value)
                self.add(kind)
                self._add_all("parts", parts)

    def _add_all(self, tag: str, values: Any) -> None:
        values = [*values]
        self._put(tag, str(len(values)))
        for number, value in enumerate(values):
            self.add(value, f"[{number}]" if tag in ("list", "tuple") else "")

    def _add_pairs(self, tag: str, pairs: Mapping[Any, Any]) -> None:
        self._put(tag, str(len(pairs)))
        for key, value in [*pairs.items()]:
            self.add(key)
            self.add(value, f".{key}" if tag == "attributes" else f"[{key!r:.40}]")

    def _add_attributes(self, named: Mapping[str, Any], *, lenient: bool = False) -> None:
        """Named values, whose order does not count."""
        self._put("attributes", str(len(named)))
        for name in sorted(named, key=str):
            self._put("name", str(name))
            allowed = lenient or (name.startswith("__") and name.endswith("__"))
            with self._trusted(allowed), self._lenient(named[name], allowed):
                self.add(named[name], f".{name}")

    def _add_set(self, values: Any) -> None:
        """Elements by their own digests: their order depends on a random seed of the process."""
        digests = []
        for value in values:
            if type(value) in _ATOMS:
                digests.append(f"{type(value).__name__} {_text_of(value)}")
                self._names.update(value.split(".") if type(value) is str else ())
                continue
            alone = self._alone()
            alone._add(value)
            digests.append(alone.sha256)
        self._put(type(values).__name__, *sorted(digests), "end")

    def _alone(self) -> Content:
        """For a value whose digest does not depend on those before it; all that is met is met here as well."""
        alone = copy.copy(self)
        alone._digest, alone._path = hashlib.sha256(), [self._where, ""]
        alone._numbers, alone._kept = dict(self._numbers), [*self._kept]
        return alone

    def _add_numpy(self, value: Any, numpy: Any) -> None:
        if isinstance(value, numpy.dtype):
            self._put("dtype", repr(value), repr(value.metadata and sorted(value.metadata.items(), key=repr)))
        elif isinstance(value, numpy.generic):
            self._put("scalar", repr(value.dtype), value.tobytes())
            if type(value) is not value.dtype.type:
                self.add(type(value))
                self._add_attributes(_attributes_of(value))
        elif type(value) not in (numpy.ndarray, numpy.memmap):
            self._add_reduced(value)
            self._add_attributes(_attributes_of(value))  # pickle leaves them out
        else:
            self._is_known(id(value), value)
            self._put("array", repr(value.dtype), str(value.shape))
            if value.dtype.hasobject:
                self._add_all("objects", value.ravel().tolist())
            else:
                self._put("bytes", numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8).data)

    def _add_tensor(self, value: Any, torch: Any) -> None:
        self._is_known(id(value), value)
        self.add(type(value))
        self._put("tensor", str(value.dtype), str(tuple(value.shape)), value.device.type)
        self._put("bytes", element_bytes(value.as_subclass(torch.Tensor)).data)
        if value.requires_grad:
            self._put("requires_grad")
        if type(value) in (torch.Tensor, torch.nn.Parameter) or is_local_module(type(value).__module__):
            self._add_attributes(vars(value))

    def _add_reduced(self, value: Any) -> None:
        """Any other object, as pickle takes it apart."""
        ctypes: Any = sys.modules.get("ctypes")
        if ctypes is not None and isinstance(value, ctypes.CDLL):  # pickle would take it apart into addresses
            raise self._refuse(value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reducer = copyreg.dispatch_table.get(type(value))
                reduced: Any = reducer(value) if reducer else value.__reduce_ex__(4)
                if isinstance(reduced, str):
                    pickle.dumps(value)  # fails unless the name finds the object: not of functions that NumPy wrapped
        except Exception as error:
            raise self._refuse(value, error) from error
        if isinstance(reduced, str):
            self.add(type(value))
            self._put("global", str(getattr(value, "__module__", "")), reduced)
            return
        function, args, state, items, pairs, setter = (*reduced, *[None] * 6)[:6]
        if self._changing is not None:
            state = _without(state, self._changing(type(value)))
        if state is not None or items is not None or pairs is not None:
            self._is_known(id(value), value)
        self._put("object")
        self.add(type(value))
        self.add(function)
        self._add_all("args", args)
        module = type(value).__module__
        with self._trusted(not is_local_module(module) and module.partition(".")[0] not in sys.stdlib_module_names):
            if type(state) is dict and all(isinstance(name, str) for name in state):
                self._names.update(state)
                self._add_attributes(state)
            else:
                self.add(state)
        for several in (items, pairs):
            self._add_all("items", () if several is None else several)
        self.add(setter)
        if self._unpickled and _pickles_itself(type(value)):
            changing = self._changing(type(value)) if self._changing is not None else ()
            left_out = {name: one for name, one in _plain_attributes(value).items() if not _holds(state, name)}
            self._add_attributes({name: one for name, one in left_out.items() if name not in changing})

    # -- code ----------------------------------------------------------------------------------------------------------

    def _add_module(self, module: ModuleType) -> None:
        """A module: its name; of a local one its file, and the attributes that functions use (`_add_modules`). Where a program
        made it from no file, all its attributes count."""
        name = module.__name__
        self._put("module", "" if name == "__main__" else name)
        if not is_local_module(name):
            return
        if name == "__main__" or module.__spec__ is not None:
            self._meet(name, _file_of_module(module))
            self._modules[id(module)] = module
        elif not self._is_known(id(module), module):
            own = {key: value for key, value in vars(module).items() if not key.startswith("__")}
            self._add_attributes(own, lenient=True)

    def _add_reached(self, *, imports: bool = True) -> None:
        """What the functions met reach by modules and variables, until these reach nothing more."""
        size = -1
        while size < (now := len(self._done) + len(self._names) + len(self._imported)):
            size, looked_at = now, len(self._done)
            for module in sorted(self._modules.values(), key=lambda one: one.__name__):
                if used := self._named_attributes(module):
                    self._put("of module", module.__name__)
                    self._add_globals(used, _file_of_module(module), module.__name__)
            if imports:
                self._add_set_by_program()
            if looked_at == len(self._done):  # all functions are known that may change them
                self._add_variables()

    def _named_attributes(self, module: ModuleType) -> dict[str, Any]:
        """The attributes of a module that any code or text met names, and that were not looked at yet: a function may get a
        module, and a name, as an argument."""
        found = {name: vars(module)[name] for name in self._names & vars(module).keys()}
        found = {name: value for name, value in found.items() if (id(module), name) not in self._done}
        self._done.update((id(module), name) for name in found)
        return found

    def _add_set_by_program(self) -> None:
        """What the program set in modules that functions import when they run: other processes have what their files set."""
        self._imported.update(reached_modules(self._imported.items()))
        self.files |= self._imported
        for name, path in sorted(self._imported.items()):
            module, source = sys.modules.get(name), read_source(path)
            self._names |= source.names if source is not None else frozenset()  # it need not be loaded yet
            if name == "__main__" and module is not None:  # other processes have another one
                self._modules[id(module)] = module
            if module is None or id(module) in self._modules:
                continue
            named = self._named_attributes(module)
            # An import sets its modules as attributes of their packages.
            named = {key: value for key, value in named.items() if f"{name}.{key}" not in sys.modules}
            changed = self._set_by_program(module, path, named) if named else {}
            if changed:
                self._put("set by the program", name)
                self._add_globals(changed, path, name)

    def _set_by_program(self, module: ModuleType, path: Path, named: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the attributes of a module that its file sets to something else."""
        fresh = as_file_sets(module)
        if fresh is None:
            other = _other_constants(module, path).keys() & named.keys()
        elif other := self._differing(named, module, fresh):
            second = as_file_sets(module, 1)
            # What it draws when it is loaded, and times, are others in every process.
            other -= self._differing(other, fresh, second) if second is not None else set()
        return {name: named[name] for name in other}

    def _differing(self, names: Collection[str], one: ModuleType, other: ModuleType) -> set[str]:
        """The attributes that differ between two modules, with what functions in them reach."""
        return {name for name in names if self._content_of(name, one) != self._content_of(name, other)}

    def _content_of(self, name: str, module: ModuleType) -> str | None:
        if name not in vars(module):
            return None
        alone = self._alone()
        alone._numbers, alone._kept = {}, []  # the other one has none of these objects
        alone._modules, alone._variables, alone._done, alone.values = {}, {}, set(), {}
        alone.generators = []
        alone._add_globals({name: vars(module)[name]}, _file_of_module(module), module.__name__)
        alone._add_reached(imports=False)
        return alone.sha256

    def _add_code(self, code: CodeType) -> None:
        *parts, constants = code_parts(code)
        self._put("code", *map(repr, parts))
        self._names |= names_in(code, "LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
        self._add_all("constants", constants)

    def _add_function(self, function: FunctionType) -> None:
        code, module = function.__code__, function.__globals__.get("__name__")
        self._put("function")
        self.add(code)
        self.add(function.__defaults__, " default ")
        self._add_attributes(function.__kwdefaults__ or {})
        codes = nested_codes(code)
        readers = [one for one in codes if not _ENVIRONMENT.isdisjoint(one.co_names)]
        sets = {name for _, name in _changed_by(function)} if readers else set()
        for one in readers if "environ" not in sets else ():  # what the function sets itself is not a setting
            named = sorted(text for text in one.co_consts if isinstance(text, str) and text in os.environ)
            self._add_pairs("environment", {text: os.environ[text] for text in named})
        if "_torchdynamo_orig_callable" in vars(function):  # torch.compile: the rest are caches
            self.add(vars(function)["_torchdynamo_orig_callable"])
            return
        if module == "functools" and "registry" in vars(function):  # singledispatch: the rest is a cache
            registry = function.registry  # type: ignore[attr-defined]
            self._add_attributes({f"{kind.__module__}.{kind.__qualname__}": registry[kind] for kind in registry})
            return
        self._put("closure", str(len(function.__closure__ or ())))
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                inside = cell.cell_contents
            except ValueError:  # a name that is not bound yet
                self._put("empty")
            else:
                self.add(inside, f", closure {name}")
        self._add_attributes(vars(function))
        if isinstance(module, str) and not is_local_module(module):
            return
        file = Path(code.co_filename)
        has_file = file.is_file()
        if isinstance(module, str) and has_file:
            self._meet(module, file)
            self.functions.append((module, function))
        for base, names in imported_names(code, function.__globals__.get("__package__")):
            if base in sys.modules and _is_of_program(base):
                self.add(sys.modules[base], f", module {base}")
            else:
                self._imported.update(local_imports(base, names))
        read = {name for one in codes for name in global_reads(one)}
        if "globals" in read and "globals" not in function.__globals__:
            message = f"{self._where} calls globals(): which of them it reads cannot be told"
            raise _Unidentified(message, hint="name the globals in it, or pass what it needs as arguments")
        if not read.isdisjoint(("eval", "exec")):  # code in a text
            texts = " ".join(text for one in codes for text in one.co_consts if isinstance(text, str))
            read.update(re.findall(r"\w+", texts))
            self._names |= read
        used = {name: function.__globals__[name] for name in read if name in function.__globals__}
        self._add_globals(used, file.absolute() if has_file else None, str(module))

    def _add_globals(self, used: Mapping[str, Any], file: Path | None, module: str) -> None:
        """Globals of a module; for a file, without those that are state rather than settings (`_add_variables`)."""
        source = read_source(file) if file is not None else None
        left_out = source.variables if source is not None else frozenset()
        for name in left_out.intersection(used):
            if not _is_container(used[name]) or len(used[name]):
                self._variables[module, name] = used[name]
        settings = {name: value for name, value in used.items() if name not in left_out}
        self._add_values(module, settings, lenient=source is not None)

    def _add_values(self, module: str, named: Mapping[str, Any], *, lenient: bool) -> None:
        """Globals of a module, each with a digest of its own."""
        for name in sorted(named):
            outside, self._digest = self._digest, hashlib.sha256()
            self._add_attributes({name: named[name]}, lenient=lenient)
            digest, self._digest = self.sha256, outside
            self._put("value", digest)
            if not isinstance(named[name], (FunctionType, type, ModuleType)):
                self.values[f"{shown_name(module)}.{name}"] = digest[:8]

    def _add_variables(self) -> None:
        """The variables that none of the functions met changes: settings or tables, not state or caches."""
        left = sorted(self._variables.keys() - self._done)
        changed = set().union(*(_changed_by(function) for _, function in self.functions)) if left else set()
        self._done.update(left)
        for module, name in left:
            if (module, name) not in changed:
                self._add_values(module, {name: self._variables[module, name]}, lenient=True)

    def _add_class(self, kind: type) -> None:
        file = _file_of_class(kind)
        self._put("class", kind.__name__)  # a class that was pickled by value has no qualified name
        self._meet(kind.__module__, file)
        self._add_all("bases", kind.__bases__)
        self.add(type(kind))
        named = {name: value for name, value in vars(kind).items() if name not in _DERIVED}
        self._add_attributes(named, lenient=file is not None)

    def _meet(self, module: str, file: Path | None) -> None:
        """The file of a local module is part of what the code in it depends on."""
        if file is not None:
            self.files.setdefault(module, file.absolute())


def _changed_by(function: FunctionType) -> set[tuple[str, str]]:
    """The modules and names of the globals that a function changes itself; none if its source is unknown."""
    source = read_source(Path(function.__code__.co_filename))
    dotted = source.changed.get(function.__code__.co_firstlineno, ()) if source is not None else ()
    found = set()
    for *path, name in (one.split(".") for one in dotted):
        names = function.__globals__
        for one in path:
            inside = names.get(one)
            names = vars(inside) if isinstance(inside, ModuleType) else {}
        found.add((str(names.get("__name__")), name))
    return found


def _is_generator(value: Any) -> bool:
    """Whether a value is a random generator of NumPy, torch or Python."""
    drawn, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    kinds = (random.Random, *((drawn.Generator, drawn.RandomState) if drawn is not None else ()))
    return isinstance(value, kinds + ((torch.Generator,) if torch is not None else ()))


def _is_container(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))


def _attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots as well."""
    slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
    return {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}


def _pickles_itself(kind: type) -> bool:
    """Whether a class of the user decides what its pickle holds."""
    hooks = [getattr(kind, name, None) for name in ("__reduce__", "__reduce_ex__", "__getstate__")]
    return any(isinstance(hook, FunctionType) and is_local_module(hook.__module__) for hook in hooks)


def _plain_attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object that are numbers, texts, arrays or tensors."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = (bool, int, float, complex, str, bytes, *((numpy.ndarray, numpy.generic) if numpy is not None else ()))
    kinds += (torch.Tensor,) if torch is not None else ()
    return {name: one for name, one in _attributes_of(value).items() if isinstance(one, kinds)}


def _holds(state: Any, name: str) -> bool:
    parts = state if type(state) is tuple else (state,)
    return any(isinstance(part, Mapping) and name in part for part in parts)


class LostAttributesError(UsageError):
    """Workers would get an object without its attributes."""


def check_attributes(value: Any) -> None:
    """Raise UsageError for an array of the user's class whose attributes NumPy's pickle leaves out, and for an object whose own
    pickle gives a number, a text or an array another value."""
    if _pickles_itself(type(value)):
        _check_own_pickle(value)
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or isinstance(value, numpy.memmap):
        return
    kind, base = type(value), numpy.ndarray if isinstance(value, numpy.ndarray) else numpy.generic
    if kind.__reduce__ is base.__reduce__ and kind.__reduce_ex__ is base.__reduce_ex__ and _attributes_of(value):
        message = f"the class {kind.__qualname__} has attributes that its pickle leaves out: {', '.join(_attributes_of(value))}"
        hint = "pass them as arguments beside a plain array, or give the class a __reduce__ that keeps them"
        raise LostAttributesError(message, hint=hint)


def _check_own_pickle(value: Any) -> None:
    copied = copy.copy(value)
    for name, one in _plain_attributes(value).items():
        other = getattr(copied, name, None)
        if other is not None and content_hash(one) != content_hash(other):
            message = (
                f"the class {type(value).__qualname__} has a pickle of its own, which changes its attribute {name}"
            )
            raise LostAttributesError(message, hint="workers get what it pickles: have it keep the attribute")


def _without(state: Any, names: Collection[str]) -> Any:
    """The state of an object without some attributes; for a class with slots, the state holds two dictionaries of them."""
    if type(state) is tuple and len(state) == 2:
        return tuple(_without(one, names) for one in state)
    return {name: one for name, one in state.items() if name not in names} if type(state) is dict else state


def _is_of_program(name: str) -> bool:
    """Whether importing a loaded module reads no file: the main program, and modules that a program made."""
    return name == "__main__" or (getattr(sys.modules[name], "__spec__", None) is None and is_local_module(name))


def _file_of_module(module: ModuleType) -> Path | None:
    """The source file of a local module, also of one that was loaded from its path without an import."""
    found = local_file(module.__name__)
    if found is None and module.__name__ not in sys.modules:
        path = Path(getattr(module, "__file__", None) or "")
        return path if path.is_file() else None
    return found


def _file_of_class(kind: type) -> Path | None:
    """The file of a local class: in other processes the main module is a different one."""
    for value in vars(kind).values():
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if isinstance(code, CodeType) and Path(code.co_filename).is_file():
            return Path(code.co_filename)
    return local_file(kind.__module__) if kind.__module__ != "__main__" else None


def _global_name(value: Any) -> str | None:
    """``module:name`` of a function or class by which an installed module has it."""
    try:
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    except Exception:  # an object with its own __getattr__
        return None
    if not isinstance(module, str) or not isinstance(name, str) or module not in sys.modules or is_local_module(module):
        return None
    if isinstance(value, type) and not value.__flags__ & _MADE_BY_CLASS:
        return f"{module}:{name}"
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else None


def global_reads(code: CodeType) -> frozenset[str]:
    """The names of globals that a code object reads itself."""
    return names_in(code, "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def _has_plain_bytes(tensor: Any, torch: Any) -> bool:
    """Whether a tensor is just its bytes in order; sparse, quantized and nested tensors, and tensors without data, are not."""
    plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    return bool(plain and tensor.device.type != "meta")


def _parts_of(value: Any, as_made: bool) -> tuple[Any, ...] | None:
    """The parts of an object that pickle refuses, or takes apart differently in every process; None for all other objects."""
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, types.MappingProxyType):
        return (dict(value),)
    if isinstance(value, types.CellType):
        with contextlib.suppress(ValueError):
            return (value.cell_contents,)
        return ()
    if isinstance(value, _CACHED):
        return value.__wrapped__, value.cache_parameters()
    if type(value).__module__.startswith("numba.") and hasattr(value, "py_func"):  # its pickle has a random number
        return value.py_func, getattr(value, "targetoptions", None)
    gymnasium = sys.modules.get("gymnasium")
    if as_made and gymnasium is not None and isinstance(value, gymnasium.Space):
        return ({name: one for name, one in sorted(vars(value).items()) if not name.startswith("_np_random")},)
    dataset: Any = sys.modules.get(f"{__package__.partition('.')[0]}.storage.dataset")
    if dataset is not None and isinstance(value, dataset.Dataset):  # its pickle has its path
        return (value.manifest.content,)
    torch: Any = sys.modules.get("torch")
    tensordict: Any = sys.modules.get("tensordict")
    if torch is not None and isinstance(value, torch.UntypedStorage):
        return (torch.tensor([], dtype=torch.uint8, device=value.device).set_(value),)
    if torch is not None and isinstance(value, torch.storage.TypedStorage):
        return str(value.dtype), value.untyped()
    if torch is not None and isinstance(value, torch.Generator):
        return str(value.device), value.get_state()
    if tensordict is not None and isinstance(value, tensordict.TensorDictBase):
        names = sorted(value.keys(), key=str)
        return tuple(value.batch_size), str(value.device), [(name, value.get(name)) for name in names]
    return None
