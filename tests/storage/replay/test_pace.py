"""The quicker way of making batches is found, kept, and left when it is no longer the quicker one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.storage.replay.prefetch import PERIOD, Pace


def deliver(pace: Pace, count: int, seconds: Callable[[bool], float], now: float = 0.0) -> tuple[float, float]:
    """Deliver batches that take ``seconds(ahead)``; returns the clock, and the share that was made ahead."""
    made = 0
    for _ in range(count):
        made += pace.ahead
        now += seconds(pace.ahead)
        pace.note(pace.ahead, now)
    return now, made / count


@settings(max_examples=20)
@given(st.floats(1e-5, 1e-1), st.floats(1.1, 20), st.booleans(), st.integers(1, 8), st.integers(0, 1000))
def test_the_quicker_way_is_taken(quick, factor, ahead_is_quicker, depth, seed):
    random = Random(seed)

    def seconds(ahead: bool) -> float:
        pause = 5.0 if random.random() < 0.05 else 0.0  # an evaluation now and then
        return quick * (1 if ahead is ahead_is_quicker else factor) * random.uniform(0.98, 1.02) + pause

    pace = Pace(depth)
    now, _ = deliver(pace, 100, seconds)
    _, share = deliver(pace, 5 * PERIOD, seconds, now)
    assert (share > 0.95) is ahead_is_quicker
    assert share > 0.95 or share < 0.05


def test_what_changes_is_noticed_soon():
    pace = Pace(2)
    now, _ = deliver(pace, 300, lambda ahead: 1.0 if ahead else 0.5)
    assert not pace.ahead
    now, _ = deliver(pace, 300, lambda ahead: 1.0 if ahead else 3.0, now)
    assert pace.ahead


def test_batches_left_in_the_queue_do_not_count():
    pace, now = Pace(2), 0.0
    now, _ = deliver(pace, 30, lambda ahead: 1.0)
    assert not pace.ahead  # the other way is on trial
    for _ in range(100):
        pace.note(True, now)
    assert not pace.ahead
    deliver(pace, 100, lambda ahead: 1.0 if ahead else 2.0, now)
    assert pace.ahead
