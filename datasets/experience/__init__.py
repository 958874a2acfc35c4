"""TorchRL's dataset classes: a download, and a buffer over what it gave, in one call.

    from rbdata.datasets import MinariExperienceReplay

    buffer = MinariExperienceReplay("D4RL/door/human-v2", batch_size=32)

`dataset_replay` has what they share, `source_replays` the class of each source and the prefixes of
`load_dataset`, `record_map` their ``preprocess``, `offline_to_online` what goes on from a dataset with a run of one's own.
"""

from __future__ import annotations

from .dataset_replay import BaseDatasetExperienceReplay as BaseDatasetExperienceReplay
from .offline_to_online import OfflineToOnlineReplayBuffer as OfflineToOnlineReplayBuffer
from .offline_to_online import prefill_replay_buffer as prefill_replay_buffer
from .source_replays import AtariDQNExperienceReplay as AtariDQNExperienceReplay
from .source_replays import D4RLExperienceReplay as D4RLExperienceReplay
from .source_replays import MinariExperienceReplay as MinariExperienceReplay
from .source_replays import OpenMLExperienceReplay as OpenMLExperienceReplay
from .source_replays import load_dataset as load_dataset
from .source_replays import register_dataset as register_dataset
