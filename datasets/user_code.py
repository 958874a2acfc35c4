"""The user's own code, given as text: a function, a policy or an environment is found by name, and identified by its files.

    package.module:name     a module that can be imported; the folder of the command is searched last
    path/file.py:name       a file, which may import modules beside it
    path/file.py            a whole file

``name`` may be a dotted path (``Class.method``). The identity of such a text is the sha256 of its file and of the local files
that this imports, directly or by way of others. Imports are read from the source, also those inside functions, and nothing is
run for that. A file is local if it belongs neither to Python, nor to an installed package, nor to rbdata.

A Python object has no identity: nobody can tell cheaply and surely what a closure will do.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import FunctionError, UsageError

_FORMS = "write package.module:name or path/file.py:name"
_PACKAGE = __package__.partition(".")[0]
_PYTHON = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}

#: The folders that `find` has made importable, the latest first.
_folders: list[str] = []
#: The modules that `find` has loaded, or that what it found may still import, each with the sha256 that its file had.
_loaded: dict[str, str] = {}


def find(reference: str, folder: Path | None = None) -> Any:
    """What a reference names: a function, class or object; without a name the module. It is found relative to ``folder`` (the
    current one).

    Local files are loaded as they are now, also where an earlier `find` has loaded them and they were edited since. What the
    program itself has imported stays as it is.

    Raises UsageError for text of another form, and for a file, module or name that does not exist,
    FunctionError (``detail`` is the traceback) where the import fails.
    """
    where, name = _split(reference)
    folder = folder or Path.cwd()
    _make_importable(_path(where, folder).parent if where.endswith(".py") else folder)
    files = _reached(where, folder, reference)
    hashes = {module: _sha256(path) for module, path in files.items()}
    if any(hashes.get(module, sha256) != sha256 for module, sha256 in _loaded.items()):
        for module in _loaded:
            sys.modules.pop(module, None)
        _loaded.clear()
    before = set(sys.modules)
    found: Any = _import(where, folder, reference)
    _loaded.update({module: sha256 for module, sha256 in hashes.items() if module not in before})
    for part in name.split(".") if name else ():
        owner = found
        found = getattr(owner, part, None)
        if found is None:
            message = f"there is no {part!r} in {getattr(owner, '__file__', None) or where}"
            raise UsageError(message, hint=_suggestion(part, owner))
    return found


def identity(reference: str, folder: Path | None = None) -> dict[str, str]:
    """The sha256 of the file that a reference names, and of the local files that it imports: ``{"pkg/helpers.py": sha256}``,
    its own file first. Nothing is imported.

    Raises UsageError as `find`, and FunctionError for a file that is not Python.
    """
    where, _ = _split(reference)
    folder = folder or Path.cwd()
    _make_importable(_path(where, folder).parent if where.endswith(".py") else folder)
    return {_label(module, path): _sha256(path) for module, path in _reached(where, folder, reference).items()}


def _split(reference: str) -> tuple[str, str]:
    """Module or file, and name; the name is empty where the text is a file alone."""
    where, colon, name = reference.rpartition(":")
    if reference.endswith(".py"):
        return reference, ""
    if not colon or not where or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{reference!r} names no function or class", hint=_FORMS)
    return where, name


def _path(where: str, folder: Path) -> Path:
    return (folder / Path(where).expanduser()).resolve()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _label(module: str, path: Path) -> str:
    """``pkg/helpers.py`` of the module ``pkg.helpers``, wherever it lies."""
    if path.name == "__init__.py":
        return f"{module.replace('.', '/')}/__init__.py"
    return "/".join((*module.split(".")[:-1], path.name))


# -- loading -------------------------------------------------------------------------------------------------------------


def _name_of_file(path: Path) -> str:
    """A module name for a file given by its path, so that a file json.py does not replace the module json."""
    return f"file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"


def _make_importable(folder: Path) -> None:
    """Search a folder for modules: after the installed packages (it may hold folders called ``datasets`` or ``storage``), but
    before the folders of earlier references. It stays, as functions may import when they are called."""
    name, ours = str(folder), [one for one in _folders if one in sys.path]  # the program may have removed some
    if name in ours:
        ours.remove(name)
        sys.path.remove(name)
    if name not in sys.path:
        sys.path.insert(sys.path.index(ours[0]) if ours else len(sys.path), name)
        ours.insert(0, name)
    _folders[:] = ours
    importlib.invalidate_caches()  # files may have been written since


def _import(where: str, folder: Path, reference: str) -> ModuleType:
    # Python compares size and seconds of a file with its bytecode: one that was just changed would run as it was before.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        path = _path(where, folder)
        name = _name_of_file(path)
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit of a script, too
        message = f"{reference} cannot be loaded: importing {where} raised {type(error).__name__}: {error}"
        trace = error.__traceback__
        while (
            trace is not None and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith((__file__, "<frozen"))
        ):
            trace = trace.tb_next  # theirs, and nothing of ours
        detail = "".join(traceback.format_exception(type(error), error.with_traceback(trace), trace))
        raise FunctionError(message, hint="import it in Python to see more", detail=detail) from error
    finally:
        sys.dont_write_bytecode = writes


def _suggestion(name: str, owner: Any) -> str:
    names = [one for one in dir(owner) if not one.startswith("_") and callable(getattr(owner, one, None))]
    near = difflib.get_close_matches(name, names, n=3) or names[:6]
    return f"it has {', '.join(near)}" if near else "it holds nothing that can be called"


# -- the files that code imports -----------------------------------------------------------------------------------------


def _reached(where: str, folder: Path, reference: str) -> dict[str, Path]:
    """The file of a reference and the local files that it imports, by module."""
    if where.endswith(".py"):
        path = _path(where, folder)
        if not path.is_file():
            near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
            hint = f"files there: {', '.join(near[:6])}" if near else _FORMS
            raise UsageError(f"{reference}: there is no file {path}", hint=hint)
        found = {_name_of_file(path): path}
    else:
        spec = _spec(where)
        if spec is None:
            raise _no_module(where, folder, reference)
        found = {where: Path(spec.origin)} if spec.has_location and spec.origin else {}
        found |= _local_files(where)
    left = list(found.items())
    while left:
        module, path = left.pop()
        for imported in _imports(module, path) if path.suffix == ".py" else ():
            new = {name: file for name, file in _local_files(imported).items() if name not in found}
            found |= new
            left += new.items()
    return found


def _no_module(where: str, folder: Path, reference: str) -> UsageError:
    message = f"{reference}: there is no module {where!r} in the installed packages and in {folder}"
    name = reference.rpartition(":")[2]
    near = difflib.get_close_matches(where, sorted(other.stem for other in folder.glob("*.py")), n=1)
    return UsageError(message, hint=f"did you mean {near[0]}:{name}?" if near else _FORMS)


def _imports(module: str, path: Path) -> Iterator[str]:
    """The modules that a file names in its imports; of ``from a import b`` both ``a`` and ``a.b``, which may be none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise FunctionError(f"{path} is not Python: {error}", hint=f"python {path} shows where") from error
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if node.level and not package:
                continue  # fails when it runs
            base = resolve_name(base, package) if node.level else base
            yield base
            yield from (f"{base}.{one.name}" for one in node.names)


def _local_files(module: str) -> dict[str, Path]:
    """The local files that importing a module runs, by module: its own and those of its packages."""
    found = {}
    parts = module.split(".")
    if parts[0] == _PACKAGE or parts[0] in sys.stdlib_module_names:
        return {}
    for number in range(len(parts)):
        name = ".".join(parts[: number + 1])
        spec = _spec(name)
        if spec is None:
            break
        path = Path(spec.origin) if spec.has_location and spec.origin else None
        if path is not None and _INSTALLED.isdisjoint(path.parts) and not any(map(path.is_relative_to, _PYTHON)):
            found[name] = path
    return found


def _spec(module: str) -> ModuleSpec | None:
    """Where a module would be imported from, without importing it or its packages."""
    path: Any = None
    spec = None
    for number in range(module.count(".") + 1):
        name = ".".join(module.split(".")[: number + 1])
        finders = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((one for one in finders if one is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and name != module:
            return None
    return spec
