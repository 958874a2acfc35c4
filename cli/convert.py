"""``rbdata convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from .options import Codec, DryRun, Force, Layout, Procs, Root, Shards, SourceName, UnknownNext

EXAMPLES = """
  rbdata convert ~/raw/Pong/5/replay_logs --source atari --name my/pong
  rbdata convert ./replay_logs --source atari --name my/pong --shards 0-4 --dry-run
"""


#: Has the options that sources declare as well.
SOURCE_OPTIONS = True


def run(
    ctx: Context,
    path: Annotated[Path, Argument(metavar="PATH", help="The folder with the raw files.", show_default=False)],
    source: SourceName,
    name: Annotated[str, Option(metavar="ID", help="The id of the new dataset, such as my/pong.")],
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

    The raw files are not changed. An interrupted conversion continues when the same command is run again.
    """
    from ..api import make_request
    from ..datasets.acquire import convert
    from .report import Result, finish, this_command, work
    from .source_options import selected_options

    extra = selected_options(ctx)
    request = make_request(
        name,
        root,
        codec,
        layout,
        unknown_next,
        shards,
        extra,
        procs=procs,
        force=force,
        dry_run=dry_run,
        command=this_command(),
    )
    outcome = work(name, lambda listener: convert(path.expanduser(), source, request, listener))
    return finish([Result(outcome.id, outcome)], root, "Converted")
