"""The data that providers' own writers wrote have no finding of warning or worse."""

from __future__ import annotations

import pytest
import rbdata
from paths import DATA

#: What to download, from the copies in the test data.
DOWNLOADED = [
    "atari/Pong/5",
    "exorl/jaco/diayn",
    "exorl/walker/rnd",
    "gen_dgrl/chaser-1M_E",
    "gen_dgrl/maze-1M_E",
    "ogbench/pointmaze-medium-navigate-v0",
    "ogbench/pointmaze-medium-navigate-v0-val",
    "ogbench/powderworld-easy-play-v0",
    "ogbench/puzzle-3x3-play-singletask-v0",
    "ogbench/visual-antmaze-medium-navigate-v0",
    "roboset/DAPG(human)/door_v2d-v1",
    "roboset/FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4",
    "roboset/real/set_0_trace",
    "vd4rl/cheetah_run-medium-84px",
    "vd4rl/walker_walk-medium-64px",
]
#: What to convert: source and path.
CONVERTED = [
    ("atari", "rl_unplugged/atari_episodes_ordered/Breakout"),
    *(("d4rl", path.relative_to(DATA).as_posix()) for path in sorted((DATA / "d4rl").rglob("*.hdf5"))),
    *(
        ("minari", path.parent.relative_to(DATA).as_posix())
        for path in sorted((DATA / "minari").glob("*/*/data/metadata.json"))
    ),
    ("rlds", "rlds/toy_robot/0.1.0"),
    ("rlds", "rlds/toy_spec/0.1.0"),
    ("lerobot", "lerobot/v3_done"),
    ("lerobot", "lerobot/v21_plain"),
]


@pytest.mark.parametrize("name", DOWNLOADED)
def test_downloaded(name, tmp_path):
    folder = rbdata.download(name, root=tmp_path, mirror=DATA / name.partition("/")[0], procs=1, codec="raw")
    report = rbdata.audit(folder)
    assert report.ok, report.findings


@pytest.mark.parametrize(("source", "path"), CONVERTED, ids=[path for _, path in CONVERTED])
def test_converted(source, path, tmp_path):
    if source == "lerobot":
        pytest.importorskip("av")
    folder = rbdata.convert(DATA / path, "my/x", source=source, root=tmp_path, procs=1, codec="raw")
    report = rbdata.audit(folder)
    assert report.ok, report.findings


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "FrozenLake-v1", "Blackjack-v1"])
def test_recorded(name, tmp_path):
    report = rbdata.audit(rbdata.download(f"gymnasium/{name}", steps=1000, root=tmp_path, procs=1))
    assert report.ok, report.findings


def test_train_and_validation_share_nothing(tmp_path):
    names = ("ogbench/pointmaze-medium-navigate-v0", "ogbench/pointmaze-medium-navigate-v0-val")
    report = rbdata.audit([rbdata.download(name, root=tmp_path, mirror=DATA / "ogbench", procs=1) for name in names])
    assert report.ok, report.findings
