"""Which datasets D4RL has: a literal table, because nothing about it can be derived.

File names follow no rule (``medium-replay`` is ``_mixed`` in v0, the large AntMaze is ``hardest-maze``), some ids share a
file, and scores and horizons belong to the id. Facts are those of D4RL's own registry and registrations
(https://github.com/Farama-Foundation/D4RL, release 1.1); ids marked ``+`` are absent from its list of 155 downloads but
registered by it, and are listed by TorchRL as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

#: Where the files were published; paths of the table are below it.
HOME = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
#: A copy with all files in one folder; it holds MuJoCo v1 (in part) and v2, Adroit, AntMaze.
FLAT_COPY = "https://huggingface.co/datasets/imone/D4RL/resolve/main"


@dataclass(frozen=True)
class Entry:
    """One dataset.

    ``horizon`` is the environment's time limit in steps. ``low`` and ``high`` are the returns that normalised scores
    call 0 and 100 (a random and an expert policy); None where D4RL states none. ``listed`` is whether D4RL's own list of
    downloads has it.
    """

    name: str
    family: str
    path: str
    horizon: int
    low: float | None
    high: float | None
    listed: bool

    @property
    def file(self) -> str:
        """The file's base name, unique in the whole table."""
        return self.path.rpartition("/")[2]

    @property
    def sha256(self) -> str | None:
        """Of the file, where a copy states it."""
        return PINNED.get(self.file.removesuffix(".hdf5"))


@cache
def registry() -> dict[str, Entry]:
    """All datasets by name, in the table's order."""
    entries: dict[str, Entry] = {}
    folder = family = ""
    for line in _TABLE.strip().splitlines():
        if line.startswith("#"):
            folder, family = line[1:].replace(":", "").split()
            continue
        name, file, horizon, low, high, *mark = line.split()
        scores = [None if text == "-" else float(text) for text in (low, high)]
        path = f"{folder}/{file}.hdf5"
        entries[name] = Entry(name, family, path, int(horizon), scores[0], scores[1], listed=not mark)
    return entries


def by_file(file: str) -> list[Entry]:
    """The datasets that a file of this base name holds (more than one where ids share a file)."""
    return [entry for entry in registry().values() if entry.file == file]


#: sha256 of files as the flat copy states them (seen on its pages in 2023 and later). Its copies of
#: halfcheetah_medium, halfcheetah_expert (v0) and of the diverse medium AntMaze v0 are far smaller than the originals
#: and are not among them.
PINNED = {
    "Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse": (
        "527385c14b87892e8c222c43246546d6cd461fa2a5476d0b3b105ae422b7637c"
    ),
    "Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed": (
        "c9fec1c1daad97c71d61bd47f4ccc9f74faa855b8a2d2e8107d5378018827e5b"
    ),
    "Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse": (
        "e37afef5b80b968b30cad2682f9a93ee1b400e3b58c7a7f45e7d425d03a2b03d"
    ),
    "Ant_maze_medium_noisy_multistart_True_multigoal_False_sparse": (
        "af9b68743191ae655b4c62dd6d4d66ed5cd6803b71858cc4076662986daa41c9"
    ),
    "ant_expert-v2": "fa22531ca79ea051006fa48bb652120d2e12c813919c530369a03c2688311b0f",
    "ant_medium-v2": "461c03b9f70f40d66b47608a92965e4ef3642bd9cdb1320d10acc92754167137",
    "door-human-v1": "f9691288c3ddf2b4e7b31bdae0d8444b80ba035515495f8a902d60c43ee09370",
    "halfcheetah_full_replay-v2": "27fdf7ea86e5a2cbd24d611ae9e703c86ec2e8e52823abc69dd9af6afb3a36c0",
    "halfcheetah_random-v2": "25407aef85b5d16c0f36b4149341edb4acc6a9e88c1db529b2de19e7464874ba",
    "hammer-cloned-v1": "e48d75b159bdd72f51d3f01448d3eca4d38275714e11e995c14a36f6cf159db3",
    "hammer-v0_demos_clipped": "96bbad34845982807057d931956b0007b267b75ffef6caacbaa45b1544bf68d5",
    "hopper_expert": "6fea535033d962eff1427d76d7b2e0e4f57af1d4921f7ef6d917779f2968fd84",
    "hopper_expert-v2": "01aa219a5f8eea5e639eccdc636ec2bf40e317159a95cf4bf6e985f16909941b",
    "hopper_medium_expert-v2": "9d51ad87f8c905be3880d84c6140bcdb7fbf39a19e046a237f238ba34fec9e26",
}

