"""Offline DQN on CartPole: learn from a recorded dataset alone, and play better than it.

    python examples/offline_dqn.py                     # half a minute on two cores, 86 -> 500
    python examples/offline_dqn.py --updates 1500 --steps 10000 --eval-episodes 5        # a quick look

1. *Record*, once: 30,000 steps of a mixed policy. A simple rule balances the pole, and three in five of its actions are
   replaced by random ones; an episode lasts about 86 steps of the 500 there could be. The recording is an rbdata folder.
2. *Learn*: double DQN (van Hasselt et al. 2016) with n-step returns and the conservative term of CQL (Kumar et al. 2020),
   which keeps the values of actions that the data do not show from being dreamt up. No environment is touched.
3. *Play*: the greedy policy in the environment, beside the returns of the data.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_type_hints

import gymnasium
import numpy as np
import rbdata
import torch
from tensordict import TensorDictBase
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    """The options, each with its help."""

    root: Annotated[str, "where the dataset is stored"] = ".demo/offline-dqn"
    steps: Annotated[int, "steps recorded"] = 30_000
    epsilon: Annotated[float, "share of random actions in the data"] = 0.6
    seed: Annotated[int, "seed of the recording, the batches, the network and the evaluation"] = 1
    updates: Annotated[int, "gradient steps"] = 9_000
    batch_size: Annotated[int, "transitions in a batch"] = 256
    n_step: Annotated[int, "rewards summed before the value of a state is used"] = 3
    gamma: Annotated[float, "discount"] = 0.99
    learning_rate: Annotated[float, "step size of Adam"] = 5e-4
    target_every: Annotated[int, "updates between two copies into the target network"] = 250
    conservative: Annotated[float, "weight of the CQL term; 0 is plain double DQN"] = 0.5
    eval_every: Annotated[int, "updates between two evaluations"] = 3_000
    eval_episodes: Annotated[int, "episodes of an evaluation"] = 20


def mixed(observation: np.ndarray) -> int:
    """The policy that is recorded (with ``epsilon`` random actions): push the cart to where the pole is falling."""
    _, _, angle, speed = observation
    return int(angle + 0.5 * speed > 0)


def record(args: Args) -> Path:
    """Record the dataset, or find it recorded; returns its folder."""
    from rbdata.datasets.acquire import Request, download
    from rbdata.datasets.ingest.records import ConvertOptions

    policy = f"{Path(__file__).resolve()}:mixed"
    extra = {"steps": args.steps, "policy": policy, "epsilon": args.epsilon, "seed": args.seed}
    request = Request("gymnasium/CartPole-v1", root=Path(args.root), options=ConvertOptions(extra=extra))
    return download(request).path


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def loss_of(q: nn.Module, target: nn.Module, batch: TensorDictBase, conservative: float) -> torch.Tensor:
    """Double DQN's error on n-step returns, and the conservative term."""
    values = q(batch["observation"])
    taken = values.gather(1, batch["action"].view(-1, 1))
    with torch.no_grad():
        after = batch["next", "observation"]  # of the state n steps on, or of the episode's last
        best = q(after).argmax(1, keepdim=True)
        bootstrap = target(after).gather(1, best) * ~batch["next", "terminated"]  # a time limit is no end of the world
        goal = batch["next", "reward"] + batch["gamma"].view(-1, 1) * bootstrap  # gamma to the steps really taken
    error = F.smooth_l1_loss(taken, goal)
    return error + conservative * (values.logsumexp(1, keepdim=True) - taken).mean()


@torch.no_grad()
def play(q: nn.Module, episodes: int, seed: int) -> np.ndarray:
    """Returns of the greedy policy."""
    env = gymnasium.make("CartPole-v1")
    returns = np.zeros(episodes)
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        over = False
        while not over:
            action = int(q(torch.as_tensor(observation)).argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            returns[episode] += reward
            over = terminated or truncated
    env.close()
    return returns


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    folder = record(args)
    buffer = rbdata.load(folder, batch_size=args.batch_size, n_step=args.n_step, gamma=args.gamma, seed=args.seed)
    data = buffer.dataset.manifest.returns
    print(f"{buffer.dataset!r}")
    print(f"returns of the data: mean {data['mean']:.0f}, best {data['max']:.0f}")

    q, target = network(), network()
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), args.learning_rate)
    sampling, started = 0.0, time.perf_counter()
    for update in range(1, args.updates + 1):
        before = time.perf_counter()
        batch = buffer.sample()
        sampling += time.perf_counter() - before
        loss = loss_of(q, target, batch, args.conservative)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % args.target_every == 0:
            target.load_state_dict(q.state_dict())
        if update % args.eval_every == 0 or update == args.updates:
            returns = play(q, args.eval_episodes, 10_000)
            print(
                f"{update:6d} updates, {time.perf_counter() - started:4.0f} s: loss {loss.item():.3f}, "
                f"greedy return {returns.mean():.0f} (worst {returns.min():.0f})",
                flush=True,
            )
    print(f"the data: {data['mean']:.0f}, learnt from them: {returns.mean():.0f} of 500")
    print(f"sampling took {1e6 * sampling / args.updates:.0f} us a batch")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    main(Args(**vars(parser.parse_args())))
