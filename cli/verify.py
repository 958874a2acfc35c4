"""``rbdata verify``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..errors import RbdataError
from . import text
from .colour import of_state
from .console import Column, out
from .failures import Failure, explain
from .options import LocalIds, Root
from .progress import byte_progress

EXAMPLES = """
  rbdata verify Pong/5
  rbdata verify Pong/5 --quick
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
_COLUMNS = (Column("id"), Column("result", style=of_state), Column("file"), Column("detail"))


class CannotCheckError(RbdataError):
    """The dataset could not be read, so it is neither good nor damaged."""

    exit_code = 2

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.code = failure.code


def run(
    ids: LocalIds,
    quick: Annotated[bool, Option("--quick", help="Compare the sizes of files only.")] = False,
    root: Root = None,
) -> int:
    """Check datasets against their checksums.

    Reads every byte of every file, then checks the rules of TED: an episode ends with done, done is terminated or
    truncated, and so on.
    """
    records = []
    for dataset in dict.fromkeys(ids):
        try:
            records.append(_check(dataset, root, quick))
        except Exception as error:
            failure = explain(error)
            damaged = failure.code == "damaged"  # a damaged manifest
            if len(ids) == 1 and not damaged:
                raise CannotCheckError(failure) from error
            if not out.json:
                out.fail(error, failure, dataset)
            problems = [{"path": "rbdata.json", "what": failure.message}] if damaged else []
            result = "damaged" if damaged else "not checked"
            records.append({"id": dataset, "result": result, "problems": problems, "error": failure.to_json()})

    if out.json:
        out.document({"datasets": records})
    elif out.quiet:
        for record in records:
            if record["result"] != "good":
                out.line(record["id"])
    else:
        out.table(_COLUMNS, (row for record in records for row in _rows(record)))
    results = {record["result"] for record in records}
    if "damaged" in results:
        out.hint("run rbdata download or convert again with --force")
    return 1 if "damaged" in results else 2 if "not checked" in results else 0


def _check(dataset: str, root: Path | None, quick: bool) -> dict[str, Any]:
    from ..datasets.local import find
    from ..storage.integrity import verify

    began = time.monotonic()
    path = find(dataset, root)
    with byte_progress(f"verifying {dataset}", then="checking the episodes") as on_progress:
        report = verify(path, quick=quick, on_progress=on_progress)
    return {
        "id": dataset,
        "result": "good" if report.ok else "damaged",
        "path": str(path),
        "files": report.files,
        "bytes": report.bytes,
        "seconds": round(time.monotonic() - began, 3),
        "problems": [{"path": problem.path, "what": problem.what} for problem in report.problems],
    }


def _rows(record: dict[str, Any]) -> list[tuple[Any, ...]]:
    name, result = record["id"], record["result"]
    if result == "good":
        read = f", {text.size(record['bytes'])} in {text.duration(record['seconds'])}" if record["bytes"] else ""
        return [(name, result, "all", text.plural(record["files"], "file") + read)]
    rows = [(name, result, problem["path"] or "data", problem["what"]) for problem in record["problems"]]
    return rows or [(name, result, "-", record["error"]["message"])]
