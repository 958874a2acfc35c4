"""A dataset folder read by TorchRL alone: nothing of rbdata is needed to train from what it made.

    pip install torchrl
    python examples/read_with_torchrl.py                                   # CartPole, recorded on this machine
    python examples/read_with_torchrl.py --dataset hopper-medium-v2

A folder in the TED layout (all low-dimensional datasets, and frames with `--layout ted`) is a memory-mapped TensorDict.
TorchRL's `TensorStorage` and `SliceSampler` work on it as on data of their own. The same steps, read by both, are compared.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, fields
from typing import Any

import rbdata
from tensordict import TensorDict


@dataclass
class Args:
    """One line for each option; all of them are flags."""

    dataset: str = "gymnasium/CartPole-v1"
    root: str = ".demo/torchrl"  # where the dataset is stored
    batch_size: int = 256  # steps: slices of slice_len
    slice_len: int = 16  # steps of a slice
    batches: int = 100  # drawn by each


def torchrl_buffer(args: Args, data: TensorDict) -> Any:
    """TorchRL's buffer of slices over a TensorDict."""
    from torchrl.data import SliceSampler, TensorDictReplayBuffer, TensorStorage

    return TensorDictReplayBuffer(
        storage=TensorStorage(data),
        sampler=SliceSampler(slice_len=args.slice_len, end_key=("next", "done"), cache_values=True),
        batch_size=args.batch_size,
    )


def main(args: Args) -> int:
    """Returns how many steps were compared."""
    folder = rbdata.download(args.dataset, root=args.root)

    data = TensorDict.load_memmap(folder)  # from here to the comparison, TorchRL and tensordict alone
    theirs = torchrl_buffer(args, data)
    print(f"{len(data):,} steps, {sorted(map(str, data.keys(True, True)))}")

    ours = rbdata.load(folder, batch_size=args.batch_size, slice_len=args.slice_len, seed=0)
    compared = 0
    for _ in range(args.batches):
        batch = theirs.sample()
        index = batch["index"]
        same: Any = ours.dataset[index[0] if isinstance(index, tuple) else index.reshape(-1)]
        for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
            if not batch[key].equal(same[key]):
                raise SystemExit(f"{key} differs")
        compared += len(batch)
    print(f"{compared:,} steps of TorchRL's batches are those that rbdata reads")

    for name, buffer in (("TorchRL", theirs), ("rbdata", ours)):
        began = time.perf_counter()
        for _ in range(args.batches):
            buffer.sample()
        print(f"{name}: {1e6 * (time.perf_counter() - began) / args.batches:.0f} us for a batch of {args.batch_size}")
    return compared


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in fields(Args):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    main(Args(**vars(parser.parse_args())))
