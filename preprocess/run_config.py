"""What all workers of a run need."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..storage.writer import fingerprint
from .function_chain import FunctionChain
from .read_options import ReadOptions


@dataclass(frozen=True)
class CallerSettings:
    """Settings of the process that asks for a run, which functions get in every worker; None where they are the defaults."""

    dtype: str | None = None
    deterministic: bool | None = None
    decimal: tuple[Any, ...] | None = None

    @staticmethod
    def check_device() -> None:
        """Raise UsageError for a default device of torch: data is in the memory of the machine, here and in workers."""
        torch: Any = sys.modules.get("torch")
        device = torch.empty(0).device if torch is not None else None
        if device is not None and device.type != "cpu":
            message = f"the default device of torch is {device} here, and functions are called with cpu"
            hint = "torch.set_default_device(None) before it, and name the device inside the function"
            raise UsageError(message, hint=hint)

    @classmethod
    def read(cls) -> CallerSettings:
        """Those of this process. What has not been imported has its defaults."""
        torch: Any = sys.modules.get("torch")
        found: dict[str, Any] = {}
        if torch is not None:
            dtype = str(torch.get_default_dtype()).removeprefix("torch.")
            found["dtype"] = dtype if dtype != "float32" else None
            found["deterministic"] = torch.are_deterministic_algorithms_enabled() or None
        decimal: Any = sys.modules.get("decimal")
        if decimal is not None:
            values = [_decimal_values(context) for context in (decimal.getcontext(), decimal.Context())]
            found["decimal"] = values[0] if values[0] != values[1] else None
        return cls(**found)

    def to_json(self) -> dict[str, str]:
        """Those that are not the defaults."""
        return {name: str(value) for name, value in asdict(self).items() if value is not None}


def _decimal_values(context: Any) -> tuple[Any, ...]:
    traps = tuple(sorted(one.__name__ for one, is_set in context.traps.items() if is_set))
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run; small and picklable.

    - ``run``: the fingerprint of the run.
    - ``path``: the folder of the input; ``content``: what identifies its data. ``folder``: where parts and samples are written.
    - ``num_frames``: only the first steps are read (None: all). ``batch``: steps of a batch.
    - ``statistics``: those of each function, None where it needs none or where they are not known yet.
    """

    run: str
    path: Path
    content: str
    folder: Path
    chain: FunctionChain
    read_options: ReadOptions
    num_frames: int | None
    batch: int
    seed: int
    statistics: tuple[dict[str, Any] | None, ...]
    caller: CallerSettings = CallerSettings()

    @cached_property
    def key(self) -> str:
        """Equal for configurations that read and call alike: a worker keeps what it opened for one."""
        return fingerprint({"run": self.run, "statistics": list(self.statistics)})

    @property
    def whole_episodes(self) -> bool:
        return self.chain.per == "episode"

    @property
    def ignores_observations(self) -> int:
        """How many functions at the beginning of the chain work without observations, on steps and episodes as stored."""
        as_stored = self.chain.per != "sample" and self.read_options == ReadOptions()
        return self.chain.ignores_observations if as_stored else 0
