"""A few rounds of the campaign of transfers, and what it calls a fault."""

from __future__ import annotations

from pathlib import Path

from faulty_proxy import Proxy
from rbdata.errors import FetchError, UsageError
from transfers import FETCH, Case, attempt, run


def test_a_few_rounds() -> None:
    report = run(4, 11, places=("openml",))
    assert (report.rounds, report.faults, sum(report.outcomes.values())) == (4, [], 4)


def test_what_is_blamed(tmp_path: Path) -> None:
    class Broken(Case):
        error: Exception

        def get(self, root: Path, fetch: object) -> Path:
            raise self.error

    case, blamed = Broken("x", "d4rl/x", None, Proxy("", "")), []
    for error, words in (
        (FetchError("gone"), []),
        (FetchError("hf_0123456789secret"), ["a secret"]),
        (UsageError("no"), ["exit code 2"]),
        (KeyError("x"), ["untyped KeyError"]),
    ):
        case.error = error
        attempt(case, tmp_path, FETCH, blamed.append)
        assert [one.startswith(word) for one, word in zip(blamed, words, strict=True)] == [True] * len(words)
        blamed.clear()
