"""``rbdata convert``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..errors import UsageError
from .options import Conversion, Root, SourceName

EXAMPLES = """
  rbdata convert ~/raw/Pong/5/replay_logs --source atari --name my/pong
  rbdata convert hopper_medium-v2.hdf5
  rbdata convert credit.arff --target class --name my/credit
  rbdata convert ./replay_logs --source atari --name my/pong --shards 0-4 --dry-run
"""


def run(
    path: Annotated[Path, Argument(metavar="PATH", help="A raw file, or the folder of raw files.", show_default=False)],
    source: SourceName = None,
    name: Annotated[str | None, Option(metavar="ID", help="Id of the dataset (default: my/ and PATH's name).")] = None,
    *,
    conversion: Conversion,
    root: Root = None,
    **source_options: Any,
) -> int:
    """Convert raw files that are already on this machine.

    Without --source, the source is recognised from the files: those of every provider that `rbdata list` names, and your own
    arrays (npz, npy, HDF5, CSV, Parquet, Arrow), whose names --map states. The raw files are not changed. An interrupted
    conversion continues when the same command is run again.
    """
    from ..datasets.convert import convert
    from ..settings import expanded
    from .report import Result, finish, work

    if re.match(r"[A-Za-z][A-Za-z0-9+]+:/", str(path)) and not path.exists():
        message = f"{path} is a URL: only files on this machine are converted"
        raise UsageError(message, hint="`rbdata download ID --mirror URL` fetches and converts")
    path = expanded(path)
    stem = path.resolve().name.removesuffix(path.suffix)
    name = name or f"my/{re.sub('[.](tar|csv|tsv)$', '', stem)}"
    with conversion.requests([name], root, source_options) as (request,):
        outcome = work(name, lambda listener: convert(path, source, request, listener))
    return finish([Result(outcome.id, outcome)], root, "Converted")
