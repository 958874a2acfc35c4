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
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import rbdata
from tensordict import TensorDict


@dataclass
class Args:
    """The options, each with its help."""

    dataset: Annotated[str, "any dataset of vectors or frames"] = "gymnasium/CartPole-v1"
    root: Annotated[str, "where the dataset is stored"] = ".demo/torchrl"
    batch_size: Annotated[int, "steps in a batch of slices"] = 256
    slice_len: Annotated[int, "steps of a slice"] = 16
    batches: Annotated[int, "batches drawn by each library"] = 100


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
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    main(Args(**vars(parser.parse_args())))
