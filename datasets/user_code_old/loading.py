"""Modules that users name: ``package.module``, or ``file.py``, by the content that they have now.

A module is loaded once for its content. When its file, or a local module that it imports, has been edited since, it is loaded
again. Modules that the program itself has imported are left as they are: if such a module was edited since, or is not the
requested file, the request is refused.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import io
import pickle
import struct
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ...errors import FunctionError, FunctionNotFoundError, UsageError
from ...settings import expanded
from .opened_files import OpenedFiles, forget_stale, note
from .source_files import (
    code_digest,
    functions_of,
    is_installed_path,
    label_of_module,
    local_imports,
    reached_modules,
    read_source,
)

#: What the names of modules begin with that are loaded from a file (`_name_of_file`).
_PREFIX = "_rbdata_user_"
#: How many `by_content` are entered: whether modules are loaded for a request, rather than imported by the program.
_depth = 0
#: Folders that were made importable here, the last one first; they are at the end of ``sys.path``.
_folders: list[str] = []


#: The loaders of modules that were loaded here, by name; some may have been forgotten.
_loaders: dict[str, ContentLoader] = {}


class ContentLoader(SourceFileLoader):
    """Compiles the source that it reads and keeps its sha256: bytecode files only record a size, and the second of a change.

    ``opened``: the files that the module opened while it was loaded, as `OpenedFiles.found`.
    """

    sha256 = ""
    opened: Mapping[str, str] = {}

    def get_code(self, fullname: str) -> CodeType:
        data = self.get_data(self.path)
        self.sha256 = hashlib.sha256(data).hexdigest()
        note(str(Path(self.path).absolute()), self.sha256)
        return self.source_to_code(data, self.path)

    def exec_module(self, module: ModuleType) -> None:
        with OpenedFiles() as opened:
            super().exec_module(module)
        self.opened = opened.found
        _loaders[self.name] = self


class _LocalFinder:
    """Finds local modules as Python does, and has them loaded by content; inside `by_content`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if _depth else None
        if spec is None or type(spec.loader) is not SourceFileLoader or is_installed_path(spec.loader.path):
            return None
        if name.partition(".")[0] == __package__.partition(".")[0]:
            return None
        spec.loader = ContentLoader(spec.loader.name, spec.loader.path)
        return spec


@contextmanager
def by_content() -> Iterator[None]:
    """Local modules that are imported here are loaded by content, and again when they were edited: around user code."""
    global _depth
    if _LocalFinder not in sys.meta_path:
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
        sys.meta_path.insert(place, _LocalFinder)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def load_module(where: str, folder: Path, text: str, forms: str, *, fresh: bool = False) -> ModuleType:
    """The module ``where`` (a name, or a path of a file) of a text that users gave, relative to ``folder``.

    With ``fresh`` a file is run again even if it is loaded, so that its variables are as it sets them.

    Raises FunctionNotFoundError with the places that were searched and ``forms`` as a hint, FunctionError where importing
    fails, UsageError where the program has imported another version of a local module.
    """
    is_file = where.endswith(".py") or "/" in where
    with by_content():
        return _load_file(where, folder, text, forms, fresh) if is_file else _load_name(where, folder, text, forms)


def _load_file(where: str, folder: Path, text: str, forms: str, fresh: bool) -> ModuleType:
    path = (folder / expanded(where)).resolve()
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = f"there are {', '.join(near[:6])}" if near else forms
        raise FunctionNotFoundError(f"{text}: there is no file {path}", hint=hint)
    name = _name_of_file(path)
    _make_importable(path.parent)
    _forget_edited({name: path})
    if name in sys.modules and not fresh:
        return sys.modules[name]
    loader = ContentLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise FunctionNotFoundError(f"{text}: {path} is not a Python file", hint=forms)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _import_failed(error, text, str(path)) from error
    return module


def _name_of_file(path: Path) -> str:
    """A unique name, so that a file json.py does not replace the module json."""
    return f"{_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"


def shown_name(module: str) -> str:
    """The name of a module as its file has it."""
    return module.removeprefix(_PREFIX).partition("_")[2] if module.startswith(_PREFIX) else module


def _load_name(where: str, folder: Path, text: str, forms: str) -> ModuleType:
    _make_importable(folder)
    _forget_edited(dict(local_imports(where, loaded=False)))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
            raise _import_failed(error, text, where) from error  # the module exists, one of its imports does not
        message = f"{text}: there is no module {error.name!r} in the installed packages and in {folder}"
        file = folder.joinpath(*where.split(".")).with_suffix(".py")
        near = difflib.get_close_matches(where, sorted(other.stem for other in folder.glob("*.py")), n=1)
        hint = f"did you mean {near[0]}:{text.rpartition(':')[2]}?" if near else forms
        if file.is_file():
            hint = f"it is a file: {file.relative_to(folder)}:{text.rpartition(':')[2]}"
        raise FunctionNotFoundError(message, hint=hint) from error
    except BaseException as error:
        raise _import_failed(error, text, where) from error


