"""What writes and is no command of rbdata, and what prepares a root for the commands: called like these by kills.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rbdata
from rbdata.errors import DatasetExistsError
from rbdata.storage.folder import DatasetPlace

LOOP = "gymnasium/CartPole-v1@loop"
#: Steps that a loop records.
STEPS = 150


def record_loop(root: str) -> None:
    """An own loop; a killed one is gone on with, so that its dataset begins with the episodes that had ended."""
    import gymnasium

    try:
        with rbdata.Recorder(gymnasium.make("CartPole-v1"), name="loop", root=root) as env:
            number, ended = 0, True
            for _ in range(STEPS):
                if ended:
                    env.reset(seed=number)
                    actions, number = np.random.default_rng(number), number + 1
                _, _, terminated, truncated, _ = env.step(int(actions.integers(2)))
                ended = terminated or truncated
    except DatasetExistsError:
        if not rbdata.verify(LOOP, root=root).ok:
            raise


def wrong_loop(root: Path, whole: list[int]) -> str:
    """What is wrong with a dataset of `record_loop`; nothing where it is some episodes that had ended, and then all of them."""
    if not rbdata.verify(LOOP, root=root).ok:
        return "the recording is damaged"
    lengths = lengths_of(root)
    before = lengths[: len(lengths) - len(whole)]
    if lengths[len(before) :] != whole or before != whole[: len(before)]:
        return f"episodes of {lengths} steps, not the first of {whole} and then these"
    return ""


def lengths_of(root: Path) -> list[int]:
    return [int(length) for length in rbdata.open_dataset(LOOP, root=root).episodes.length]


def fill_cache(folder: str, cache: str) -> None:
    """Read all of a dataset that lies elsewhere."""
    buffer = rbdata.load(f"file://{folder}", cache_dir=cache, batch_size=256, shuffle="blocks", seed=0)
    for batch in buffer:
        assert batch.numel()
    getattr(buffer.storage.dataset, "fetch", lambda: None)()  # which a whole one does not have


def flip(path: str, at: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[int(at)] ^= 4
    Path(path).write_bytes(data)


def leave(root: str, dataset: str) -> None:
    """One left-over of each kind beside and in a dataset, as processes leave them that were killed."""
    place = DatasetPlace(Path(root), dataset)
    for folder in (place.old, place.path.with_name(".other.writing"), Path(root, "lab", "deep")):
        folder.mkdir(parents=True)
    (place.old / "x.memmap").write_bytes(bytes(5000))
    (place.path.with_name(".other.writing") / "journal.jsonl").write_text("{}\n")
    (place.path / "action.memmap.part").write_bytes(bytes(50))
    space = Path("/proc/self/ns/pid").readlink()
    for name in (f".{place.path.name}.lock", f".{place.path.name}.lock.{0:032x}"):
        place.path.with_name(name).write_text(
            f'{{"pid": 1073741824, "host": "{os.uname().nodename}", "space": "{space}"}}'
        )


CALLS: dict[str, Callable[..., None]] = {one.__name__: one for one in (record_loop, fill_cache, flip, leave)}


def call(words: list[str]) -> int:
    """Call one of them; its errors are reported as those of a command."""
    from rbdata.cli.console import explain

    try:
        CALLS[words[0]](*words[1:])
    except BaseException as error:
        failure = explain(error)
        print(f"{failure.code}: {failure.message}", file=sys.stderr)
        if failure.code == "internal":
            raise
        return failure.exit_code
    return 0
