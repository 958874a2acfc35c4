"""``rbdata download``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from .options import (
    Address,
    AnyIds,
    Codec,
    DryRun,
    Engine,
    Force,
    Layout,
    NoWait,
    Procs,
    Root,
    Shards,
    UnknownNext,
    UserProject,
)

EXAMPLES = """
  rbdata download Pong/5 --procs 8
  rbdata download gymnasium/CartPole-v1 --steps 20000
  rbdata download Pong/5 --mirror /data/dqn --shards 0-4 --dry-run
  rbdata download atari/Pong/1 atari/Pong/2 --mirror gs://my-bucket/dqn
"""


def run(
    ids: AnyIds,
    mirror: Annotated[
        str | None,
        Option(metavar="M", help="Download from this mirror instead: a folder, http(s)://, gs://, s3://."),
    ] = None,
    shards: Shards = None,
    procs: Procs = None,
    codec: Codec = "auto",
    layout: Layout = "auto",
    unknown_next: UnknownNext = "truncate",
    keep_raw: Annotated[bool, Option("--keep-raw", help="Keep the raw files as well, under ROOT/.raw.")] = False,
    force: Force = False,
    no_wait: NoWait = False,
    engine: Engine = "local",
    address: Address = None,
    dry_run: DryRun = False,
    root: Root = None,
    user_project: UserProject = None,
    **source_options: Any,
) -> int:
    """Download datasets and convert them while they arrive.

    Complete datasets are skipped. An interrupted download continues when the same command is run again. If one of
    several datasets fails, the others are still downloaded.
    """
    from ..datasets.acquire import download
    from ..datasets.catalogue import is_made
    from ..datasets.ingest.request import make_request
    from ..datasets.workers import open_cluster
    from .report import Result, attempt, finish, this_command, work

    with open_cluster(engine, procs=procs, address=address) as cluster:
        requests = [
            make_request(
                dataset_id,
                root,
                source_options,
                codec=codec,
                layout=layout,
                unknown_next=unknown_next,
                shards=shards,
                user_project=user_project,
                mirror=mirror,
                procs=procs,
                keep_raw=keep_raw,
                force=force,
                wait=not no_wait,
                dry_run=dry_run,
                command=this_command(),
                engine=cluster,
            )
            for dataset_id in dict.fromkeys(ids)
        ]
        if len(requests) == 1:
            outcome = work(ids[0], lambda listener: download(requests[0], listener))
            was_copied = outcome.manifest is not None and "copied" in outcome.manifest.provenance
            verb = "Recorded" if is_made(outcome.id) and not was_copied else "Downloaded"
            return finish([Result(outcome.id, outcome)], root, verb)
        results = [
            attempt(request.id, root, lambda listener, request=request: download(request, listener))  # type: ignore[misc]
            for request in requests
        ]
    return finish(results, root, "Downloaded")
