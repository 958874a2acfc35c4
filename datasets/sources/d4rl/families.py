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

_ENTRY_NOTES = {
    "hopper-medium-expert-v0": "This file holds expert and medium-replay data, not expert and medium (D4RL issue 19).",
    "hopper-medium-v1": "Medium and expert were swapped in the first upload of hopper v1 (D4RL issues 76, 86).",
    "hopper-expert-v1": "Medium and expert were swapped in the first upload of hopper v1 (D4RL issues 76, 86).",
}


def family_of(entry: Entry | None) -> Family:
    """The family of a dataset; of none known, one that takes flags at their word."""
    return FAMILIES[entry.family] if entry else UNKNOWN


def notes_of(entry: Entry | None) -> list[str]:
    """What a user should know about a dataset before looking at a single row."""
    if entry is None:
        return []
    notes = [*family_of(entry).notes]
    if entry.name in _ENTRY_NOTES:
        notes.append(_ENTRY_NOTES[entry.name])
    if entry.path.startswith("ant_maze_new/"):
        notes.append("AntMaze v0 time-outs are out of step with the resets (D4RL issue 77): prefer v2.")
    if not entry.listed:
        notes.append("D4RL registers this id but does not list it among its downloads.")
    return notes
