"""The tables TorchRL offers under names of their own, and what is done to them.

The same dataset, version, label and scaling as `torchrl.data.datasets.OpenMLExperienceReplay`; codes and labels follow the
declared order of their values, not the alphabetical one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A dataset by its number, and options that are not given otherwise."""

    number: int
    options: Mapping[str, Any] = field(default_factory=dict)


_ADULT = {"target": ("occupation",), "exclude": ("class",), "missing": "drop"}

PRESETS = {
    "adult_num": Preset(179, {**_ADULT, "standardize": "all"}),
    "adult_onehot": Preset(179, {**_ADULT, "standardize": "numeric", "one_hot": True}),
    "mushroom_num": Preset(24, {"missing": "code", "standardize": "all"}),
    "mushroom_onehot": Preset(24, {"missing": "code", "one_hot": True}),
    "covertype": Preset(150, {"standardize": "all"}),
    "shuttle": Preset(40685, {"standardize": "all"}),
    "magic": Preset(1120, {"standardize": "all"}),
}

#: Names on OpenML itself that are worth listing; any other name or number is known as well.
WELL_KNOWN = ("adult", "credit-g", "diabetes", "iris", "letter", "mnist_784", "satimage", "vehicle", "wine")
