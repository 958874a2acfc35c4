"""A clean dataset is changed in one way: the audit names that, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rbdata
from paths import DATA
from planted import Columns, play
from rbdata.datasets.audit.findings import KINDS
from rbdata.errors import DatasetNotFoundError, UsageError
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED

Change = Callable[[Columns], None]
FAULTS: dict[str, tuple[Change, dict[str, object]]] = {}


def plants(code: str, **facts: object) -> Callable[[Change], Change]:
    """A change that makes a finding with this code; ``facts`` are fields of it. A function may plant it in several ways."""

    def register(change: Change) -> Change:
        FAULTS[f"{code}-{change.__name__}"] = change, {"code": code, **facts}
        return change

    return register


@pytest.fixture
def clean(tmp_path):
    return play()


def test_clean_data_have_no_findings(tmp_path, clean):
    report = rbdata.audit(clean.write(tmp_path))
    assert report.ok and report.findings == ()
    (one,) = report.datasets
    assert (one.steps, one.episodes) == (sum(clean.lengths), 40)
    assert {"next/reward", "flags", "observation", "action"} <= set(one.checked)


# -- values ------------------------------------------------------------------------------------------------------------


@plants("reward_not_finite", severity="error", first=(17, 40), count=2, leaf="next/reward")
def nan(columns):
    columns["next/reward"][[17, 40], 0] = np.nan, np.inf


@plants("reward_outlier", first=(22,))
def sentinel(columns):
    columns["next/reward"][22] = -1e9


@plants("reward_out_of_range", first=(4,), count=1)
def not_clipped(columns):
    columns.source = {"name": "atari", "dataset": "Pong/5", "options": {}, "objects": []}
    columns["next/reward"] = columns["next/reward"].clip(-1, 1)
    columns["next/reward"][4] = 1.5


@plants("reward_constant", severity="note")
def ones(columns):
    columns["next/reward"][:] = 1


@plants("reward_zero", severity="note")
def zeros(columns):
    columns["next/reward"][:] = 0


@plants("observation_not_finite", severity="error", first=(30, 31), leaf="observation")
def sensor(columns):
    states = columns.states()
    states[31, 2] = np.nan  # in the second of two states: the successor of step 29 and the state of step 30
    columns["observation"][[30, 31], 2] = columns["next/observation"][[29, 30], 2] = np.nan


@plants("observation_constant", leaf="observation")
def blind(columns):
    for name in ("observation", "next/observation"):
        columns[name] = np.full_like(columns[name], 0.5)


@plants("observation_constant_column", severity="note", first=(1,), unit="column")
def dead_column(columns):
    for name in ("observation", "next/observation"):
        columns[name][:, 1] = 7


@plants("observation_outlier", first=(50,))
def missing_value(columns):
    columns["observation"][50, 3] = columns["next/observation"][49, 3] = -99999


@plants("observation_out_of_space", leaf="observation")
def bounds(columns):
    low, high = [-1.5, -1.5, -9, -9], [1.5, 1.5, 9, 9]
    columns.spaces["observation"] = {"type": "Box", "low": low, "high": high, "shape": [4], "dtype": "float32"}


@plants("action_not_finite", severity="error", first=(12,))
def nan_action(columns):
    columns["action"][12, 0] = np.nan


@plants("action_out_of_space", first=(9,), severity="warning")
def strong(columns):
    columns["action"][9] = 1.4, -0.2


@plants("action_out_of_space")
def degrees(columns):
    columns["action"][:] *= 57.3


@plants("action_outlier", first=(5,))
def without_space(columns):
    columns.spaces = {}
    columns["action"][5, 0] = 1e5


@plants("other_not_finite", severity="note", leaf="info/force", first=(6, 7, 8))
def info(columns):
    columns["info/force"] = np.ones((sum(columns.lengths), 2), "float32")
    columns["info/force"][6:9, 1] = np.nan


@plants("action_constant", leaf="action")
def idle(columns):
    columns["action"][:] = 0.25


@plants("action_constant_column", severity="note", first=(1,))
def stuck_gripper(columns):
    columns["action"][:, 1] = -1


@plants("action_no_choice", severity="error", first=(14,))
def fourth_of_three(columns):
    choose(columns)
    columns["action"][14] = 3


def choose(columns):
    columns["action"] = np.digitize(columns["action"][:, 0], [-0.3, 0.3]).astype("int64")
    columns.spaces = {"action": {"type": "Discrete", "n": 3}}


@plants("space_malformed", severity="error")
def wrong_shape(columns):
    columns.spaces["action"]["shape"] = [3]


# -- flags, episodes, returns --------------------------------------------------------------------------------------------


@plants("flags_disagree", severity="error", count=1, leaf="next/done")
def not_done(columns):
    columns["next/done"][columns.ends[4]] = False


@plants("end_inside", severity="error", first=(8,))
def early_end(columns):
    columns["next/done"][8] = columns["next/truncated"][8] = True


@plants("no_end", severity="error")
def endless(columns):
    for name in ("done", "terminated", "truncated"):
        columns["next/" + name][columns.ends[3]] = False


@plants("outcome_disagrees", severity="error")
def other_outcome(columns):
    columns.outcomes = [TRUNCATED] * len(columns.outcomes)


@plants("ends_twice", severity="note")
def both(columns):
    columns["next/terminated"] |= columns["next/truncated"]
    columns.outcomes = [TERMINATED] * len(columns.outcomes)


@plants("root_flag_set", severity="error", leaf="done")
def as_torchrl_has_it(columns):
    columns["done"] = np.concatenate([[[False]], columns["next/done"][:-1]])


@plants("time_limit_terminated", unit="episode")
def limit(columns):
    """Episodes end after 30 steps, as the environment's wrapper has it; the program that recorded them says terminated."""
    kept = np.concatenate(
        [np.arange(start, start + min(length, 30)) for start, length in zip(columns.starts, columns.lengths)]
    )
    columns.rows = {name: rows[kept] for name, rows in columns.rows.items()}
    lengths = [min(length, 30) for length in columns.lengths]
    columns.cut(lengths, [TERMINATED if length == 30 else how for length, how in zip(lengths, columns.outcomes)])


