"""Local source files: which modules are the user's own, what such a file imports, and the code that it compiles to.

A module is local if it has a source file that belongs neither to Python, nor to an installed package, nor to rbdata. Imports
are read from the source (those inside functions too) and resolved without importing anything.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from itertools import takewhile
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_PACKAGE = __package__.partition(".")[0]
_PYTHON = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
#: Files that modules come from: source, and extensions that were built beside it.
_CODE = (".py", ".so", ".pyd")
_EMPTY = ("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "WeakKeyDictionary")
_IMPORTS = ("import_module", "__import__")
#: Methods that change a container.
_CHANGING = {
    *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "pop", "popleft"),
    *("popitem", "remove", "discard", "clear", "sort", "reverse", "subtract", "difference_update"),
    *("intersection_update", "symmetric_difference_update", "rotate", "move_to_end", "__setitem__", "__delitem__"),
}
#: Functions that change their first argument.
_CHANGING_FIRST = {
    *("shuffle", "heappush", "heappop", "heapify", "heapreplace", "heappushpop"),
    *("insort", "insort_left", "insort_right", "setitem", "delitem"),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class SourceFile:
    """A source file as it was read.

    ``imports``: modules that it names, as ``(level, module, names)``. ``names``: texts, and the names of attributes that it
    reads. ``variables``: globals that may be state rather than settings, because a function assigns them (``global``) or
    because they begin as an empty container (a cache). ``codes``: the digests (`code_digest`) of all functions in it.
    ``constants``: the globals that one assignment of a literal sets, and nothing changes. ``changed``: by the first line of
    every function the globals that it changes itself, as it comes to them: ``CACHE``, ``helpers.CACHE``.
    """

    sha256: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    names: frozenset[str]
    variables: frozenset[str]
    codes: frozenset[bytes]
    constants: Mapping[str, Any]
    changed: Mapping[int, frozenset[str]]


def read_source(path: Path) -> SourceFile | None:
    """The file as it is now; None where it cannot be read or is not Python."""
    try:
        return _parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=512)
def _parse(data: bytes) -> SourceFile:
    tree = ast.parse(data)
    imports: list[tuple[int, str, tuple[str, ...]]] = []
    names: set[str] = set()
    variables: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        elif isinstance(node, ast.Import):
            imports += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
            names.update(imports[-1][2])
        elif isinstance(node, ast.Global):
            variables.update(node.names)
        elif isinstance(node, ast.Call) and (name := _module_named(node)):
            imports.append((0, name, ()))
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                variables.update(_begin_empty(target, node.value))
    code = compile(data, "<source>", "exec", dont_inherit=True)
    codes = frozenset(code_digest(inner) for inner in _nested(code))
    constants = {name: value for name, value in _constants(tree).items() if name not in variables}
    digest = hashlib.sha256(data).hexdigest()
    return SourceFile(
        digest, tuple(imports), frozenset(names), frozenset(variables), codes, constants, _changed_names(tree)
    )


def _module_named(call: ast.Call) -> str | None:
    """``pkg.mod`` of ``importlib.import_module("pkg.mod")``."""
    first = call.args[0] if call.args else None
    is_text = isinstance(first, ast.Constant) and isinstance(first.value, str) and not first.value.startswith(".")
    return first.value if is_text and _last_name(call.func) in _IMPORTS else None  # type: ignore[union-attr]


def _last_name(node: ast.expr) -> str:
    """``name`` of ``name`` and of ``pkg.name``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Globals that are assigned once, by a literal, and that nothing in the file changes."""
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    stored += _changed_containers(tree)
    found: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and value is not None:
            try:
                literal = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
            # Sets inside a literal print in another order than those that the compiled file makes.
            has_sets = any(isinstance(inner, ast.Set) for inner in ast.walk(value) if inner is not value)
            if stored.count(target.id) == 1 and literal is not None and not has_sets:
                found[target.id] = literal
    return found


def _changed_containers(tree: ast.Module) -> Iterator[str]:
    """Every name whose container a file may change: ``NAME[...] = x``, ``del NAME[...]``, ``NAME.append(x)`` and similar."""
    for node in ast.walk(tree):
        inner = _changed_by(node)
        while isinstance(inner, (ast.Subscript, ast.Attribute)):
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id


def _changed_by(node: ast.AST) -> ast.expr | None:
    """What a node changes: ``NAME.x`` of ``NAME.x = 1``, ``NAME[...]`` of ``NAME[...] = 1``, ``NAME`` of ``NAME.append(1)``."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return node
    if isinstance(node, ast.Attribute) and node.attr in _CHANGING:
        return node.value
    if isinstance(node, ast.Call) and node.args and _last_name(node.func) in _CHANGING_FIRST:
        return node.args[0]
    return None


