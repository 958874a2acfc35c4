"""Dataset folders as a stranger, a failing disk or a careless hand may leave them: seeded changes of a sound one."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rbdata.storage import manifest
from rbdata.storage.manifest import FILENAME

#: What no field expects, or every field should survive.
NASTY: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, -(2**63), 1.5, float("nan"), float("inf")),
    *("", "x", "\x1b[31mred", "../../etc", "9" * 50, "\ud800"),
    *([], {}, [1], [[1]], {"a": 1}, [[-5, "x"]], [[2**62, "00000000"]], [None] * 3, {"name": 5}),
)


def damage(folder: Path, seed: int) -> str:
    """Change something in a dataset folder; returns what, in words."""
    rng = random.Random(seed)
    return rng.choice((_change_manifest,) * 6 + (_change_text,) + (_change_meta,) * 2 + (_change_file,) * 3)(
        folder, rng
    )


def change_json(content: Any, rng: random.Random, times: int) -> Any:
    """A copy with values replaced, dropped, moved a little, repeated, or nested deeply."""
    content = copy.deepcopy(content)
    for _ in range(times):
        path = rng.choice([path for path in _paths(content) if path] or [()])
        if not path:
            return rng.choice(NASTY)
        *above, key = path
        holder = content
        for name in above:
            holder = holder[name]
        old, kind = holder[key], rng.random()
        if kind < 0.15:
            del holder[key]
        elif kind < 0.3 and type(old) in (int, float):
            holder[key] = old + rng.choice((-1, 1, 1000, -1000))
        elif kind < 0.4 and isinstance(holder, dict):
            holder[rng.choice(("other", "\x1b]0;title\x07", "a/b"))] = rng.choice(NASTY)
        elif kind < 0.45 and isinstance(holder, list):
            holder.append(copy.deepcopy(old))
        elif kind < 0.5:
            holder[key] = _nested(200)
        else:
            holder[key] = copy.deepcopy(rng.choice(NASTY))
    return content


def seal(record: Any) -> str:
    """The text of a manifest whose checksum is right, if it can have one."""
    try:
        record = json.loads(json.dumps(record))
        if isinstance(record, dict):
            record["checksum"] = manifest._checksum(record)
    except (TypeError, ValueError):
        pass
    return json.dumps(record)


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edit a manifest as a forger would: its checksum is right."""
    path = folder / FILENAME
    record = json.loads(path.read_text())
    change(record)
    path.write_text(seal(record))


def _change_manifest(folder: Path, rng: random.Random) -> str:
    path = folder / FILENAME
    record = json.loads(path.read_text())
    origin = {key: record.pop(key) for key in ("source", "parts", "lineage", "provenance")}  # as their writer says
    changed = change_json(record, rng, rng.choice((1, 1, 1, 2, 4)))
    path.write_text(seal({**origin, **changed} if isinstance(changed, dict) else changed))
    return "manifest"


def _change_meta(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.rglob("meta.json")))
    path.write_text(json.dumps(change_json(json.loads(path.read_text()), rng, 1)))
    return str(path.relative_to(folder))


def _change_text(folder: Path, rng: random.Random) -> str:
    path = folder / FILENAME
    text = path.read_text()
    forms = (
        text[: rng.randrange(len(text))],
        text.replace('"steps"', '"steps": 1, "steps"', 1),
        text.replace("1", "NaN", 1),
        text.replace("1", "1e400", 1),
        text.replace(" ", "\0", 1),
        text.replace('"id"', '"\\ud800"', 1),
        "[" * 100_000,
        '{"format": "rbdata"}',
        '{"format": "rbdata", "format_version": 1e999}',
    )
    path.write_text(rng.choice(forms))
    return "text of the manifest"


def _change_file(folder: Path, rng: random.Random) -> str:
    path = rng.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
    data, kind = bytearray(path.read_bytes()), rng.choice(("short", "flipped", "zero", "random", *_REPLACEMENTS))
    if kind in _REPLACEMENTS:
        path.unlink()
        _REPLACEMENTS[kind](path)
    elif kind == "short":
        path.write_bytes(data[: rng.randrange(len(data) + 1)])
    elif kind == "flipped":
        for _ in range(rng.choice((1, 8, 64)) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
    else:
        path.write_bytes(bytes(len(data)) if kind == "zero" else rng.randbytes(len(data)))
    return f"{path.relative_to(folder)} {kind}"


def _paths(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(content, (dict, list)):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from _paths(content[key], (*at, key))


def _nested(depth: int) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for _ in range(depth):
        content = {"below": content}
    return content


_REPLACEMENTS: dict[str, Callable[[Path], Any]] = {
    "gone": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "dangling": lambda path: path.symlink_to("nowhere"),
}
