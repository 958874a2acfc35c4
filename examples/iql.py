"""Implicit Q-learning (Kostrikov, Nair & Levine, 2021) on D4RL-style data: continuous actions, no environment while learning.

    python examples/iql.py                                      # a minute: Pendulum, recorded on this machine
    python examples/iql.py --dataset hopper-medium-v2 --env Hopper-v5 --updates 100000      # D4RL; needs MuJoCo to evaluate
    python examples/iql.py --updates 500 --eval-episodes 2      # a quick look

1. *Data*: any dataset with vectors as observations and actions. For Pendulum, 20,000 steps of a controller that swings the
   pendulum up, a third of its actions replaced by random ones.
2. *Learn*: a value network by expectile regression, two Q networks by the Bellman equation with that value, a policy by
   regression on the actions of the data, weighted by exp(advantage). Only actions of the data are ever evaluated.
3. *Play*: the mean action in the environment, next to the returns of the data.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import gymnasium
import numpy as np
import rbdata
import torch
from torch import nn


@dataclass
class Args:
    """The options, each with its help."""

    dataset: Annotated[str, "any dataset with vectors, such as hopper-medium-v2"] = "gymnasium/Pendulum-v1"
    env: Annotated[str, "environment in which the policy is tried; empty: none"] = "Pendulum-v1"
    root: Annotated[str, "where the dataset is stored"] = ".demo/iql"
    steps: Annotated[int, "steps recorded, for a gymnasium/... dataset"] = 20_000
    updates: Annotated[int, "gradient steps of each network"] = 8_000
    batch_size: Annotated[int, "transitions in a batch"] = 256
    gamma: Annotated[float, "discount"] = 0.99
    expectile: Annotated[float, "expectile of the value: 0.5 is the mean of the data, 1 the best action in it"] = 0.8
    temperature: Annotated[float, "weight of an action: exp(temperature * advantage / scale of rewards)"] = 3.0
    learning_rate: Annotated[float, "step size of Adam"] = 1e-3
    seed: Annotated[int, "seed of the recording, the batches and the networks"] = 0
    eval_episodes: Annotated[int, "episodes of the evaluation"] = 10


def swing_up(observation: np.ndarray) -> np.ndarray:
    """The recorded policy (with random actions in between): pump energy below, balance above. Returns the torque, [1]."""
    cos, sin, speed = observation
    if cos > 0.8:
        return np.clip([-10 * sin - 2 * speed], -2, 2).astype(np.float32)
    energy = speed**2 / 6 + 5 * (cos - 1)  # zero at rest, upright
    return np.clip([-np.sign(speed * energy + 1e-6) * 2], -2, 2).astype(np.float32)


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


@torch.no_grad()
def play(policy: nn.Module, env_id: str, episodes: int) -> float:
    """The mean return of the policy's mean actions."""
    env = gymnasium.make(env_id)
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    low, high = env.action_space.low, env.action_space.high
    total = 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            action = policy(torch.as_tensor(observation, dtype=torch.float32)).numpy()
            observation, reward, terminated, truncated, _ = env.step(np.clip(action, low, high))
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / episodes


def main(args: Args) -> tuple[float, float]:
    """Returns the mean return of the data and of the policy learnt (NaN if it is not tried)."""
    torch.manual_seed(args.seed)
    recording: dict[str, Any] = {}
    if args.dataset.startswith("gymnasium/"):
        recording = {"steps": args.steps, "policy": f"{__file__}:swing_up", "epsilon": 0.35, "seed": args.seed}
    folder = rbdata.download(args.dataset, root=args.root, **recording)
    buffer = rbdata.load(folder, batch_size=args.batch_size, prefetch=2, seed=args.seed)
    dataset = buffer.dataset
    data = dataset.manifest.returns["mean"]
    print(f"{dataset!r}")

    sample = dataset[:10_000]
    scale = float(sample["next", "reward"].std()) + 1e-6  # rewards of all datasets have about the same size
    observations, actions = sample["observation"].shape[-1], sample["action"].shape[-1]
    value, policy = mlp(observations, 1), mlp(observations, actions)
    q = nn.ModuleList([mlp(observations + actions, 1) for _ in range(2)])
    target = nn.ModuleList([mlp(observations + actions, 1) for _ in range(2)])
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam([*value.parameters(), *policy.parameters(), *q.parameters()], args.learning_rate)
    for update in range(1, args.updates + 1):
        batch = buffer.sample()
        state, after = batch["observation"].float(), batch["next", "observation"].float()
        action, reward = batch["action"].float(), batch["next", "reward"] / scale
        both = torch.cat([state, action], -1)
        with torch.no_grad():
            good = torch.minimum(target[0](both), target[1](both))
            goal = reward + args.gamma * value(after) * ~batch["next", "terminated"]
        advantage = good - value(state)
        expectile = torch.where(advantage > 0, args.expectile, 1 - args.expectile)
        weight = (args.temperature * advantage.detach() / 10).exp().clamp(max=100)
        loss = (expectile * advantage.square()).mean()
        loss = loss + sum((net(both) - goal).square().mean() for net in q)
        loss = loss + (weight * (policy(state) - action).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), q.parameters()):
                slow.lerp_(fast, 0.005)
        if update % max(1, args.updates // 4) == 0:
            print(
                f"{update:7d} updates: loss {loss.item():8.3f}, mean value {value(state).mean().item():8.2f}",
                flush=True,
            )
    learnt = play(policy, args.env, args.eval_episodes) if args.env else float("nan")
    print(f"mean return: the data {data:.0f}, learnt from them {learnt:.0f}")
    if args.dataset.startswith(("d4rl/", "hopper", "walker2d", "halfcheetah", "ant")):
        print(f"normalized score: {rbdata.normalized_score(args.dataset, learnt):.1f}")
    return data, learnt


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    main(Args(**vars(parser.parse_args())))
