"""The files and environment variables that users' code reads itself while it is imported and called: its results depend on
them.

An audit hook of Python (PEP 578) sees what ``open``, ``os.open``, ``sqlite3.connect`` and listings of folders are given, and so
what NumPy, ``torch.load``, pandas, pickle and zip files read. What C libraries open (HDF5, Arrow, safetensors, OpenCV) it does
not see: such files count where code names them (`note_named`). Nor does it see what other processes open, nor checks such as
``exists``. An environment variable that code reads by name, rather than among all variables, is listed as ``$NAME``.

Each of them has a state, a text:

    sha256 of its content (hex) or value; of a file beyond LARGEST bytes ``SIZE bytes, MTIME``, with the time in nanoseconds
    ``open SHA256``   it was opened to be read and perhaps changed (``r+``)
    ``names SHA256``  of a folder that was listed, by the names in it
    ``absent``        it was requested, and does not exist
    ``written``       the code writes or sets it as well: a log, a cache; its content says nothing

Files of Python, of installed packages and of the system, caches of compilers, and those in folders that are ``ignored`` do not
count.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import source_from_cache
from pathlib import Path
from types import CodeType
from typing import Any

from ...errors import FunctionError
from ...storage.checksums import hash_file
from .source_files import is_installed_path

ABSENT, WRITTEN = "absent", "written"
_OPEN, _NAMES = "open ", "names "
_VARIABLE = "$"
#: Bytes of a file that is hashed.
LARGEST = 64 << 20
_FOLDERS = ("lib", "lib64", "share", "etc", "bin", "include", "conda-meta")
_PREFIXES = (
    *("/proc/", "/sys/", "/etc/", "/run/", "/usr/lib/", "/usr/share/", "/lib/", "/lib64/"),
    *(str(Path(prefix, name)) + os.sep for prefix in {sys.prefix, sys.base_prefix} for name in _FOLDERS),
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")),
    str(Path(__file__).parents[2]) + os.sep,
)
#: Parts of paths of compilers' caches: these follow from code that counts.
_COMPILED = ("__pycache__", "torchinductor_", ".triton")

#: The collectors that are active now.
_active: list[OpenedFiles] = []
#: The last state of every file that was collected in this process.
_last: dict[str, str] = {}
_thread = threading.local()


class OpenedFiles:
    """Collects, while it is entered, what code in this process reads; it may be entered many times.

    ``found``: their states, by absolute path. ``changed``: the files whose content changed later. Threads that the code started
    count; what other threads do inside rbdata (runs of their own, which wait for this one) does not.
    """

    def __init__(self, ignored: Iterable[Path] = ()) -> None:
        self.found: dict[str, str] = {}
        self.changed: set[str] = set()
        self.thread = 0
        self._ignored = tuple({str(one) + os.sep for path in ignored for one in (path.absolute(), path.resolve())})
        _install()

    def __enter__(self) -> OpenedFiles:
        self.thread = threading.get_ident()
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)

    def ignores(self, path: str) -> bool:
        """Whether a path lies in a folder that does not count."""
        return path.startswith(self._ignored)

    def note(self, path: str, state: str) -> None:
        """A file that was opened."""
        if self.ignores(path):
            return
        joined = _joined(self.found.get(path, state), state)
        if joined is None:
            self.changed.add(path)
        else:
            self.found[path] = joined

    def labelled(self, folder: Path) -> dict[str, str]:
        """The states by label: the path relative to ``folder``, or to the home (``~/...``), or an absolute one.

        Raises FunctionError for files that were changed while the code read them.
        """
        changed = [path for path in self.changed if self.found[path] != WRITTEN]
        if changed:
            raise changed_error(label_of(path, folder) for path in changed)
        return {label_of(path, folder): state for path, state in sorted(self.found.items())}


def changed_error(labels: Iterable[str]) -> FunctionError:
    """The error for files that were changed while code that reads them was running."""
    message = f"{', '.join(sorted(labels))} was changed while your code read it: rows of both contents would be mixed"
    return FunctionError(message, hint="start over, with --force (force=True), when it does not change any more")


def merge(known: dict[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Add states by label, of one process or part, to those of others. Returns what is new.

    Raises FunctionError for files whose content differs from theirs.
    """
    joined = {label: _joined(known.get(label, state), state) for label, state in found.items()}
    changed = [label for label, state in joined.items() if state is None]
    if changed:
        raise changed_error(changed)
    new = {label: state for label, state in joined.items() if state is not None and state != known.get(label)}
    known.update(new)
    return new


