"""Implicit Q-learning (Kostrikov, Nair & Levine, 2021) in JAX: `iql.py` with the same networks, losses, data and batches.

    pip install 'rbdata[jax]'               # for the CPU; 'jax[cuda12]' for a GPU
    python examples/jax_iql.py              # a minute: Pendulum, recorded on this machine
    python examples/jax_iql.py --dataset hopper-medium-v2 --env Hopper-v5 --updates 100000     # needs MuJoCo to evaluate

`rbdata.load(..., output="jax", form="flat")` gives dictionaries of JAX arrays with the names of D4RL and OGBench. They are put
on the device in the threads of `prefetch`, while the update runs. All else is plain JAX: parameters are dictionaries, Adam is
six lines.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import rbdata


@dataclass(frozen=True)
class Args:
    """The options, each with its help."""

    dataset: Annotated[str, "any dataset with vectors, such as hopper-medium-v2"] = "gymnasium/Pendulum-v1"
    env: Annotated[str, "environment in which the policy is tried; empty: none"] = "Pendulum-v1"
    root: Annotated[str, "where the dataset is stored, the same as in iql.py"] = ".demo/iql"
    steps: Annotated[int, "steps recorded, for a gymnasium/... dataset"] = 20_000
    updates: Annotated[int, "gradient steps of each network"] = 8_000
    batch_size: Annotated[int, "transitions in a batch"] = 256
    gamma: Annotated[float, "discount"] = 0.99
    expectile: Annotated[float, "expectile of the value: 0.5 is the mean of the data, 1 the best action in it"] = 0.8
    temperature: Annotated[float, "weight of an action: exp(temperature * advantage / scale of rewards)"] = 3.0
    learning_rate: Annotated[float, "step size of Adam"] = 1e-3
    seed: Annotated[int, "seed of the recording, the batches and the networks"] = 0
    eval_episodes: Annotated[int, "episodes of the evaluation"] = 10


def mlp(key: Any, inputs: int, outputs: int) -> list[dict[str, jax.Array]]:
    """The parameters of two hidden layers of 128, initialised as by torch."""
    sizes = [inputs, 128, 128, outputs]
    layers = []
    for wide, narrow in pairwise(sizes):
        key, of_weight, of_bias = jax.random.split(key, 3)
        bound = wide**-0.5
        weight = jax.random.uniform(of_weight, (wide, narrow), minval=-bound, maxval=bound)
        layers.append({"weight": weight, "bias": jax.random.uniform(of_bias, (narrow,), minval=-bound, maxval=bound)})
    return layers


def apply(layers: list[dict[str, jax.Array]], inputs: jax.Array) -> jax.Array:
    for layer in layers[:-1]:
        inputs = jax.nn.relu(inputs @ layer["weight"] + layer["bias"])
    return inputs @ layers[-1]["weight"] + layers[-1]["bias"]


def losses(
    params: Any, target: Any, batch: dict[str, jax.Array], args: Args, scale: float
) -> tuple[jax.Array, jax.Array]:
    """The sum of the losses of value, Q and policy, and the mean value."""
    state, action = batch["observations"], batch["actions"]
    both = jnp.concatenate([state, action], -1)
    value = apply(params["value"], state)[:, 0]
    after = apply(params["value"], batch["next_observations"])[:, 0]
    good = jnp.minimum(*(apply(net, both)[:, 0] for net in target))
    goal = jax.lax.stop_gradient(batch["rewards"] / scale + args.gamma * batch["masks"] * after)
    advantage = good - value
    expectile = jnp.where(advantage > 0, args.expectile, 1 - args.expectile)
    weight = jnp.minimum(jnp.exp(args.temperature * jax.lax.stop_gradient(advantage) / 10), 100)
    loss = (expectile * advantage**2).mean()
    loss += sum(((apply(net, both)[:, 0] - goal) ** 2).mean() for net in params["q"])
    loss += (weight[:, None] * (apply(params["policy"], state) - action) ** 2).mean()
    return loss, value.mean()


@partial(jax.jit, static_argnames=("args", "scale"), donate_argnums=0)
def update(learner: dict[str, Any], batch: dict[str, jax.Array], args: Args, scale: float) -> tuple[Any, Any, Any]:
    """One gradient step of all networks by Adam; the target follows the Q networks."""
    params, number = learner["params"], learner["number"] + 1
    (loss, value), gradient = jax.value_and_grad(losses, has_aux=True)(params, learner["target"], batch, args, scale)
    mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, learner["mean"], gradient)
    square = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, learner["square"], gradient)
    rate = args.learning_rate * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
    params = jax.tree.map(lambda old, m, s: old - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    target = jax.tree.map(lambda slow, fast: slow + 0.005 * (fast - slow), learner["target"], params["q"])
    learner = {"params": params, "target": target, "mean": mean, "square": square, "number": number}
    return learner, loss, value


def play(policy: Any, env_id: str, episodes: int) -> float:
    """The mean return of the policy's mean actions."""
    env = gymnasium.make(env_id)
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    low, high = env.action_space.low, env.action_space.high
    act, total = jax.jit(apply), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            action = np.asarray(act(policy, jnp.asarray(observation, jnp.float32)))
            observation, reward, terminated, truncated, _ = env.step(np.clip(action, low, high))
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / episodes


def main(args: Args) -> tuple[float, float]:
    """Returns the mean return of the data and of the policy learnt (NaN if it is not tried)."""
    recording: dict[str, Any] = {}
    if args.dataset.startswith("gymnasium/"):
        policy = f"{Path(__file__).with_name('iql.py')}:swing_up"
        recording = {"steps": args.steps, "policy": policy, "epsilon": 0.35, "seed": args.seed}
    folder = rbdata.download(args.dataset, root=args.root, **recording)
    form: dict[str, Any] = {"output": "jax", "form": "flat", "dtype": "float32"}
    buffer = rbdata.load(folder, batch_size=args.batch_size, prefetch=2, seed=args.seed, **form)
    dataset = buffer.dataset
    data = dataset.manifest.returns["mean"]
    print(f"{dataset!r}")

    sample = dataset[:10_000]
    scale = float(sample["next", "reward"].std()) + 1e-6  # rewards of all datasets have about the same size
    observations, actions = sample["observation"].shape[-1], sample["action"].shape[-1]
    keys = jax.random.split(jax.random.key(args.seed), 4)
    q = [mlp(key, observations + actions, 1) for key in keys[:2]]
    params = {"value": mlp(keys[2], observations, 1), "policy": mlp(keys[3], observations, actions), "q": q}
    zeros = jax.tree.map(jnp.zeros_like, params)
    learner = {"params": params, "target": jax.tree.map(jnp.copy, q), "mean": zeros, "square": zeros, "number": 0}
    learner = jax.tree.map(jnp.array, learner)  # each in memory of its own, which `update` uses again
    for number in range(1, args.updates + 1):
        learner, loss, value = update(learner, buffer.sample(), args, scale)
        if number % max(1, args.updates // 4) == 0:
            print(f"{number:7d} updates: loss {float(loss):8.3f}, mean value {float(value):8.2f}", flush=True)
    learnt = play(learner["params"]["policy"], args.env, args.eval_episodes) if args.env else float("nan")
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
