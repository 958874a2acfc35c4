"""`rbdata preprocess` of parts of datasets, and of several."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
from rbdata import cli


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two datasets of 20 episodes each, of 1 to 5 steps; the return of episode i is i, and i + 100."""
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    for name, first in (("a", 0), ("b", 100)):
        episodes = (
            {
                "observation": np.full((i % 5 + 2, 3), i, np.float32),
                "action": np.zeros(i % 5 + 1, np.int64),
                "reward": np.eye(i % 5 + 1, dtype=np.float32)[-1] * (first + i),
                "terminated": np.eye(i % 5 + 1, dtype=bool)[-1],
            }
            for i in range(20)
        )
        rbdata.from_episodes(episodes, f"my/{name}")
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("words", "returns"),
    [
        ("my/a --top 10%", [18, 19]),
        ("my/a --top 3", [17, 18, 19]),
        ("my/a --top 100%", [*range(20)]),
        ("my/a --min-return 15.5", [16, 17, 18, 19]),
        ("my/a --min-length 5", [4, 9, 14, 19]),
        ("my/a --episodes 0-2,7", [0, 1, 2, 7]),
        ("my/a --episodes 0-9 --top 20%", [8, 9]),
        ("my/a my/b", [*range(20), *range(100, 120)]),
        ("my/a my/b --episodes 19-21 --fn rbdata:returns_to_go", [19, 100, 101]),
        ("my/a", [*range(20)]),
    ],
)
def test_preprocess_selects(two, words, returns, capsys):
    assert cli.run(["preprocess", *words.split(), "--dest", "my/out", "--procs", "1"]) == 0
    assert rbdata.open_dataset("my/out").episodes.returns.tolist() == returns
    assert rbdata.verify("my/out").ok


def test_preprocess_shuffles_episodes(two, capsys):
    orders = []
    for dest, seed in (("one", 3), ("same", 3), ("other", 4)):
        assert cli.run(["preprocess", "my/a", "--shuffle-episodes", str(seed), "--dest", f"my/{dest}"]) == 0
        orders.append(rbdata.open_dataset(f"my/{dest}").episodes.returns.tolist())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == [*range(20)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("my/a --episodes 0-20", "there is no episode 20: there are 20"),
        ("my/a --episodes x", "--episodes 'x' is not a list"),
        ("my/a --top 0%", "--top '0%' is neither"),
        ("my/a --top best", "--top 'best' is neither"),
        ("my/a --top 1.0", "--top '1.0' is neither"),  # all of them in Python
        ("my/a --top inf", "--top 'inf' is neither"),
        ("my/a --min-return 1e9", "no episode of my/a is selected"),
        ("my/a my/nothing", "unknown dataset 'my/nothing'"),
    ],
)
def test_preprocess_refuses_selections(two, words, says, capsys):
    assert cli.run(["preprocess", *words.split(), "--dest", "my/out"]) == 2
    assert says in capsys.readouterr().err
    assert not (two / "my" / "out").exists()
