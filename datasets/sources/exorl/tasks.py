"""The tasks of ExORL's domains whose rewards can be computed: those of dm_control's suite, and the targets of its maze."""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import UsageError

MAZE = "point_mass_maze"
#: By domain; those of dm_control's suite, and the targets of ExORL's maze in the order of its reward columns
#: (custom_dmc_tasks/point_mass_maze.py).
TASKS: Mapping[str, tuple[str, ...]] = {
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse"),
    "cheetah": ("run",),
    MAZE: ("reach_top_left", "reach_top_right", "reach_bottom_left", "reach_bottom_right"),
    "quadruped": ("walk", "run"),
    "walker": ("stand", "walk", "run"),
}
ALL_TASKS = tuple(f"{domain}_{task}" for domain, tasks in TASKS.items() for task in tasks)


def domain_of(task: str) -> str:
    """The domain of a task in `ALL_TASKS`. Raises UsageError for another one."""
    if task not in ALL_TASKS:
        raise UsageError(f"{task!r} is not a task whose rewards can be computed", hint=f"tasks: {', '.join(ALL_TASKS)}")
    return next(domain for domain in TASKS if task.startswith(f"{domain}_"))
