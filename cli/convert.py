"""``rbdata convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Codec, DryRun, Force, Layout, Procs, Root, Shards, SourceName, UnknownNext, rows_selected

EXAMPLES = """
  rbdata convert ~/raw/Pong/5/replay_logs --source atari --name my/pong
  rbdata convert ./replay_logs --source atari --name my/pong --shards 0-4 --dry-run
"""


#: Takes the options of single sources too.
SOURCE_OPTIONS = True


def run(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of the raw files.", show_default=False)],
    source: SourceName,
    name: Annotated[str, typer.Option(metavar="ID", help="The id of the new dataset, such as my/pong.")],
    procs: Procs = None,
    shards: Shards = None,
    codec: Codec = "auto",
    layout: Layout = "auto",
    unknown_next: UnknownNext = "truncate",
    force: Force = False,
    dry_run: DryRun = False,
    root: Root = None,
) -> int:
    """Convert raw files that are already on this machine.

    The raw files are left as they are. Run again, it continues where it was stopped.
    """
    from ..datasets.acquire import Request, convert
    from ..datasets.ingest.protocol import ConvertOptions
    from .report import Result, finish, work
    from .source_options import given

    options = ConvertOptions(codec, layout, unknown_next, parts=rows_selected(shards), extra=given(ctx))
    request = Request(id=name, root=root, procs=procs, options=options, force=force, dry_run=dry_run)
    outcome = work(name, lambda listener: convert(path.expanduser(), source, request, listener))
    return finish([Result(outcome.id, outcome)], root)
