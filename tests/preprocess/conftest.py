"""Worker processes that tests of preprocessing share: the server that they are forked from takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rbdata.datasets.workers.local_engine import LocalEngine
from rbdata.preprocess.planning import WORKER


@pytest.fixture(scope="session")
def two_processes() -> Iterator[LocalEngine]:
    with LocalEngine(2, [WORKER]) as engine:
        yield engine


@pytest.fixture
def workers(two_processes: LocalEngine) -> Iterator[LocalEngine]:
    """Two workers that no other test has used."""
    yield two_processes
    two_processes.end_workers()
