"""``rbdata inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from . import text
from .console import Column, Fact, out
from .options import LocalId, Root

if TYPE_CHECKING:
    from ..storage.episodes import EpisodeTable
    from ..storage.manifest import Manifest
    from ..storage.schema import Leaf

EXAMPLES = """
  rbdata inspect Pong/5
  rbdata inspect Pong/5 --plot returns.png --frames frames.png
  rbdata inspect Pong/5 --episodes --json
"""

_LEAVES = (
    Column("leaf"),
    Column("kind", optional=True),
    Column("dtype"),
    Column("shape"),
    Column("codec", optional=True),
    Column("size", text.size, right=True, optional=True),
)
_EPISODES = (
    Column("episode", text.count, right=True),
    Column("start", text.count, right=True),
    Column("length", text.count, right=True),
    Column("return", text.real, right=True),
    Column("outcome"),
)


def run(
    dataset: LocalId,
    episodes: Annotated[bool, Option("--episodes", help="List the episodes: start, length, return, outcome.")] = False,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Write a plot of episode returns and lengths, such as out.png.")
    ] = None,
    frames: Annotated[
        Path | None, Option(metavar="FILE", help="Write a picture of evenly spaced frames, such as out.png.")
    ] = None,
    root: Root = None,
) -> None:
    """Show what a dataset holds: tensors, episodes, returns, origin.

    Kind is how a tensor is stored. step: one row per transition; state: one row per state, read as both KEY and next/KEY.
    Only --frames reads rows, so the command is quick for a dataset of any size.
    """
    from ..datasets.local import find
    from ..storage.episodes import open_episodes
    from ..storage.manifest import read_manifest

    path = find(dataset, root)
    manifest = read_manifest(path)
    table = open_episodes(path, manifest.episodes, manifest.steps)
    pictures = [picture for picture in (plot, frames) if picture is not None]
    if pictures:
        from .pictures import check_target, draw_episodes, draw_frames

        for picture in pictures:
            check_target(picture)
        if plot is not None:
            draw_episodes(table, manifest.id, plot)
        if frames is not None:
            draw_frames(path, frames)

    if out.json:
        record = _record(path, manifest, table)
        if episodes:
            names = [column.title for column in _EPISODES]
            record["episode_table"] = [dict(zip(names, row)) for row in _episode_rows(table)]
        out.document(record)
    elif out.quiet:
        out.line(str(path))
    elif episodes:
        out.table(_EPISODES, _episode_rows(table))
    else:
        out.facts(_facts(path, manifest, table))
        out.heading("tensors")
        out.table(_LEAVES, _leaf_rows(manifest))
        out.heading("origin")
        out.facts(_origin(manifest))
        if manifest.lineage:
            from ..preprocess.lineage import describe_lineage

            out.heading("lineage")
            out.facts([Fact(name, value) for name, value in describe_lineage(manifest.lineage)])
    for picture in pictures:
        out.note(f"wrote {picture}")


def _facts(path: Path, manifest: Manifest, table: EpisodeTable) -> list[Fact]:
    outcomes = _outcomes(table)
    ends = ", ".join(f"{text.count(number)} {name}" for name, number in outcomes.items() if number)
    raw = sum(leaf.row_bytes * manifest.rows(leaf) for leaf in manifest.schema)
    size = text.size(manifest.bytes)
    if raw > 1.5 * manifest.bytes:
        size += f" ({text.size(raw)} uncompressed)"
    facts = [
        Fact("id", manifest.id),
        Fact("path", str(path)),
        Fact("steps", text.count(manifest.steps), manifest.steps),
        Fact("episodes", f"{text.count(manifest.episodes)}{f' ({ends})' if ends else ''}", manifest.episodes),
    ]
    for name, numbers in (("length", manifest.lengths), ("return", manifest.returns)):
        if numbers:
            facts.append(Fact(name, f"mean {_span(numbers)}"))
    return [*facts, Fact("size", size, manifest.bytes), *(Fact("note", note) for note in manifest.notes)]


def _span(numbers: dict[str, float]) -> str:
    """``-18.2, from -21 to -3``"""
    return f"{text.real(numbers['mean'])}, from {text.real(numbers['min'])} to {text.real(numbers['max'])}"


def _leaf_rows(manifest: Manifest) -> list[tuple[Any, ...]]:
    """The keys of a batch and the leaves they are read from: as a tree on a terminal, by their full names in a pipe."""
    rows: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    keys = [(leaf.name, leaf) for leaf in manifest.schema]
    keys += [("next/" + leaf.name, leaf) for leaf in manifest.schema.states]
    for name, leaf in sorted(keys, key=lambda entry: (entry[0].startswith("next/"), "/" in entry[0], entry[0])):
        shown = name
        if out.on_terminal:
            *folders, last = name.split("/")
            for depth, folder in enumerate(folders):
                parent = "/".join(folders[: depth + 1])
                if parent not in seen:
                    seen.add(parent)
                    rows.append(("  " * depth + folder, "", "", "", "", ""))
            shown = "  " * len(folders) + last
        shape = f"[{', '.join(map(str, leaf.shape))}]"
        stored = leaf.name == name
        codec = leaf.codec if stored else f"rows of {leaf.name}"
        if leaf.constant is not None:
            codec = f"always {leaf.constant}".lower()
        size = _bytes_of(manifest, leaf) if stored else "" if out.on_terminal else 0
        rows.append((shown, leaf.kind, leaf.dtype, shape, codec, size))
    return rows


def _bytes_of(manifest: Manifest, leaf: Leaf) -> int:
    files = (leaf.name + ".memmap", leaf.name + "/")
    return sum(length for path, ranges in manifest.files.items() if path.startswith(files) for length, _ in ranges)


def _origin(manifest: Manifest) -> list[Fact]:
    provenance, objects = manifest.provenance, manifest.source.get("objects", [])
    raw = sum(entry.get("size") or 0 for entry in objects)
    stated = ", checksums stated" if all(entry.get("checksums") for entry in objects) else ""
    facts = [
        ("source", manifest.source.get("name")),
        ("options", ", ".join(f"{key} {value}" for key, value in manifest.source.get("options", {}).items())),
        ("location", provenance.get("location")),
        ("reason", provenance.get("why")),
        ("created", f"{provenance.get('created')} by rbdata {provenance.get('rbdata_version')}"),
        ("objects", objects and f"{text.count(len(objects))}, {text.size(raw)}{stated}"),
        ("licence", manifest.licence),
        ("citation", manifest.citation),
    ]
    return [Fact(name, str(value)) for name, value in facts if value]


def _outcomes(table: EpisodeTable) -> dict[str, int]:
    import numpy as np

    from ..storage.episodes import OUTCOMES

    return {name: int(np.count_nonzero(table.outcome == code)) for code, name in OUTCOMES.items()}


def _episode_rows(table: EpisodeTable) -> list[tuple[int, int, int, float, str]]:
    from ..storage.episodes import OUTCOMES

    columns = zip(table.start.tolist(), table.length.tolist(), table.returns.tolist(), table.outcome.tolist())
    return [(i, start, length, total, OUTCOMES[code]) for i, (start, length, total, code) in enumerate(columns)]


def _record(path: Path, manifest: Manifest, table: EpisodeTable) -> dict[str, Any]:
    record = manifest.to_json()
    for name in ("files", "checksum", "format", "leaves", "parts"):
        record.pop(name, None)
    source = dict(manifest.source)
    objects = source.pop("objects", [])
    source["objects"] = len(objects)
    source["bytes"] = sum(entry.get("size") or 0 for entry in objects)
    leaves = [
        {**leaf.to_json(), "rows": manifest.rows(leaf), "bytes": _bytes_of(manifest, leaf)} for leaf in manifest.schema
    ]
    return {
        **record,
        "path": str(path),
        "bytes": manifest.bytes,
        "source": source,
        "outcomes": _outcomes(table),
        "leaves": leaves,
    }
