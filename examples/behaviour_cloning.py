"""Behaviour cloning from a Minari dataset: predict the recorded action from the observation.

    python examples/behaviour_cloning.py                                     # D4RL/door/human-v2, from the Hugging Face Hub
    python examples/behaviour_cloning.py --dataset my/demonstrations-v0      # recorded with minari on this machine
    python examples/behaviour_cloning.py --env CartPole-v1 --play 5          # and try the policy in an environment

Episodes, not steps, are split into training and validation: steps of one episode resemble each other, and a split by steps
would test on what was trained on. Discrete actions are classified, continuous ones regressed; both are compared with what
knows nothing of the observation: the most frequent action, or the mean action.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import gymnasium
import rbdata
import torch
from tensordict import TensorDictBase
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    """The options, each with its help."""

    dataset: Annotated[str, "a dataset of Minari"] = "D4RL/door/human-v2"
    root: Annotated[str, "where the dataset is stored"] = ".demo/behaviour-cloning"
    env: Annotated[str, "an environment to try the policy in"] = ""
    play: Annotated[int, "episodes played there"] = 0
    updates: Annotated[int, "gradient steps"] = 2_000
    batch_size: Annotated[int, "steps in a batch"] = 256
    validation: Annotated[float, "share of the episodes that the clone is tested on"] = 0.2
    learning_rate: Annotated[float, "step size of Adam"] = 1e-3
    seed: Annotated[int, "seed of the split, the batches and the network"] = 0


def episode_split(dataset: rbdata.Dataset, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the episodes to train on, and of those to validate on."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randperm(len(dataset.episodes), generator=generator).tolist()
    held_out = max(1, round(share * len(numbers)))
    return sorted(numbers[held_out:]), sorted(numbers[:held_out])


def steps_of(dataset: rbdata.Dataset, episodes: list[int]) -> TensorDictBase:
    """All steps of these episodes, in memory."""
    return torch.cat([dataset.episode(number).select("observation", "action") for number in episodes])


@torch.no_grad()
def play(policy: nn.Module, env_id: str, episodes: int) -> float:
    """The mean return of the cloned policy."""
    env = gymnasium.make(env_id)
    discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    total = 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            output = policy(torch.as_tensor(observation, dtype=torch.float32))
            observation, reward, terminated, truncated, _ = env.step(
                int(output.argmax()) if discrete else output.numpy()
            )
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / episodes


def main(args: Args) -> tuple[float, float]:
    """Returns the validation error of the baseline and of the clone: a share of wrong actions, or a mean squared error."""
    torch.manual_seed(args.seed)
    dataset = rbdata.open_dataset(rbdata.download(f"minari/{args.dataset}", root=args.root))
    train, validation = episode_split(dataset, args.validation, args.seed)
    print(f"{dataset!r}")
    print(f"{len(train)} episodes to train on, {len(validation)} to validate on")

    steps = steps_of(dataset, train)
    buffer = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(len(steps)), batch_size=args.batch_size, seed=args.seed
    )
    buffer.extend(steps)
    discrete = not steps["action"].is_floating_point()
    outputs = int(steps["action"].max()) + 1 if discrete else steps["action"].shape[-1]
    inputs = steps["observation"].shape[-1]
    policy = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))
    optimizer = torch.optim.Adam(policy.parameters(), args.learning_rate)
    for _ in range(args.updates):
        batch = buffer.sample()
        predicted = policy(batch["observation"].float())
        if discrete:
            loss = F.cross_entropy(predicted, batch["action"])
        else:
            loss = F.mse_loss(predicted, batch["action"].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    unseen = steps_of(dataset, validation)
    with torch.no_grad():
        predicted = policy(unseen["observation"].float())
        if discrete:
            error = float((predicted.argmax(-1) != unseen["action"]).float().mean())
            baseline = float((steps["action"].mode().values != unseen["action"]).float().mean())
            print(f"wrong actions in validation: always the most frequent one {baseline:.1%}, the clone {error:.1%}")
        else:
            error = float(F.mse_loss(predicted, unseen["action"].float()))
            baseline = float(F.mse_loss(steps["action"].float().mean(0).expand_as(predicted), unseen["action"].float()))
            print(f"squared error in validation: the mean action {baseline:.4f}, the clone {error:.4f}")
    if args.env and args.play:
        print(f"mean return in {args.env}: the clone {play(policy, args.env, args.play):.0f}")
    return baseline, error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    main(Args(**vars(parser.parse_args())))
