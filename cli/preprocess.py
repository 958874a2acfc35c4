"""``rbdata preprocess``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..errors import UsageError
from ..storage import amounts
from ..storage.codecs import choices
from .console import TableColumn, out
from .options import Address, Engine, Force, IdsOrFolders, NoWait, Procs, Root

if TYPE_CHECKING:
    import numpy as np

    from ..datasets.acquire import Estimate
    from ..preprocess.request import DryRun, Preprocessed, PreprocessRequest
    from ..storage.dataset import Dataset

EXAMPLES = """
  rbdata preprocess Pong/5 --fn my.module:fn --dest my/pong --procs 8
  rbdata preprocess Pong/5 --fn rbdata:resize_frames --args height=42 --args width=42 --dest my/pong42
  rbdata preprocess hopper-medium-v2 --fn fn.py:relabel --per episode --dest my/hopper --dry-run
  rbdata preprocess hopper-medium-v2 --top 10% --dest my/best
  rbdata preprocess hopper-medium-v2 --split train=0.9,val=0.1 --dest my/hopper
  rbdata preprocess Pong/5 --codec zstd:19 --dest my/pong-small
  rbdata preprocess hopper-medium-v2 hopper-expert-v2 --dest my/hopper-both
  rbdata preprocess hopper-medium-v2 --fn rbdata:normalize_observations --fn rbdata:returns_to_go --dest my/dt
