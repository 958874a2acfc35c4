"""What a failing disk or another hand may do to a working folder between two runs."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from rbdata.storage.checksums import Crc32c
from rbdata.storage.folder import JOURNAL
from rbdata.storage.journal import seal


def change_working(root: Path, prepared: set[Path], outside: Path, rng: random.Random) -> str | None:
    """Change a file that a killed run left below a root, and was not there before; says what, or None where there is none."""
    files = [path for path in sorted(root.rglob("*")) if path not in prepared and path.is_file()]
    files = [path for path in files if ".lock" not in path.name and any(".writing" in part for part in path.parts)]
    if not files:
        return None
    journals = [path for path in files if path.name == JOURNAL]
    if journals and rng.random() < 0.25:
        return _change_journal(journals[0], rng)
    full = [path for path in files if path.stat().st_size] or files
    path = rng.choice(full)
    kind = rng.choice(sorted(_DAMAGE))
    _DAMAGE[kind](path, outside, rng)
    return f"{path.relative_to(root)} {kind}"


def plant_lock(root: Path, rng: random.Random) -> str:
    """Put something that is no lock in the place of one."""
    folders = [path for path in sorted(root.rglob("*")) if path.name.endswith(".writing")]
    if not folders:
        return "nothing"
    path = folders[0].with_name(folders[0].name.removesuffix("writing") + "lock")
    path.unlink(missing_ok=True)
    make = rng.choice(
        (os.mkfifo, Path.mkdir, lambda one: one.symlink_to("nowhere"), lambda one: one.symlink_to("/dev/zero"))
    )
    make(path)
    return f"{path.name} planted"


def _change_journal(path: Path, rng: random.Random) -> str:
    lines = path.read_bytes().splitlines(keepends=True)
    records = [json.loads(line[9:]) for line in lines if line.endswith(b"\n")]
    kind = rng.choice(("swapped", "lost", "repeated", "cut", "flipped", "mixed", "odd"))
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    if kind == "swapped":
        lines[one], lines[other] = lines[other], lines[one]
    elif kind == "lost":
        del lines[one]
    elif kind == "repeated":
        lines.insert(other, lines[one])
    elif kind == "cut":
        lines[one] = lines[one][: rng.randrange(len(lines[one]))]
    elif kind == "flipped":
        data = bytearray(lines[one])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        lines[one] = bytes(data)
    elif kind == "mixed":
        rng.shuffle(lines)
    else:  # records that no writer makes, with true seals
        odd = {"kind": rng.choice(("part", "merged", "kept", "plan", "digest", "command", "x"))}
        odd["number"] = rng.choice((None, -1, 0, 1, 10**9, "x", [], {}, 1.5))
        lines = [seal([*records, odd], Crc32c())]
    path.write_bytes(b"".join(lines))
    return f"journal {kind}"


def _flip(path: Path, outside: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 9))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _link(path: Path, outside: Path, rng: random.Random) -> None:
    path.unlink()
    rng.choice((path.symlink_to, path.hardlink_to))(outside)


def _link_folder(path: Path, outside: Path, rng: random.Random) -> None:
    """The folder that holds the file becomes a link to a copy outside the root."""
    target = outside.with_name(f"elsewhere-{rng.randrange(1 << 30)}")
    path.parent.rename(target)
    path.parent.symlink_to(target)


def _swap(path: Path, outside: Path, rng: random.Random) -> None:
    others = [one for one in path.parent.iterdir() if one.is_file() and one != path]
    if others:
        other = rng.choice(sorted(others))
        mine, its = path.read_bytes(), other.read_bytes()
        path.write_bytes(its)
        other.write_bytes(mine)


def _replace(make: Callable[[Path], object]) -> Callable[[Path, Path, random.Random], None]:
    def replace(path: Path, outside: Path, rng: random.Random) -> None:
        path.unlink()
        make(path)

    return replace


_DAMAGE: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "flipped": _flip,
    "flipped again": _flip,
    "short": lambda path, outside, rng: os.truncate(path, rng.randrange(path.stat().st_size + 1)),
    "long": lambda path, outside, rng: path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 99))),
    "zeroed": lambda path, outside, rng: path.write_bytes(bytes(path.stat().st_size)),
    "gone": lambda path, outside, rng: path.unlink(),
    "linked": _link,
    "linked folder": _link_folder,
    "swapped": _swap,
    "pipe": _replace(os.mkfifo),
    "folder": _replace(Path.mkdir),
}
