"""Settings: flags override environment variables, which override the configuration file, which overrides defaults.

    RBDATA_ROOT              the folder of the datasets (default: rbdata in the platform's user cache folder)
    RBDATA_MIRROR            a mirror for every source
    RBDATA_<SOURCE>_MIRROR   a mirror for one source (RBDATA_ATARI_MIRROR); overrides RBDATA_MIRROR
    RBDATA_PROCS             worker processes
    RBDATA_<OPTION>          an option of a source, if its declaration allows it (RBDATA_UPSTREAM)
    RBDATA_CONFIG            another configuration file

The file is TOML, at ``~/.config/rbdata/config.toml`` (or the platform's configuration folder); every entry is optional:

    root = "/data/rbdata"
    procs = 8
    upstream = "auto"                # an option of a source
    mirror = "gs://lab/rbdata"       # for every source

    [mirrors]                        # for one source
    atari = "/mnt/dqn"

A mirror for one source, from variable or file, overrides one for every source.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import UsageError, page
from .storage import plugins
from .storage.keywords import refuse_empty

FILENAME = "config.toml"
DEFAULT = "default"


@dataclass(frozen=True)
class Setting:
    """A value and its origin: the name of a variable, the path of the file, or ``default``."""

    name: str
    value: Any
    origin: str


def root(flag: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the datasets, absolute; ``flag`` overrides the settings. Nothing is created.

    Raises UsageError for an invalid path.
    """
    if flag is None:
        return _root().value
    refuse_empty(root=flag)
    try:
        if b"\0" in os.fsencode(flag):
            raise ValueError
    except ValueError as error:  # UnicodeEncodeError is one
        raise UsageError(f"{os.fspath(flag)!r} cannot be the name of a folder", hint="choose another --root") from error
    return expanded(flag).absolute()


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a user's path with ``~`` expanded. Raises UsageError for the home folder of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{os.fspath(path)}: there is no such home folder") from error


def command(*words: object, root: str | os.PathLike[str] | None = None) -> str:
    """Return a command line of rbdata for a hint, ready to be pasted, with the user's ``root`` if it is not None."""
    given = () if root is None else ("--root", os.fspath(root))
    return shlex.join(["rbdata", *map(str, words), *given])


def mirror(source: str) -> str | None:
    """Return the mirror of a source in the settings, None if there is none."""
    return _mirror(source).value


def procs(flag: int | None = None) -> int | None:
    """Return the number of worker processes; ``flag`` overrides the settings. None if neither states it."""
    return flag if flag is not None else _procs().value


def source_option(option: Any) -> Setting:
    """Return the setting of an option that a source declares with ``setting=True``, for commands without that option.

    ``option`` is a `SourceOption`. Raises UsageError for an invalid value, naming its origin.
    """
    places = ((f"RBDATA_{option.name.upper()}", os.environ), (option.name, _file()))
    return _setting(option.name, option.check, places, option.default)


def effective(root_flag: str | os.PathLike[str] | None = None) -> list[Setting]:
    """Return every setting with its value and origin. Raises UsageError for an invalid value, naming its origin."""
    root_setting = Setting("root", root(root_flag), "--root") if root_flag else _root()
    options = [source_option(option) for option in plugins.options_from_settings()]
    mirrors = [_mirror(source) for source in _with_mirrors()]
    return [_file_setting(), root_setting, _procs(), *options, *mirrors]


def path() -> Path | None:
    """Return the path of the configuration file, which need not exist; None if RBDATA_CONFIG is empty."""
    chosen = os.environ.get("RBDATA_CONFIG")
    if chosen is not None:
        return expanded(chosen).absolute() if chosen else None
    import platformdirs

    return Path(platformdirs.user_config_dir("rbdata")) / FILENAME


# -- single settings ------------------------------------------------------------------------------------------------------


def _file_setting() -> Setting:
    file = path()
    exists = file is not None and file.is_file()
    origin = "RBDATA_CONFIG" if "RBDATA_CONFIG" in os.environ else DEFAULT
    return Setting("config", str(file) if exists else None, origin)


def _root() -> Setting:
    import platformdirs

    def check(value: Any, origin: str) -> Path:
        return expanded(_check_string(value, "root", origin)).absolute()

    places = (("RBDATA_ROOT", os.environ), ("root", _file()))
    return _setting("root", check, places, Path(platformdirs.user_cache_dir("rbdata")))


def _mirror(source: str) -> Setting:
    file = _file()
    places = (
        (f"RBDATA_{source.upper()}_MIRROR", os.environ),
        (source, file.get("mirrors", {})),
        ("RBDATA_MIRROR", os.environ),
        ("mirror", file),
    )
    return _setting(f"mirrors.{source}", lambda value, origin: _check_string(value, "a mirror", origin), places)


def _with_mirrors() -> list[str]:
    return [source for source in plugins.registered() if source not in plugins.WITHOUT_MIRRORS]


def _procs() -> Setting:
    return _setting("procs", _check_procs, (("RBDATA_PROCS", os.environ), ("procs", _file())))