def load_fresh(where: str, folder: Path, text: str, forms: str) -> ModuleType | None:
    """The module as another process would load it, with the local modules that it imports; this one keeps those that it has.

    None where it has none of them, so that what it loads is fresh. Raises as `load_module`.
    """
    if where.endswith(".py") or "/" in where:
        path = (folder / expanded(where)).resolve()
        start = {_name_of_file(path): path}
    else:
        start = dict(local_imports(where, loaded=False))
    _forget_readers()
    meant = reached_modules(start.items(), loaded=False)
    if sys.modules.keys().isdisjoint(meant):
        return None
    with _forgotten(meant):
        return load_module(where, folder, text, forms)


@contextmanager
def _forgotten(names: Collection[str]) -> Iterator[None]:
    """These modules are loaded again here, where they are imported; afterwards the process has those that it had."""
    before = {name: sys.modules[name] for name in names if name in sys.modules and name != "__main__"}
    for name in before:
        _forget(name)
    try:
        yield
    finally:
        for name in names:
            if name in sys.modules and name != "__main__":
                _forget(name)
        for name, module in before.items():
            sys.modules[name] = module
            package, _, last = name.rpartition(".")
            if package in sys.modules:
                setattr(sys.modules[package], last, module)


def imported_from(where: str, folder: Path) -> ModuleType | None:
    """The module that the program itself has imported from the file ``where``, as the file is now; None without one."""
    path = (folder / expanded(where)).resolve()
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file is None or name == "__main__" or not str(file).endswith(path.name):
            continue
        if type(getattr(module, "__loader__", None)) is not SourceFileLoader:
            continue  # loaded for a request, or compiled differently, as by pytest
        if Path(file).resolve() == path and not is_edited(name, path) and not is_imported_before(module):
            return module
    return None


def run_again(module: ModuleType, text: str) -> ModuleType:
    """Another module object of the same file, with variables as it sets them; other modules still import the first one.

    Raises FunctionError where it fails.
    """
    spec = module.__spec__
    if spec is None or spec.loader is None:
        return module
    again = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = again
    try:
        with by_content():
            spec.loader.exec_module(again)
    except BaseException as error:
        raise _import_failed(error, text, str(module.__file__)) from error
    finally:
        sys.modules[module.__name__] = module
    return again


#: Modules as their files set them (`as_file_sets`), by name and number, with the module that the program has and the sha256 of
#: the file.
_as_file_sets: dict[tuple[str, int], tuple[ModuleType, str, ModuleType]] = {}


def as_file_sets(module: ModuleType, number: int = 0) -> ModuleType | None:
    """A module that the program has imported as another process would load it, with the local modules that it imports.

    It runs again once for a version of its file, and for each ``number``. None for modules that were loaded in another way, and
    those that cannot be run twice.
    """
    name, source = module.__name__, read_source(Path(str(getattr(module, "__file__", ""))))
    if source is None or type(getattr(module, "__loader__", None)) is not SourceFileLoader:
        return None
    known = _as_file_sets.get((name, number))
    if known is None or known[:2] != (module, source.sha256):
        known = module, source.sha256, module
        _as_file_sets[name, number] = known  # while it runs, it may ask for itself
        # An extension cannot be loaded twice.
        others = [one for one, path in reached_modules(local_imports(name)).items() if path.suffix == ".py"]
        with suppress(Exception, SystemExit), _forgotten(others), by_content():
            known = module, source.sha256, importlib.import_module(name)
        _as_file_sets[name, number] = known
    return known[2] if known[2] is not module else None


def _make_importable(folder: Path) -> None:
    """Make the modules in ``folder`` importable, after all others (it may hold folders named ``datasets`` or ``storage``), but
    before those of folders that were so made before."""
    name = str(folder)
    if name not in sys.path:
        first = next((place for place, other in enumerate(sys.path) if other in _folders), len(sys.path))
        sys.path.insert(first, name)
        _folders.insert(0, name)
    elif name in _folders and name != next(other for other in sys.path if other in _folders):
        sys.path.remove(name)
        _folders.remove(name)
        _make_importable(folder)
    importlib.invalidate_caches()  # files may have been written since


