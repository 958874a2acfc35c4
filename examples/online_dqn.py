"""Online DQN with a replay buffer on disk: `LazyMemmapStorage`, prioritized, checkpointed, without a dataset.

    python examples/online_dqn.py                                 # a minute: CartPole, 20,000 steps
    python examples/online_dqn.py --steps 2000                    # a quick look
    python examples/online_dqn.py --resume                        # goes on from the checkpoint of the last run

The buffer has TorchRL's names. Its storage lies in files that the operating system pages in and out, so it may be larger than
memory; `buffer.dumps` writes a checkpoint of storage, priorities and the position in the random order, without pickle.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import gymnasium
import numpy as np
import rbdata
import torch
from tensordict import TensorDict
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    """One line for each option; all of them are flags."""

    folder: str = ".demo/online-dqn"  # of the storage and the checkpoint
    resume: bool = False  # go on from the checkpoint
    steps: int = 20_000  # of the environment
    capacity: int = 50_000  # steps in the buffer
    batch_size: int = 128  # transitions
    gamma: float = 0.97  # discount
    learning_rate: float = 1e-3  # of Adam
    learn_after: int = 500  # steps before the first update
    update_every: int = 2  # steps between two updates
    target_every: int = 250  # updates between two copies into the target network
    explore: int = 2_000  # steps until the share of random actions has fallen from 1 to 0.05
    seed: int = 0  # of the environment, the exploration, the batches and the network


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in fields(Args):
        flag = f"--{option.name.replace('_', '-')}"
        if isinstance(option.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(option.default), default=option.default)
    main(Args(**vars(parser.parse_args())))
