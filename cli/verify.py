"""``rbdata verify``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from .. import settings
from ..errors import DamagedDatasetError, RbdataError, UsageError
from ..storage import amounts
from .console import TableColumn, out, state_style
from .failure import Failure, explain
from .options import LocalIds, Procs, Root

EXAMPLES = """
  rbdata verify Pong/5
  rbdata verify Pong/5 --quick
  rbdata verify Pong/5 --repair
  rbdata verify my/pong --repair --mirror s3://lab/rbdata
  rbdata list --local --quiet | xargs rbdata verify
"""

EXIT_CODES = """\b
Exit codes:
  0    no damage
  1    damaged; the output names the files
  2    cannot be checked (no such dataset, not readable), or wrong usage
  130  interrupted
"""

#: One row for an undamaged dataset, one row per problem of a damaged one.
_COLUMNS = (TableColumn("id"), TableColumn("result", style=state_style), TableColumn("file"), TableColumn("detail"))


class CannotCheckError(RbdataError):
    """The dataset could not be read, so it is known to be neither good nor damaged."""

    exit_code = 2

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.code = failure.code


def run(
    ids: LocalIds,
    quick: Annotated[bool, Option("--quick", help="Compare only the sizes of files.")] = False,
    repair: Annotated[bool, Option("--repair", help="Fetch damaged data again, and nothing else.")] = False,
    mirror: Annotated[str | None, Option(metavar="M", help="Repair from this mirror, not from the origin.")] = None,
    procs: Procs = None,
    root: Root = None,
) -> int:
    """Check datasets against their checksums.

    Reads every byte of every file; whether the values make sense is a question to `rbdata audit`. A repaired dataset
    has the same bytes as before it was damaged. From a mirror with a converted copy, only the damaged ranges of files
    are fetched; otherwise the shards or raw files that they were made from.
    """
    from ..datasets.fetch.location import is_remote, without_login
    from ..datasets.local import expand, full_id

    if mirror is not None and not repair:
        raise UsageError("--mirror is only for --repair", hint="add --repair")
    if repair and any(map(is_remote, ids)):
        hint = "at a mirror, `rbdata mirror push` sends what differs"
        raise UsageError("--repair is for datasets on this machine", hint=hint)
    ids, records = expand(ids, root), []
    given_as: dict[str, str] = {}
    for one in ids:
        given_as.setdefault(full_id(without_login(one), root), one)
    for dataset, given in given_as.items():
        record: dict[str, Any] = {"id": dataset, "result": "not checked", "problems": []}
        try:
            _check(record, given, root, quick)
            if repair:
                _repair(record, mirror, procs)
        except Exception as error:
            failure = explain(error)
            if len(ids) == 1 and record["result"] == "not checked":
                raise CannotCheckError(failure) from error
            record["error"] = failure.to_json()
            if not out.json:
                out.fail(error, failure, dataset)
        records.append(record)
    _show(records, root)
    results = {record["result"] for record in records}
    return 1 if "damaged" in results else 2 if "not checked" in results else 0


def _show(records: list[dict[str, Any]], root: Path | None) -> None:
    bad = (record["id"] for record in records if record["result"] in ("damaged", "not checked"))
    if not out.programs(lambda: {"datasets": records}, bad):
        out.table(_COLUMNS, (row for record in records for row in _rows(record)))
    for record in records:
        if done := record.get("repair"):
            files = amounts.plural(len(done["files"]), "file")
            how = f"fetched {amounts.size(done['fetched_bytes'])} from" if done["fetched_bytes"] else "read from"
            out.note(f"{record['id']}: repaired {files}, {how} {done['location']}")
    broken = [record["id"] for record in records if record["result"] == "damaged" and "error" not in record]
    if broken:
        out.hint(settings.command("verify", *broken, "--repair", root=root))


def _check(record: dict[str, Any], given: str, root: Path | None, quick: bool) -> None:
    """Add to the record what the check of a dataset found."""
    from ..datasets.fetch.location import is_remote
    from ..datasets.local import find
    from ..datasets.opening import verify
    from .progress import byte_progress

    dataset, began = record["id"], time.monotonic()
    path = dataset if is_remote(dataset) else str(find(given, root))
    try:
        with byte_progress(f"verifying {dataset}", then="finishing") as on_progress:
            report = verify(given, root=root, quick=quick, on_progress=on_progress)
    except DamagedDatasetError as error:
        record |= {"result": "damaged", "problems": [{"path": "rbdata.json", "what": error.message}]}
        raise
    record |= {
        "result": "good" if report.ok else "damaged",
        "path": path,
        "files": report.files,
        "bytes": report.bytes,
        "seconds": round(time.monotonic() - began, 3),
        "problems": [vars(problem) for problem in report.problems],
    }


def _repair(record: dict[str, Any], mirror: str | None, procs: int | None) -> None:
    """Repair a damaged dataset and check it again; of a good one, remove what an interrupted repair left."""
    from ..datasets.repair import end_repair, repair
    from ..storage.integrity import verify
    from ..storage.manifest import Problem
    from .report import work

    folder, problems = Path(record["path"]), [Problem(**problem) for problem in record["problems"]]
    if not problems:
        end_repair(folder)
        return
    done = work(record["id"], lambda listener: repair(folder, problems, mirror=mirror, procs=procs, listener=listener))
    left = verify(folder).problems
    record["result"] = "damaged" if left else "repaired"
    record["problems"] = [vars(problem) for problem in left or problems]
    record["repair"] = {**vars(done), "path": str(done.path)}


def _rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    name, result = record["id"], record["result"]
    if result == "good":
        read = f", {amounts.size(record['bytes'])} in {amounts.duration(record['seconds'])}" if record["bytes"] else ""
        return [(name, result, "all", amounts.plural(record["files"], "file") + read)]
    rows: list[tuple[str, ...]] = [
        (name, result, problem["path"] or "data", problem["what"]) for problem in record["problems"]
    ]
    return rows or [(name, result, "-", record["error"]["message"])]
