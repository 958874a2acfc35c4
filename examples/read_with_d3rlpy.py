"""A dataset folder as d3rlpy's `MDPDataset`, to train with d3rlpy's algorithms.

    pip install d3rlpy
    python examples/read_with_d3rlpy.py                                    # CartPole, recorded on this machine
    python examples/read_with_d3rlpy.py --dataset hopper-medium-v2
    python examples/read_with_d3rlpy.py --updates 0                        # convert only; also without d3rlpy

d3rlpy keeps steps in flat arrays: `observations[i]`, `actions[i]`, `rewards[i]` belong to one step, `terminals[i]` says that
the episode ends in a terminal state, `timeouts[i]` that it ends otherwise. The successor of a step is the next row, so the
final observation of an episode, which rbdata stores, has no place there: the conversion leaves it out.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import numpy as np
import rbdata


@dataclass
class Args:
    """The options, each with its help."""

    dataset: Annotated[str, "any dataset of vectors or frames"] = "gymnasium/CartPole-v1"
    root: Annotated[str, "where the dataset is stored"] = ".demo/d3rlpy"
    updates: Annotated[int, "gradient steps of d3rlpy's algorithm: DiscreteCQL or CQL"] = 1_000
    out: Annotated[str, "write the arrays to this .npz file"] = ""


def mdp_arrays(dataset: rbdata.Dataset) -> dict[str, np.ndarray]:
    """The arguments of `d3rlpy.dataset.MDPDataset`: all steps, float32 observations but for bytes, ``[n, k]`` actions."""
    steps = dataset[:]
    observations, actions = steps["observation"].numpy(), steps["action"].numpy()
    if observations.dtype != np.uint8:
        observations = observations.astype(np.float32)
    return {
        "observations": observations,
        "actions": actions.reshape(len(actions), -1) if actions.ndim < 2 else actions.astype(np.float32),
        "rewards": steps["next", "reward"].numpy().reshape(-1, 1),
        "terminals": steps["next", "terminated"].numpy().reshape(-1).astype(np.float32),
        "timeouts": (steps["next", "done"] & ~steps["next", "terminated"]).numpy().reshape(-1).astype(np.float32),
    }


def main(args: Args) -> dict[str, np.ndarray]:
    """Returns the arrays."""
    dataset = rbdata.open_dataset(rbdata.download(args.dataset, root=args.root))
    arrays = mdp_arrays(dataset)
    print(f"{dataset!r}")
    for name, array in arrays.items():
        print(f"{name:>12}: {array.dtype} {list(array.shape)}")
    ends = int(arrays["terminals"].sum() + arrays["timeouts"].sum())
    print(f"{ends} episodes, mean return {arrays['rewards'].sum() / ends:.2f}")
    if args.out:
        np.savez_compressed(args.out, allow_pickle=False, **arrays)
    if args.updates:
        train(arrays, args.updates)
    return arrays


def train(arrays: dict[str, np.ndarray], updates: int) -> None:
    """Train CQL of d3rlpy on the arrays."""
    try:
        import d3rlpy
    except ImportError:
        raise SystemExit("d3rlpy is not installed: pip install d3rlpy, or --updates 0") from None
    discrete = not np.issubdtype(arrays["actions"].dtype, np.floating)
    space = d3rlpy.ActionSpace.DISCRETE if discrete else d3rlpy.ActionSpace.CONTINUOUS
    data = d3rlpy.dataset.MDPDataset(**arrays, action_space=space)
    returns = [episode.compute_return() for episode in data.episodes]
    print(f"d3rlpy: {len(data.episodes)} episodes, mean return {np.mean(returns):.2f}")
    config = d3rlpy.algos.DiscreteCQLConfig() if discrete else d3rlpy.algos.CQLConfig()
    config.create(device="cpu").fit(data, n_steps=updates, n_steps_per_epoch=updates, show_progress=False)
    print(f"d3rlpy: {updates} updates done")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, hint in get_type_hints(Args, include_extras=True).items():
        default, text = getattr(Args, name), hint.__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    main(Args(**vars(parser.parse_args())))