"""

_TREE = (
    *map(TableColumn, ("leaf", "dtype", "shape")),
    TableColumn("change", optional=True),
    TableColumn("stored", optional=True),
)


@dataclass(frozen=True)
class Selection:
    """Which episodes are read, and in which order."""

    episodes: Annotated[str | None, Option(metavar="LIST", help="Only these episodes, such as 0-99,150.")] = None
    min_return: Annotated[float | None, Option(metavar="X", help="Only episodes with at least this return.")] = None
    min_length: Annotated[int | None, Option(metavar="N", help="Only episodes of at least so many steps.")] = None
    top: Annotated[str | None, Option(metavar="SHARE", help="Only the best episodes: 10%, or a number: 50.")] = None
    shuffle_episodes: Annotated[int | None, Option(metavar="SEED", help="Order the episodes by this seed.")] = None

    def numbers(self, dataset: Dataset) -> np.ndarray:
        """Return the numbers of the selected episodes of a dataset. Raises UsageError if there are none."""
        import numpy as np

        from ..datasets.ingest.request import parse_numbers

        listed = parse_numbers(self.episodes, "--episodes", len(dataset.episodes))
        view = dataset if listed is None else dataset.select(episodes=listed)
        top = None if self.top is None else _parse_top(self.top)
        numbers = np.flatnonzero(view.episodes.where(min_return=self.min_return, min_length=self.min_length, top=top))
        if not len(numbers):
            raise UsageError(f"no episode of {dataset.id} is selected", hint="rbdata inspect shows its returns")
        if self.shuffle_episodes is not None:
            numbers = np.random.default_rng(self.shuffle_episodes).permutation(numbers)
        return numbers if listed is None else np.array(listed)[numbers]


@dataclass(frozen=True)
class Shape:
    """What becomes of the steps and leaves besides what the functions do."""

    split: Annotated[
        str | None,
        Option(
            metavar="SHARES",
            help="Make a dataset of each share of the episodes, drawn by --seed: train=0.9,val=0.1 makes DEST-train and "
            "DEST-val.",
        ),
    ] = None
    keep: Annotated[
        str | None,
        Option(metavar="LEAVES", help="Only these leaves, such as observation,action; flags and rewards stay."),
    ] = None
    drop: Annotated[str | None, Option(metavar="LEAVES", help="All leaves but these.")] = None
    trim: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Leave out the steps at the beginning and the end of each episode whose action, of floating-point numbers, "
            "has a Euclidean norm of at most X. An episode that terminated keeps its end.",
        ),
    ] = None


@dataclass(frozen=True)
class Reading:
    """How steps are read, as a sampler reads them."""

    frame_stack: Annotated[int | None, Option(metavar="K", help="Pass stacks of K observations.")] = None
    n_step: Annotated[int | None, Option(metavar="N", help="Pass n-step rewards and next states.")] = None
    gamma: Annotated[float, Option(help="The discount of --n-step.")] = 0.99
    slice_len: Annotated[int | None, Option(metavar="L", help="Cut episodes into slices of L steps.")] = None


@dataclass(frozen=True)
class Execution:
    """How the functions are called, and what is written: fields of `preprocess.request.PreprocessRequest`."""

    num_frames: Annotated[int | None, Option(metavar="N", help="Only the first N steps.")] = None
    batch_size: Annotated[int | None, Option(metavar="N", help="Steps per batch (default: about 8 MB).")] = None
    procs: Procs = None
    codec: Annotated[
        str,
        Option(
            metavar="C",
            help="How frames are stored: raw, zstd, or zstd:LEVEL, 1 to 22; another codec than they have, or a level, "
            "compresses them again. auto: as they are, new ones by zstd if that saves a third.",
            autocompletion=choices,
        ),
    ] = "auto"
    layout: Annotated[Literal["auto", "ted"], Option(help="ted: plain TED; states are stored twice, raw.")] = "auto"
    seed: Annotated[int, Option(help="Seed of the function's random numbers; the same for any --procs.")] = 0
    engine: Engine = "local"
    address: Address = None
    force: Force = False
    dry_run: Annotated[bool, Option("--dry-run", help="Try a few chunks and show the result; write nothing.")] = False


def run(
    datasets: IdsOrFolders,
    dest: Annotated[str, Option(metavar="ID", help="The id of the new dataset, such as my/pong.")],
    fn: Annotated[
        list[str] | None,
        Option(
            "--fn",
            metavar="F",
            help="pkg.mod:function, file.py:function or rbdata:NAME; takes and returns a TED TensorDict. "
            "Repeatable: the functions are applied in order. Without one, the data are copied.",
        ),
    ] = None,
    *,
    selection: Selection,
    shape: Shape,
    keys: Annotated[
        Literal["all", "common"],
        Option(help="For several datasets. all: their leaves must be alike; common: leave out leaves that differ."),
    ] = "all",
    per: Annotated[
        Literal["batch", "sample", "episode"] | None,
        Option(
            help="What the function receives: any batch of steps, one step, or a whole episode (which it may shorten, "
            "lengthen or drop). [default: batch, unless the function needs episodes]",
            show_default=False,
        ),
    ] = None,
    args: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="An argument of the function; of several, NAME.KEY=VALUE.")
    ] = None,
    reading: Reading,
    execution: Execution,
    no_wait: NoWait = False,
    root: Root = None,
) -> int:
    """Make a new dataset from one or several datasets on this machine, with Python functions.

    A function takes and returns a TensorDict in TED, TorchRL's Episode Data format. It may change keys and shapes, in the same
    way for all batches. An interrupted run continues when the same command is run again.
    """
    from ..preprocess.function import parse_arguments
    from ..preprocess.request import make_requests, parse_split
    from . import report

    if shape.split is not None and execution.dry_run:
        raise UsageError("a dry run tries one dataset", hint="leave out --split, or --dry-run")
    requests = make_requests(
        datasets,
        fn or [],
        dest,
        keys=keys,
        split=None if shape.split is None else parse_split(shape.split),
        keep=shape.keep or (),
        drop=shape.drop or (),
        trim=shape.trim,
        select=None if selection == Selection() else selection.numbers,
        root=root,
        per=per,
        args=parse_arguments(args or []),
        wait=not no_wait,
        command=report.this_command(),
        **vars(reading),
        **vars(execution),
    )
    results = []
    for request in requests:
        outcome = _make(request)
        if outcome.dry_run is not None:
            _show_dry_run(outcome)
            return 0
        results.append(report.Result(outcome.id, outcome))
    return report.finish(results, root, "Wrote")


def _make(request: PreprocessRequest) -> Preprocessed:
    from ..preprocess.run import preprocess
    from . import report

    return report.work(request.dest, lambda listener: preprocess(request, listener))


def _parse_top(text: str) -> float | int:
    """``10%`` is 0.1, ``50`` is 50 episodes (``1.0``, all of them in Python, is neither). Raises UsageError."""
    if text.isdecimal() and int(text):
        return int(text)
    if re.fullmatch(r"\d*[.]?\d+%", text) and 0 < (share := float(text[:-1])) <= 100:
        return share / 100
    raise UsageError(f"--top {text!r} is neither a share nor a number of episodes", hint="for example: 10%, or 50")


def _show_dry_run(outcome: Preprocessed) -> None:
    found, estimate = outcome.dry_run, outcome.estimate
    assert found is not None and estimate is not None
    if out.programs(lambda: {"dry_run": _record(outcome, found, estimate)}):
        return
    out.table(_TREE, _rows(found))
    out.line()
    tried = f"{amounts.plural(found.steps_in, 'step')} in {amounts.duration(found.seconds)}"
    tried += f", {amounts.count(found.steps_out)} returned" * (found.steps_out != found.steps_in)
    tried += f", {amounts.plural(found.dropped, 'episode')} dropped" * bool(found.dropped)
    out.facts(
        [
            ("functions", ", ".join(found.functions)),
            ("per", found.per),
            ("tried", tried),
            ("steps", f"about {amounts.count(estimate.steps)}"),
            ("size", f"about {amounts.size(estimate.disk_bytes)}"),
            ("time", f"about {amounts.duration(found.estimated_seconds)}"),
        ]
    )
    out.hint("run the command without --dry-run")


def _rows(found: DryRun) -> list[tuple[Any, ...]]:
    names = sorted(found.before.keys() | found.after.keys(), key=lambda name: (name.startswith("next/"), name))
    rows: list[tuple[Any, ...]] = []
    for name in names:
        before, after = found.before.get(name), found.after.get(name)
        dtype, shape = after or before or ("", ())
        if before is None or after is None:
            change = "new" if before is None else "dropped"
        elif after != before:
            change = f"was {before[0]} {list(before[1])}"
        else:
            change = "changed" if name in found.changed else "unchanged"
        rows.append((name, dtype, str(list(shape)), change, found.stored.get(name)))
    return rows


def _record(outcome: Preprocessed, found: DryRun, estimate: Estimate) -> dict[str, Any]:

    def tree(shapes: Any) -> list[dict[str, Any]]:
        return [{"name": name, "dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in shapes.items()]

    return {
        "id": outcome.id,
        "path": str(outcome.path),
        "functions": list(found.functions),
        "per": found.per,
        "input": tree(found.before),
        "output": tree(found.after),
        "stored": dict(found.stored),
        "steps_tried": found.steps_in,
        "steps_returned": found.steps_out,
        "episodes_dropped": found.dropped,
        "seconds": round(found.seconds, 3),
        "estimated": {
            "steps": estimate.steps,
            "bytes": estimate.disk_bytes,
            "seconds": round(found.estimated_seconds, 3),
        },
        "free_bytes": estimate.free_bytes,
    }
