"""The identity of the functions of a run and of their arguments, as fingerprint and lineage record it.

A built-in function has the identity that `functions.recorded_identities` fixes, any other one that of its content and of the
local files that it reaches (`datasets.user_code`).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..datasets.user_code.identity import Content, Identity, content_hash, hash_files, labelled, qualified_name
from ..datasets.user_code.identity import identify as identify_user_code
from . import functions
from .functions.recorded_identities import recorded_identity
from .functions.traits import traits_of


def identify(fn: Callable[..., Any], what: str = "the function") -> Identity:
    """The identity of a function; ``what`` names it in errors. Raises what `user_code.identity.identify` raises."""
    traits = traits_of(fn)
    if traits is None or not is_builtin(fn):
        return identify_user_code(fn, what)
    recorded = recorded_identity(traits.name)
    if recorded is not None:
        return Identity(*recorded)
    source, file = inspect.getsource(fn).encode(), Path(inspect.getsourcefile(inspect.unwrap(fn)) or "").read_bytes()
    return Identity(qualified_name(fn), hashlib.sha256(source).hexdigest(), hashlib.sha256(file).hexdigest())


def is_builtin(fn: Callable[..., Any]) -> bool:
    """Whether a function is built in; a wrapper of one has its attributes and is not."""
    traits = traits_of(fn)
    return traits is not None and functions.find_builtin(traits.name) is fn


def describe_arguments(
    args: Mapping[str, Any], name: str, fn: Callable[..., Any], *, builtin: bool
) -> tuple[dict[str, Any], str | None]:
    """The arguments of the function ``fn`` as JSON values, objects by their content; and the sha256 of all of them where JSON
    does not tell them from others (a tuple from a list, the order of keys, what they share with the function). Built-in
    functions take those alike.

    Raises UsageError for an argument that cannot be told from another one.
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
    """Whether a value is that JSON value and no other."""
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
