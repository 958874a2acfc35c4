"""What a user should know about a converted file, in sentences for the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .contents import Contents
from .families import family_of
from .registry import Entry

#: Where terminals that do not end a trajectory go.
INNER = "next/terminal"

_ENTRY_NOTES = {
    "hopper-medium-expert-v0": "This file holds expert and medium-replay data, not expert and medium (D4RL issue 19).",
    "hopper-medium-v1": "Medium and expert were swapped in the first upload of hopper v1 (D4RL issues 76, 86).",
    "hopper-expert-v1": "Medium and expert were swapped in the first upload of hopper v1 (D4RL issues 76, 86).",
}
_BY = {
    "timeouts": "Episodes end where the file flags a time-out.",
    "terminals": "Episodes end where the file flags a terminal.",
    "both": "Episodes end where the file flags a terminal or a time-out.",
    "horizon": (
        "The file's time-outs are missing, or not used: episodes end at terminals (not in AntMaze and Maze2D) and, at the "
        "latest, after {horizon} rows."
    ),
}
_COUNTED = {
    "given_up_steps": (
        "Dropped: {n} of {rows} steps with no next state in the file (end of the file, or time limit); the observation of "
        "such a step is the final one of the step before it."
    ),
    "unknown_next_steps": "{n} steps with no next state in the file are kept, truncated, with a next state of zeros.",
    "inner_terminals": "{n} rows flagged terminal do not end their trajectory; " + INNER + " holds the flags.",
    "seams": "{n} episodes end without a flag: the file's next observation is not what its next row holds.",
    "rounded_successors": "{n} next observations differ by rounding from the following row's, and are that row's.",
    "position_jumps": "{n} steps move further than the agent can: resets that the file does not flag.",
    "rows_not_finite": "{n} observations hold NaN or infinity, as in the file.",
}
_MOST_LEFT_OUT = 8


def notes(
    entry: Entry | None, contents: Contents, by: str, horizon: int | None, counts: Mapping[str, int], sha256: str
) -> Iterator[str]:
    """All sentences that apply; ``counts`` are those of the plan."""
    if entry:
        yield from family_of(entry).notes
        if entry.name in _ENTRY_NOTES:
            yield _ENTRY_NOTES[entry.name]
        if entry.path.startswith("ant_maze_new/"):
            yield "AntMaze v0 time-outs are out of step with the resets (D4RL issue 77): prefer v2."
        if not entry.listed:
            yield "D4RL registers this id but does not list it among its downloads."
    yield _BY[by].format(horizon=horizon)
    for name, sentence in _COUNTED.items():
        if counts[name]:
            yield sentence.format(n=counts[name], rows=counts["rows"])
    if horizon and counts["longest_trajectory"] > horizon + 1:
        yield f"The longest trajectory has {counts['longest_trajectory']} rows, more than the horizon of {horizon}."
    stored = contents.arrays["rewards"].dtype.name
    if stored != "float32":
        yield f"Rewards were {stored} and are float32; all other values are as in the file."
    if entry and entry.sha256 and entry.sha256 != sha256:
        yield f"The file is not the one known under this name (its sha256 begins {entry.sha256[:12]})."
    if contents.left_out:
        some = [f"{path} ({why})" for path, why in list(contents.left_out.items())[:_MOST_LEFT_OUT]]
        more = len(contents.left_out) - len(some)
        yield f"Left out: {', '.join(some)}{f' and {more} more' if more else ''}."
