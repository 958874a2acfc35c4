"""What tests of preprocessing share: worker processes, and datasets that runs read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import cloudpickle
import pytest
from preprocess_tools import make_input
from rbdata.datasets.workers.local_engine import LocalEngine
from storage_tools import contents


@pytest.fixture
def workers(by_value: None) -> Iterator[LocalEngine]:
    """Two workers that no other test has used."""
    with closing(LocalEngine(2)) as engine:
        yield engine


@pytest.fixture
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Functions of a module of tests, which workers cannot import, are sent as they are."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root with ``my/input`` and, of frames, ``my/frames``. No run changes its input."""
    root = tmp_path_factory.mktemp("shared")
    make_input(root)
    make_input(root, "zstd", id="my/frames")
    before = contents(root / "my" / "input")
    yield root
    assert contents(root / "my" / "input") == before


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with ``my/flat``, whose rows are vectors, and ``my/zstd``, whose rows are frames."""
    root = tmp_path_factory.mktemp("inputs")
    for layout in ("flat", "zstd"):
        make_input(root, layout, id=f"my/{layout}")
    return root
