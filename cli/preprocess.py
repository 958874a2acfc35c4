"""``rbdata preprocess``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..storage import amounts
from ..storage.codecs import choices
from .console import Column, Fact, out
from .options import Address, Engine, Force, IdOrFolder, NoWait, Procs, Root

if TYPE_CHECKING:
    from ..datasets.acquire import Estimate
    from ..preprocess.request import DryRun, Preprocessed

EXAMPLES = """
  rbdata preprocess Pong/5 --fn my.module:fn --dest my/pong --procs 8
  rbdata preprocess Pong/5 --fn rbdata:resize_frames --args height=42 --args width=42 --dest my/pong42
  rbdata preprocess hopper-medium-v2 --fn fn.py:relabel --per episode --dest my/hopper --dry-run
  rbdata preprocess hopper-medium-v2 --fn rbdata:normalize_observations --fn rbdata:returns_to_go --dest my/dt
"""

_TREE = (*map(Column, ("leaf", "dtype", "shape")), Column("change", optional=True), Column("stored", optional=True))


def run(
    dataset: IdOrFolder,
    fn: Annotated[
        list[str],
        Option(
            "--fn",
            metavar="F",
            help="pkg.mod:function, file.py:function or rbdata:NAME; takes and returns a TED TensorDict. "
            "Repeatable: the functions are applied in order.",
        ),
    ],
    dest: Annotated[str, Option(metavar="ID", help="The id of the new dataset, such as my/pong.")],
    per: Annotated[
        Literal["batch", "sample", "episode"] | None,
        Option(
            help="What the function receives: any batch of steps, one step, or a whole episode (which it may shorten, "
            "lengthen or drop). [default: batch, unless the function needs episodes]",
            show_default=False,
        ),
    ] = None,
    args: Annotated[
        list[str] | None,
        Option(
            "--args",
            metavar="KEY=VALUE",
            help="An argument of the function; NAME.KEY=VALUE for one of several functions.",
        ),
    ] = None,
    frame_stack: Annotated[
        int | None, Option(metavar="K", help="Pass stacks of K observations, as a sampler returns them.")
    ] = None,
    n_step: Annotated[int | None, Option(metavar="N", help="Pass n-step rewards and next states.")] = None,
    gamma: Annotated[float, Option(help="The discount of --n-step.")] = 0.99,
    slice_len: Annotated[
        int | None, Option(metavar="L", help="Cut episodes into slices of L steps; each becomes an episode.")
    ] = None,
    num_frames: Annotated[int | None, Option(metavar="N", help="Only the first N steps.")] = None,
    batch_size: Annotated[int | None, Option(metavar="N", help="Steps per batch (default: about 8 MB).")] = None,
    procs: Procs = None,
    codec: Annotated[
        Literal[choices()],  # type: ignore[valid-type]
        Option(help="How frames are stored. auto: zstd if it saves a third."),
    ] = "auto",
    layout: Annotated[
        Literal["auto", "ted"], Option(help="ted: plain TED; stores observations and next observations, raw.")
    ] = "auto",
    seed: Annotated[int, Option(help="Seed of the function's random numbers; the same for any --procs.")] = 0,
    engine: Engine = "local",
    address: Address = None,
    force: Force = False,
    no_wait: NoWait = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Run the function on a few chunks and show the result; write nothing.")
    ] = False,
    root: Root = None,
) -> int:
    """Make a new dataset from one on this machine with a Python function.

    The function takes and returns a TensorDict in TED, TorchRL's Episode Data format. Keys and shapes may change, but all
    results must have the same ones. An interrupted run continues when the same command is run again.
    """
    from ..preprocess.driver import preprocess
    from ..preprocess.function_chain import parse_arguments
    from ..preprocess.request import ReadOptions, Request
    from .report import Result, finish, this_command, work

    request = Request(
        id=dataset,
        functions=fn,
        dest=dest,
        per=per,
        read_options=ReadOptions(frame_stack, n_step, gamma, slice_len),
        num_frames=num_frames,
        batch_size=batch_size,
        procs=procs,
        codec=codec,
        layout=layout,
        seed=seed,
        args=parse_arguments(args or []),
        engine=engine,
        address=address,
        root=root,
        force=force,
        wait=not no_wait,
        dry_run=dry_run,
        command=this_command(),
    )
    outcome: Any = work(dest, lambda listener: preprocess(request, listener))
    if outcome.dry_run is not None:
        _show_dry_run(outcome)
        return 0
    for warning in outcome.warnings:
        out.warn(warning)
    return finish([Result(outcome.id, outcome)], root, "Wrote")


def _show_dry_run(outcome: Preprocessed) -> None:
    found, estimate = outcome.dry_run, outcome.estimate
    assert found is not None and estimate is not None
    if out.json:
        out.document({"dry_run": _record(outcome, found, estimate)})
        return
    if out.quiet:
        return
    probe = found.probe
    out.table(_TREE, _rows(found))
    if out.on_terminal:
        out.line()
    facts = [
        Fact("functions", ", ".join(found.functions)),
        Fact("per", found.per),
        Fact("tried", _tried(found), probe.steps_in),
        Fact("steps", f"about {amounts.count(estimate.steps)}", estimate.steps),
        Fact("size", f"about {amounts.size(estimate.disk_bytes)}", estimate.disk_bytes),
        Fact("time", f"about {amounts.duration(found.estimated_seconds)}", round(found.estimated_seconds, 3)),
    ]
    out.facts(facts)
    for name, number in probe.nans.items():
        out.warn(f"{amounts.count(number)} new NaN values in {name}")
    out.hint("run the command without --dry-run")


def _tried(found: DryRun) -> str:
    probe = found.probe
    words = f"{amounts.plural(probe.steps_in, 'step')} in {amounts.duration(found.seconds)}"
    if probe.steps_out != probe.steps_in:
        words += f", {amounts.count(probe.steps_out)} returned"
    return words + (f", {amounts.plural(probe.dropped, 'episode')} dropped" if probe.dropped else "")


def _rows(found: DryRun) -> list[tuple[Any, ...]]:
    probe = found.probe
    names = sorted(probe.before.keys() | found.after.keys(), key=lambda name: (name.startswith("next/"), name))
    rows: list[tuple[Any, ...]] = []
    for name in names:
        before, after = probe.before.get(name), found.after.get(name)
        dtype, shape = after or before or ("", ())
        if before is None or after is None:
            change = "new" if before is None else "dropped"
        elif after != before:
            change = f"was {before[0]} {list(before[1])}"
        else:
            unchanged = "same type" if probe.changed is None else "unchanged"
            change = "changed" if name in (probe.changed or ()) else unchanged
        rows.append((name, dtype, str(list(shape)), change, found.stored.get(name)))
    return rows


def _record(outcome: Preprocessed, found: DryRun, estimate: Estimate) -> dict[str, Any]:
    probe = found.probe

    def tree(shapes: Any) -> list[dict[str, Any]]:
        return [{"name": name, "dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in shapes.items()]

    return {
        "id": outcome.id,
        "path": str(outcome.path),
        "functions": list(found.functions),
        "per": found.per,
        "input": tree(probe.before),
        "output": tree(found.after),
        "stored": dict(found.stored),
        "steps_tried": probe.steps_in,
        "steps_returned": probe.steps_out,
        "episodes_dropped": probe.dropped,
        "nans": dict(probe.nans),
        "seconds": round(found.seconds, 3),
        "estimated": {
            "steps": estimate.steps,
            "bytes": estimate.disk_bytes,
            "seconds": round(found.estimated_seconds, 3),
        },
        "free_bytes": estimate.free_bytes,
    }