def _joined(one: str, other: str) -> str | None:
    """The state of a file that was met twice; None where its content changed."""
    if one == other or other == ABSENT:
        return one
    if one == ABSENT or other == WRITTEN:
        return other
    if one == WRITTEN:
        return one
    if _content(one) == _content(other):
        return _OPEN + _content(one)
    return WRITTEN if one.startswith((_OPEN, _NAMES)) or other.startswith(_OPEN) else None


def _content(state: str) -> str:
    return state.removeprefix(_OPEN)


def differing(recorded: Any, folder: Path) -> list[str]:
    """The files, by label, that are not as they were recorded; in words. ``recorded``: what a journal or a manifest holds."""
    changed = []
    for label, state in sorted(recorded.items()) if isinstance(recorded, Mapping) else ():
        if not isinstance(state, str) or state == WRITTEN:
            continue
        now = state_of(path_of(label, folder))
        if now != _content(state):
            why = " (not there now)" if now == ABSENT else " (not there before)" if state == ABSENT else ""
            what = f"the environment variable {label[1:]}" if label[0] == _VARIABLE else label
            changed.append((f"the names in {label}" if state.startswith(_NAMES) else what) + why)
    return changed


def forget_stale() -> bool:
    """Whether a file that code opened in this process has changed since: it may keep the old content. Asked once."""
    stale = [path for path, state in _last.items() if state_of(path) != state]
    for path in stale:
        del _last[path]
    return bool(stale)


def label_of(path: str, folder: Path) -> str:
    """How a file or variable is named in a record."""
    if path[0] == _VARIABLE:
        return path
    with suppress(ValueError):
        label = Path(path).relative_to(folder).as_posix()
        return f"./{label}" if label[0] in (_VARIABLE, "~") else label
    with suppress(ValueError, RuntimeError):
        return f"~/{Path(path).relative_to(Path.home()).as_posix()}"
    return path


def path_of(label: str, folder: Path) -> str:
    """The inverse of `label_of`."""
    if label[:1] == _VARIABLE:
        return label
    return str(Path.home() / label[2:] if label.startswith("~/") else folder / label)


# -- states -----------------------------------------------------------------------------------------------------------


def state_of(path: str) -> str:
    """The state of a file, folder or variable as it is now; WRITTEN for anything else (a pipe, a device)."""
    if path[:1] == _VARIABLE:
        value = os.environ.get(path[1:])
        return ABSENT if value is None else hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()
    was_busy, _thread.is_busy = getattr(_thread, "is_busy", False), True  # files that are opened here do not count
    try:
        info = Path(path).stat()
        if stat.S_ISDIR(info.st_mode):
            names = sorted(one.name for one in Path(path).iterdir() if one.name[0] != "." and one.name != "__pycache__")
            return _NAMES + hashlib.sha256("\0".join(names).encode(errors="surrogatepass")).hexdigest()
        if not stat.S_ISREG(info.st_mode):
            return WRITTEN
        if info.st_size > LARGEST:
            return f"{info.st_size} bytes, {info.st_mtime_ns}"
        return _hash(path, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    except (OSError, ValueError):
        return ABSENT
    finally:
        _thread.is_busy = was_busy


@functools.lru_cache(maxsize=16384)
def _hash(path: str, *_: int) -> str:
    """sha256 (hex) of a file; the numbers distinguish versions of its content."""
    return hash_file(Path(path), hashlib.sha256()).hexdigest()


# -- the hook ---------------------------------------------------------------------------------------------------------


@functools.cache
def _install() -> None:
    """Python cannot remove a hook: it does nothing while nothing is collected."""
    sys.addaudithook(_hook)
    if type(os.environ) is _Environment.__base__:
        os.environ.__class__ = _Environment


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _active or event not in _EVENTS or getattr(_thread, "is_busy", False):
        return
    _thread.is_busy = True
    try:
        _EVENTS[event](*args)
    except (OSError, ValueError, TypeError, RuntimeError):  # the hook must not change what the code sees
        pass
    finally:
        _thread.is_busy = False


def _on_open(path: Any, mode: Any, flags: int, *_: Any) -> None:
    access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    if access == os.O_WRONLY or flags & (os.O_CREAT | os.O_TRUNC | os.O_APPEND):
        _see(path, WRITTEN)
    elif not flags & getattr(os, "O_DIRECTORY", 0):
        _see(path, _OPEN if access == os.O_RDWR else "")


def _on_list(path: Any = None, *_: Any) -> None:
    if str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0] not in _FINDERS:
        _see("." if path is None else path)


#: Modules of Python that list folders to find modules.
_FINDERS = ("importlib", "_frozen_importlib_external", "pkgutil")


def _on_database(path: Any, *_: Any) -> None:
    name = os.fsdecode(path)
    if name and name != ":memory:":
        _see(name.removeprefix("file:").partition("?")[0] if name.startswith("file:") else name, _OPEN)


