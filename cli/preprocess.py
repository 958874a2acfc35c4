"""``rbdata preprocess``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import text
from .console import Column, Fact, out
from .options import Force, LocalId, Procs, Root

if TYPE_CHECKING:
    from ..preprocess.preprocess_request import Preprocessed, Trial

EXAMPLES = """
  rbdata preprocess Pong/5 --fn my.module:fn --dest my/pong --procs 8
  rbdata preprocess Pong/5 --fn rbdata:resize_frames --args height=42 --args width=42 --dest my/pong42
  rbdata preprocess hopper-medium-v2 --fn fn.py:relabel --per episode --dest my/hopper --dry-run
  rbdata preprocess hopper-medium-v2 --fn rbdata:normalize_observations --fn rbdata:returns_to_go --dest my/dt
"""

_TREE = (
    Column("leaf"),
    Column("dtype"),
    Column("shape"),
    Column("change", optional=True),
    Column("stored", optional=True),
)


def run(
    dataset: LocalId,
    fn: Annotated[
        list[str],
        typer.Option(
            "--fn",
            metavar="F",
            help="pkg.mod:function, file.py:function or rbdata:NAME; takes and returns a TED TensorDict. "
            "Repeatable: the functions are applied in order.",
        ),
    ],
    dest: Annotated[str, typer.Option(metavar="ID", help="The id of the new dataset, such as my/pong.")],
    per: Annotated[
        Literal["batch", "sample", "episode"] | None,
        typer.Option(
            help="What the function receives: any batch of steps, one step, or a whole episode (which it may shorten, "
            "lengthen or drop). [default: batch, unless the function needs episodes]",
            show_default=False,
        ),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Option(
            "--args",
            metavar="KEY=VALUE",
            help="An argument of the function; NAME.KEY=VALUE for one of several functions.",
        ),
    ] = None,
    frame_stack: Annotated[
        int | None, typer.Option(metavar="K", help="Pass stacks of K observations, as a sampler returns them.")
    ] = None,
    n_step: Annotated[int | None, typer.Option(metavar="N", help="Pass n-step rewards and next states.")] = None,
    gamma: Annotated[float, typer.Option(help="The discount of --n-step.")] = 0.99,
    slice_len: Annotated[
        int | None, typer.Option(metavar="L", help="Cut episodes into slices of L steps; each becomes an episode.")
    ] = None,
    num_frames: Annotated[int | None, typer.Option(metavar="N", help="Only the first N steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Steps per batch (default: about 8 MB).")] = None,
    procs: Procs = None,
    codec: Annotated[
        Literal["auto", "raw", "zstd"], typer.Option(help="How frames are stored. auto: zstd if it saves a third.")
    ] = "auto",
    layout: Annotated[
        Literal["auto", "ted"], typer.Option(help="ted: plain TED; stores observations and next observations, raw.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the function's random numbers; the same for any --procs.")] = 0,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Processes on this machine, or a Ray cluster.")
    ] = "local",
    address: Annotated[str | None, typer.Option(metavar="A", help="Address of the Ray cluster, such as auto.")] = None,
    force: Force = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run the function on one chunk and show the result; write nothing.")
    ] = False,
    root: Root = None,
) -> int:
    """Make a new dataset from one on this machine with a Python function.

    The function takes and returns a TED TensorDict. Keys and shapes may change, but all results must have the same ones.
    An interrupted run continues when the same command is run again.
    """
    from ..preprocess.arguments import parse_arguments
    from ..preprocess.driver import preprocess
    from ..preprocess.preprocess_request import Request
    from ..preprocess.run_config import Windows
    from .report import Result, finish, work

    request = Request(
        id=dataset,
        functions=fn,
        dest=dest,
        per=per,
        windows=Windows(frame_stack, n_step, gamma, slice_len),
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
        dry_run=dry_run,
    )
    outcome: Any = work(dest, lambda listener: preprocess(request, listener))
    if outcome.trial is not None:
        _show_trial(outcome)
        return 0
    for warning in outcome.warnings:
        out.note(warning, "warning: ")
    return finish([Result(outcome.id, outcome)], root)


def _show_trial(outcome: Preprocessed) -> None:
    trial, outlook = outcome.trial, outcome.outlook
    assert trial is not None and outlook is not None
    if out.json:
        out.document({"dry_run": _record(outcome)})
        return
    if out.quiet:
        return
    out.table(_TREE, _rows(trial))
    if out.on_terminal:
        out.line()
    facts = [
        Fact("functions", ", ".join(trial.functions)),
        Fact("per", trial.per),
        Fact("tried", _tried(trial), trial.steps_in),
        Fact("steps", f"about {text.count(outlook.steps)}", outlook.steps),
        Fact("size", f"about {text.size(outlook.disk_bytes)}", outlook.disk_bytes),
        Fact("time", f"about {text.duration(trial.estimated_seconds)}", round(trial.estimated_seconds, 3)),
    ]
    out.facts(facts)
    for name, number in trial.nans.items():
        out.note(f"{text.count(number)} new NaN values in {name}", "warning: ")
    out.hint("run the command without --dry-run")


def _tried(trial: Trial) -> str:
    words = f"{text.plural(trial.steps_in, 'step')} in {text.duration(trial.seconds)}"
    if trial.steps_out != trial.steps_in:
        words += f", {text.count(trial.steps_out)} returned"
    return words + (f", {text.plural(trial.dropped, 'episode')} dropped" if trial.dropped else "")


def _rows(trial: Trial) -> list[tuple[Any, ...]]:
    names = sorted(trial.before.keys() | trial.after.keys(), key=lambda name: (name.startswith("next/"), name))
    rows: list[tuple[Any, ...]] = []
    for name in names:
        before, after = trial.before.get(name), trial.after.get(name)
        dtype, shape = after or before or ("", ())
        if before is None or after is None:
            change = "new" if before is None else "dropped"
        elif after != before:
            change = "was " + _type(before)
        else:
            change = (
                "changed"
                if name in (trial.changed or ())
                else "unchanged"
                if trial.changed is not None
                else "same type"
            )
        rows.append((name, dtype, f"[{', '.join(map(str, shape))}]", change, trial.stored.get(name)))
    return rows


def _type(leaf: tuple[str, tuple[int, ...]]) -> str:
    return f"{leaf[0]} [{', '.join(map(str, leaf[1]))}]"


def _record(outcome: Preprocessed) -> dict[str, Any]:
    trial, outlook = outcome.trial, outcome.outlook
    assert trial is not None and outlook is not None

    def tree(shapes: Any) -> list[dict[str, Any]]:
        return [{"name": name, "dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in shapes.items()]

    return {
        "id": outcome.id,
        "path": str(outcome.path),
        "functions": list(trial.functions),
        "per": trial.per,
        "input": tree(trial.before),
        "output": tree(trial.after),
        "stored": dict(trial.stored),
        "steps_tried": trial.steps_in,
        "steps_returned": trial.steps_out,
        "episodes_dropped": trial.dropped,
        "nans": dict(trial.nans),
        "seconds": round(trial.seconds, 3),
        "estimated": {
            "steps": outlook.steps,
            "bytes": outlook.disk_bytes,
            "seconds": round(trial.estimated_seconds, 3),
        },
        "free_bytes": outlook.free_bytes,
    }
