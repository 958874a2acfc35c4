"""Single tasks: rewards and masks as ``relabel_dataset`` of ogbench 1.2 computes them (traps 67 and 68)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rbdata
from ogbench_truth import make, write
from paths import DATA
from rbdata.datasets.sources.ogbench.reader import single_task
from rbdata.datasets.sources.ogbench.source import parse, sets
from rbdata.errors import CorruptSourceError
from rbdata.storage.dataset import Dataset

GOALS = json.loads((Path(rbdata.__file__).parent / "datasets/sources/ogbench/goals.json").read_text())
KINDS = {"cube": "play", "scene": "play", "puzzle": "play"}
ENVIRONMENTS = sorted({name.environment for name in map(parse, sets()) if name.environment in GOALS})


def by_hand(environment: str, goal, tolerance, qpos: np.ndarray, buttons: np.ndarray) -> tuple[float, float]:
    """Reward and mask of one state."""
    if "goal_xy" in goal:
        at = 15 if environment.startswith("antsoccer") else 0
        near = sum((float(qpos[at + i]) - goal["goal_xy"][i]) ** 2 for i in range(2)) ** 0.5 <= tolerance
        return (0.0, 0.0) if near else (-1.0, 1.0)
    held = []
    for number, cube in enumerate(goal.get("cubes", [])):
        place = [float(value) for value in qpos[14 + 7 * number : 17 + 7 * number]]
        held.append(sum((a - b) ** 2 for a, b in zip(place, cube)) ** 0.5 <= 0.04)
    held += [int(state) == wanted for state, wanted in zip(buttons, goal.get("buttons", []))]
    if "drawer" in goal:
        at = 14 + 7 * len(goal["cubes"]) + len(goal["buttons"])
        held += [abs(float(qpos[at]) - goal["drawer"]) <= 0.04, abs(float(qpos[at + 1]) - goal["window"]) <= 0.04]
    return float(sum(held) - len(held)), 0.0 if all(held) else 1.0


def near_the_goal(environment: str, goal, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """States of which about half are where the task wants them."""
    rng = np.random.default_rng(seed)
    qpos = rng.normal(size=(rows, 14 + 7 * 9)).astype(np.float32)
    buttons = rng.integers(0, 2, (rows, max(1, len(goal.get("buttons", [])))))
    for row in range(0, rows, 2):
        shift = rng.uniform(-0.03, 0.03, 3)
        if "goal_xy" in goal:
            at = 15 if environment.startswith("antsoccer") else 0
            qpos[row, at : at + 2] = goal["goal_xy"] + 20 * shift[:2]
        for number, cube in enumerate(goal.get("cubes", [])):
            qpos[row, 14 + 7 * number : 17 + 7 * number] = cube + shift
        if row % 4 == 0 and "buttons" in goal:
            buttons[row] = goal["buttons"]
        if "drawer" in goal:
            at = 14 + 7 * len(goal["cubes"]) + len(goal["buttons"])
            qpos[row, at : at + 2] = [goal["drawer"] + shift[0], goal["window"] + shift[1]]
    return {"qpos": qpos, "button_states": buttons} if "buttons" in goal else {"qpos": qpos}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_rewards_and_masks_of_all_tasks(environment):
    solved = 0
    known = GOALS[environment]
    for number in range(6):
        kind = KINDS.get(environment.partition("-")[0], "navigate")
        name = f"{environment}-{kind}-singletask{f'-task{number}' if number else ''}-v0"
        name = name if parse(name) else name.replace("-singletask", "-100m-singletask")  # cube-octuple
        one = parse(name)
        assert one is not None
        task = single_task(one.environment, one.task)
        assert task is not None and task.number == (number or known["default"])
        goal = known[f"task{task.number}"]
        arrays = near_the_goal(environment, goal, 60, number)
        rewards, masks = task.rewards(arrays, "x")
        buttons = arrays.get("button_states", np.zeros((60, 0)))
        wanted = [by_hand(environment, goal, known.get("goal_tol"), *row) for row in zip(arrays["qpos"], buttons)]
        assert rewards.dtype == masks.dtype == np.float32
        assert list(zip(rewards.tolist(), masks.tolist())) == wanted
        solved += int((masks == 0).sum())
    assert solved >= 6


def test_trap_67_and_68_the_reward_is_of_the_state_before_the_action_and_episodes_go_on(tmp_path):
    arrays = make([4, 3])
    arrays["qpos"][:, :2] = 99
    arrays["qpos"][[1, 4, 8], :2] = GOALS["pointmaze-medium"]["task1"]["goal_xy"]  # row 4 and row 8 are final states
    mirror = write(tmp_path / "raw" / "pointmaze-medium-navigate-v0.npz", arrays).parent
    name = "ogbench/pointmaze-medium-navigate-singletask-v0"
    dataset = Dataset(rbdata.download(name, root=tmp_path / "root", mirror=str(mirror), procs=0))
    assert dataset["next/reward"].flatten().tolist() == [-1, 0, -1, -1, -1, -1, -1]
    assert dataset["masks"].tolist() == [1, 0, 1, 1, 1, 1, 1]
    assert dataset.episodes.lengths.tolist() == [4, 3] and not dataset["next/terminated"].any()
    counts = dataset.manifest.counts
    assert (counts["relabelled_steps"], counts["steps_at_the_goal"]) == (7, 1)
    assert dataset.manifest.source["task"] == {
        "environment": "pointmaze-medium",
        "task": 1,
        "goal_xy": [20.0, 20.0],
        "goal_tol": 1.0,
    }
    assert any("1 of 7 steps" in note for note in dataset.manifest.notes)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("puzzle-3x3-play-v0.npz", "puzzle-3x3-play-singletask-task2-v0"),
        ("puzzle-3x3-play-v0-val.npz", "puzzle-3x3-play-singletask-v0-val"),
        ("visual-antmaze-medium-navigate-v0.npz", "visual-antmaze-medium-navigate-singletask-task5-v0"),
    ],
)
def test_a_task_of_real_files_downloaded_and_converted(file, name, tmp_path):
    downloaded = rbdata.download(f"ogbench/{name}", root=tmp_path / "root", mirror=str(DATA / "ogbench"), procs=0)
    converted = rbdata.convert(
        DATA / "ogbench" / file, dataset_id="my/task", dataset=name, root=tmp_path / "root", procs=0
    )
    environment = name.removeprefix("visual-").partition("-play")[0].partition("-navigate")[0]
    known = GOALS[environment]
    goal = known[
        "task"
        + (name.partition("-task")[2][:1] if "-task" in name.replace("singletask", "") else str(known["default"]))
    ]
    for path in (downloaded, converted):
        dataset = Dataset(path)
        qpos = dataset["info/qpos"].numpy()
        buttons = (
            dataset["info/button_states"].numpy() if "info/button_states" in dataset.rows else np.zeros((len(qpos), 0))
        )
        wanted = [by_hand(environment, goal, known.get("goal_tol"), *row) for row in zip(qpos, buttons)]
        assert dataset["next/reward"].flatten().tolist() == [reward for reward, _ in wanted]
        assert dataset["masks"].tolist() == [mask for _, mask in wanted]


def test_a_file_of_another_environment_is_refused(tmp_path):
    mirror = write(tmp_path / "raw" / "cube-triple-play-v0.npz", make([3])).parent
    name = "ogbench/cube-triple-play-singletask-v0"
    with pytest.raises(CorruptSourceError, match=r"qpos has rows of \[15\], too few"):
        rbdata.download(name, root=tmp_path / "root", mirror=str(mirror), procs=0)
    write(tmp_path / "raw" / "puzzle-3x3-play-v0.npz", make([3]))
    with pytest.raises(CorruptSourceError, match="has no button_states"):
        rbdata.download("ogbench/puzzle-3x3-play-singletask-v0", root=tmp_path / "root", mirror=str(mirror), procs=0)
