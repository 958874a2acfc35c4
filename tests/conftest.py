"""What several test modules share: DQN Replay runs with known contents."""

from __future__ import annotations

import os

import pytest

# Once, not before every test: fixtures of whole modules set it.
os.environ.pop("STORAGE_EMULATOR_HOST", None)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch, tmp_path):
    """No test looks at, or writes to, what the developer's machine has configured."""
    for name in ("RBDATA_MIRROR", "RBDATA_ATARI_MIRROR", "RBDATA_PROCS", "RBDATA_UPSTREAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RBDATA_CONFIG", "")
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root-by-default"))