#: ``# folder: family``, then one dataset a line: name, file, horizon, low, high, and ``+`` (see above).
_TABLE = """
# gym_mujoco: mujoco
halfcheetah-random-v0 halfcheetah_random 1000 -280.178953 12135.0
halfcheetah-medium-v0 halfcheetah_medium 1000 -280.178953 12135.0
halfcheetah-expert-v0 halfcheetah_expert 1000 -280.178953 12135.0
halfcheetah-medium-replay-v0 halfcheetah_mixed 1000 -280.178953 12135.0
halfcheetah-medium-expert-v0 halfcheetah_medium_expert 1000 -280.178953 12135.0
walker2d-random-v0 walker2d_random 1000 1.629008 4592.3
walker2d-medium-v0 walker2d_medium 1000 1.629008 4592.3
walker2d-expert-v0 walker2d_expert 1000 1.629008 4592.3
walker2d-medium-replay-v0 walker_mixed 1000 1.629008 4592.3
walker2d-medium-expert-v0 walker2d_medium_expert 1000 1.629008 4592.3
hopper-random-v0 hopper_random 1000 -20.272305 3234.3
hopper-medium-v0 hopper_medium 1000 -20.272305 3234.3
hopper-expert-v0 hopper_expert 1000 -20.272305 3234.3
hopper-medium-replay-v0 hopper_mixed 1000 -20.272305 3234.3
hopper-medium-expert-v0 hopper_medium_expert 1000 -20.272305 3234.3
ant-random-v0 ant_random 1000 -325.6 3879.7
ant-medium-v0 ant_medium 1000 -325.6 3879.7
ant-expert-v0 ant_expert 1000 -325.6 3879.7
ant-medium-replay-v0 ant_mixed 1000 -325.6 3879.7
ant-medium-expert-v0 ant_medium_expert 1000 -325.6 3879.7
ant-random-expert-v0 ant_random_expert 1000 -325.6 3879.7
# gym_mujoco_v1: mujoco
halfcheetah-random-v1 halfcheetah_random-v1 1000 -280.178953 12135.0
halfcheetah-medium-v1 halfcheetah_medium-v1 1000 -280.178953 12135.0
halfcheetah-expert-v1 halfcheetah_expert-v1 1000 -280.178953 12135.0
halfcheetah-medium-replay-v1 halfcheetah_medium_replay-v1 1000 -280.178953 12135.0
halfcheetah-full-replay-v1 halfcheetah_full_replay-v1 1000 -280.178953 12135.0
halfcheetah-medium-expert-v1 halfcheetah_medium_expert-v1 1000 -280.178953 12135.0
hopper-random-v1 hopper_random-v1 1000 -20.272305 3234.3
hopper-medium-v1 hopper_medium-v1 1000 -20.272305 3234.3
hopper-expert-v1 hopper_expert-v1 1000 -20.272305 3234.3
hopper-medium-replay-v1 hopper_medium_replay-v1 1000 -20.272305 3234.3
hopper-full-replay-v1 hopper_full_replay-v1 1000 -20.272305 3234.3
hopper-medium-expert-v1 hopper_medium_expert-v1 1000 -20.272305 3234.3
walker2d-random-v1 walker2d_random-v1 1000 1.629008 4592.3
walker2d-medium-v1 walker2d_medium-v1 1000 1.629008 4592.3
walker2d-expert-v1 walker2d_expert-v1 1000 1.629008 4592.3
walker2d-medium-replay-v1 walker2d_medium_replay-v1 1000 1.629008 4592.3
walker2d-full-replay-v1 walker2d_full_replay-v1 1000 1.629008 4592.3
walker2d-medium-expert-v1 walker2d_medium_expert-v1 1000 1.629008 4592.3
ant-random-v1 ant_random-v1 1000 -325.6 3879.7
ant-medium-v1 ant_medium-v1 1000 -325.6 3879.7
ant-expert-v1 ant_expert-v1 1000 -325.6 3879.7
ant-medium-replay-v1 ant_medium_replay-v1 1000 -325.6 3879.7
ant-full-replay-v1 ant_full_replay-v1 1000 -325.6 3879.7
ant-medium-expert-v1 ant_medium_expert-v1 1000 -325.6 3879.7
# gym_mujoco_v2: mujoco
halfcheetah-random-v2 halfcheetah_random-v2 1000 -280.178953 12135.0
halfcheetah-medium-v2 halfcheetah_medium-v2 1000 -280.178953 12135.0
halfcheetah-expert-v2 halfcheetah_expert-v2 1000 -280.178953 12135.0
halfcheetah-medium-replay-v2 halfcheetah_medium_replay-v2 1000 -280.178953 12135.0
halfcheetah-full-replay-v2 halfcheetah_full_replay-v2 1000 -280.178953 12135.0
halfcheetah-medium-expert-v2 halfcheetah_medium_expert-v2 1000 -280.178953 12135.0
hopper-random-v2 hopper_random-v2 1000 -20.272305 3234.3
hopper-medium-v2 hopper_medium-v2 1000 -20.272305 3234.3
hopper-expert-v2 hopper_expert-v2 1000 -20.272305 3234.3
hopper-medium-replay-v2 hopper_medium_replay-v2 1000 -20.272305 3234.3
hopper-full-replay-v2 hopper_full_replay-v2 1000 -20.272305 3234.3
hopper-medium-expert-v2 hopper_medium_expert-v2 1000 -20.272305 3234.3
walker2d-random-v2 walker2d_random-v2 1000 1.629008 4592.3
walker2d-medium-v2 walker2d_medium-v2 1000 1.629008 4592.3
walker2d-expert-v2 walker2d_expert-v2 1000 1.629008 4592.3
walker2d-medium-replay-v2 walker2d_medium_replay-v2 1000 1.629008 4592.3
walker2d-full-replay-v2 walker2d_full_replay-v2 1000 1.629008 4592.3
walker2d-medium-expert-v2 walker2d_medium_expert-v2 1000 1.629008 4592.3
ant-random-v2 ant_random-v2 1000 -325.6 3879.7
ant-medium-v2 ant_medium-v2 1000 -325.6 3879.7
ant-expert-v2 ant_expert-v2 1000 -325.6 3879.7
ant-medium-replay-v2 ant_medium_replay-v2 1000 -325.6 3879.7
ant-full-replay-v2 ant_full_replay-v2 1000 -325.6 3879.7
ant-medium-expert-v2 ant_medium_expert-v2 1000 -325.6 3879.7
# maze2d: maze2d
maze2d-open-v0 maze2d-open-sparse 150 0.01 20.66
maze2d-umaze-v1 maze2d-umaze-sparse-v1 300 23.85 161.86
maze2d-medium-v1 maze2d-medium-sparse-v1 600 13.13 277.39
maze2d-large-v1 maze2d-large-sparse-v1 800 6.7 273.99
maze2d-eval-umaze-v1 maze2d-eval-umaze-sparse-v1 300 36.63 141.4
maze2d-eval-medium-v1 maze2d-eval-medium-sparse-v1 600 13.07 204.93
maze2d-eval-large-v1 maze2d-eval-large-sparse-v1 800 16.4 302.22
maze2d-open-dense-v0 maze2d-open-dense 150 11.17817 27.166538620695782
maze2d-umaze-dense-v1 maze2d-umaze-dense-v1 300 68.537689 193.66285642381482
maze2d-medium-dense-v1 maze2d-medium-dense-v1 600 44.264742 297.4552547777125
maze2d-large-dense-v1 maze2d-large-dense-v1 800 30.569041 303.4857382709002
maze2d-eval-umaze-dense-v1 maze2d-eval-umaze-dense-v1 300 56.95455 178.21373133248397
maze2d-eval-medium-dense-v1 maze2d-eval-medium-dense-v1 600 42.28578 235.5658957482388
maze2d-eval-large-dense-v1 maze2d-eval-large-dense-v1 800 56.95455 326.09647655082637
maze2d-umaze-v0 maze2d-umaze-sparse 150 0.94 62.6 +
maze2d-medium-v0 maze2d-medium-sparse 250 5.77 85.14 +
maze2d-large-v0 maze2d-large-sparse 600 4.83 191.99 +
maze2d-umaze-dense-v0 maze2d-umaze-dense 150 23.249793 81.78995240126592 +
maze2d-medium-dense-v0 maze2d-medium-dense 250 19.47762 96.03474232952358 +
maze2d-large-dense-v0 maze2d-large-dense 600 27.38831 215.09965671563742 +
# ant_maze_new: antmaze
antmaze-umaze-v0 Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse 700 0.0 1.0
antmaze-umaze-diverse-v0 Ant_maze_u-maze_noisy_multistart_True_multigoal_True_sparse 700 0.0 1.0
antmaze-medium-play-v0 Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse 1000 0.0 1.0
antmaze-medium-diverse-v0 Ant_maze_big-maze_noisy_multistart_True_multigoal_True_sparse 1000 0.0 1.0
antmaze-large-play-v0 Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse 1000 0.0 1.0
antmaze-large-diverse-v0 Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse 1000 0.0 1.0
antmaze-eval-umaze-v0 Ant_maze_umaze_eval_noisy_multistart_True_multigoal_False_sparse 700 0.0 1.0 +
antmaze-eval-umaze-diverse-v0 Ant_maze_umaze_eval_noisy_multistart_True_multigoal_True_sparse 700 0.0 1.0 +
antmaze-eval-medium-play-v0 Ant_maze_medium_eval_noisy_multistart_True_multigoal_True_sparse 1000 0.0 1.0 +
antmaze-eval-medium-diverse-v0 Ant_maze_medium_eval_noisy_multistart_True_multigoal_False_sparse 1000 0.0 1.0 +
antmaze-eval-large-diverse-v0 Ant_maze_large_eval_noisy_multistart_True_multigoal_False_sparse 1000 0.0 1.0 +
antmaze-eval-large-play-v0 Ant_maze_large_eval_noisy_multistart_True_multigoal_True_sparse 1000 0.0 1.0 +
# ant_maze_v1: antmaze
antmaze-umaze-v1 Ant_maze_umaze_noisy_multistart_False_multigoal_False_sparse 700 0.0 1.0 +
antmaze-umaze-diverse-v1 Ant_maze_umaze_noisy_multistart_True_multigoal_True_sparse 700 0.0 1.0 +
antmaze-medium-play-v1 Ant_maze_medium_noisy_multistart_True_multigoal_False_sparse 1000 0.0 1.0 +
antmaze-medium-diverse-v1 Ant_maze_medium_noisy_multistart_True_multigoal_True_sparse 1000 0.0 1.0 +
antmaze-large-diverse-v1 Ant_maze_large_noisy_multistart_True_multigoal_True_sparse 1000 0.0 1.0 +
antmaze-large-play-v1 Ant_maze_large_noisy_multistart_True_multigoal_False_sparse 1000 0.0 1.0 +
# ant_maze_v2: antmaze
antmaze-umaze-v2 Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed 700 0.0 1.0
antmaze-umaze-diverse-v2 Ant_maze_u-maze_noisy_multistart_True_multigoal_True_sparse_fixed 700 0.0 1.0
antmaze-medium-play-v2 Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed 1000 0.0 1.0
antmaze-medium-diverse-v2 Ant_maze_big-maze_noisy_multistart_True_multigoal_True_sparse_fixed 1000 0.0 1.0
antmaze-large-play-v2 Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed 1000 0.0 1.0
antmaze-large-diverse-v2 Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse_fixed 1000 0.0 1.0
# hand_dapg: adroit
pen-human-v0 pen-v0_demos_clipped 100 96.262799 3076.8331017826877
pen-cloned-v0 pen-demos-v0-bc-combined 100 96.262799 3076.8331017826877
pen-expert-v0 pen-v0_expert_clipped 100 96.262799 3076.8331017826877
hammer-human-v0 hammer-v0_demos_clipped 200 -274.856578 12794.134825156867
hammer-cloned-v0 hammer-demos-v0-bc-combined 200 -274.856578 12794.134825156867
hammer-expert-v0 hammer-v0_expert_clipped 200 -274.856578 12794.134825156867
relocate-human-v0 relocate-v0_demos_clipped 200 -6.425911 4233.877797728884
relocate-cloned-v0 relocate-demos-v0-bc-combined 200 -6.425911 4233.877797728884
relocate-expert-v0 relocate-v0_expert_clipped 200 -6.425911 4233.877797728884
door-human-v0 door-v0_demos_clipped 200 -56.512833 2880.5693087298737
door-cloned-v0 door-demos-v0-bc-combined 200 -56.512833 2880.5693087298737
door-expert-v0 door-v0_expert_clipped 200 -56.512833 2880.5693087298737
door-human-longhorizon-v0 door-v0_demos_clipped 300 -56.512833 2880.5693087298737 +
hammer-human-longhorizon-v0 hammer-v0_demos_clipped 600 -274.856578 12794.134825156867 +
pen-human-longhorizon-v0 pen-v0_demos_clipped 200 96.262799 3076.8331017826877 +
relocate-human-longhorizon-v0 relocate-v0_demos_clipped 500 -6.425911 4233.877797728884 +
# hand_dapg_v1: adroit
hammer-human-v1 hammer-human-v1 200 -274.856578 12794.134825156867
hammer-expert-v1 hammer-expert-v1 200 -274.856578 12794.134825156867
hammer-cloned-v1 hammer-cloned-v1 200 -274.856578 12794.134825156867
pen-human-v1 pen-human-v1 100 96.262799 3076.8331017826877
pen-expert-v1 pen-expert-v1 100 96.262799 3076.8331017826877
pen-cloned-v1 pen-cloned-v1 100 96.262799 3076.8331017826877
relocate-human-v1 relocate-human-v1 200 -6.425911 4233.877797728884
relocate-expert-v1 relocate-expert-v1 200 -6.425911 4233.877797728884
relocate-cloned-v1 relocate-cloned-v1 200 -6.425911 4233.877797728884
door-human-v1 door-human-v1 200 -56.512833 2880.5693087298737
door-expert-v1 door-expert-v1 200 -56.512833 2880.5693087298737
door-cloned-v1 door-cloned-v1 200 -56.512833 2880.5693087298737
# kitchen: kitchen
kitchen-complete-v0 mini_kitchen_microwave_kettle_light_slider-v0 280 0.0 4.0
kitchen-partial-v0 kitchen_microwave_kettle_light_slider-v0 280 0.0 4.0
kitchen-mixed-v0 kitchen_microwave_kettle_bottomburner_light-v0 280 0.0 4.0
# minigrid: minigrid
minigrid-fourrooms-v0 minigrid4rooms 50 0.01442 2.89685
minigrid-fourrooms-random-v0 minigrid4rooms_random 50 0.01442 2.89685
# flow: flow
flow-ring-random-v0 flow-ring-v0-random 500 -165.22 24.42
flow-ring-controller-v0 flow-ring-v0-idm 500 -165.22 24.42
flow-merge-random-v0 flow-merge-v0-random 750 118.67993 330.03179
flow-merge-controller-v0 flow-merge-v0-idm 750 118.67993 330.03179
# carla: carla
carla-lane-v0 carla_lane_follow_flat-v0 250 -0.8503839912088142 1023.5784385429523
carla-town-v0 carla_town_subsamp_flat-v0 1000 -114.81579500772153 2440.1772022247314
carla-town-full-v0 carla_town_flat-v0 1000 -114.81579500772153 2440.1772022247314
carla-lane-render-v0 carla_lane_follow-v0 250 -0.8503839912088142 1023.5784385429523 +
carla-town-render-v0 carla_town_flat-v0 1000 - - +
# bullet: bullet
bullet-halfcheetah-random-v0 bullet-halfcheetah_random 1000 -1275.766996 2381.6725
bullet-halfcheetah-medium-v0 bullet-halfcheetah_medium 1000 -1275.766996 2381.6725
bullet-halfcheetah-expert-v0 bullet-halfcheetah_expert 1000 -1275.766996 2381.6725
bullet-halfcheetah-medium-expert-v0 bullet-halfcheetah_medium_expert 1000 -1275.766996 2381.6725
bullet-halfcheetah-medium-replay-v0 bullet-halfcheetah_medium_replay 1000 -1275.766996 2381.6725
bullet-hopper-random-v0 bullet-hopper_random 1000 20.058972 1441.8059623430963
bullet-hopper-medium-v0 bullet-hopper_medium 1000 20.058972 1441.8059623430963
bullet-hopper-expert-v0 bullet-hopper_expert 1000 20.058972 1441.8059623430963
bullet-hopper-medium-expert-v0 bullet-hopper_medium_expert 1000 20.058972 1441.8059623430963
bullet-hopper-medium-replay-v0 bullet-hopper_medium_replay 1000 20.058972 1441.8059623430963
bullet-ant-random-v0 bullet-ant_random 1000 373.705955 2650.495
bullet-ant-medium-v0 bullet-ant_medium 1000 373.705955 2650.495
bullet-ant-expert-v0 bullet-ant_expert 1000 373.705955 2650.495
bullet-ant-medium-expert-v0 bullet-ant_medium_expert 1000 373.705955 2650.495
bullet-ant-medium-replay-v0 bullet-ant_medium_replay 1000 373.705955 2650.495
bullet-walker2d-random-v0 bullet-walker2d_random 1000 16.523877 1623.6476303317536
bullet-walker2d-medium-v0 bullet-walker2d_medium 1000 16.523877 1623.6476303317536
bullet-walker2d-expert-v0 bullet-walker2d_expert 1000 16.523877 1623.6476303317536
bullet-walker2d-medium-expert-v0 bullet-walker2d_medium_expert 1000 16.523877 1623.6476303317536
bullet-walker2d-medium-replay-v0 bullet-walker2d_medium_replay 1000 16.523877 1623.6476303317536
bullet-maze2d-open-v0 bullet-maze2d-open-sparse 150 8.75 64.15
bullet-maze2d-umaze-v0 bullet-maze2d-umaze-sparse 300 32.46 153.99
bullet-maze2d-medium-v0 bullet-maze2d-medium-sparse 600 14.87 238.05
bullet-maze2d-large-v0 bullet-maze2d-large-sparse 800 1.82 285.92
"""
