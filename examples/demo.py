"""The whole way, offline: play Atari, log it as DQN Replay did, serve it as Google does, and use rbdata on it.

    make demo

1. Plays a few thousand steps of Pong (ALE) into DQN Replay shards, the format of the public dataset.
2. Puts them into a Google Cloud Storage emulator on localhost, under the public bucket's own name.
3. Runs ``rbdata download Pong/5 --procs 2`` against it, with the real client and the real default URL, then
   ``inspect``, ``verify`` and ``sample``.
4. Plays the same game again and compares every frame, action and reward with what comes out of the dataset.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from record_atari import play, record

BUCKET = "atari-replay-datasets"
GAME, RUN = "Pong", 5


@contextlib.contextmanager
def google_cloud_storage(folder: Path) -> Iterator[str]:
    """An emulator that serves ``folder`` as the bucket; yields its address."""
    from gcp_storage_emulator.server import create_server
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    server = create_server("127.0.0.1", 0, in_memory=True)
    server.start()
    try:
        address = f"http://127.0.0.1:{server._api._httpd.server_address[1]}"
        os.environ["STORAGE_EMULATOR_HOST"] = address
        client = storage.Client(credentials=AnonymousCredentials(), project="demo")
        bucket = client.create_bucket(BUCKET)
        for path in sorted(folder.rglob("*.gz")):
            bucket.blob(path.relative_to(folder).as_posix()).upload_from_filename(str(path))
        yield address
    finally:
        server.stop()


def rbdata(*arguments: str) -> None:
    """Run the command line as a user would, and stop at the first failure."""
    print(f"\n$ rbdata {' '.join(arguments)}", flush=True)
    command = Path(sys.executable).with_name("rbdata")
    subprocess.run([str(command), *arguments], check=True)


def compare(steps: int) -> int:
    """Play again and look up every step in the dataset; returns how many there were."""
    import rbdata as library

    dataset = library.open_dataset(f"{GAME}/{RUN}")
    step = 0
    for frame, action, reward, terminal in play(GAME, steps, RUN):
        if step == len(dataset):
            break
        row = dataset[step]
        same = (
            np.array_equal(row["observation"].numpy(), frame)
            and int(row["action"]) == action
            and float(row["next", "reward"]) == reward
            and bool(row["next", "terminated"]) == bool(terminal)
        )
        if not same:
            raise SystemExit(f"step {step} of the dataset is not what was played")
        step += 1
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6000, help="agent steps; four game frames each")
    parser.add_argument("--capacity", type=int, default=2000, help="rows of a shard (1,000,000 in the public data)")
    parser.add_argument("--work", type=Path, default=Path(".demo"), help="folder of everything that is made")
    args = parser.parse_args()

    shutil.rmtree(args.work, ignore_errors=True)
    began = time.perf_counter()
    print(f"Playing {args.steps} steps of {GAME} into DQN Replay shards of {args.capacity} rows ...", flush=True)
    writer = record(GAME, args.work / "raw" / "dqn" / GAME / str(RUN), args.steps, args.capacity, RUN)
    size = sum(path.stat().st_size for path in (args.work / "raw").rglob("*.gz"))
    print(f"{len(writer.dumps)} shards, {size / 1e6:.2f} MB, {len(writer.episodes())} episodes")

    os.environ["RBDATA_ROOT"] = str(args.work / "datasets")
    with google_cloud_storage(args.work / "raw") as address:
        print(f"\nServing them as gs://{BUCKET} from {address}")
        rbdata("download", f"{GAME}/{RUN}", "--procs", "2")
    rbdata("inspect", f"{GAME}/{RUN}")
    rbdata("verify", f"{GAME}/{RUN}")
    rbdata("sample", f"{GAME}/{RUN}", "-n", "32", "--frame-stack", "4", "--seed", "0")

    print(f"\nPlaying the same {args.steps} steps again, to compare with the dataset ...", flush=True)
    matched = compare(args.steps)
    given_up = int(writer.recoverable_steps().present.sum()) - matched
    print(f"{matched} steps are identical; {given_up} at the end of the data was dropped (its next state is unknown).")
    print(f"\nAll done in {time.perf_counter() - began:.0f} s. The dataset is in {os.environ['RBDATA_ROOT']}.")
    print("Try: RBDATA_ROOT=.demo/datasets .venv/bin/rbdata sample Pong/5 --bench")


if __name__ == "__main__":
    main()
