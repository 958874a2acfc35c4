"""Work for engines, and functions, that Ray's workers import: some of it ends badly."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbdata.errors import FunctionError

if TYPE_CHECKING:  # workers that die young need not import torch
    from tensordict import TensorDict

OnRows = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Task:
    index: int
    rows: int = 1
    label: str = "some.file"


class Tasks(list):
    """Counts how many of its tasks were taken."""

    taken = 0

    def __iter__(self) -> Iterator[Task]:
        for task in super().__iter__():
            self.taken += 1
            yield task


def square(task: Task, on_rows: OnRows) -> dict[str, Any]:
    on_rows(1, 0, 0)
    return {"square": task.index**2, "folder": str(Path.cwd()), "pid": os.getpid()}


def fails(task: Task, on_rows: OnRows) -> dict[str, Any]:
    raise FunctionError("my function raised ValueError: no", hint="try another", detail="Traceback ...")


def breaks(task: Task, on_rows: OnRows) -> dict[str, Any]:
    raise FileNotFoundError("/no/such/folder")


@dataclass(frozen=True)
class Dying:
    """Kills its worker the first time."""

    file: Path

    def __call__(self, task: Task, on_rows: OnRows) -> dict[str, Any]:
        if not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {}


@dataclass(frozen=True)
class Ticking:
    """Writes the time into a file until it is killed; the first task ends when another one writes."""

    folder: Path

    def __call__(self, task: Task, on_rows: OnRows) -> dict[str, Any]:
        if task.index == 0:
            end = time.monotonic() + 600
            while time.monotonic() < end and not any(self.folder.iterdir()):
                time.sleep(0.01)
            return {}
        file = self.folder / f"{task.index}.{os.getpid()}"
        for _ in range(20_000):
            file.write_text(repr(time.time()))
            time.sleep(0.001)
        return {}


@dataclass(frozen=True)
class Slow:
    """Leaves word of its node. On others than ``home`` it stays until the node goes away; at home it waits for such a task."""

    folder: Path
    home: str

    def __call__(self, task: Task, on_rows: OnRows) -> dict[str, Any]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        (self.folder / f"{node}.{task.index}.{time.time_ns()}").touch()
        end = time.monotonic() + 600
        while time.monotonic() < end and (node != self.home or not self.elsewhere()):
            time.sleep(0.05)
        return {"index": task.index}

    def elsewhere(self) -> bool:
        """Whether a task has begun on another node."""
        return any(not path.name.startswith(self.home) for path in self.folder.iterdir())


def doubled(td: TensorDict) -> TensorDict:
    td["next", "reward"] = td["next", "reward"] * 2
    return td


def raises(td: TensorDict) -> TensorDict:
    if (td["action"] == 5).any():
        raise ValueError("no fives")
    return td
