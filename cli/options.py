"""Arguments that several commands share, and completion of dataset ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from . import text


def _starting_with(incomplete: str, ids: list[str]) -> list[str]:
    """Full ids, or bare names where no full id begins like that."""
    full = [one for one in ids if one.startswith(incomplete)]
    return full or [name for name in (one.partition("/")[2] for one in ids) if name.startswith(incomplete)]


def _complete_any(ctx: typer.Context, incomplete: str) -> list[str]:
    from ..datasets import catalogue, local

    ids = {*local.local_ids(ctx.params.get("root")), *catalogue.known_ids()}
    return _starting_with(incomplete, sorted(ids))


def _complete_local(ctx: typer.Context, incomplete: str) -> list[str]:
    from ..datasets import local

    return _starting_with(incomplete, local.local_ids(ctx.params.get("root")))


def _complete_remains(ctx: typer.Context, incomplete: str) -> list[str]:
    from ..datasets import local

    return _starting_with(incomplete, [dataset.id for dataset in local.list_local(ctx.params.get("root"))])


def complete_source(incomplete: str) -> list[str]:
    from ..datasets import catalogue

    return [name for name in catalogue.source_names() if name.startswith(incomplete)]


def _argument(what: str, complete: Callable[..., list[str]], metavar: str) -> Any:
    return typer.Argument(metavar=metavar, help=what, autocompletion=complete, show_default=False)


AnyIds = Annotated[
    list[str], _argument("Dataset ids: source/name, or the name alone where one source has it.", _complete_any, "ID")
]
LocalIds = Annotated[list[str], _argument("Datasets on this machine: ids or folders.", _complete_local, "ID")]
RemainingIds = Annotated[list[str], _argument("Datasets on this machine, finished or not.", _complete_remains, "ID")]
LocalId = Annotated[str, _argument("A dataset on this machine: its id or its folder.", _complete_local, "ID")]

Root = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where datasets lie (default: RBDATA_ROOT, or the cache folder)."),
]
SourceName = Annotated[
    str, typer.Option("--source", metavar="NAME", help="A source of the catalogue.", autocompletion=complete_source)
]
Procs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Worker processes (default: one a processor, at most 8).")
]
Shards = Annotated[str | None, typer.Option(metavar="LIST", help="Only these raw files of the source, such as 0-4,7.")]
Codec = Annotated[
    Literal["auto", "raw", "zstd"], typer.Option(help="How frames are stored; auto is zstd, 1/27 of raw on Atari.")
]
Layout = Annotated[
    Literal["auto", "ted"], typer.Option(help="ted: plain TED that any tensordict program reads; frames twice, raw.")
]
UnknownNext = Annotated[
    Literal["truncate", "zero"],
    typer.Option(help="A step whose successor is not in the data: end the episode before it, or keep it with zeros."),
]
Force = Annotated[bool, typer.Option("--force", help="Begin anew and replace what is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
UserProject = Annotated[
    str | None, typer.Option(metavar="P", help="Google Cloud project that pays for requester-pays buckets.")
]


def following(name: str, dataset_id: str, root: Path | None) -> str:
    """The command to try next, as it has to be typed here."""
    return text.command("rbdata", name, dataset_id, *(("--root", root) if root else ()))


def rows_selected(shards: str | None) -> tuple[int, ...] | None:
    """``--shards`` as the library wants it."""
    if shards is None:
        return None
    from ..datasets.sources.atari.shards import parse_selection

    return tuple(parse_selection(shards))
