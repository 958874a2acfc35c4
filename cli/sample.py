"""``rbdata sample``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from ..errors import UsageError
from ..storage import amounts
from .console import TableColumn, out
from .options import CacheDir, CacheLimit, LocalId, Root

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

    from ..storage.dataset import Dataset

EXAMPLES = """
  rbdata sample Pong/5
  rbdata sample Pong/5 -n 256 --frame-stack 4 --bench
  rbdata sample s3://lab/rbdata/atari/Pong/5 --cache-dir /fast/cache --cache-limit 20GB
  rbdata sample Pong/5 -n 64 --slice-len 16 --seed 1
"""

#: Rounds of a benchmark, and seconds per round.
ROUNDS, ROUND_SECONDS = 6, 0.25
#: Bytes of the block that the copy floor gathers from: larger than the caches of a CPU.
FLOOR_BYTES = 1 << 28

_COLUMNS = (
    TableColumn("key"),
    TableColumn("shape"),
    TableColumn("dtype", optional=True),
    TableColumn("min", amounts.real, right=True),
    TableColumn("mean", amounts.real, right=True),
    TableColumn("max", amounts.real, right=True),
)


def run(
    dataset: LocalId,
    n: Annotated[int | None, Option("-n", "--batch-size", min=1, metavar="N", help="Steps (default: 32).")] = None,
    slice_len: Annotated[int | None, Option(min=1, metavar="L", help="Draw slices of L consecutive steps.")] = None,
    frame_stack: Annotated[int | None, Option(min=1, metavar="K", help="Stack the last K observations.")] = None,
    seed: Annotated[int | None, Option(metavar="S", help="Same seed, same batch.")] = None,
    bench: Annotated[bool, Option("--bench", help="Measure the batches per second.")] = False,
    cache_dir: CacheDir = None,
    cache_limit: CacheLimit = None,
    root: Root = None,
) -> None:
    """Draw a batch and show it.

    --bench compares the speed with the copy floor: gathering the same number of bytes from memory with
    torch.index_select.
    """
    from ..datasets.opening import open_dataset
    from ..loading import load
    from .progress import phase

    with phase("loading"):
        opened = open_dataset(dataset, root=root, cache_dir=cache_dir, cache_limit=cache_limit)
        longest = int(opened.episodes.lengths.max(initial=0))
        if slice_len is not None and slice_len > longest:
            message = f"no episode of {opened.id} has {amounts.plural(slice_len, 'step')}"
            raise UsageError(message, hint=f"the longest has {longest:,}: --slice-len {longest} or less")
        n = n or (slice_len * max(1, 32 // slice_len) if slice_len else _usual_batch(opened))
        buffer = load(opened, batch_size=n, slice_len=slice_len, frame_stack=frame_stack, seed=seed)
        batch = buffer.sample()
    if bench:
        out.note(f"measuring for about {2 * (ROUNDS + 1) * ROUND_SECONDS:.0f} s")
    speed = _measure(buffer.sample, batch) if bench else None
    index = batch["index"].reshape(-1).tolist()

    def document() -> dict[str, Any]:
        tensors = [dict(zip(("key", "shape", "dtype", "min", "mean", "max"), row)) for row in _rows(batch)]
        shown = {"batch_size": list(batch.batch_size), "index": index, "tensors": tensors}
        return shown | ({"bench": speed} if speed else {})

    if out.programs(document):
        return
    if speed:
        out.facts(_speed_facts(speed))
        return
    out.table(_COLUMNS, _rows(batch))
    shown = ", ".join(map(str, index[:8])) + ", ..." * (len(index) > 8)
    out.facts([("first index" if len(index) > 8 else "index", shown)])


def _usual_batch(dataset: Dataset) -> int:
    """Steps of a batch if no size is given: as many as fit into 64 MiB, at most 32 and at least one.

    Rows are as large as the dataset states; compressed ones may be a thousandth of that on disk.
    """
    step_bytes = sum(leaf.row_bytes * (2 if leaf.kind == "state" else 1) for leaf in dataset.manifest.schema)
    return max(1, min(32, (64 << 20) // max(1, step_bytes)))


def _rows(batch: TensorDict) -> list[tuple[Any, ...]]:
    """Key, shape, dtype, min, mean, max of every tensor."""
    from ..preprocess.result import leaves_of

    rows: list[tuple[Any, ...]] = []
    for name, value in leaves_of(batch).items():
        low, mean, high = _range(value)
        shape = list(value.shape) if out.json else f"[{', '.join(map(str, value.shape))}]"
        rows.append((name, shape, str(value.dtype).removeprefix("torch."), low, mean, high))
    return sorted(rows, key=lambda row: (row[0].startswith("next/"), row[0] == "index", row[0]))


def _range(value: torch.Tensor) -> tuple[float, float, float]:
    """Minimum, mean and maximum, without a copy of the whole tensor as doubles."""
    found = [
        (float(part.min()), float(part.sum()), float(part.max()))
        for part in (piece.double() for piece in value.reshape(-1).split(1 << 22))
    ]
    lows, sums, highs = zip(*found)
    return min(lows), sum(sums) / value.numel(), max(highs)


def _measure(sample: Callable[[], TensorDict], batch: TensorDict) -> dict[str, float]:
    """Batches, transitions and bytes per second, and the speed as a share of the copy floor's."""
    size = sum(value.nbytes for value in batch.values(include_nested=True, leaves_only=True))
    rows = batch.numel()
    seconds, floor = _median_seconds(sample, _gather(rows, max(8, size // rows // 8 * 8)))
    return {
        "batches_per_second": 1 / seconds,
        "transitions_per_second": rows / seconds,
        "bytes_per_second": size / seconds,
        "batch_bytes": size,
        "floor_batches_per_second": 1 / floor,
        "share_of_floor": floor / seconds,
    }


def _gather(rows: int, row_bytes: int) -> Callable[[], object]:
    """The copy floor: a function that gathers ``rows`` random rows of ``row_bytes`` bytes from memory."""
    import torch

    block = torch.ones((max(rows, FLOOR_BYTES // row_bytes), row_bytes // 8), dtype=torch.int64)
    target = torch.empty((rows, row_bytes // 8), dtype=torch.int64)
    return lambda: torch.index_select(block, 0, torch.randint(len(block), (rows,)), out=target)


def _median_seconds(*functions: Callable[[], object]) -> list[float]:
    """Median seconds per call. The functions take turns, so that other load on the machine slows all alike."""
    seconds: list[list[float]] = [[] for _ in functions]
    for number in range(ROUNDS + 1):
        for function, times in zip(functions, seconds):
            end = time.perf_counter() + ROUND_SECONDS
            while (began := time.perf_counter()) < end:
                function()
                if number:  # the first round warms up
                    times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in seconds]


def _speed_facts(speed: dict[str, float]) -> list[tuple[str, str]]:
    def rounded(rate: float) -> str:  # repeated, it differs by some percent
        return amounts.count(round(rate)) if rate >= 100 else f"{rate:.3g}"

    floor = rounded(speed["floor_batches_per_second"])
    return [
        ("batches", f"{rounded(speed['batches_per_second'])} per second"),
        ("transitions", f"{amounts.count(round(speed['transitions_per_second']))} per second"),
        ("bytes", f"{amounts.size(speed['bytes_per_second'])}/s"),
        ("copy floor", f"{amounts.percent(speed['share_of_floor'])} of {floor} batches per second"),
    ]
