"""A contextual bandit from a table of OpenML: learn from logged choices and their rewards, not from the labels.

    python examples/bandit.py                           # iris; needs openml.org, or a mirror (RBDATA_OPENML_MIRROR)
    python examples/bandit.py --dataset adult_onehot --updates 3000

A table with labels is a contextual bandit: a row is a context, an action is a guess of the label, a right guess is worth 1.
rbdata stores each row as an episode of one step whose action is the right label.

1. *Log*: a uniformly random policy guesses once for every row of the training part; only its guesses and rewards are kept.
2. *Learn*: a network estimates the reward of every action, from what was logged. The policy takes the best action.
3. *Evaluate*: twice. From the log alone, by inverse propensity scoring (Horvitz & Thompson, 1952), as one would have to in
   practice; and on rows that were held out, where the true reward is known.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import rbdata
import torch
from tensordict import TensorDict
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    """The options, each with its help."""

    dataset: Annotated[str, "any table with one nominal label"] = "openml/61"
    root: Annotated[str, "where the dataset is stored"] = ".demo/bandit"
    updates: Annotated[int, "gradient steps"] = 1_000
    batch_size: Annotated[int, "logged choices in a batch"] = 128
    held_out: Annotated[float, "share of the rows that the policy is tested on"] = 0.3
    learning_rate: Annotated[float, "step size of Adam"] = 3e-3
    seed: Annotated[int, "seed of the split, the log, the network and the batches"] = 0


def main(args: Args) -> tuple[float, float]:
    """Returns the mean reward on the held-out rows: of the random policy, and of the one learnt."""
    generator = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    dataset = rbdata.open_dataset(rbdata.download(args.dataset, root=args.root))
    rows = dataset[:]
    contexts, labels = rows["observation"], rows["action"].long()
    contexts = (contexts - contexts.mean(0)) / (contexts.std(0) + 1e-6)
    actions = int(labels.max()) + 1
    print(f"{dataset!r}: {actions} actions")

    order = torch.randperm(len(rows), generator=generator)
    test, train = order.split([round(args.held_out * len(rows)), len(rows) - round(args.held_out * len(rows))])
    chosen = torch.randint(actions, (len(train),), generator=generator)
    log = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(len(train)), batch_size=args.batch_size, seed=args.seed
    )
    reward = (chosen == labels[train]).float()
    log.extend(TensorDict({"observation": contexts[train], "action": chosen, "reward": reward}, [len(train)]))

    q = nn.Sequential(nn.Linear(contexts.shape[1], 64), nn.ReLU(), nn.Linear(64, actions))
    optimizer = torch.optim.Adam(q.parameters(), args.learning_rate, weight_decay=1e-4)
    for _ in range(args.updates):
        batch = log.sample()
        estimate = q(batch["observation"]).gather(1, batch["action"].view(-1, 1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(estimate, batch["reward"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with torch.no_grad():
        agrees = q(contexts[train]).argmax(1) == chosen
        learnt = float((q(contexts[test]).argmax(1) == labels[test]).float().mean())
    estimated = float((agrees * reward).sum() * actions / len(train))
    random = float((torch.randint(actions, (len(test),), generator=generator) == labels[test]).float().mean())
    print(f"reward estimated from the log (inverse propensity): {estimated:.2f}")
    print(f"reward on {len(test)} rows held out: random {random:.2f}, learnt {learnt:.2f}")
    return random, learnt


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    main(Args(**vars(parser.parse_args())))
