"""Which upstream an Atari run comes from, what is said about it, and what is said when every door is closed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gcs_doors import Doors, gcs_behind_doors
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.catalogue import describe
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Estimate, Listener, Outcome, Request
from rbdata.errors import (
    CorruptSourceError,
    DatasetExistsError,
    ForbiddenError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from rbdata.storage.integrity import verify

HERE = DATA
BUCKET = "atari-replay-datasets"
IMPATIENT = FetchOptions(attempts=1, backoff=0.0)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Both public buckets, with Breakout/1; the second has all of its files, by their names."""
    whole = tmp_path_factory.mktemp("rlu")
    shutil.copytree(HERE / "rl_unplugged" / "atari_episodes_ordered", whole / "atari_episodes_ordered")
    for file in [*whole.rglob("run_*-of-00050")]:
        file.rename(file.with_name(file.name.replace("00050", "00002")))
    with gcs_behind_doors({BUCKET: HERE / "atari", "rl_unplugged": whole}) as doors:
        yield doors


@pytest.fixture
def doors(public: Doors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Doors]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", public.host)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    yield public
    public.closed.clear()
    public.asked.clear()


def get(root: Path, name: str = "atari/Breakout/1", upstream: str | None = None, **fields) -> Outcome:
    options = ConvertOptions("raw", extra={} if upstream is None else {"upstream": upstream})
    return download(Request(name, root=root, procs=1, options=options, fetch=IMPATIENT, **fields))


def upstream_of(outcome: Outcome) -> str:
    assert outcome.manifest is not None
    return outcome.manifest.source["upstream"]


def test_the_bucket_while_it_is_open(doors: Doors, tmp_path: Path) -> None:
    outcome = get(tmp_path)
    assert upstream_of(outcome) == "dqn-replay"
    assert "why" not in outcome.manifest.provenance


def test_rl_unplugged_when_the_bucket_answers_403(doors: Doors, tmp_path: Path) -> None:
    doors.closed[BUCKET] = 403
    seen: list[Estimate] = []
    request = Request("atari/Breakout/1", root=tmp_path, procs=1, fetch=IMPATIENT, options=ConvertOptions("raw"))
    outcome = download(request, Listener(on_estimate=seen.append))
    assert verify(outcome.path).ok
    manifest = outcome.manifest
    assert manifest is not None and manifest.steps == 1163
    assert upstream_of(outcome) == "rl-unplugged"
    why = f"upstream rl-unplugged, because gs://{BUCKET}/dqn: access denied (HTTP 403)"
    assert manifest.provenance["why"] == seen[0].why == why
    assert manifest.provenance["location"] == seen[0].location == "gs://rl_unplugged"
    assert any("RL Unplugged" in note for note in manifest.notes)
    assert len(seen) == 1


def test_rl_unplugged_when_the_bucket_cannot_be_reached(doors: Doors, tmp_path: Path) -> None:
    doors.closed[BUCKET] = 503
    outcome = get(tmp_path)
    assert outcome.manifest is not None and upstream_of(outcome) == "rl-unplugged"
    assert "HTTP 503" in outcome.manifest.provenance["why"]
    doors.closed["rl_unplugged"] = 403
    with pytest.raises(TransientFetchError, match=r"HTTP 503.*gs://rl_unplugged: access denied \(HTTP 403\)"):
        get(tmp_path / "2")  # it may be possible later


def test_info_names_the_places_in_the_order_in_which_they_are_asked(doors: Doors, tmp_path: Path) -> None:
    stages: list[str] = []
    doors.closed.update({BUCKET: 403, "rl_unplugged": 403})
    with pytest.raises(ForbiddenError):
        download(Request("Pong/5", root=tmp_path, fetch=IMPATIENT), Listener(on_stage=stages.append))
    assert [stage.rpartition(" at ")[2] for stage in stages] == [place.url for place in describe("atari/Pong/5").places]


def test_asked_for_by_name(doors: Doors, tmp_path: Path) -> None:
    outcome = get(tmp_path, upstream="rl-unplugged")
    assert upstream_of(outcome) == "rl-unplugged"
    assert not any(BUCKET in path for path in doors.asked)
    # It is there, from there; another upstream's would be another dataset.
    assert get(tmp_path, upstream="rl-unplugged").action == "complete"
    assert get(tmp_path, upstream="auto").action == "complete"
    assert get(tmp_path).action == "complete"
    with pytest.raises(DatasetExistsError, match="different options: upstream"):
        get(tmp_path, upstream="dqn-replay")


