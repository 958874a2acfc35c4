"""Arguments that several commands share, with shell completion of dataset ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Option

from ..datasets.workers.engines import NAMES
from ..storage.codecs import choices

_ROOT = "rbdata.root"


def _inherit_root(ctx: Context, value: Path | None) -> Path | None:
    """``--root`` may come before the command: without one of its own, the command has that one."""
    if value is not None:
        ctx.meta[_ROOT] = value
    return ctx.meta.get(_ROOT)


def _root(ctx: Context) -> Path | None:
    """The root that completion looks at."""
    return ctx.params.get("root") or ctx.meta.get(_ROOT)


def _starting_with(incomplete: str, ids: list[str]) -> list[str]:
    """The full ids that start with the text, else the bare names that do."""
    full = [one for one in ids if one.startswith(incomplete)]
    return full or [name for name in (one.partition("/")[2] for one in ids) if name.startswith(incomplete)]


def complete_any(ctx: Context, incomplete: str) -> list[str]:
    from ..datasets import catalogue, local

    ids = {*local.local_ids(_root(ctx)), *catalogue.known_ids()}
    return _starting_with(incomplete, sorted(ids))


def _complete_local(ctx: Context, incomplete: str) -> list[str]:
    from ..datasets import local

    return _starting_with(incomplete, local.local_ids(_root(ctx)))


def _complete_any_local(ctx: Context, incomplete: str) -> list[str]:
    from ..datasets import local

    return _starting_with(incomplete, [dataset.id for dataset in local.list_local(_root(ctx))])


def complete_source(incomplete: str) -> list[str]:
    from ..datasets import catalogue

    return [name for name in catalogue.source_names() if name.startswith(incomplete)]


def _argument(what: str, complete: Callable[..., list[str]], metavar: str) -> Any:
    return Argument(metavar=metavar, help=what, autocompletion=complete, show_default=False)


AnyIds = Annotated[
    list[str],
    _argument("Dataset ids: source/name, or the name alone where only one source has it.", complete_any, "ID"),
]
LocalIds = Annotated[
    list[str], _argument("Datasets: ids or folders on this machine, or URLs of converted ones.", _complete_local, "ID")
]
AnyLocalIds = Annotated[
    list[str], _argument("Ids of datasets on this machine, complete or not.", _complete_any_local, "ID")
]
LocalId = Annotated[
    str,
    _argument("A dataset: its id or folder on this machine, or the URL of a converted one.", _complete_local, "ID"),
]
IdOrFolder = Annotated[str, _argument("A dataset on this machine: its id or folder.", _complete_local, "ID")]
CacheDir = Annotated[
    Path | None, Option(metavar="DIR", help="With a URL: keep what is read here (default: .remote under the root).")
]
CacheLimit = Annotated[
    str | None, Option(metavar="SIZE", help="With a URL: keep at most so much of the dataset, such as 20GB.")
]

Root = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        callback=_inherit_root,
        help="Folder of the datasets (default: RBDATA_ROOT, else the user cache folder).",
    ),
]
SourceName = Annotated[
    str | None,
    Option("--source", metavar="NAME", help="The source that the files are from.", autocompletion=complete_source),
]
Procs = Annotated[
    int | None, Option(min=1, metavar="N", help="Worker processes (default: one per CPU core, at most 8).")
]
Address = Annotated[str | None, Option(metavar="A", help="Address of the Ray cluster, such as auto.")]
Shards = Annotated[str | None, Option(metavar="LIST", help="Only these shards of the run, such as 0-4,7.")]
if TYPE_CHECKING:
    Codec = str
    Engine = str
else:
    Engine = Annotated[Literal[NAMES], Option(help="Processes on this machine, or a Ray cluster.")]
    Codec = Annotated[Literal[choices()], Option(help="How frames are stored. auto: zstd (Atari: 1/27 of raw).")]
Layout = Annotated[
    Literal["auto", "ted"],
    Option(help="ted: plain TED for any tensordict program; stores each frame twice, raw."),
]
UnknownNext = Annotated[
    Literal["truncate", "zero"],
    Option(help="Steps whose next state is unknown. truncate: drop them; zero: keep them with a next state of zeros."),
]
Force = Annotated[bool, Option("--force", help="Start over and replace an existing dataset.")]
NoWait = Annotated[
    bool, Option("--no-wait", help="Fail where another process writes the same dataset, instead of waiting for it.")
]
Yes = Annotated[bool, Option("--yes", "-y", help="Delete without asking.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only show what would be done.")]
UserProject = Annotated[str | None, Option(metavar="P", help="Google Cloud project billed for requester-pays buckets.")]
