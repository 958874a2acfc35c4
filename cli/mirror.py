"""``rbdata mirror push`` and ``rbdata mirror ls``."""

from __future__ import annotations

from typing import Annotated

import typer

from . import text
from .console import Column, Fact, out
from .options import LocalId, Root, UserProject
from .progress import bytes_checked

HELP = "Copy datasets to a mirror, and see what one holds."

EXAMPLES = """
  rbdata mirror push Pong/5 s3://lab/rbdata
  rbdata mirror push Pong/5 /mnt/share/rbdata --raw
  rbdata mirror ls gs://lab/rbdata
  rbdata download Pong/5 --mirror s3://lab/rbdata
"""

Place = Annotated[
    str, typer.Argument(metavar="PLACE", help="A folder, gs://, s3:// (extra remote).", show_default=False)
]

_COLUMNS = (
    Column("kind"),
    Column("name"),
    Column("files", text.count, right=True, optional=True),
    Column("size", text.size, right=True),
    Column("steps", text.count, right=True),
    Column("episodes", text.count, right=True, optional=True),
)


def push(
    dataset: LocalId,
    place: Place,
    raw: Annotated[bool, typer.Option("--raw", help="The raw files that `download --keep-raw` kept, instead.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace another dataset of this id.")] = False,
    root: Root = None,
    user_project: UserProject = None,
) -> int:
    """Copy a dataset to a mirror.

    Files that are there already are not sent again: run again, it continues. Each is verified where it arrives, and the
    manifest goes last, so a mirror shows no dataset that is not whole.
    """
    from ..datasets.fetch import FetchOptions
    from ..datasets.mirrors import push as mirror

    fetch = FetchOptions(user_project=user_project)
    with bytes_checked(f"pushing {dataset}") as told:

        def on_progress(name: str, done: int, total: int) -> None:
            if told is not None:
                told(done, total)

        pushed = mirror.push(dataset, place, root=root, raw=raw, force=force, fetch=fetch, on_progress=on_progress)
    if out.json:
        out.document(vars(pushed))
    elif out.quiet:
        out.line(pushed.url)
    else:
        sent = f"{text.many(pushed.sent, 'file')}, {text.size(pushed.sent_bytes)}" if pushed.sent else "nothing new"
        out.facts(
            [
                Fact("id", f"{pushed.id} ({'raw files' if pushed.kind == 'raw' else 'dataset'})", pushed.id),
                Fact("at", pushed.url),
                Fact("there", f"{text.many(pushed.files, 'file')}, {text.size(pushed.bytes)}, verified", pushed.bytes),
                Fact("sent", sent, pushed.sent_bytes),
            ]
        )
        out.hint(text.command("rbdata", "download", pushed.id, "--mirror", place))
    return 0


def ls(place: Place, user_project: UserProject = None) -> int:
    """Show what a mirror holds.

    Datasets are taken by `rbdata download --mirror` as they are; raw files are converted on the way.
    """
    from ..datasets.fetch import FetchOptions
    from ..datasets.mirrors import push as mirror

    entries = mirror.ls(place, fetch=FetchOptions(user_project=user_project))
    if out.json:
        out.document({"mirror": place, "entries": [vars(entry) for entry in entries]})
    elif out.quiet:
        for entry in entries:
            out.line(entry.name)
    else:
        out.table(
            _COLUMNS,
            [(entry.kind, entry.name, entry.files, entry.bytes, entry.steps, entry.episodes) for entry in entries],
        )
    if not entries:
        out.note(f"{place} holds nothing that rbdata knows")
    for entry in entries:
        if entry.problem:
            out.note(f"{entry.name}: {entry.problem}")
    return 0


VERBS = {"push": push, "ls": ls}