_EVENTS: dict[str, Callable[..., None]] = {
    "open": _on_open,
    "os.listdir": _on_list,
    "os.scandir": _on_list,
    "os.rename": lambda _, target, *__: _see(target, WRITTEN),
    **dict.fromkeys(("os.mkdir", "os.rmdir", "os.remove", "os.truncate"), lambda path, *_: _see(path, WRITTEN)),
    "sqlite3.connect": _on_database,
}


def _see(path: Any, how: str = "") -> None:
    """Note a path as code gave it: WRITTEN, _OPEN, or read."""
    if isinstance(path, int):  # it was opened before
        return
    found = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  links stay: they may be changed
    if found.endswith(".pyc") and how != WRITTEN:
        with suppress(ValueError):
            found = source_from_cache(found)
    if not _counts(found) or (found.endswith(".py") and sys._getframe(3).f_globals.get("__name__") == "tokenize"):
        return  # nor what tracebacks show
    state = WRITTEN if how == WRITTEN else state_of(found)
    note(found, how + state if state not in (ABSENT, WRITTEN) else state)
    if found.endswith("meta.json") and how != WRITTEN:  # tensordict maps the leaves beside it in C
        for leaf in Path(found).parent.glob("*.memmap"):
            note(str(leaf), _OPEN + state_of(str(leaf)))


def note(path: str, state: str) -> None:
    """A file that the code that runs depends on, for all that collect."""
    collecting = _collecting()
    for one in collecting:
        one.note(path, state)
    if collecting and all(one.ignores(path) for one in collecting):
        return  # rbdata's own, such as the working folder of a recording
    if state == WRITTEN:
        _last.pop(path, None)
    else:
        _last[path] = _content(state)


def _collecting() -> list[OpenedFiles]:
    """The collectors to which what happens in this thread belongs."""
    active, thread = [*_active], threading.get_ident()
    own = [one for one in active if one.thread == thread]
    return own if own or _is_inside_rbdata() else active


def _is_inside_rbdata() -> bool:
    frame: Any = sys._getframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.startswith(_PACKAGE) and name != __name__:
            return True
        frame = frame.f_back
    return False


#: How names of rbdata's modules begin.
_PACKAGE = __name__.partition(".")[0] + "."


def is_read_unseen(path: str) -> bool:
    """Whether C libraries are likely to read a file of this name."""
    return path.endswith(_UNSEEN)


def note_named(names: Iterable[str], folder: Path) -> None:
    """Note files that code names, relative to ``folder``, and that C libraries are likely to read, for all that collect."""
    for name in names:
        path = os.path.abspath(folder / name)  # noqa: PTH100
        if is_read_unseen(path) and Path(path).is_file() and _counts(path):
            note(path, _OPEN + state_of(path))


_UNSEEN = (
    *(".h5", ".hdf5", ".hdf", ".parquet", ".arrow", ".feather", ".safetensors", ".onnx", ".nc", ".pt", ".pth"),
    *(".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".xml", ".memmap"),
)


@functools.lru_cache(maxsize=16384)
def _counts(path: str) -> bool:
    if path.startswith(_PREFIXES) or is_installed_path(path) or path.endswith((".nbi", ".nbc")):  # numba's
        return False
    return not any(one in path for one in _COMPILED)


class _Environment(type(os.environ)):  # type: ignore[misc]
    """``os.environ`` that notes reads: code reads a variable in many ways, and all of them end here."""

    def __getitem__(self, key: str) -> str:
        if _active and key != getattr(_thread, "listed", None):
            asker = _asker()
            if asker is not None and asker != getattr(_thread, "lister", None):
                note(_VARIABLE + key, state_of(_VARIABLE + key))
        value: str = super().__getitem__(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        if _active:
            note(_VARIABLE + key, WRITTEN)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        if _active:
            note(_VARIABLE + key, WRITTEN)

    def __iter__(self) -> Iterator[str]:
        """Results do not depend on a copy of all variables."""
        _thread.lister = _asker() if _active else None
        for key in super().__iter__():
            _thread.listed = key
            yield key
        _thread.listed = None


def _asker() -> tuple[CodeType, int] | None:
    """The code that asks for a variable, with the place in it; None for that of an installed package."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _ASKING:
        if frame.f_code.co_name == "expanduser":
            return None
        frame = frame.f_back
    return None if frame is None or not _counts(frame.f_code.co_filename) else (frame.f_code, frame.f_lasti)


#: Modules of Python through which code asks for variables.
_ASKING = ("os", "collections.abc", "_collections_abc", "posixpath", "ntpath", "genericpath")
