"""Settings: command-line flags over environment variables over the configuration file over defaults.

    RBDATA_ROOT              where datasets lie (default: the platform's user cache folder + rbdata)
    RBDATA_MIRROR            a mirror for every source
    RBDATA_<SOURCE>_MIRROR   a mirror for one source (RBDATA_ATARI_MIRROR); wins over RBDATA_MIRROR
    RBDATA_PROCS             worker processes
    RBDATA_<OPTION>          an option of a source, where its declaration allows that (RBDATA_UPSTREAM)
    RBDATA_CONFIG            another configuration file

The file is TOML, at ``~/.config/rbdata/config.toml`` (or where the platform keeps such files); all of it is optional:

    root = "/data/rbdata"
    procs = 8
    upstream = "auto"                # an option of a source
    mirror = "gs://lab/rbdata"       # for every source

    [mirrors]                        # for one source
    atari = "/mnt/dqn"

A mirror for one source, wherever it is named, wins over one for every source.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
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
    """One effective value and where it came from: a variable's name, the file's path, or ``default``."""

    name: str
    value: Any
    origin: str


def root(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder that datasets lie in, absolute. Nothing is created."""
    return Path(given).expanduser().absolute() if given else _root().value


def mirror(source: str) -> str | None:
    """The mirror that the settings name for a source, if any."""
    return _mirror(source).value


def procs(given: int | None = None) -> int | None:
    """How many worker processes are wanted; None where nobody says."""
    return given if given is not None else _procs().value


def source_option(option: Any) -> Setting:
    """The value of an option that a source declares with ``setting=True``, where the command does not give it.

    ``option`` is a `SourceOption`. Raises UsageError for a value that it does not allow, naming the value's origin.
    """
    found = _first((f"RBDATA_{option.name.upper()}", os.environ), (option.name, _file()))
    if not found:
        return Setting(option.name, option.default, DEFAULT)
    name, value = found
    return Setting(option.name, option.check(value, name), name)


def effective(given: str | os.PathLike[str] | None = None) -> list[Setting]:
    """Every setting with its value and origin; ``given`` is the root that a flag names.

    Raises UsageError for a value that makes no sense, naming its origin.
    """
    where = Setting("root", root(given), "--root") if given else _root()
    options = [source_option(option) for option in plugins.options_from_settings()]
    mirrors = [_mirror(source) for source in plugins.registered()]
    return [_file_setting(), where, _procs(), *options, *mirrors]


def path() -> Path | None:
    """The configuration file, there or not; None where RBDATA_CONFIG is set to nothing."""
    chosen = os.environ.get("RBDATA_CONFIG")
    if chosen is not None:
        return Path(chosen).expanduser().absolute() if chosen else None
    import platformdirs

    return Path(platformdirs.user_config_dir("rbdata")) / FILENAME


# -- one by one ------------------------------------------------------------------------------------------------------


def _file_setting() -> Setting:
    where = path()
    there = where is not None and where.is_file()
    origin = "RBDATA_CONFIG" if "RBDATA_CONFIG" in os.environ else DEFAULT
    return Setting("config", str(where) if there else None, origin)


def _root() -> Setting:
    found = _first(("RBDATA_ROOT", os.environ), ("root", _file()))
    if found:
        name, value = found
        return Setting("root", Path(_text(value, "root", name)).expanduser().absolute(), name)
    import platformdirs

    return Setting("root", Path(platformdirs.user_cache_dir("rbdata")), DEFAULT)


def _mirror(source: str) -> Setting:
    file = _file()
    found = _first(
        (f"RBDATA_{source.upper()}_MIRROR", os.environ),
        (source, file.get("mirrors", {})),
        ("RBDATA_MIRROR", os.environ),
        ("mirror", file),
    )
    if not found:
        return Setting(f"mirrors.{source}", None, DEFAULT)
    name, value = found
    return Setting(f"mirrors.{source}", _text(value, "a mirror", name), name)


def _procs() -> Setting:
    found = _first(("RBDATA_PROCS", os.environ), ("procs", _file()))
    if not found:
        return Setting("procs", None, DEFAULT)
    name, value = found
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise UsageError(f"{name}: procs is {value!r}, not a number from 1 on", hint="for example: procs = 8")
    return Setting("procs", number, name)


def _first(*places: tuple[str, Mapping[str, Any]]) -> tuple[str, Any] | None:
    """The first of these names that is set, as (where it was found, value). An empty text sets nothing."""
    for name, values in places:
        value = values.get(name)
        if value not in (None, ""):
            return (name if values is os.environ else str(path())), value
    return None


def _text(value: Any, what: str, origin: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{origin}: {what} is {value!r}, not a text", hint='texts stand in quotes: root = "/data"')
    return value


# -- the file --------------------------------------------------------------------------------------------------------

#: Names at the top of the file, besides the options of sources.
_OWN = {"root", "procs", "mirror", "mirrors"}


def _file() -> Mapping[str, Any]:
    """The file's content; empty where there is none. Raises UsageError for one that cannot be used."""
    where = path()
    try:
        stat = where.stat() if where else None
    except (FileNotFoundError, NotADirectoryError):
        stat = None
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}", hint="it is rbdata's configuration") from error
    return _load(where, stat.st_mtime_ns, stat.st_size) if where and stat else {}


@lru_cache(maxsize=8)
def _load(where: Path, mtime_ns: int, size: int) -> Mapping[str, Any]:
    hint = "it is rbdata's configuration; see docs/mirrors.md for what it may hold"
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(where.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:  # no TOML, or no text
        raise UsageError(f"{where} is not TOML: {error}", hint=hint) from error
    other = set(content) - _OWN
    names = _OWN | {option.name for option in plugins.options_from_settings()} if other else _OWN
    unknown = sorted(other - names)
    if unknown:
        raise UsageError(f"{where}: there is no setting {unknown[0]!r}", hint=f"settings: {', '.join(sorted(names))}")
    mirrors = content.get("mirrors", {})
    if not isinstance(mirrors, dict):
        raise UsageError(f"{where}: mirrors is not a table", hint='write [mirrors], and below it atari = "/mnt/dqn"')
    unknown = sorted(set(mirrors) - set(plugins.registered())) if mirrors else []
    if unknown:
        message = f"{where}: [mirrors] names {unknown[0]!r}, which is no source"
        raise UsageError(message, hint=f"sources: {', '.join(plugins.registered())}")
    return content