def _changed_names(tree: ast.Module) -> dict[int, frozenset[str]]:
    """By the first line of every function the globals that it changes, as `SourceFile.changed`."""
    found: dict[int, frozenset[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            line = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            found[line] = found.get(line, frozenset()) | _changed_globals(node)
    return found


def _changed_globals(function: ast.AST) -> set[str]:
    """The globals that a function and those inside it change; what is done to another name for one is done to it."""
    bound: list[str] = []
    declared: set[str] = set()
    changed: set[str] = set()
    other_names: dict[str, str] = {}
    left = [*ast.iter_child_nodes(function)]
    while left:
        node = left.pop()
        bound += _bound_by(node)
        if isinstance(node, ast.Global):
            declared.update(node.names)
        if (inner := _changed_by(node)) is not None:
            changed.add(_dotted(inner))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            other_names[node.targets[0].id] = _dotted(node.value)
        if isinstance(node, _FUNCTIONS):
            changed |= _changed_globals(node)
        else:
            left += ast.iter_child_nodes(node)
    for name in [*changed]:
        first, dot, rest = name.partition(".")
        if bound.count(first) == 1 and first in other_names:
            changed.add(other_names[first] + dot + rest)
    local = {"", *bound} - declared
    return declared.intersection(bound) | {name for name in changed if name.partition(".")[0] not in local}


def _bound_by(node: ast.AST) -> list[str]:
    """The names that a node binds in its scope."""
    if isinstance(node, ast.Name):
        return [node.id] if not isinstance(node.ctx, ast.Load) else []
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    name = getattr(node, "arg" if isinstance(node, ast.arg) else "name", None)  # of a function, a class, an exception
    return [name] if isinstance(name, str) else []


def _dotted(node: ast.expr) -> str:
    """``helpers.CACHE`` of ``helpers.CACHE["key"].x``: the dotted name up to the first subscript; "" for other expressions."""
    names: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        names = [node.attr, *names] if isinstance(node, ast.Attribute) else []
        node = node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else ""


def _begin_empty(target: ast.expr, value: ast.expr | None) -> Iterator[str]:
    """The names that an assignment makes empty containers."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts):
            yield from _begin_empty(one, its)
    elif isinstance(target, ast.Name) and _is_empty(value):
        yield target.id


def _is_empty(node: ast.expr | None) -> bool:
    """``{}``, ``[]``, ``dict()``, ``defaultdict(list)``: a container that begins empty."""
    if isinstance(node, ast.Dict):
        return not node.keys
    if isinstance(node, ast.List):
        return not node.elts
    if not isinstance(node, ast.Call):
        return False
    name = _last_name(node.func)
    return name in _EMPTY and not node.keywords and len(node.args) <= (name == "defaultdict")


def _nested(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _nested(one)


def nested_codes(code: CodeType) -> list[CodeType]:
    """A code object, and those of the functions and classes in it."""
    return [code, *_nested(code)]


@functools.lru_cache(maxsize=8192)
def names_in(code: CodeType, *instructions: str) -> frozenset[str]:
    """The names that a code object uses itself in these instructions of Python's bytecode."""
    import dis

    return frozenset(str(step.argval) for step in dis.get_instructions(code) if step.opname in instructions)


def code_digest(code: CodeType) -> bytes:
    """A digest of what a code object does, wherever it stands in its file."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, CodeType):
            for part in code_parts(value):
                add(part)
        elif isinstance(value, tuple):
            digest.update(b"tuple %d;" % len(value))
            for one in value:
                add(one)
        else:
            text = sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
            digest.update(f"{type(value).__name__} {text};".encode(errors="surrogatepass"))

    add(code)
    return digest.digest()


def code_parts(code: CodeType) -> tuple[Any, ...]:
    """The parts of a code object, without file names and line numbers."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_code, counts, names, getattr(code, "co_exceptiontable", b""), code.co_consts)


def label_of_module(name: str, path: Path | str) -> str:
    """A module as a path: ``pkg/helpers.py``."""
    path = Path(path)
    last = "/__init__.py" if path.name == "__init__.py" else path.suffix
    return path.name if name == "__main__" else name.replace(".", "/") + last


# -- which modules are local ---------------------------------------------------------------------------------------------


def is_installed_path(path: str) -> bool:
    """Whether a file is one of Python's or of an installed package."""
    return not _INSTALLED.isdisjoint(Path(path).parts) or path.startswith((*_PYTHON, "<frozen"))


def is_local_module(name: str) -> bool:
    """Whether a module is the user's: a user's file, a notebook, or code without a file."""
    if name.partition(".")[0] == _PACKAGE:
        return False
    module = sys.modules.get(name)
    if module is None:
        return name.partition(".")[0] not in sys.stdlib_module_names
    if name == "__main__":
        return True
    file = getattr(module, "__file__", None)
    if file is None:  # built in, a namespace package, or made by a program
        folders = [*(getattr(module, "__path__", None) or ())]
        made = getattr(module, "__spec__", None) is None and name.partition(".")[0] not in sys.stdlib_module_names
        return made or any(not is_installed_path(str(folder) + os.sep) for folder in folders)
    return not is_installed_path(str(file))


def local_file(name: str) -> Path | None:
    """The source file of a local module that is loaded."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or not is_local_module(name) or not isinstance(file, str) or not file.endswith(_CODE):
        return None
    path = Path(file).absolute()
    return path if path.is_file() else None


# -- imports -------------------------------------------------------------------------------------------------------------


def reached_modules(start: Iterable[tuple[str, Path]], *, loaded: bool = True) -> dict[str, Path]:
    """The local modules that files import, directly or by way of others: their files by name, the files themselves included.

    ``start``: modules by name and file. With ``loaded``, modules are those that this process has loaded; without it, those that
    would be imported now.
    """
    found: dict[str, Path] = {}
    left = list(start)
    while left:
        name, path = left.pop()
        if name in found:
            continue
        found[name] = path
        source = read_source(path)
        for level, module, names in source.imports if source else ():
            base = _absolute(name, path, level, module)
            if base is not None:
                left += local_imports(base, names, loaded=loaded)
    return found


def local_imports(module: str, names: Iterable[str] = (), *, loaded: bool = True) -> list[tuple[str, Path]]:
    """The local modules that ``from MODULE import NAMES`` (or ``import MODULE``) runs, by name and file."""
    parts = module.split(".")
    if not module or parts[0] == _PACKAGE or parts[0] in sys.stdlib_module_names:
        return []
    found: list[tuple[str, Path]] = []
    path = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        spec = _find(name, path, loaded)
        origin = spec.origin if spec is not None else None
        if origin and origin.endswith(_CODE):
            if is_installed_path(origin):
                return []
            found.append((name, Path(origin).absolute()))
        path = spec.submodule_search_locations if spec is not None else None
        if path is None:
            return found
    for name in names:  # those of a package may be modules
        spec = _find(f"{module}.{name}", path, loaded)
        origin = spec.origin if spec is not None else None
        if origin and origin.endswith(_CODE) and not is_installed_path(origin):
            found.append((f"{module}.{name}", Path(origin).absolute()))
    return found


def _absolute(name: str, path: Path, level: int, module: str) -> str | None:
    """The name of a module that the module ``name`` imports with ``level`` dots."""
    if not level:
        return module
    package: str | None
    if name == "__main__":  # not what it is in this process: functions of it are sent to others
        folders = takewhile(lambda folder: (folder / "__init__.py").is_file(), path.absolute().parents)
        package = ".".join(reversed([folder.name for folder in folders]))
    else:
        package = getattr(sys.modules.get(name), "__package__", None)
    if package is None:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    parts = package.split(".")
    if not package or level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def _find(name: str, path: Any, loaded: bool) -> ModuleSpec | None:
    """Where a module is, without importing it or a package that it is in."""
    module = sys.modules.get(name)
    if loaded and module is not None:
        return _spec_of(name, module)
    try:
        spec = PathFinder.find_spec(name, path)
    except KeyError:  # a namespace package inside another one, which Python would import first
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(Path(folder) / name.rpartition(".")[2]) for folder in path]
    except (ImportError, ValueError, AttributeError, OSError):
        spec = None
    return spec if spec is not None or module is None else _spec_of(name, module)


def _spec_of(name: str, module: ModuleType) -> ModuleSpec:
    """The spec of a loaded module that was found in a special way, such as an editable install."""
    spec = ModuleSpec(name, None, origin=getattr(module, "__file__", None))
    spec.submodule_search_locations = getattr(module, "__path__", None)
    return spec


def imported_names(code: CodeType, package: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules that a function of a package imports when it runs, as ``(module, names)``."""
    import dis

    for one in nested_codes(code):
        found: list[tuple[str, list[str]]] = []
        if not {*_IMPORTS, "modules"}.isdisjoint(one.co_names):
            found += [(text, []) for text in one.co_consts if isinstance(text, str)]
        steps = [*dis.get_instructions(one)] if names_in(one, "IMPORT_NAME") else []
        steps = [step for step in steps if step.opname != "EXTENDED_ARG"]
        for number, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":  # after its level and names
                found.append(("." * steps[number - 2].argval + str(step.argval), []))
            elif step.opname == "IMPORT_FROM":
                found[-1][1].append(str(step.argval))
        for name, names in found:
            with contextlib.suppress(ImportError, ValueError):  # no module's name, or not in a package
                module = resolve_name(name, package)
                if all(part.isidentifier() for part in module.split(".")):
                    yield module, tuple(names)


def functions_of(module: ModuleType) -> Iterator[types.FunctionType]:
    """The functions that a module defines, those of its classes included."""
    for value in [*vars(module).values()]:
        if getattr(value, "__module__", None) != module.__name__:
            continue
        inside = vars(value).values() if isinstance(value, type) else (value,)
        for one in inside:
            one = getattr(one, "__func__", one)
            if isinstance(one, types.FunctionType) and one.__module__ == module.__name__:
                yield one
