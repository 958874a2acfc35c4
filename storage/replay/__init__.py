"""The runtime: batches from a dataset. Read in this order: `samplers` (which steps), `batches` (reading them), `buffer`."""

from __future__ import annotations

from .buffer import ReplayBuffer as ReplayBuffer
from .samplers import Draw as Draw
from .samplers import RandomSampler as RandomSampler
from .samplers import SamplerWithoutReplacement as SamplerWithoutReplacement
from .samplers import SliceSampler as SliceSampler
