"""Frames of Atari from one store: rbdata beside mosaicml-streaming, litdata and Lance, in one run.

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install -e . mosaicml-streaming litdata pylance 'torch==2.13.0'
    /tmp/rivals/bin/python benchmarks/rivals.py --steps 200000

None of them is a dependency of rbdata; what is not installed is left out. (mosaicml-streaming imports torchvision, which must
fit the torch that is installed.) Every one writes the same frames in its own format with the compression that it offers, into
one folder that a small S3 on this machine serves: 20 ms before an answer, 100 MB/s in all. Batches of 256 samples in random
order, made in the caller's process (``num_workers=0``), from an empty cache:

    rbdata       transitions: two frames a sample, and all other leaves; shuffle "blocks" and "global"
    streaming    a frame a sample; MDS with zstd shards of 64 MiB, its default shuffle (py1e)
    litdata      a frame a sample; chunks of 64 MB with zstd, shuffle=True
    Lance        a frame a sample, taken by number (``take``), each number drawn at random

Reported: seconds from opening to the first batch, samples a second afterwards, bytes that the server sent a sample, and the
variance of the mean step number of a batch as a multiple of that of independent draws (1 is a shuffle of everything).
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from harness import machine, table
from remote import served
from verify import make

WORK = Path(".bench") / "rivals"
BATCH = 256
BUCKET = "lab"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second, all connections together")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--only", choices=[*READERS], action="append", help="these alone")
    parser.add_argument("--make", action="store_true", help="write the data, and no more")
    args = parser.parse_args()
    store = WORK.absolute() / f"{args.steps}" / "store" / BUCKET
    folder = make(store, args.steps, 4, "zstd")
    for name, write in WRITERS.items():
        if not (store / name).exists():
            try:
                write(folder, store / name)
            except ImportError as error:
                print(f"{name} is left out: {error}")
    if args.make:
        return
    print(machine())
    rows = []
    with served(store.parent, args.rate, args.latency) as url:
        os.environ.update(
            AWS_ENDPOINT_URL=url,
            S3_ENDPOINT_URL=url,
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="test",
            AWS_DEFAULT_REGION="us-east-1",
            AWS_REGION="us-east-1",
            AWS_EC2_METADATA_DISABLED="true",
            AWS_ALLOW_HTTP="true",
        )
        for module in ("rbdata.loading", "s3fs", "streaming", "litdata", "lance"):
            with suppress(ImportError):
                import_module(module)  # imports are not measured
        for name in args.only or READERS:
            cache = WORK.absolute() / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            try:
                rows.append([name, *measure(READERS[name], folder, cache, url, args.seconds, args.steps)])
                print("  ".join(rows[-1]), flush=True)
            except ImportError as error:
                print(f"{name} is left out: {error}")
            except Exception:
                print(f"{name} failed:\n{traceback.format_exc(limit=-4)}")
    print(table(["reader", "first batch", "samples/s", "bytes a sample", "variance of a batch's mean"], rows))
    shutil.rmtree(WORK / "cache", ignore_errors=True)


def measure(reader: Reader, folder: Path, cache: Path, url: str, seconds: float, steps: int) -> list[str]:
    """A row of the table. Samples, bytes and evenness are those of one pass at most."""
    sent = int(urlopen(f"{url}/sent").read())
    began = time.perf_counter()
    batches = reader(folder, cache, url)
    numbers = [next(batches)]
    first = time.perf_counter() - began
    began = time.perf_counter()
    for index in batches:
        numbers.append(index)
        if time.perf_counter() - began > seconds:
            break
    took = time.perf_counter() - began
    sent = int(urlopen(f"{url}/sent").read()) - sent
    samples = sum(len(one) for one in numbers)
    means = np.array([float(np.mean(one)) for one in numbers if len(one) == BATCH])
    # Around the middle of all steps: what was drawn in few seconds is not around the mean of the pass.
    evenness = float(np.mean((means - steps / 2) ** 2)) / (steps**2 / 12 / BATCH)
    return [f"{first:.2f} s", f"{(samples - BATCH) / took:,.0f}", f"{sent / samples:,.0f}", f"{evenness:.1f}"]


# -- writers ---------------------------------------------------------------------------------------------------------


def frames(folder: Path) -> Iterator[tuple[int, np.ndarray]]:
    """The frames of the dataset with their numbers."""
    import rbdata

    dataset = rbdata.open_dataset(folder)
    for start in range(0, len(dataset), 5000):
        rows = dataset.read(torch.arange(start, min(start + 5000, len(dataset))), keys=["observation"])["observation"]
        yield from enumerate(rows.reshape(len(rows), 84, 84).numpy(), start)


def write_streaming(folder: Path, target: Path) -> None:
    from streaming import MDSWriter

    columns = {"number": "int", "frame": "ndarray:uint8:84,84"}
    with MDSWriter(out=str(target), columns=columns, compression="zstd", size_limit=1 << 26) as writer:
        for number, frame in frames(folder):
            writer.write({"number": number, "frame": frame})


def write_litdata(folder: Path, target: Path) -> None:
    from litdata.streaming.cache import Cache  # what litdata.optimize writes with, in one process

    cache = Cache(str(target), chunk_bytes=1 << 26, compression="zstd")
    for number, frame in frames(folder):
        cache[number] = {"number": number, "frame": frame}
    cache.done()
    cache.merge()


def write_lance(folder: Path, target: Path) -> None:
    import lance
    import pyarrow as pa

    schema = pa.schema([("number", pa.int64()), ("frame", pa.binary())])

    def batches() -> Iterator[pa.RecordBatch]:
        numbers, rows = [], []
        for number, frame in frames(folder):
            numbers.append(number)
            rows.append(frame.tobytes())
            if len(rows) == 4096:
                yield pa.record_batch([pa.array(numbers), pa.array(rows, pa.binary())], schema=schema)
                numbers, rows = [], []
        yield pa.record_batch([pa.array(numbers), pa.array(rows, pa.binary())], schema=schema)

    compressed = pa.field("frame", pa.binary(), metadata={"lance-encoding:compression": "zstd"})
    schema = pa.schema([schema.field("number"), compressed])
    lance.write_dataset(batches(), str(target), schema=schema, data_storage_version="2.1")


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "streaming": write_streaming,
    "litdata": write_litdata,
    "lance": write_lance,
}

# -- readers: step numbers of the batches, whose frames are tensors by then -------------------------------------------

Reader = Callable[[Path, Path, str], Iterator[np.ndarray]]


def read_rbdata(folder: Path, cache: Path, shuffle: str) -> Iterator[np.ndarray]:
    import rbdata

    url = f"s3://{BUCKET}/{folder.parent.name}/{folder.name}"
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "replacement": False, "seed": 1}
    for batch in rbdata.load(url, cache_dir=cache, **options):
        assert batch["observation"].shape[1:] == (84, 84)
        yield batch["index"].numpy()


def read_streaming(folder: Path, cache: Path, url: str) -> Iterator[np.ndarray]:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    remote = f"s3://{BUCKET}/streaming"
    dataset = StreamingDataset(remote=remote, local=str(cache), shuffle=True, batch_size=BATCH, shuffle_seed=1)
    for batch in DataLoader(dataset, batch_size=BATCH, num_workers=0):
        assert batch["frame"].shape[1:] == (84, 84)
        yield batch["number"].numpy()


def read_litdata(folder: Path, cache: Path, url: str) -> Iterator[np.ndarray]:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the store of this benchmark has no certificate
    options = {"endpoint_url": url, "aws_access_key_id": "test", "aws_secret_access_key": "test"}
    dataset = StreamingDataset(
        f"s3://{BUCKET}/litdata", cache_dir=str(cache), shuffle=True, seed=1, storage_options=options
    )
    for batch in StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0):
        assert batch["frame"].shape[1:] == (84, 84)
        yield np.asarray(batch["number"])


def read_lance(folder: Path, cache: Path, url: str) -> Iterator[np.ndarray]:
    import lance

    options = {"aws_endpoint": url, "allow_http": "true", "aws_access_key_id": "test"}
    options |= {"aws_secret_access_key": "test", "aws_region": "us-east-1"}
    dataset = lance.dataset(f"s3://{BUCKET}/lance", storage_options=options)
    order = np.random.default_rng(1).permutation(dataset.count_rows())
    for at in range(0, len(order), BATCH):
        rows = dataset.take(order[at : at + BATCH].tolist(), columns=["number", "frame"])
        data = np.frombuffer(b"".join(rows["frame"].to_pylist()), np.uint8)
        assert torch.from_numpy(data.reshape(-1, 84, 84).copy()).shape[1:] == (84, 84)
        yield rows["number"].to_numpy()


READERS: dict[str, Reader] = {
    "rbdata, blocks": lambda folder, cache, url: read_rbdata(folder, cache, "blocks"),
    "rbdata, global": lambda folder, cache, url: read_rbdata(folder, cache, "global"),
    "streaming": read_streaming,
    "litdata": read_litdata,
    "lance": read_lance,
}

if __name__ == "__main__":
    main()
