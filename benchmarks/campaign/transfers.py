"""Transfers from every source and mirror, spoiled: what comes out has the bytes of an undisturbed transfer, or is an error.

A round chooses a dataset at a place, and faults (`faulty_proxy.KINDS`) for some requests or for all requests of one file.
Whatever the first run ends with, the run after it, undisturbed, must give the same bytes and leave nothing else behind.

The memory reported is what the transfers took beyond the servers, which are in the same process and take 0.9 GB.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from contents import content
from d4rl_truth import make
from d4rl_truth import write as write_d4rl
from faulty_proxy import KINDS, Asked, Fault, Proxy, faulty_proxy
from minari_hub import hub
from openml_server import openml_server
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.job import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.mirrors import push
from rbdata.errors import RbdataError
from rbdata.storage.manifest import read_manifest
from report import Report, peak_memory
from rlu_writer import make_episodes, write_run
from servers import gcs_server, http_server

FETCH = FetchOptions(attempts=3, backoff=0.01, backoff_cap=0.05, connect_timeout=2.0, silence_timeout=0.4)
PATIENT = FetchOptions(attempts=6, backoff=0.05, silence_timeout=30.0)
#: Seconds that a run with such options may take where others use the machine; most take one.
LIMIT = 180.0
PLACES = ("http", "gs", "s3", "hf", "openml")
SECRETS = ("hf_0123456789secret", "swordfish", "aws-secret-key")
#: Faults that change bytes without a trace where nothing states a checksum.
UNSEEN = {"flip", "long", "changed"}


@dataclass
class Case:
    """A dataset at a place; the rest is what an undisturbed transfer makes of it."""

    name: str
    id: str
    mirror: str | None
    proxy: Proxy
    options: ConvertOptions = field(default_factory=ConvertOptions)
    expected: dict[str, str] = field(default_factory=dict)
    tree: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def get(self, root: Path, fetch: FetchOptions) -> Path:
        return download(Request(self.id, root, self.mirror, procs=1, options=self.options, fetch=fetch)).path


def run(rounds: int, seed: int, places: Collection[str] = PLACES) -> Report:
    report = Report("transfers", seed)
    with (
        tempfile.TemporaryDirectory(prefix="rbdata-transfers-") as top,
        every_case(Path(top), places) as cases,
        report.measured(),
    ):
        servers = peak_memory()
        for number in range(rounds):
            one_round(cases, seed * 1_000_000 + number, Path(top), report)
            report.rounds += 1
    report.peak_memory -= servers
    return report


def one_round(cases: list[Case], seed: int, top: Path, report: Report) -> None:
    """One dataset, transferred with faults and then without."""
    chance = random.Random(seed)
    case = chance.choice(cases)
    case.proxy.asked.clear()
    case.proxy.done.clear()
    case.proxy.spoil = plan(case, chance)
    root = top / "root"
    shutil.rmtree(root, ignore_errors=True)

    def blame(what: str) -> None:
        done = "; ".join(
            f"{fault} of {asked.method} {asked.path} {asked.span or ''}" for asked, fault in case.proxy.done[:4]
        )
        report.faults.append(f"seed {seed}, {case.name}: {what} ({done})")

    began = time.monotonic()
    outcome = attempt(case, root, FETCH, blame)
    if time.monotonic() - began > LIMIT:
        blame(f"took {time.monotonic() - began:.0f} s")
    for headers in case.proxy.strangers:
        if any(secret in value for value in headers.values() for secret in SECRETS) or "authorization" in headers:
            blame("a credential went to another host")
    case.proxy.strangers.clear()
    report.outcomes[outcome if case.proxy.done or outcome != "same bytes" else "no fault applied"] += 1
    case.proxy.spoil = lambda asked: None
    if outcome == "unseen":
        return
    again = attempt(case, root, PATIENT, blame)
    if again not in ("same bytes", "unseen"):
        blame(f"{outcome}; the run without faults: {again}")
    elif again == "unseen":
        report.outcomes["unseen in what was kept"] += 1
    left = sorted(set(tree(root)) ^ set(case.tree))
    if left and not again.endswith("Error"):
        blame(f"{outcome}; left over or missing: {', '.join(left[:4])}")


def attempt(case: Case, root: Path, fetch: FetchOptions, blame: Callable[[str], None]) -> str:
    """Transfer, and name what came of it; everything but the same bytes and typed errors is blamed."""
    try:
        path = case.get(root, fetch)
    except RbdataError as error:
        if error.exit_code != 1:
            blame(f"exit code {error.exit_code} for {error!r}")
        if any(secret in str(error) for secret in SECRETS):
            blame(f"a secret in {error!r}")
        return type(error).__name__
    except Exception as error:
        blame(f"untyped {error!r}")
        return "untyped error"
    found = content(path)
    if found == case.expected:
        return "same bytes"
    kinds = {fault.kind for _, fault in case.proxy.done}
    if kinds & UNSEEN and read_manifest(path).provenance.get("unverified"):
        return "unseen"
    if kinds & UNSEEN and found | {"rbdata.json": ""} == case.expected | {"rbdata.json": ""}:
        return "unseen"  # the name in the head of a gzip file, which nothing proves: all rows are right
    blame("other bytes than ever, and no error")
    return "other bytes"


def plan(case: Case, chance: random.Random) -> Callable[[Asked], Fault | None]:
    """Which requests go wrong, and how: some by number, each in its way; all of one path in one way; or each with a chance."""

    def fault() -> Fault:
        at = chance.choice((0.0, chance.random(), chance.random(), 0.999, 1.0))
        return Fault(chance.choice(KINDS), at, chance.randrange(1000))

    how = chance.random()
    if how < 0.5:
        chosen = {chance.randrange(len(case.asked)): fault() for _ in range(chance.choice((1, 1, 2, 4)))}
        return lambda asked: chosen.get(asked.number)
    if how < 0.8:
        path, always = chance.choice(case.asked).path, fault()
        return lambda asked: always if asked.path == path else None
    share = chance.choice((0.05, 0.2))
    some, seed = [fault() for _ in range(3)], chance.random()
    return lambda asked: _by_chance(random.Random(f"{seed} {asked.number}"), share, some)


def _by_chance(chance: random.Random, share: float, some: list[Fault]) -> Fault | None:
    return chance.choice(some) if chance.random() < share else None


def tree(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*")]


@contextmanager
def every_case(top: Path, places: Collection[str] = PLACES) -> Iterator[list[Case]]:
    """Servers with every source and mirror, and the undisturbed transfer of each."""
    files = top / "files"
    shutil.copytree(DATA / "atari" / "dqn" / "Pong", files / "dqn" / "Pong")
    shutil.copytree(DATA / "minari" / "cartpole", files / "minari" / "cartpole")
    episodes = make_episodes([[4, 3], [5], [2, 6]])
    write_run(files / "rlu", [[one for one in episodes if one.checkpoint == number] for number in range(3)])
    write_d4rl(files / "d4rl" / "gym_mujoco_v2" / "hopper_medium-v2.hdf5", make([30, 20], ["terminal", "timeout"]))
    served = (("atari/Pong/5", "dqn"), ("d4rl/hopper-medium-v2", "d4rl")) if {*places} & {"http", "gs", "s3"} else ()
    for name, mirror in served:
        parts = (0,) if mirror == "dqn" else None
        download(Request(name, top / "made", str(files / mirror), procs=1, options=ConvertOptions(parts=parts)))
        push(name, str(files / "converted"), root=top / "made")
    with ExitStack() as stack:
        settings = {
            "AWS_SHARED_CREDENTIALS_FILE": str(top / "none"),
            "AWS_CONFIG_FILE": str(top / "none"),
            "HF_TOKEN": SECRETS[0],
            "MINARI_REMOTE": "hf://lab",
            "MINARI_DATASETS_PATH": str(top / "no-minari"),
            "RBDATA_CONFIG": "",
        }
        cases = []
        for place in places:
            proxy, base, more = _open_place(place, files, stack)
            settings |= more
            for name, below, options in _held(place):
                mirror = f"{base}/{below}".rstrip("/") if base else None
                cases.append(Case(f"{name} from {place} {below}".rstrip(), name, mirror, proxy, options))
        stack.callback(_restore, {name: os.environ.get(name) for name in settings})
        os.environ.update(settings)
        for case in cases:
            root = top / "sound"
            case.expected = content(case.get(root, PATIENT))
            case.tree, case.asked = tree(root), list(case.proxy.asked)
            case.proxy.asked.clear()
            shutil.rmtree(root)
        yield cases


def _open_place(place: str, files: Path, stack: ExitStack) -> tuple[Proxy, str, dict[str, str]]:
    """A place behind a proxy, its address ('' where it is the source's own), and the variables that lead to it."""
    open_ = stack.enter_context
    if place == "http":
        proxy = open_(faulty_proxy(open_(http_server(files)).url))
        return proxy, proxy.url.replace("://", f"://me:{SECRETS[1]}@"), {}
    if place == "gs":
        proxy = open_(faulty_proxy(open_(gcs_server({"lab": files})).host))
        return proxy, "gs://lab", {"STORAGE_EMULATOR_HOST": proxy.url}
    if place == "s3":
        from s3_server import s3_server  # moto takes its time

        store = open_(s3_server("lab"))
        for file in sorted(files.rglob("*")):
            if file.is_file():
                store.client.put_object(Bucket="lab", Key=file.relative_to(files).as_posix(), Body=file.read_bytes())
        proxy = open_(faulty_proxy(store.url))
        leads = {"AWS_ENDPOINT_URL": proxy.url, "AWS_SECRET_ACCESS_KEY": SECRETS[2]}
        return proxy, "s3://lab", store.environment | leads
    if place == "hf":
        face = open_(hub({"lab": files / "minari"}))
        proxy = open_(faulty_proxy(face.url))
        face.url = proxy.url  # its pages and redirects lead through the proxy
        return proxy, "", {"HF_ENDPOINT": proxy.url}
    proxy = open_(faulty_proxy(open_(openml_server()).url))
    return proxy, proxy.url, {}


def _held(place: str) -> list[tuple[str, str, ConvertOptions]]:
    """The datasets at a place, the folder of each, and options."""
    plain = ConvertOptions()
    minari = [(f"minari/cartpole/{name}-v0", "minari", plain) for name in ("random", "arrow")]
    if place == "hf":
        return [(name, "", options) for name, _, options in minari]
    if place == "openml":
        return [("openml/61", "", plain), ("openml/iris", "", plain)]
    return [
        *minari,
        ("atari/Pong/5", "dqn", ConvertOptions(parts=(0, 1))),
        ("atari/Qbert/1", "rlu", plain),
        ("d4rl/hopper-medium-v2", "d4rl", plain),
        ("atari/Pong/5", "converted", ConvertOptions(parts=(0,))),
        ("d4rl/hopper-medium-v2", "converted", plain),
    ]


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
