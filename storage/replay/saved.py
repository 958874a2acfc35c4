"""What has a state: buffers, and their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Saved:
    """What has a state: ``dumps`` and ``loads`` by way of ``state_dict`` and ``load_state_dict``."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; raises UsageError if it is that of something else."""

    def state(self) -> dict[str, Any]:
        """Return the state to be written at once: as ``state_dict``, where possible without copies."""
        return self.state_dict()

    def dumps(self, path: Any) -> None:
        """Write the state to a folder."""
        from .checkpoint import write_state

        write_state(Path(path), self.state())

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote. Raises DamagedDatasetError if it is incomplete."""
        from .checkpoint import read_state

        self.load_state_dict(read_state(Path(path)))

    save = dump = dumps
    load = loads