@plants("short_episodes", severity="note", first=(0,), unit="episode")
def first_step_alone(columns):
    columns.cut([1, columns.lengths[0] - 1, *columns.lengths[1:]], [TRUNCATED, *columns.outcomes])


@plants("ends_cut", severity="note", first=(2, 6), unit="episode")
def cut_short(columns):
    columns.outcomes = [CUT if number in (2, 6) else how for number, how in enumerate(columns.outcomes)]
    columns.set_flags()


@plants("return_mismatch", severity="error", first=(2,), unit="episode")
def stale_table(columns):
    columns.returns = columns.table().returns.copy()
    columns.returns[2] += 5


# -- transitions ---------------------------------------------------------------------------------------------------------


@plants("successor_own", severity="error", leaf="next/observation")
def own_state(columns):
    columns["next/observation"] = columns["observation"].copy()


@plants("successor_late", severity="error", leaf="next/observation")
def two_later(columns):
    columns["next/observation"][:-1] = columns["next/observation"][1:].copy()


@plants("successor_mismatch", severity="error", first=(70,))
def other_state(columns):
    columns["next/observation"][70] = columns["observation"][3]


@plants("successor_zero")
def unknown(columns):
    columns["next/observation"][columns.ends] = 0


@plants("observation_repeated", severity="warning")
def half_rate(columns):
    for start, end in zip(columns.starts, columns.ends):
        columns["observation"][start + 1 : end + 1 : 2] = columns["observation"][start:end:2]
        columns["next/observation"][start:end] = columns["observation"][start + 1 : end + 1]


@plants("successor_leaks", unit="episode")
def next_episode(columns):
    columns["next/observation"][columns.ends[:-1]] = columns["observation"][columns.starts[1:]]


