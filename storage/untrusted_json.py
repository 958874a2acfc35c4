"""Untrusted JSON, with limits on its depth and on the memory that it expands to.

An empty list takes 64 bytes of memory and an empty object 200, but 3 bytes of text (``[],``): 10 MB of them become 0.3 GB, and
twice that when they are copied. The densest real texts, bounds of pictures written in full, have a list per 5 bytes; objects
have names and values. Counting brackets takes a hundredth of the time of decoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

#: Lists and objects that any text may have, and bytes of text required for each further one.
_FEW, _BYTES_A_LIST, _BYTES_AN_OBJECT = 1 << 16, 4, 32
#: Levels; Python's own limit is about 1,000 calls, and functions that walk through values take several a level. Each
#: generation of preprocessed datasets adds two to a manifest.
DEEPEST = 256


def parse_json(text: str | bytes, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text (bytes: UTF-8). Raises ValueError if it is invalid, too dense or nested too deeply."""
    lists, objects = (
        (text.count("["), text.count("{")) if isinstance(text, str) else (text.count(b"["), text.count(b"{"))
    )
    for count, what, each in ((lists, "lists", _BYTES_A_LIST), (objects, "objects", _BYTES_AN_OBJECT)):
        if count > _FEW + len(text) // each:
            raise ValueError(f"{count} {what} in {len(text)} bytes")
    try:
        value = json.loads(text, object_pairs_hook=pairs_hook)
    except RecursionError as error:
        raise ValueError(_DEEP) from error
    level, depth = [value], 0
    while level and lists + objects > DEEPEST:
        if depth == DEEPEST:
            raise ValueError(_DEEP)
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level, depth = [one for values in inside for one in values if isinstance(one, (dict, list))], depth + 1
    return value


_DEEP = f"nested more than {DEEPEST} levels deep"
