"""TorchRL's dataset classes: a download, and a buffer over the dataset, in one call.

    from rbdata.datasets import MinariExperienceReplay

    buffer = MinariExperienceReplay("D4RL/door/human-v2", batch_size=32)

`dataset_classes` has the classes and the prefixes of `load_dataset`. (Not ``torchrl``: with
this folder's parent on Python's path, ``import torchrl`` would find it.)
"""

from __future__ import annotations

from .dataset_classes import AtariDQNExperienceReplay as AtariDQNExperienceReplay
from .dataset_classes import BaseDatasetExperienceReplay as BaseDatasetExperienceReplay
from .dataset_classes import D4RLExperienceReplay as D4RLExperienceReplay
from .dataset_classes import GenDGRLExperienceReplay as GenDGRLExperienceReplay
from .dataset_classes import LeRobotExperienceReplay as LeRobotExperienceReplay
from .dataset_classes import MinariExperienceReplay as MinariExperienceReplay
from .dataset_classes import OpenMLExperienceReplay as OpenMLExperienceReplay
from .dataset_classes import OpenXExperienceReplay as OpenXExperienceReplay
from .dataset_classes import RobosetExperienceReplay as RobosetExperienceReplay
from .dataset_classes import VD4RLExperienceReplay as VD4RLExperienceReplay
from .dataset_classes import load_dataset as load_dataset
from .dataset_classes import register_dataset as register_dataset