def test_by_setting(doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RBDATA_UPSTREAM", "rl-unplugged")
    assert upstream_of(get(tmp_path / "1")) == "rl-unplugged"
    assert upstream_of(get(tmp_path / "2", upstream="dqn-replay")) == "dqn-replay"


def test_a_mirror_of_either_layout(doors: Doors, tmp_path: Path) -> None:
    doors.closed.update({BUCKET: 403, "rl_unplugged": 403})
    assert upstream_of(get(tmp_path / "1", mirror=str(HERE / "rl_unplugged"))) == "rl-unplugged"
    assert upstream_of(get(tmp_path / "2", mirror=str(HERE / "atari" / "dqn"))) == "dqn-replay"
    assert not doors.asked
    with pytest.raises(ObjectNotFoundError, match="no episodes of Breakout/1"):
        get(tmp_path / "3", mirror=str(HERE / "atari" / "dqn"), upstream="rl-unplugged")
    with pytest.raises(ObjectNotFoundError, match="no shards of Breakout/1"):
        get(tmp_path / "4", mirror=str(HERE / "rl_unplugged"), upstream="dqn-replay")
    with pytest.raises(ObjectNotFoundError, match="no shards and no episodes of Pong/2"):
        get(tmp_path / "5", "atari/Pong/2", mirror=str(HERE / "rl_unplugged"))


def test_keeping_the_raw_files(doors: Doors, tmp_path: Path) -> None:
    doors.closed[BUCKET] = 403
    outcome = get(tmp_path, keep_raw=True)
    kept = tmp_path / ".raw" / "atari" / "atari_episodes_ordered" / "Breakout"
    assert sorted(path.name for path in kept.iterdir()) == ["run_1-00000-of-00002", "run_1-00001-of-00002"]
    assert outcome.manifest is not None and outcome.manifest.provenance["location"] == "gs://rl_unplugged"
    again = get(tmp_path / "2", mirror=str(tmp_path / ".raw" / "atari"))
    assert again.manifest is not None and again.manifest.files == outcome.manifest.files


@pytest.mark.parametrize("status", [401, 403, 404])
def test_all_doors_closed(doors: Doors, tmp_path: Path, status: int) -> None:
    doors.closed.update({BUCKET: status, "rl_unplugged": status})
    began = time.monotonic()
    with pytest.raises(ObjectNotFoundError if status == 404 else ForbiddenError) as caught:
        get(tmp_path)
    assert time.monotonic() - began < 30
    message, hint = caught.value.message, caught.value.hint or ""
    assert "\n" not in message + hint
    for word in ("atari/Breakout/1", f"gs://{BUCKET}/dqn", "gs://rl_unplugged"):
        assert word in message
    for word in ("--mirror", "RBDATA_ATARI_MIRROR", "dqn/Breakout/1/replay_logs", "atari_episodes_ordered/Breakout"):
        assert word in hint
    for word in ("gcloud auth application-default login", "docs/mirrors.md"):
        assert word in hint
    assert list(tmp_path.rglob("*.writing")) == []


def test_a_game_that_rl_unplugged_leaves_out(doors: Doors, tmp_path: Path) -> None:
    doors.closed[BUCKET] = 403
    with pytest.raises(ForbiddenError, match=r"access denied \(HTTP 403\); gs://rl_unplugged: not found"):
        get(tmp_path, "atari/Pitfall/1")
    with pytest.raises(ObjectNotFoundError, match="gs://rl_unplugged: not found"):
        get(tmp_path, "atari/Pitfall/1", upstream="rl-unplugged")


def test_no_second_choice_where_none_is_wanted(doors: Doors, tmp_path: Path) -> None:
    doors.closed[BUCKET] = 403
    with pytest.raises(ForbiddenError, match="is not available") as caught:
        get(tmp_path, upstream="dqn-replay")
    assert "rl_unplugged" not in str(caught.value)
    with pytest.raises(ObjectNotFoundError, match="has no shard 77"):
        doors.closed.clear()
        options = ConvertOptions(parts=(77,))
        download(Request("atari/Breakout/1", root=tmp_path, options=options, fetch=IMPATIENT))
    with pytest.raises(UsageError, match="upstream is 'bucket', must be one of auto"):
        get(tmp_path, upstream="bucket")
    with pytest.raises(UsageError, match="no option upsteam"):
        download(Request("atari/Breakout/1", root=tmp_path, options=ConvertOptions(extra={"upsteam": "auto"})))


def test_a_listing_that_lacks_files_is_not_taken_for_all(doors: Doors, tmp_path: Path) -> None:
    """Of a server's answer it cannot be known whether it was cut short; the files' names state how many there are."""
    doors.closed[BUCKET] = 403
    doors.emulator.upload("rl_unplugged", "atari_episodes_ordered/Qbert/run_1-00001-of-00003", b"x")
    with pytest.raises(CorruptSourceError, match="has 3 files, and 0, 2 are not at") as caught:
        get(tmp_path, "atari/Qbert/1")
    assert "--shards 1" in (caught.value.hint or "")
