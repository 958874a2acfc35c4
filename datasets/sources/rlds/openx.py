"""Open X-Embodiment: robot data of many laboratories, in the layout of RLDS.

Open X-Embodiment Collaboration, "Open X-Embodiment: Robotic Learning Datasets and RT-X Models", ICRA 2024
(https://robotics-transformer-x.github.io). The names and their places are those that TensorFlow Datasets 4.9.10 lists
(tensorflow_datasets/robotics/rtx/rtx.py), and a few that lie beside them in the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...ingest.job import ConvertOptions
from .source import RldsSource

HOME = "gs://gresearch/robotics"
_EXTERNAL = "converted_externally_to_rlds"

#: Where names lie that are not ``<name>/0.1.0``.
_ELSEWHERE = {
    "bridge": "bridge_data_v2/0.0.1",
    "spoc_robot": "spoc/0.0.1",
    **{
        name: f"{name}/0.0.1"
        for name in (
            *(
                "conq_hose_manipulation",
                "dobbe",
                "fmb",
                "io_ai_tech",
                "mimic_play",
                "aloha_mobile",
                "robo_set",
                "tidybot",
            ),
            *(f"vima_{_EXTERNAL}", "bridge_data_msr", "plex_robosuite", "robo_ai_u_r5e", "language_table"),
        )
    },
    **{name: f"{name}/1.0.0" for name in ("droid", "droid_100", "robo_net")},
}


class OpenxSource(RldsSource):
    """Names are those of TensorFlow Datasets (``fractal20220817_data``), with ``@SPLIT`` where it is not the default one."""

    name = "openx"
    home = HOME
    open_ended = False
    catalogue_name = "openx.json"

    def knows(self, name: str) -> bool:
        return name.partition("@")[0] in self.names()

    def split_address(self, text: str) -> tuple[str, str] | None:
        return None

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        return [self.home]

    def folders(self, name: str) -> Sequence[str]:
        """Where the bucket has it; a root of TensorFlow Datasets may have another version, and has its own name."""
        return list(dict.fromkeys([_ELSEWHERE.get(name, f"{name}/0.1.0"), name]))

    def recognises(self, path: Path) -> bool:
        return False  # `rlds` does
