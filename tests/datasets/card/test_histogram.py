import numpy as np
import pytest
from rbdata.datasets.card.overview import BINS, count_values


def test_few_values_are_counted_one_by_one():
    found = count_values(np.array([[1.0], [0], [0], [-1], [0], [0], [1], [0], [0]], np.float32))
    assert (found.values, found.counts, found.edges) == ((-1, 0, 1), (1, 6, 2), ())
    assert (found.low, found.high, found.number) == (-1, 1, 9)


def test_choices_are_listed_where_they_do_not_occur():
    assert count_values(np.array([2, 2, 0]), range(4)).counts == (1, 0, 2, 0)


def test_values_outside_the_choices_are_counted_too():
    found = count_values(np.arange(40) % 20, range(3))
    assert not found.values and sum(found.counts) == 40


def test_bins_of_whole_numbers_are_equally_wide():
    found = count_values(np.repeat(np.arange(100), 10))
    assert set(np.diff(found.edges)) == {4.0}
    assert set(found.counts) == {40} and found.edges[0] == -0.5


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).standard_normal(5000),
        np.linspace(1, 1 + 1e-13, 5000),
        np.r_[np.linspace(-1.7e308, -1, 2500), np.linspace(1, 1.7e308, 2500)],
        np.random.default_rng(0).integers(-(2**62), 2**62, 5000),
        np.r_[np.random.default_rng(0).random(5000), np.nan, np.inf, -np.inf],
        np.array([0.1, 0.2, 0.3]),
        np.array([True, False]),
        np.array([7]),
    ],
)
def test_every_finite_value_is_counted_once(values):
    found = count_values(values)
    assert sum(found.counts) == np.isfinite(values).sum() == len(values) - found.not_finite
    assert len(found.counts) == (len(found.edges) - 1 if found.edges else len(found.values)) <= BINS
    assert sum(found.shares) == pytest.approx(1)


@pytest.mark.parametrize("values", [[], [np.nan, np.inf]])
def test_nothing_finite(values):
    found = count_values(np.array(values))
    assert (found.counts, found.mean, found.not_finite) == ((), None, len(values))
    assert found.to_json()["min"] is None
