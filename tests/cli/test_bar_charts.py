import numpy as np
import pytest
from rbdata.cli.inspect import GAP, WIDTH, chart, side_by_side, sparkline
from rbdata.datasets.card.overview import count_values
from rbdata.storage.amounts import exact_percent

RNG = np.random.default_rng(0)
SHAPES = {
    "bins": RNG.standard_normal(100_000),
    "values": RNG.choice([-1, 0, 1], 1000),
    "large": RNG.standard_normal(30) * 1e12,
    "constant": np.ones(5),
    "nothing": np.array([np.nan]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_charts_fit(name):
    assert max(map(len, chart(name, count_values(SHAPES[name])))) <= WIDTH


def test_what_a_chart_shows():
    assert chart("reward", count_values(np.array([0] * 9 + [1]))) == [
        "reward",
        "  0  90% ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━",
        "  1  10% ━━━",
    ]
    assert chart("length", count_values(np.full(9, 1000))) == ["length", "  always 1,000"]
    assert chart("return", count_values(np.array([np.nan] * 2)))[1:] == ["  not finite: 2"]
    lines = chart("steps", count_values(np.repeat(np.arange(14), np.arange(14) * 100)))
    assert lines[1].split()[0] == "1.3k"
    assert lines[-1].split() == ["1", "13"]


def test_equal_neighbours_stay_apart():
    columns = chart("x", count_values(np.arange(60_000) / 7))
    assert columns[1].count("█ █") > 5 and "██" not in "".join(columns)
    assert chart("x", count_values(np.repeat([0, 1], 5)))[1:] == ["  0  50% " + "━" * 29, "  1  50% " + "━" * 29]


def test_charts_stand_side_by_side_where_there_is_room():
    charts = [["a", "1"], ["b"], ["c"]]
    assert side_by_side(charts, 40) == ["a", "1", "", "b", "", "c"]
    assert side_by_side(charts, 80) == ["a" + " " * (WIDTH + GAP - 1) + "b", "1", "", "c"]


def test_in_one_line():
    assert sparkline(count_values(np.array([0, 0, 0, 2]), range(3))) == "█ ▃"


def test_small_shares_are_not_nothing():
    assert [exact_percent(share) for share in (0, 1e-6, 0.0238, 0.99999, 1)] == [
        "0%",
        "<0.1%",
        "2.38%",
        ">99.9%",
        "100%",
    ]