@plants("terminal_goes_on")
def goes_on(columns):
    lengths = [part for length in columns.lengths for part in (length // 3, length - length // 3) if part]
    columns.cut(lengths, [TERMINATED, TRUNCATED] * (len(lengths) // 2))


@plants("ends_go_on", severity="note")
def pieces(columns):
    lengths = [part for length in columns.lengths for part in (length // 3, length - length // 3) if part]
    columns.cut(lengths, [TRUNCATED, TRUNCATED] * (len(lengths) // 2))


# -- duplicates ----------------------------------------------------------------------------------------------------------


@plants("episode_duplicate", count=2, first=(40, 41), unit="episode")
def part_twice(columns):
    vars(columns).update(vars(columns.take([*range(40), 3, 4])))


@plants("transition_duplicate", severity="note")
def overlapping(columns):
    """Episodes again, without their first steps."""
    again = columns.take([*range(40), *range(20)])
    kept = np.ones(sum(again.lengths), bool)
    kept[again.starts[40:]] = False
    again.rows = {name: rows[kept] for name, rows in again.rows.items()}
    again.lengths = [length - (number >= 40) for number, length in enumerate(again.lengths)]
    vars(columns).update(vars(again))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name, tmp_path, clean):
    change, facts = FAULTS[name]
    change(clean)
    report = rbdata.audit(clean.write(tmp_path))
    found = [finding for finding in report.findings if finding.code == facts["code"]]
    assert found, report.findings
    assert {key: getattr(found[0], key) for key in facts} == facts
    assert found[0].effect == KINDS[found[0].code].effect and found[0].dataset == "my/planted"
    assert report.ok == (found[0].severity == "note")
    assert set(report.codes) <= {facts["code"]}, report.findings


@pytest.mark.parametrize("name", [*FAULTS][::4])
def test_blocks_do_not_matter(name, tmp_path, clean, monkeypatch):
    """The same findings, whatever lies in one block with what."""
    FAULTS[name][0](clean)
    dataset = clean.write(tmp_path)
    expected = rbdata.audit(dataset).findings
    monkeypatch.setattr("rbdata.datasets.audit.blocks._BLOCK_STEPS", 67)
    assert rbdata.audit(dataset).findings == expected


def test_a_state_is_compared_with_the_successor_in_the_block_before(tmp_path, clean, monkeypatch):
    monkeypatch.setattr("rbdata.datasets.audit.blocks._BLOCK_STEPS", 67)
    step = next(step for step in range(66, sum(clean.lengths), 67) if step + 1 not in clean.starts)
    clean["next/observation"][step] += 0.5
    (finding,) = rbdata.audit(clean.write(tmp_path)).findings
    assert (finding.code, finding.first, finding.count) == ("successor_mismatch", (step,), 1)


def test_successors_that_were_computed_again_follow(tmp_path, clean):
    """From stored states, or in another precision: they differ by rounding."""
    rng = np.random.default_rng(0)
    clean["next/observation"] *= 1 + rng.uniform(-1e-6, 1e-6, clean["next/observation"].shape).astype(np.float32)
    assert rbdata.audit(clean.write(tmp_path)).findings == ()


def test_views_and_urls(tmp_path, clean):
    clean["next/reward"][clean.starts[7]] = np.nan
    dataset = clean.write(tmp_path / "root")
    (finding,) = rbdata.audit(dataset.select(episodes=[3, 7, 9])).findings
    assert (finding.code, finding.first) == ("reward_not_finite", (clean.lengths[3],))
    url = dataset.path.as_uri()
    (finding,) = rbdata.audit(url, cache_dir=tmp_path / "cache").findings
    assert (finding.code, finding.first) == ("reward_not_finite", (clean.starts[7],))
    cut = rbdata.audit(dataset.select(steps=range(5, 200)))
    assert cut.ok and "begins_midway" not in [one.code for one in cut.findings]


def test_bandits(tmp_path):
    """Episodes of one step: nothing is said of transitions, and little is kept in memory."""
    rng = np.random.default_rng(0)
    columns = Columns({}, [1] * 500, [TERMINATED] * 500, spaces={})
    columns["observation"] = rng.normal(size=(500, 3)).astype("float32")
    columns["next/observation"] = np.zeros((500, 3), "float32")
    columns["action"] = rng.integers(0, 4, 500)
    columns["next/reward"] = rng.integers(0, 2, (500, 1)).astype("float32")
    columns.set_flags()
    report = rbdata.audit(columns.write(tmp_path))
    assert report.findings == ()


def test_actions_that_are_text(tmp_path, clean):
    clean["action"] = np.full((sum(clean.lengths), 5), ord("a"), np.uint8)
    clean.spaces = {"action": {"type": "Text", "min_length": 1, "max_length": 5, "charset": "ab"}}
    report = rbdata.audit(clean.write(tmp_path))
    assert report.findings == ()
    assert report.datasets[0].skipped["text"] == "values of action"


@pytest.mark.parametrize("each", [1, 2, 5])
def test_episodes_of_one_step_may_be_more_than_half(tmp_path, each):
    """Flags that are set again after every end leave several beside each episode."""
    lengths = [40, *[1] * each] * 6
    ends = np.cumsum(lengths)
    rng = np.random.default_rng(0)
    arrays = {
        "observation": rng.normal(size=(ends[-1] + len(lengths), 3)),
        "action": rng.normal(size=(ends[-1], 2)),
        "reward": rng.normal(size=ends[-1]),
        "terminated": np.zeros(ends[-1], bool),
        "episode_ends": ends,
    }
    path = rbdata.from_arrays(arrays, "my/short", root=tmp_path)
    (found,) = [finding for finding in rbdata.audit(path).findings if finding.code == "short_episodes"]
    assert found.count == 6 * each and found.first[0] == 1
    assert found.what == "episodes of one step, where half of the others have 40 or more"


def test_arrays_whose_successors_are_their_own_states(tmp_path):
    """Each row is cut off from the next, so that no step of any episode contradicts another."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(100, 3))
    arrays = {
        "action": rng.normal(size=(100, 2)),
        "reward": rng.normal(size=100),
        "terminated": np.arange(100) % 20 == 19,
    }
    arrays |= {"observation": states, "next_observation": states}
    report = rbdata.audit(rbdata.from_arrays(arrays, "my/own", root=tmp_path))
    assert report.codes == ["successor_own"] and not report.ok
    assert report.findings[0].count == 95 and report.findings[0].first[:2] == (0, 1)


def test_an_empty_range_of_rewards(tmp_path, clean):
    with pytest.raises(UsageError):
        rbdata.audit(clean.write(tmp_path), reward_range=(1, 0))
    with pytest.raises(DatasetNotFoundError) as raised:
        rbdata.audit(DATA / "d4rl")
    assert "rbdata convert" in raised.value.hint


def test_the_report_is_for_programs_and_for_people(tmp_path, clean):
    clean["next/reward"][[3, 9]] = np.inf
    report = rbdata.audit(clean.write(tmp_path))
    assert json.loads(json.dumps(report.to_json()))["findings"][0]["first"] == [3, 9]
    assert repr(report) == "AuditReport(my/planted: 1 error)"
    assert str(report.findings[0]).startswith(
        "error reward_not_finite: next/reward: rewards are NaN or infinite (2 of "
    )


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int64", "float16", "float64"])
def test_every_dtype(dtype, tmp_path, clean):
    """Bytes (the memory of a game) that count up and down by one, and flags that switch: no jump is among them."""
    rng = np.random.default_rng(0)
    states = np.cumsum(rng.integers(0, 2, (sum(clean.lengths) + 40, 6)) * 2 - 1, axis=0)
    clean.observe((states % 2 if dtype == "bool" else np.abs(states) % 100).astype(dtype))
    report = rbdata.audit(clean.write(tmp_path))
    assert report.ok, report.findings


def test_every_kind_is_planted():
    """By a fault here, or by name in the other tests."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [code for code in KINDS if f'"{code}"' not in tests] == []