def _forget_edited(start: Mapping[str, Path]) -> None:
    """Forget the modules that were loaded here if one of them is not what would be loaded now.

    Raises UsageError for such modules that the program has imported.
    """
    _forget_readers()
    meant = reached_modules(start.items(), loaded=False)
    edited = False
    for name, path in meant.items():
        if name not in sys.modules:
            continue
        file = getattr(sys.modules[name], "__file__", None)
        is_other = file is not None and Path(file).absolute() != path.absolute()
        if file is not None and not is_other and not is_edited(name, path):
            continue
        edited = True
        if is_other and not is_for_request(name):
            message = f"{name} is {path} here, and this program has imported {file} under that name"
            raise UsageError(message, hint="rename one of the two, or run this in another process")
        if not is_for_request(name):
            raise edited_error(name, path)
    if edited:
        for name in filter(is_for_request, meant):
            _forget(name)


def _forget_readers() -> None:
    """If a file that code has read was changed, forget all modules that were loaded here: they may keep its old content."""
    if forget_stale():
        for name in filter(is_for_request, [*sys.modules]):
            _forget(name)


def is_for_request(name: str) -> bool:
    """Whether a module was loaded for a request here, rather than imported by the program."""
    return isinstance(getattr(sys.modules.get(name), "__loader__", None), ContentLoader)


def note_opened_at_import(labels: Collection[str], modules: Collection[str | None]) -> None:
    """Note for all that collect the files that modules opened when they were loaded here, perhaps before.

    The modules: by `label_of_module`, or by name.
    """
    for label, loader in loaded_for_requests().items():
        if label in labels or loader.name in modules:
            for path, state in loader.opened.items():
                note(path, state)


def loaded_for_requests() -> dict[str, ContentLoader]:
    """The loaders of the modules that were loaded for requests here, by `label_of_module`."""
    loaders = [one for name, one in _loaders.items() if getattr(sys.modules.get(name), "__loader__", None) is one]
    return {label_of_module(one.name, one.path): one for one in loaders}


class _Unpickler(pickle.Unpickler):
    """Copies classes that cloudpickle pickled by value: in their own process it would set the attributes of the originals."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name not in ("_make_skeleton_class", "_make_skeleton_enum"):
            return found
        return lambda *args: found(
            *args[:-2], f"{args[-2]} copied", args[-1]
        )  # the id by which cloudpickle knows the class


def unpickled_copy(payload: bytes) -> Any:
    """What cloudpickle pickled in this process, or in the one that started this worker: never bytes from a file."""
    return _Unpickler(io.BytesIO(payload)).load()


def _forget(name: str) -> None:
    module = sys.modules.pop(name)
    package, _, last = name.rpartition(".")
    if package in sys.modules and getattr(sys.modules[package], last, None) is module:
        delattr(sys.modules[package], last)


def is_edited(name: str, path: Path) -> bool:
    """Whether the file of a loaded module has other content than when it was loaded."""
    module, source = sys.modules[name], read_source(path)
    loader = getattr(module, "__loader__", None)
    if source is None:
        return isinstance(loader, SourceFileLoader)
    if isinstance(loader, ContentLoader):
        return loader.sha256 != source.sha256
    if type(loader) is not SourceFileLoader:
        return False  # compiled differently, as by pytest
    return any(
        code_digest(function.__code__) not in source.codes
        for function in functions_of(module)
        if Path(function.__code__.co_filename).absolute() == path.absolute()
    )


def is_imported_before(module: ModuleType) -> bool:
    """Whether Python's bytecode file, which an import writes, is of a source file of another size or time than it has now.

    False where nothing tells: no such file was written, or it was since then, by another process.
    """
    spec = getattr(module, "__spec__", None)
    if spec is None or not isinstance(spec.loader, SourceFileLoader) or not spec.cached or not spec.origin:
        return False
    try:
        with Path(spec.cached).open("rb") as file:
            magic, flags, time, size = struct.unpack("<4sLLL", file.read(16))
        now = Path(spec.origin).stat()
    except (OSError, struct.error):
        return False
    # As Python compares them: https://peps.python.org/pep-0552/
    is_timed = magic == importlib.util.MAGIC_NUMBER and flags == 0
    return is_timed and (time, size) != (int(now.st_mtime) & 0xFFFFFFFF, now.st_size & 0xFFFFFFFF)


def edited_error(name: str, path: Path) -> UsageError:
    """The error for a local module whose file was edited after the program imported it."""
    message = f"{path} was edited after {name} was imported: the code before the edit would run"
    hint = f"import it again, importlib.reload({name}), and define again what was made from it; or restart Python"
    return UsageError(message, hint=hint)


def _import_failed(error: BaseException, text: str, where: str) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    description = " ".join(f"{type(error).__name__}: {error}".split())
    detail = "".join(traceback.format_exception(error))
    return FunctionError(f"{text} cannot be loaded: importing {where} raised {description}", detail=detail)
