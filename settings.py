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
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import plugins
from .errors import UsageError

FILENAME = "config.toml"
DEFAULT = "default"


@dataclass(frozen=True)
class Setting:
    """A value and its origin: the name of a variable, the path of the file, or ``default``."""

    name: str
    value: Any
    origin: str


def root(flag: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the datasets, absolute; ``flag`` overrides the settings. Nothing is created."""
    return Path(flag).expanduser().absolute() if flag else _root().value


def mirror(source: str) -> str | None:
    """The mirror of a source in the settings, None if there is none."""
    return _mirror(source).value


def procs(flag: int | None = None) -> int | None:
    """The number of worker processes; ``flag`` overrides the settings. None if neither states it."""
    return flag if flag is not None else _procs().value


def source_option(option: Any) -> Setting:
    """The setting of an option that a source declares with ``setting=True``, for commands without that option.

    ``option`` is a `SourceOption`. Raises UsageError for an invalid value, naming its origin.
    """
    places = ((f"RBDATA_{option.name.upper()}", os.environ), (option.name, _file()))
    return _setting(option.name, option.check, places, option.default)


def effective(root_flag: str | os.PathLike[str] | None = None) -> list[Setting]:
    """Every setting with its value and origin. Raises UsageError for an invalid value, naming its origin."""
    root_setting = Setting("root", root(root_flag), "--root") if root_flag else _root()
    options = [source_option(option) for option in plugins.options_from_settings()]
    mirrors = [_mirror(source) for source in plugins.registered()]
    return [_file_setting(), root_setting, _procs(), *options, *mirrors]


def path() -> Path | None:
    """The path of the configuration file, which need not exist; None if RBDATA_CONFIG is empty."""
    chosen = os.environ.get("RBDATA_CONFIG")
    if chosen is not None:
        return Path(chosen).expanduser().absolute() if chosen else None
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
        return Path(_check_string(value, "root", origin)).expanduser().absolute()

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


def _procs() -> Setting:
    def check(value: Any, origin: str) -> int:
        number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            message = f"{origin}: procs is {value!r}, must be an integer of at least 1"
            raise UsageError(message, hint="for example: procs = 8")
        return number

    return _setting("procs", check, (("RBDATA_PROCS", os.environ), ("procs", _file())))


def _setting(
    name: str, check: Callable[[Any, str], Any], places: Iterable[tuple[str, Mapping[str, Any]]], default: Any = None
) -> Setting:
    """The first value in these places that is set and not an empty string, passed through ``check(value, origin)``."""
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
    hint = "it is rbdata's configuration file, described in docs/mirrors.md"
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
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
    unknown = sorted(set(mirrors) - set(plugins.registered())) if mirrors else []
    if unknown:
        message = f"{file}: unknown source {unknown[0]!r} in [mirrors]"
        raise UsageError(message, hint=f"sources: {', '.join(plugins.registered())}")
    return content
