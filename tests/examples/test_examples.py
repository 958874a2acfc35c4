"""The examples at a small size: what each shows is there."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from openml_server import openml_server
from paths import DATA
from processes import start_forked
from servers import http_server

EXAMPLES = DATA.parents[1] / "examples"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch) -> Iterator[None]:
    """Threads that wait for each other are slow where other tests run beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it
    yield
    torch.set_num_threads(threads)


def test_every_option_of_every_example_has_a_help_text():
    options = 0
    for path in EXAMPLES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name == "Args":
                for field in node.body:
                    if isinstance(field, ast.AnnAssign):
                        options += 1
                        assert ast.unparse(field.annotation).startswith("Annotated["), (
                            f"{path.name}: {ast.unparse(field)}"
                        )
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "parser.add_argument":
                assert "help" in {keyword.arg for keyword in node.keywords}, f"{path.name}: {ast.unparse(node)}"
    assert options > 50


def test_programs_in_the_checkout_find_other_packages_called_datasets(tmp_path):
    """Such as Hugging Face's: the root of the checkout is the package, and has a folder of that name."""
    (tmp_path / "datasets.py").write_text("")
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text("import datasets, rbdata; rbdata.load; print(datasets.__file__)")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    told = subprocess.run(
        [sys.executable, program],
        cwd=EXAMPLES.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert told.stdout.strip() == str(tmp_path / "datasets.py"), told.stderr


def test_bandit_beats_chance(tmp_path, monkeypatch):
    import bandit

    with openml_server() as openml:
        monkeypatch.setenv("RBDATA_OPENML_MIRROR", openml.url)
        random, learnt = bandit.main(bandit.Args(root=str(tmp_path), updates=150))
    assert random < 0.6 < 0.8 < learnt


def test_iql_runs_at_a_small_size(tmp_path):
    import iql

    data, learnt = iql.main(iql.Args(root=str(tmp_path), steps=4_000, updates=300, eval_episodes=1))
    assert -2_000 < learnt < 0 and -2_000 < data < 0  # returns of a pendulum; at full size the agent beats its data


def test_iql_in_jax_runs_at_a_small_size(tmp_path):
    """In a process of its own: workers of other tests are not forked beside JAX."""
    pytest.importorskip("jax")
    arguments = ["--root", str(tmp_path), "--steps", "4000", "--updates", "300", "--eval-episodes", "1"]
    command = [sys.executable, EXAMPLES / "jax_iql.py", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    data, learnt = map(
        float, said.stdout.splitlines()[-1].removeprefix("mean return: the data ").split(", learnt from them ")
    )
    assert -2_000 < learnt < 0 and -2_000 < data < 0  # returns of a pendulum; at full size the agent beats its data


def test_behaviour_cloning_beats_the_most_frequent_action(tmp_path, monkeypatch):
    gymnasium = pytest.importorskip("gymnasium")
    minari = pytest.importorskip("minari")
    import behaviour_cloning
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = gymnasium.make("CartPole-v1")
    recorded = []
    for number in range(6):
        observations, actions, over = [env.reset(seed=number)[0]], [], False
        while not over:
            actions.append(int(observations[-1][2] > 0))
            observation, _, over, _, _ = env.step(actions[-1])
            observations.append(observation)
        ends = np.arange(len(actions)) == len(actions) - 1
        recorded.append(
            EpisodeBuffer(number, None, None, np.stack(observations), actions, [1.0] * len(ends), ends, ~ends & ends)
        )
    minari.create_dataset_from_buffers("my/lean-v0", recorded, env=env)
    args = behaviour_cloning.Args(
        dataset="my/lean-v0", root=str(tmp_path / "root"), updates=150, env="CartPole-v1", play=1
    )
    baseline, error = behaviour_cloning.main(args)
    assert error < 0.15 < 0.3 < baseline


def test_online_dqn_fills_a_buffer_and_goes_on_from_its_checkpoint(tmp_path, capsys):
    import online_dqn

    args = online_dqn.Args(folder=str(tmp_path), steps=700, learn_after=400, capacity=2_000)
    first, last = online_dqn.main(args)
    assert first > 0 and last > 0
    online_dqn.main(online_dqn.Args(folder=str(tmp_path), steps=100, capacity=2_000, resume=True))
    assert "continued with 700 steps" in capsys.readouterr().out


def test_torchrl_reads_the_folder(tmp_path):
    pytest.importorskip("torchrl")
    import read_with_torchrl

    record(tmp_path)
    args = read_with_torchrl.Args(root=str(tmp_path), batches=5)
    assert read_with_torchrl.main(args) == 5 * args.batch_size


def test_arrays_for_d3rlpy(tmp_path):
    """Its rules: aligned arrays, no step that is both terminal and timed out, an end of every episode."""
    import rbdata
    import read_with_d3rlpy

    record(tmp_path)
    args = read_with_d3rlpy.Args(root=str(tmp_path), updates=0, out=str(tmp_path / "arrays.npz"))
    arrays = read_with_d3rlpy.main(args)
    dataset = rbdata.open_dataset("CartPole-v1", root=tmp_path)
    assert {len(array) for array in arrays.values()} == {len(dataset)}
    assert not (arrays["terminals"].astype(bool) & arrays["timeouts"].astype(bool)).any()
    assert arrays["terminals"].sum() + arrays["timeouts"].sum() == len(dataset.episodes)
    assert arrays["timeouts"][-1] == 1  # the recording ends inside an episode
    np.testing.assert_array_equal(np.load(tmp_path / "arrays.npz")["observations"], dataset[:]["observation"].numpy())


def test_processes_draw_disjoint_shares_and_the_next_run_goes_on(tmp_path):
    """As torchrun starts them, without its own start-up time; of a dataset at a URL, whose cache they share."""
    record(tmp_path)
    state = tmp_path / "state.pt"
    with http_server(tmp_path) as server:
        url = f"{server.url}/gymnasium/CartPole-v1"
        words = ["--dataset", url, "--shuffle", "blocks", "--root", tmp_path / "here", "--state", state]
        printed = data_parallel(tmp_path, [*words, "--updates", "4", "--batch-size", "50"], 2)
        fetched = [path for path, span in server.faults.gets() if span and path.endswith(".memmap")]
    assert len(fetched) == len(set(fetched)) > 5
    assert "first pass: 400 steps drawn, 0 of them twice" in printed
    assert "the same weights everywhere: True" in printed
    import rbdata

    buffer = rbdata.load("CartPole-v1", root=tmp_path, batch_size=50, shuffle="blocks", seed=0)
    buffer.load_state_dict(torch.load(state)["buffer"])  # one process goes on where two were
    seen = torch.load(state)["seen"]
    for _ in range(12):
        seen[buffer.sample()["index"]] += 1
    assert (seen == 1).all()


def data_parallel(folder, words, count):
    """What the processes of a run print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    code = f"import runpy; runpy.run_path({str(EXAMPLES / 'data_parallel.py')!r}, run_name='__main__')"
    outputs = [folder / f"printed-{rank}" for rank in range(count)]
    running = [
        start_forked(code, *map(str, words), output=outputs[rank], RANK=str(rank), **shared) for rank in range(count)
    ]
    for process in running:
        process.join(600)
    printed = "".join(output.read_text() for output in outputs)
    assert [process.exitcode for process in running] == [0] * count
    return printed


def test_cells_of_the_notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    namespace: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("20_000, 3_000", "4_000, 100").replace("range(20)", "range(2)")
            exec(compile(source, "tour.ipynb", "exec"), namespace)
    assert namespace["UPDATES"] == 100
    assert "mean return: random" in capsys.readouterr().out


def record(root) -> None:
    import rbdata

    rbdata.download("gymnasium/CartPole-v1", root=root, steps=1_000)
