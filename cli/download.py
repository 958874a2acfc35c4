"""``rbdata download``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from .options import AnyIds, Conversion, Root, UserProject

EXAMPLES = """
  rbdata download Pong/5 --procs 8
  rbdata download gymnasium/CartPole-v1 --steps 20000
  rbdata download Pong/5 --mirror /data/dqn --shards 0-4 --dry-run
  rbdata download atari/Pong/1 atari/Pong/2 --mirror gs://my-bucket/dqn
"""


def run(
    ids: AnyIds,
    mirror: Annotated[
        str | None, Option(metavar="M", help="Download from this mirror instead: a folder, http(s)://, gs://, s3://.")
    ] = None,
    *,
    conversion: Conversion,
    keep_raw: Annotated[bool, Option("--keep-raw", help="Keep the raw files as well, under ROOT/.raw.")] = False,
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
    from .report import Result, attempt, finish, work

    more = {"mirror": mirror, "keep_raw": keep_raw, "user_project": user_project}
    with conversion.requests(list(dict.fromkeys(ids)), root, source_options, **more) as requests:
        if len(requests) > 1:
            results = [
                attempt(request.id, root, lambda listener, request=request: download(request, listener))  # type: ignore[misc]
                for request in requests
            ]
            return finish(results, root, "Downloaded")
        outcome = work(ids[0], lambda listener: download(requests[0], listener))
    was_copied = outcome.manifest is not None and "copied" in outcome.manifest.provenance
    verb = "Recorded" if is_made(outcome.id) and not was_copied else "Downloaded"
    return finish([Result(outcome.id, outcome)], root, verb)
