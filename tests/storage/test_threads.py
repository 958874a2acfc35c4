"""Calls in threads: results in order, nothing begun after an error."""

import threading

import pytest
from rbdata.storage.threads import map_in_threads


def test_results_come_in_order():
    assert list(map_in_threads(lambda number: number * number, range(100), 3, "squares")) == [
        number * number for number in range(100)
    ]


def test_items_are_made_as_they_are_taken():
    made = []

    def items():
        for number in range(1000):
            made.append(number)
            yield number

    results = map_in_threads(str, items(), 2, "texts")
    assert next(results) == "0"
    assert len(made) < 20
    results.close()


def test_an_error_is_raised_in_its_place_and_ends_the_rest():
    called, go = [], threading.Event()

    def work(number):
        called.append(number)
        if number == 1:
            raise ValueError("one")
        if number > 1:
            go.wait(5)
        return number

    results = map_in_threads(work, range(1000), 1, "work")
    assert next(results) == 0
    with pytest.raises(ValueError, match="one"):
        list(results)
    go.set()
    assert len(called) < 10
