"""The output of download, convert and preprocess: the plan, the result, and the message after Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .. import settings
from ..datasets.ingest.request import Estimate, Listener, Outcome
from ..storage import amounts
from ..storage.lock import WAITING
from .console import AMOUNTS, TableColumn, other_output_to_stderr, out, printable, state_style
from .failure import Failure, Interrupted, explain
from .progress import show_progress

Done = TypeVar("Done")


@dataclass(frozen=True)
class Result:
    """The outcome or the failure of one of the datasets that the user named."""

    id: str
    outcome: Outcome | None
    failure: Failure | None = None


def work(dataset_id: str, action: Callable[[Listener], Done]) -> Done:
    """Run ``action`` and show its progress. Ctrl-C becomes an error that says what is kept and how to continue."""
    seen: list[Estimate] = []
    parts_done: list[int] = []
    stages = [""]

    def on_estimate(estimate: Estimate) -> None:
        seen.append(estimate)
        for line in announcement(estimate):
            out.note(line, "  ")

    shown = Listener(
        on_stage=stages.append,
        on_note=lambda what: out.note(what, "  "),
        on_estimate=on_estimate,
        on_part_done=parts_done.append,
    )
    out.note(dataset_id)
    try:
        with other_output_to_stderr(), show_progress(dataset_id, shown) as listener:
            return action(listener)
    except KeyboardInterrupt as error:
        if stages[-1] == WAITING:
            message = f"interrupted while waiting for the process that writes {dataset_id}, which continues"
            raise Interrupted(message, hint=f"wait again with: {settings.command(*out.arguments)}") from error
        raise _interrupted(dataset_id, seen[-1] if seen else None, len(parts_done)) from error


def _interrupted(dataset_id: str, estimate: Estimate | None, finished: int) -> Interrupted:
    from ..storage.folder import DatasetPlace
    from ..storage.work import units_done

    words, message, how = out.arguments, f"interrupted: what is finished of {dataset_id} is kept", "continue with"
    if estimate is not None and estimate.parts and not estimate.unread:
        place = DatasetPlace.of_folder(estimate.path, estimate.id)
        # There may be one part more than the listener was told before the interrupt.
        kept = max(estimate.done_parts + finished, units_done(place.working))
        some = "all" if kept >= estimate.parts else f"{kept} of {estimate.parts}"
        message = f"interrupted: {some} parts of {estimate.id} are kept"
        if not kept:  # bytes of a raw file may be there
            message, how = f"interrupted before a part of {estimate.id} was finished", "run it again"
        if not place.exists():  # --force would replace no dataset, only discard the finished parts
            words = [word for word in words if word != "--force"]
    return Interrupted(message, hint=f"{how}: {settings.command(*words)}")


def this_command() -> str:
    """Return the command line that continues this work, as an unfinished dataset records it for hints."""
    unneeded = {"--json", "--quiet", "-q", "--debug"}
    return printable(settings.command(*(word for word in out.arguments if word not in unneeded)), one_line=True)


def announcement(estimate: Estimate) -> list[str]:
    """Return the plan, in a few lines."""
    origin = [f"from {estimate.location}" + (f" ({estimate.why})" if estimate.why else "")]
    target = f"{estimate.path} ({amounts.size(estimate.free_bytes)} free)"
    if estimate.unread:
        files = f"{amounts.plural(estimate.shards, 'file')}, then read {'it' if estimate.shards == 1 else 'them'}"
        return [*origin, f"fetch {amounts.size(estimate.fetch_bytes)} in {files}"]
    if estimate.done_parts:
        origin.append(f"continuing: {estimate.done_parts} of {estimate.parts} parts are done")
    left = estimate.parts - estimate.done_parts
    if estimate.fetched:
        origin = []  # printed before the raw files were fetched
    elif estimate.fetch_bytes:
        origin.append(f"fetch {amounts.size(estimate.fetch_bytes)} in {amounts.plural(left, 'part')}")
    about = "about " if estimate.estimated else ""
    size = f"about {amounts.size(estimate.disk_bytes)}"
    episodes, known = amounts.plural(estimate.episodes, "episode"), estimate.episodes or not estimate.estimated
    what = f"{about}{amounts.plural(estimate.steps, 'step')}{f', {episodes}' if known else ''}, {size}"
    if estimate.estimated and not estimate.steps:  # episodes of unknown lengths
        what = episodes if estimate.episodes else "the episodes"
    return [*origin, f"write {what} to {target}"]


def finish(results: list[Result], root: Path | None, verb: str) -> int:
    """Print the results; returns the exit code. ``verb`` says what was done with a new dataset: "Downloaded"."""
    records = [_record(result) for result in results]
    paths = (record["path"] for record in records if "path" in record)
    if out.programs(lambda: {"datasets": records}, paths):
        pass
    elif len(results) == 1:
        outcome, record = results[0].outcome, records[0]
        assert outcome is not None  # a single failure is raised, not reported
        out.line(_headline(outcome, verb), state_style(outcome.action))
        size = amounts.size(record["bytes"])
        facts = [("path", record["path"])]
        read_as = (outcome.manifest and outcome.manifest.source.get("name")) or ""
        if read_as and not outcome.id.startswith(f"{read_as}/"):
            facts.append(("source", read_as))
        if record["steps"] is not None:
            episodes = amounts.plural(record["episodes"], "episode")
            facts.append(("steps", f"{amounts.count(record['steps'])} in {episodes}"))
        facts.append(("size", size if record["steps"] is not None else f"{size} to fetch"))
        out.facts([*facts, *(("note", note) for note in _notes(outcome))])
    else:
        names = ("id", "action", "steps", "episodes", "bytes", "path")
        out.table(_COLUMNS, [[record.get(name) for name in names] for record in records])
        for result in results:
            for note in _notes(result.outcome):
                out.note(f"{result.id}: {note}")
    ready = [result.id for result in results if result.outcome and result.outcome.action != "planned"]
    if ready:
        out.hint(settings.command("inspect", ready[0], root=root))
    return 1 if any(result.failure for result in results) else 0


def attempt(dataset_id: str, root: Path | None, action: Callable[[Listener], Outcome]) -> Result:
    """`work` for one of several datasets: a failure is printed at once and returned instead of raised."""
    from ..datasets.local import full_id

    try:
        outcome = work(dataset_id, action)
    except Interrupted:
        raise
    except Exception as error:
        failure = explain(error)
        out.fail(error, failure, dataset_id)
        return Result(full_id(dataset_id, root), None, failure)
    return Result(outcome.id, outcome)


_COLUMNS = (TableColumn("id"), TableColumn("result", style=state_style), *AMOUNTS, TableColumn("path", optional=True))


def _headline(outcome: Outcome, verb: str) -> str:
    if outcome.action in ("written", "repaired"):
        verb = verb if outcome.action == "written" else "Repaired"
        return f"{verb} {outcome.id} in {amounts.duration(outcome.seconds)}"
    return f"{outcome.id} is already complete" if outcome.action == "complete" else "dry run: nothing written"


def _notes(outcome: Outcome | None) -> Sequence[str]:
    """What was assumed, dropped and left out, or in a dry run would be."""
    source = outcome and (outcome.manifest or outcome.estimate)
    return source.notes if source else ()


def _record(result: Result) -> dict[str, Any]:
    """A result as JSON. Steps and episodes are None, and bytes those to fetch, where they are known only after that."""
    outcome = result.outcome
    if outcome is None:
        return {"id": result.id, "action": "failed", "error": result.failure and result.failure.to_json()}
    record: dict[str, Any] = {"id": outcome.id, "action": outcome.action, "path": str(outcome.path)}
    manifest, plan = outcome.manifest, outcome.estimate
    if manifest is not None:
        record |= {"steps": manifest.steps, "episodes": manifest.episodes, "bytes": manifest.bytes}
    elif plan is not None and plan.unread:
        record |= {"steps": None, "episodes": None, "bytes": plan.fetch_bytes}
    elif plan is not None:
        record |= {"steps": plan.steps, "episodes": plan.episodes, "bytes": plan.disk_bytes}
    record["seconds"] = round(outcome.seconds, 3)
    if outcome.action == "planned" and plan is not None:
        names = ("location", "parts", "done_parts", "fetch_bytes", "disk_bytes", "free_bytes")
        record["plan"] = {name: getattr(plan, name) for name in names} | {"notes": list(plan.notes)}
    return record
