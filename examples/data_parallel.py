"""Data-parallel training: each process of `torchrun` draws from its own share of one dataset.

    torchrun --nproc-per-node 2 examples/data_parallel.py
    torchrun --nproc-per-node 8 examples/data_parallel.py --dataset hopper-medium-v2 --updates 10000
    torchrun --nproc-per-node 2 examples/data_parallel.py --dataset s3://lab/rbdata/atari/Pong/5 --shuffle blocks

`rank` and `world_size` give every process a share of each pass, disjoint from the others'. The files are mapped, so all
processes of a machine share one copy of the page cache; of a dataset at a URL they share the cache of blocks on disk. The
processes start from the same weights and average their gradients (gloo on CPUs), so they have the same weights at the end.

With `--state FILE` a run ends by writing where it is, and the next one goes on there: with the same number of processes in the
same batches, with any other in the same order, so that together both runs draw every step of the pass once. The task: predict
the sum of the next rewards from an observation.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_type_hints

import rbdata
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    """The options, each with its help."""

    dataset: Annotated[str, "an id, or the URL of a converted dataset"] = "gymnasium/CartPole-v1"
    root: Annotated[str, "where the dataset is stored, or the cache of one at a URL"] = ".demo/data-parallel"
    shuffle: Annotated[str, "global, or blocks for datasets at a URL"] = "global"
    state: Annotated[str, "file with the place where the last run ended"] = ""
    updates: Annotated[int, "gradient steps"] = 500
    batch_size: Annotated[int, "steps in a batch of each process"] = 128
    n_step: Annotated[int, "rewards summed before the value of a state is used"] = 10
    learning_rate: Annotated[float, "step size of Adam"] = 1e-3
    seed: Annotated[int, "seed of the batches; each process draws its own"] = 0


def main(args: Args) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0 and "://" not in args.dataset:
        rbdata.download(args.dataset, root=args.root)
    dist.barrier()  # the folder is complete: it appears by one rename
    buffer = rbdata.load(
        args.dataset,
        root=args.root,
        batch_size=args.batch_size,
        n_step=args.n_step,
        gamma=1.0,
        replacement=False,
        shuffle="blocks" if args.shuffle == "blocks" else "global",
        rank=rank,
        world_size=world_size,
        seed=args.seed,
    )
    torch.manual_seed(0)  # the same weights everywhere
    inputs = buffer.dataset[0]["observation"].numel()
    net = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), args.learning_rate)
    steps, drawn = len(buffer.dataset), 0
    seen = torch.zeros(steps, dtype=torch.int64)  # how often this process drew each step of the first pass
    if args.state and Path(args.state).exists():
        state = torch.load(args.state)  # written by process 0, which has as many places of the pass as any
        buffer.load_state_dict(state["buffer"])
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        drawn = state["drawn"]
        seen += state["seen"] if rank == 0 else 0
    first = last = 0.0
    for update in range(args.updates):
        batch = buffer.sample()
        loss = F.mse_loss(net(batch["observation"].float().flatten(1)), batch["next", "reward"])
        optimizer.zero_grad()
        loss.backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()
        drawn += args.batch_size * world_size
        if drawn <= steps:
            seen[batch["index"]] += 1
        last = loss.item()
        first = last if update == 0 else first

    dist.all_reduce(seen)
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    others = [torch.empty_like(weights) for _ in range(world_size)]
    dist.all_gather(others, weights)
    if rank == 0:
        if args.state:
            where = {"buffer": buffer.state_dict(), "drawn": drawn, "seen": seen}
            torch.save({**where, "net": net.state_dict(), "optimizer": optimizer.state_dict()}, args.state)
        same = all(torch.equal(weights, other) for other in others)
        print(f"{world_size} processes, {buffer.dataset!r}")
        print(f"loss of process 0: {first:.3f} at first, {last:.3f} at last")
        print(f"first pass: {int((seen > 0).sum()):,} steps drawn, {int((seen > 1).sum())} of them twice")
        print(f"the same weights everywhere: {same}", flush=True)
    dist.barrier()  # process 0 serves the others until all are done
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 examples/data_parallel.py")
    main(Args(**vars(args)))
