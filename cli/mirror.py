"""``rbdata mirror push``, ``rbdata mirror ls`` and ``rbdata mirror rm``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from typer import Argument, Option

from .. import settings
from ..datasets.fetch.location import is_hub_dataset, without_login
from ..errors import UsageError
from ..storage import amounts
from .console import TableColumn, out
from .options import DryRun, IdOrFolder, Root, UserProject, Yes

HELP = "Copy datasets to a mirror, list a mirror, or delete from it."

EXAMPLES = """
  rbdata mirror push Pong/5 s3://lab/rbdata
  rbdata mirror push Pong/5 /mnt/share/rbdata --raw
  rbdata mirror push my/x hf://datasets/me/x --license mit
  rbdata mirror ls gs://lab/rbdata
  rbdata mirror rm Pong/5 /mnt/share/rbdata
  rbdata download Pong/5 --mirror s3://lab/rbdata
"""

MirrorUrl = Annotated[
    str, Argument(metavar="MIRROR", help="A folder, gs://, or s3:// (needs rbdata[remote]).", show_default=False)
]

_COLUMNS = (
    TableColumn("kind"),
    TableColumn("name"),
    TableColumn("files", amounts.count, right=True, optional=True),
    TableColumn("size", amounts.size, right=True),
    TableColumn("steps", amounts.count, right=True),
    TableColumn("episodes", amounts.count, right=True, optional=True),
)
_HELD = (
    TableColumn("name"),
    TableColumn("files", amounts.count, right=True),
    TableColumn("size", amounts.size, right=True),
    TableColumn("mirror"),
)


def push(
    dataset: IdOrFolder,
    url: Annotated[
        str,
        Argument(
            metavar="MIRROR",
            help="A folder, gs://, s3:// (needs rbdata[remote]), or hf://datasets/OWNER/NAME (needs rbdata[hub]).",
            show_default=False,
        ),
    ],
    raw: Annotated[bool, Option("--raw", help="Copy the raw files kept by `download --keep-raw` instead.")] = False,
    force: Annotated[bool, Option("--force", help="Replace a different dataset of the same id.")] = False,
    licence: Annotated[str | None, Option("--license", metavar="NAME", help="hf:// only: such as mit.")] = None,
    public: Annotated[bool, Option("--public", help="hf:// only: make the repository public, not private.")] = False,
    root: Root = None,
    user_project: UserProject = None,
) -> int:
    """Copy a dataset to a mirror.

    Files that the mirror already holds are not sent again, so an interrupted push continues when run again. Each file is
    verified on the mirror. The manifest is sent last: until then the mirror does not list the dataset.

    hf://datasets/OWNER/NAME becomes a repository of the Hugging Face Hub, private unless --public, with one dataset and its
    card. The token is that of HF_TOKEN or `hf auth login`.
    """
    from ..datasets.fetch import FetchOptions
    from ..datasets.mirrors import push as push_dataset
    from .progress import byte_progress

    to_hub = is_hub_dataset(url)
    if (licence or public) and not to_hub:
        option = "--license" if licence else "--public"
        raise UsageError(f"{option} is for hf://datasets/owner/name, not for {without_login(url)}")
    if to_hub and raw:
        raise UsageError("--raw is not for the Hub, which gets a converted dataset", hint="push without --raw")
    send: Any = partial(push_dataset, raw=raw)
    if to_hub:
        from ..datasets import hub

        if not licence and hub.stated_licence(dataset, root) is None:
            question = "Licence of the dataset, as the Hub names it (mit, cc-by-4.0, other, ...)"
            licence = out.ask(question, "--license NAME")
        send = partial(hub.push, licence=licence, public=public)
    fetch = FetchOptions(user_project=user_project)
    with byte_progress(f"pushing {dataset}", then="committing") as report:
        pushed = send(dataset, url, root=root, force=force, fetch=fetch, on_progress=lambda _, *share: report(*share))
    if not out.programs(lambda: vars(pushed), [pushed.url]):
        sent = f"{amounts.plural(pushed.sent, 'file')}, {amounts.size(pushed.sent_bytes)}"
        stored = f"{amounts.plural(pushed.files, 'file')}, {amounts.size(pushed.bytes)}, verified"
        what = f"{pushed.id} ({'raw files' if pushed.kind == 'raw' else 'dataset'})"
        out.facts(
            [("id", what), ("url", pushed.url), ("stored", stored), ("sent", sent if pushed.sent else "nothing new")]
        )
        words = [pushed.url] if to_hub else [pushed.id, "--mirror", url]
        out.hint(settings.command("download", *words))
    return 0


def ls(url: MirrorUrl, user_project: UserProject = None) -> int:
    """List what a mirror holds.

    `rbdata download --mirror` copies datasets unchanged, and converts raw files.
    """
    from ..datasets.fetch import FetchOptions
    from ..datasets.mirrors import ls

    entries = ls(url, fetch=FetchOptions(user_project=user_project))
    names = (entry.name for entry in entries)
    if not out.programs(lambda: {"mirror": url, "entries": [vars(entry) for entry in entries]}, names):
        rows = [(entry.kind, entry.name, entry.files, entry.bytes, entry.steps, entry.episodes) for entry in entries]
        out.table(_COLUMNS, rows)
    if not entries:
        out.note(f"{url}: no datasets and no raw files")
    for entry in entries:
        if entry.problem:
            out.note(f"{entry.name}: {entry.problem}")
    return 0


def rm(
    dataset: Annotated[str, Argument(metavar="ID", help="A dataset or folder that `ls` shows.", show_default=False)],
    url: MirrorUrl,
    yes: Yes = False,
    dry_run: DryRun = False,
    user_project: UserProject = None,
) -> int:
    """Delete a dataset, or a folder of raw files, from a mirror.

    Shows what would be deleted, then asks. The manifest is deleted first, so the mirror never lists half a dataset.
    """
    from ..datasets.fetch import FetchOptions
    from ..datasets.mirrors import find_held, remove
    from .progress import count_progress

    fetch = FetchOptions(user_project=user_project)
    held = find_held(dataset, url, fetch=fetch)
    what = f"{held.name}, {amounts.plural(len(held.files), 'file')}, {amounts.size(held.bytes)}"
    row = (held.name, len(held.files), held.bytes, held.url)
    if not out.confirm_deletion(f"{what}, at {held.url}", _HELD, [row], yes=yes, dry_run=dry_run):
        return 1
    if not dry_run:
        with count_progress(f"deleting {held.name}") as on_progress:
            remove(held, url, fetch=fetch, on_progress=on_progress)
    record = {"name": held.name, "url": held.url, "files": len(held.files), "bytes": held.bytes}
    if not out.programs(lambda: {"deleted": not dry_run, **record}, [held.name]):
        out.note(f"would delete {what}" if dry_run else f"deleted {what}")
    return 0


VERBS = {"push": push, "ls": ls, "rm": rm}
