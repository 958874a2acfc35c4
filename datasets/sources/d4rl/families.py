"""What is particular about each family of D4RL: what ends a trajectory, and what its numbers mean.

From D4RL's generation scripts and from what its users found (issue numbers are those of Farama-Foundation/D4RL).
"""

from __future__ import annotations

from dataclasses import dataclass

from .registry import Entry


@dataclass(frozen=True)
class Family:
    """``terminals_end``: whether a row flagged terminal is the last of its trajectory.

    ``notes`` are sentences for the manifest. ``jump``: more than the agent can move in one step, in the units of the
    first two observation entries (its position); a larger step inside a trajectory means that a reset went unflagged.
    """

    terminals_end: bool = True
    notes: tuple[str, ...] = ()
    jump: float | None = None


#: For files that belong to none of the datasets known.
UNKNOWN = Family()

FAMILIES = {
    "mujoco": Family(),
    "maze2d": Family(
        terminals_end=False,
        notes=(
            "Maze2D is one continuous walk: a time-out marks a goal reached, not a reset. The row after it repeats the same "
            "observation while the simulation had already moved on (D4RL issue 85), so the flagged row's successor is not "
            "in the data.",
            "Rewards are computed from the observation before the action, not from the one after it (D4RL issue 194).",
        ),
    ),
    "antmaze": Family(
        terminals_end=False,
        notes=(
            "AntMaze terminals come in clusters while the ant is near the goal and do not end its trajectory (D4RL issue 199).",
            "Rewards and terminals were relabelled: 1 where the following observation is within 0.5 of the evaluation goal.",
        ),
        jump=2.0,
    ),
    "adroit": Family(),
    "kitchen": Family(notes=("A terminal marks the end of a demonstration, whether or not all its tasks were done.",)),
    "flow": Family(notes=("The generator went on stepping after done, without a reset.",)),
    "carla": Family(),
    "minigrid": Family(notes=("Everything was stored as float32, actions and pixels included.",)),
    "bullet": Family(),
}


def family_of(entry: Entry | None) -> Family:
    """The family of a dataset; of none known, one that takes flags at their word."""
    return FAMILIES[entry.family] if entry else UNKNOWN
