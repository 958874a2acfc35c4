"""Data-parallel training: each process of `torchrun` draws from its own share of one folder.

    torchrun --nproc-per-node 2 examples/data_parallel.py
    torchrun --nproc-per-node 8 examples/data_parallel.py --dataset hopper-medium-v2 --updates 10000

`rank` and `world_size` give every process a share of each pass, disjoint from the others'; the files are mapped, so all
processes of a machine share one copy of the page cache. The processes start from the same weights and average their gradients
(gloo on CPUs), so they have the same weights at the end. The task: predict the sum of the next rewards from an observation.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, fields

import rbdata
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    """One line for each option; all of them are flags."""

    dataset: str = "gymnasium/CartPole-v1"
    root: str = ".demo/data-parallel"  # where the dataset is stored
    updates: int = 500  # gradient steps
    batch_size: int = 128  # steps of each process
    n_step: int = 10  # rewards summed
    learning_rate: float = 1e-3  # of Adam
    seed: int = 0  # of the batches; each process draws its own


def main(args: Args) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        rbdata.download(args.dataset, root=args.root)
    dist.barrier()  # the folder is complete: it appears by one rename
    buffer = rbdata.load(
        args.dataset,
        root=args.root,
        batch_size=args.batch_size,
        n_step=args.n_step,
        gamma=1.0,
        replacement=False,
        rank=rank,
        world_size=world_size,
        seed=args.seed,
    )
    torch.manual_seed(0)  # the same weights everywhere
    inputs = buffer.dataset[0]["observation"].numel()
    net = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), args.learning_rate)
    seen = torch.zeros(len(buffer.dataset), dtype=torch.int64)
    one_pass = len(seen) // (args.batch_size * world_size)  # updates
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
        if update < one_pass:
            seen[batch["index"]] += 1
        last = loss.item()
        first = last if update == 0 else first

    dist.all_reduce(seen)
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    others = [torch.empty_like(weights) for _ in range(world_size)]
    dist.all_gather(others, weights)
    if rank == 0:
        same = all(torch.equal(weights, other) for other in others)
        print(f"{world_size} processes, {buffer.dataset!r}")
        print(f"loss of process 0: {first:.3f} at first, {last:.3f} at last")
        print(f"first pass: {int((seen > 0).sum()):,} steps drawn, {int((seen > 1).sum())} of them twice")
        print(f"the same weights everywhere: {same}", flush=True)
    dist.barrier()  # process 0 serves the others until all are done
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in fields(Args):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 examples/data_parallel.py")
    main(Args(**vars(parser.parse_args())))