def _check_procs(value: Any, origin: str) -> int:
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        message = f"{origin}: procs is {value!r}, must be an integer of at least 0"
        raise UsageError(message, hint="for example: procs = 8")
    return number


def _setting(
    name: str, check: Callable[[Any, str], Any], places: Iterable[tuple[str, Mapping[str, Any]]], default: Any = None
) -> Setting:
    """The first value in these places that is set and not empty, passed through ``check(value, origin)``."""
    for key, values in places:
        value = values.get(key)
        if value not in (None, ""):
            origin = key if values is os.environ else str(path())
            return Setting(name, check(value, origin), origin)
    return Setting(name, default, DEFAULT)


def _check_string(value: Any, what: str, origin: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{origin}: {what} is {value!r}, must be a string", hint='quote it: root = "/data"')
    return value


# -- the file --------------------------------------------------------------------------------------------------------

#: Names at the top level of the file, besides the options of sources.
_OWN = {"root", "procs", "mirror", "mirrors"}


def _file() -> Mapping[str, Any]:
    """The content of the file; empty if there is no file. Raises UsageError if it is invalid or cannot be read."""
    file = path()
    try:
        stat = file.stat() if file else None
    except (FileNotFoundError, NotADirectoryError):
        stat = None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="it is rbdata's configuration") from error
    return _load(file, stat.st_mtime_ns, stat.st_size) if file and stat else {}


@lru_cache(maxsize=8)
def _load(file: Path, mtime_ns: int, size: int) -> Mapping[str, Any]:
    hint = f"it is rbdata's configuration file, described in {page('mirrors.md')}"
    import tomllib

    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(f"{file} is not TOML: {error}", hint=hint) from error
    other = set(content) - _OWN
    names = _OWN | {option.name for option in plugins.options_from_settings()} if other else _OWN
    unknown = sorted(other - names)
    if unknown:
        raise UsageError(f"{file}: unknown setting {unknown[0]!r}", hint=f"settings: {', '.join(sorted(names))}")
    mirrors = content.get("mirrors", {})
    if not isinstance(mirrors, dict):
        raise UsageError(f"{file}: mirrors is not a table", hint='write [mirrors], and below it atari = "/mnt/dqn"')
    unknown = sorted(set(mirrors) - set(_with_mirrors())) if mirrors else []
    if unknown:
        message = f"{file}: unknown source {unknown[0]!r} in [mirrors]"
        raise UsageError(message, hint=f"sources: {', '.join(_with_mirrors())}")
    return content


def store(name: str, value: str | None) -> Path:
    """Set an entry of the file (``root``, ``mirrors.atari``), or remove it if the value is None; returns the file's path.

    Comments and the order of entries are kept. The file is replaced atomically. A relative path is stored as an absolute one.
    Raises UsageError for unknown names and invalid values; the file is then unchanged.
    """
    import tomlkit

    file = path()
    if file is None:
        raise UsageError("there is no configuration file: RBDATA_CONFIG is empty", hint="set it to a path, or unset it")
    _check_name(name)
    _file()  # raises if it is invalid
    content = tomlkit.parse(file.read_text(encoding="utf-8")) if file.is_file() else tomlkit.document()
    key, table = name, content
    if name.startswith("mirrors."):
        key = name.partition(".")[2]
        table = content.setdefault("mirrors", tomlkit.table())
    if value is None:
        if key not in table:
            raise UsageError(f"{file} does not set {name}", hint="`rbdata config` shows where each value comes from")
        del table[key]
        if not content.get("mirrors", True):
            del content["mirrors"]
    else:
        table[key] = _parse(name, value)
    _replace(file.resolve(), tomlkit.dumps(content))
    return file


def _check_name(name: str) -> None:
    import difflib

    names = [*sorted(_OWN - {"mirrors"}), *(option.name for option in plugins.options_from_settings())]
    names += [f"mirrors.{source}" for source in _with_mirrors()]
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=1)
        message = f"unknown setting {name!r}"
        raise UsageError(message, hint=f"did you mean {near[0]}?" if near else f"settings: {', '.join(names)}")


def _parse(name: str, value: str) -> Any:
    if not value:
        raise UsageError(f"{name} is empty", hint=f"remove it with `rbdata config unset {name}`")
    if name == "procs":
        return _check_procs(value, "config set")
    for option in plugins.options_from_settings():
        if option.name == name:
            return option.check(value, "config set")
    return value if "://" in value else str(expanded(value).absolute())


def _replace(file: Path, content: str) -> None:
    import tempfile

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent)
        with made as folder, Path(folder, file.name).open("xb") as stream:
            os.fchmod(stream.fileno(), file.stat().st_mode & 0o777 if file.exists() else 0o600)
            stream.write(content.encode())
            stream.flush()
            os.fsync(stream.fileno())
            Path(stream.name).replace(file)
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror}"
        raise UsageError(message, hint="RBDATA_CONFIG names another configuration file") from error
