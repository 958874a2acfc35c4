"""Online DQN with a replay buffer on disk: `LazyMemmapStorage`, prioritized, checkpointed, without a dataset.

    python examples/online_dqn.py                                 # a minute: CartPole, 20,000 steps
    python examples/online_dqn.py --steps 2000                    # a quick look
    python examples/online_dqn.py --resume                        # goes on from the checkpoint of the last run

The buffer has TorchRL's names. Its storage lies in files that the operating system pages in and out, so it may be larger than
memory; `buffer.dumps` writes a checkpoint of storage, priorities and the position in the random order, without pickle.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_type_hints

import gymnasium
import numpy as np
import rbdata
import torch
from tensordict import TensorDict
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    """The options, each with its help."""

    folder: Annotated[str, "folder of the storage and the checkpoint"] = ".demo/online-dqn"
    resume: Annotated[bool, "go on from the checkpoint"] = False
    steps: Annotated[int, "steps of the environment"] = 20_000
    capacity: Annotated[int, "steps in the buffer"] = 50_000
    batch_size: Annotated[int, "transitions in a batch"] = 128
    gamma: Annotated[float, "discount"] = 0.97
    learning_rate: Annotated[float, "step size of Adam"] = 1e-3
    learn_after: Annotated[int, "steps before the first update"] = 500
    update_every: Annotated[int, "steps between two updates"] = 2
    target_every: Annotated[int, "updates between two copies into the target network"] = 250
    explore: Annotated[int, "steps until the share of random actions has fallen from 1 to 0.05"] = 2_000
    seed: Annotated[int, "seed of the environment, the exploration, the batches and the network"] = 0


def make_buffer(args: Args) -> rbdata.TensorDictReplayBuffer:
    """A prioritized buffer on files, which are removed when the program ends."""
    return rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyMemmapStorage(args.capacity),
        sampler=rbdata.PrioritizedSampler(args.capacity, alpha=0.6, beta=0.4),
        priority_key="td_error",
        batch_size=args.batch_size,
        seed=args.seed,
    )


def main(args: Args) -> tuple[float, float]:
    """Returns the mean return of the first ten episodes and of the last ten."""
    torch.manual_seed(args.seed)
    chance = np.random.default_rng(args.seed)
    env = gymnasium.make("CartPole-v1")
    q, target = (
        nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)) for _ in range(2)
    )
    buffer = make_buffer(args)
    checkpoint = Path(args.folder)
    if args.resume:
        buffer.loads(checkpoint / "buffer")
        q.load_state_dict(torch.load(checkpoint / "q.pt", weights_only=True))
        print(f"continued with {len(buffer)} steps in the buffer")
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), args.learning_rate)

    returns, total, updates = [], 0.0, 0
    observation, _ = env.reset(seed=args.seed)
    for step in range(args.steps):
        random = 0.05 if args.resume else max(0.05, 1 - step / args.explore)
        with torch.no_grad():
            greedy = int(q(torch.as_tensor(observation)).argmax())
        action = int(chance.integers(2)) if chance.random() < random else greedy
        after, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        outcome = {"observation": torch.as_tensor(after), "reward": torch.tensor([float(reward)])}
        outcome |= {"terminated": torch.tensor([terminated]), "done": torch.tensor([terminated or truncated])}
        buffer.add(
            TensorDict({"observation": torch.as_tensor(observation), "action": torch.tensor(action), "next": outcome})
        )
        observation = after
        if terminated or truncated:
            returns.append(total)
            total = 0.0
            observation, _ = env.reset()

        if len(buffer) >= args.learn_after and step % args.update_every == 0:
            batch = buffer.sample()
            taken = q(batch["observation"]).gather(1, batch["action"].view(-1, 1))
            with torch.no_grad():
                best = q(batch["next", "observation"]).argmax(1, keepdim=True)
                bootstrap = target(batch["next", "observation"]).gather(1, best) * ~batch["next", "terminated"]
                goal = batch["next", "reward"] + args.gamma * bootstrap
            error = F.smooth_l1_loss(taken, goal, reduction="none").squeeze(1)
            loss = (error * batch["priority_weight"]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batch["td_error"] = (taken - goal).detach().abs().squeeze(1)
            buffer.update_tensordict_priority(batch)
            updates += 1
            if updates % args.target_every == 0:
                target.load_state_dict(q.state_dict())
        if (step + 1) % max(1, args.steps // 5) == 0:
            print(f"{step + 1:6d} steps, {len(returns):4d} episodes: mean of the last ten {np.mean(returns[-10:]):.0f}")
    env.close()

    checkpoint.mkdir(parents=True, exist_ok=True)
    buffer.dumps(checkpoint / "buffer")
    torch.save(q.state_dict(), checkpoint / "q.pt")
    first, last = float(np.mean(returns[:10])), float(np.mean(returns[-10:]))
    print(f"mean return: first ten episodes {first:.0f}, last ten {last:.0f} of 500; checkpoint in {checkpoint}")
    return first, last


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        how = {"action": "store_true"} if isinstance(default, bool) else {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **how)
    main(Args(**vars(parser.parse_args())))
