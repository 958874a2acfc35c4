from __future__ import annotations

from io import BytesIO
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from rbdata.datasets.card.figure import draw_figure, draw_histogram, render_figure
from rbdata.datasets.card.overview import count_values, overview
from rbdata.storage.episodes import open_episodes
from rbdata.storage.manifest import read_manifest
from storage_tools import Recipe, make_episodes


def test_one_figure_shows_everything(tmp_path):
    episodes = make_episodes([3, 50, 1, 9])
    for one in episodes:
        one.steps["action"] = np.random.default_rng(0).uniform(-1, 1, (len(one), 40)).astype("float32")
    episodes[0].steps["next/reward"][0] = np.nan
    folder = Recipe(episodes).write(tmp_path)
    manifest = read_manifest(folder)
    manifest.source = {"reference_scores": [0, 4], "environment": {"id": "Costly$x$-v0"}}
    table = open_episodes(folder, manifest.episodes, manifest.steps)
    figure = draw_figure("my/test", overview(folder, manifest, table), table)
    over_time, beside, _, rewards, actions = figure.axes
    words = " ".join(axes.get_title("left") for axes in figure.axes)
    for word in (
        "63 steps",
        "2 terminated, 1 truncated, 1 cut",
        "Costly$x$-v0",
        "return",
        "length",
        "reward",
        "action",
    ):
        assert word in words
    assert figure.get_suptitle() == "my/test"
    assert beside.child_axes[0].get_ylabel() == "normalised score"
    assert "cut short (1)" in {text.get_text() for text in over_time.get_legend().get_texts()}
    assert "1 not finite" in {text.get_text() for text in (*beside.texts, *rewards.texts)}
    assert len(actions.collections) == 32 and "8 more elements not shown" in actions.get_xlabel()
    data = render_figure(figure, ".PNG")
    assert Image.open(BytesIO(data)).size == (1430, 910)


def test_nothing_to_draw_is_said(tmp_path):
    episodes = make_episodes([2, 2])
    for one in episodes:
        one.steps["next/reward"][:] = np.nan
    folder = Recipe(episodes).write(tmp_path)
    manifest = read_manifest(folder)
    table = open_episodes(folder, manifest.episodes, manifest.steps)
    over_time, beside, *_ = draw_figure("my/test", overview(folder, manifest, table), table).axes
    assert (over_time.texts[0].get_text(), beside.texts[0].get_text()) == ("no finite return", "no finite value")
    assert not over_time.axison


def test_equal_bars_beside_each_other_stay_apart():
    figure = Figure()
    for values in (np.repeat(np.arange(40), 5), np.arange(60) / 7, np.repeat([0, 1, 2], 9)):
        axes = figure.subplots()
        draw_histogram(axes, count_values(values))
        bars = [patch.get_extents() for patch in axes.patches if patch.get_extents().height > 0]
        assert len(bars) > 2
        assert all(left.x1 < right.x0 for left, right in pairwise(bars))
        figure.clear()
