"""Settings: flags over environment over file over defaults, and where each came from."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from paths import DATA
from rbdata import settings
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.request import Request
from rbdata.errors import UsageError

HERE = DATA


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("RBDATA_CONFIG", str(path))
    for name in ("RBDATA_ROOT", "RBDATA_PROCS", "RBDATA_UPSTREAM", "RBDATA_MIRROR", "RBDATA_ATARI_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    return path


def effective() -> dict[str, tuple[object, str]]:
    return {setting.name: (setting.value, setting.origin) for setting in settings.effective()}


def test_defaults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = effective()
    assert found["config"] == (None, "RBDATA_CONFIG")
    assert found["root"] == (settings.root(), "default")
    assert found["procs"] == (None, "default") and found["upstream"] == ("auto", "default")
    assert found["mirrors.atari"] == (None, "default")
    assert settings.root().name == "rbdata" and settings.mirror("atari") is None
    monkeypatch.delenv("RBDATA_CONFIG")
    assert str(settings.path()).endswith("rbdata/config.toml")
    monkeypatch.setenv("RBDATA_CONFIG", "")
    assert settings.path() is None and settings.procs() is None


def test_the_file(file: Path) -> None:
    file.write_text(
        'root = "~/data"\nprocs = 3\nupstream = "rl-unplugged"\nmirror = "gs://lab"\n[mirrors]\natari = "/mnt/dqn"\n'
    )
    origin = str(file)
    assert effective() | {"mirrors.d4rl": ("gs://lab", origin)} == effective()
    found = effective()
    assert found["config"] == (origin, "RBDATA_CONFIG")
    assert found["root"] == (Path("~/data").expanduser(), origin)
    assert found["procs"] == (3, origin) and found["upstream"] == ("rl-unplugged", origin)
    assert found["mirrors.atari"] == ("/mnt/dqn", origin)
    assert (settings.procs(), effective()["upstream"][0]) == (3, "rl-unplugged")
    # It is read again when it changes.
    file.write_text("procs = 12")
    assert (settings.procs(), effective()["upstream"][0]) == (12, "auto")


def test_the_environment_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('root = "/file"\nprocs = 3\nupstream = "auto"\nmirror = "/all"\n[mirrors]\natari = "/atari"\n')
    monkeypatch.setenv("RBDATA_ROOT", "/environment")
    monkeypatch.setenv("RBDATA_PROCS", " 5 ")
    monkeypatch.setenv("RBDATA_UPSTREAM", "dqn-replay")
    found = effective()
    assert found["root"] == (Path("/environment"), "RBDATA_ROOT")
    assert found["procs"] == (5, "RBDATA_PROCS") and found["upstream"] == ("dqn-replay", "RBDATA_UPSTREAM")
    # What is meant for one source wins over what is meant for all, wherever it stands.
    monkeypatch.setenv("RBDATA_MIRROR", "/environment-all")
    assert effective()["mirrors.atari"] == ("/atari", str(file))
    assert settings.mirror("d4rl") == "/environment-all"
    monkeypatch.setenv("RBDATA_ATARI_MIRROR", "/environment-atari")
    assert effective()["mirrors.atari"] == ("/environment-atari", "RBDATA_ATARI_MIRROR")
    # An empty variable sets nothing.
    monkeypatch.setenv("RBDATA_ROOT", "")
    assert effective()["root"] == (Path("/file"), str(file))


def test_arguments_win(file: Path, tmp_path: Path) -> None:
    file.write_text(f'root = "/file"\nprocs = 1\n[mirrors]\natari = "{HERE / "rl_unplugged"}"\n')
    assert settings.root("~/x") == Path("~/x").expanduser() and settings.procs(2) == 2
    outcome = download(Request("atari/Breakout/1", root=tmp_path / "root"))
    assert outcome.manifest is not None
    assert outcome.manifest.provenance["location"] == str(HERE / "rl_unplugged")
    other = download(Request("atari/Breakout/1", root=tmp_path / "two", mirror=str(HERE / "atari")))
    assert other.manifest is not None and other.manifest.source["upstream"] == "dqn-replay"


@pytest.mark.parametrize(
    "text, words",
    [
        ("root = ", "is not TOML"),
        ("root = 5", "root is 5, must be a string"),
        ("procs = -1", "procs is -1"),
        ("procs = true", "procs is True"),
        ('procs = "many"', "procs is 'many'"),
        ('upstream = "bucket"', "upstream is 'bucket', must be one of auto"),
        ('rooot = "/x"', "unknown setting 'rooot'"),
        ('mirrors = "/x"', "mirrors is not a table"),
        ('[mirrors]\natary = "/x"', "unknown source 'atary'"),
        ("[mirrors]\natari = 1", "a mirror is 1"),
        ("mirror = []", "a mirror is"),
    ],
)
def test_a_file_that_makes_no_sense(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        settings.effective()
    assert str(file) in str(caught.value) and caught.value.hint


def test_a_file_that_is_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not TOML"):
        settings.root()
    file.unlink()
    file.mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        settings.root()


def test_a_variable_that_makes_no_sense(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RBDATA_PROCS", "-1")
    with pytest.raises(UsageError, match="RBDATA_PROCS"):
        settings.procs()
    monkeypatch.setenv("RBDATA_UPSTREAM", "x")
    with pytest.raises(UsageError, match="RBDATA_UPSTREAM"):
        effective()


class TestChangingTheFile:
    def test_keeps_what_else_is_in_it(self, file: Path) -> None:
        file.write_text('# mine\nprocs = 3  # of 4\n\n[mirrors]  # by source\natari = "/mnt/dqn"\n')
        settings.store("mirrors.d4rl", "gs://lab/d4rl")
        settings.store("procs", "5")
        settings.store("root", str(file.parent / "data"))
        assert effective()["mirrors.d4rl"] == ("gs://lab/d4rl", str(file))
        assert (settings.procs(), settings.root()) == (5, file.parent / "data")
        text = file.read_text()
        assert all(comment in text for comment in ("# mine", "# of 4", "# by source"))
        for name in ("mirrors.atari", "mirrors.d4rl", "root"):
            settings.store(name, None)
        assert file.read_text().strip() == "# mine\nprocs = 5  # of 4"
        assert list(file.parent.glob(".config*")) == []

    def test_makes_it(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RBDATA_CONFIG", str(file.parent / "new/one.toml"))
        assert settings.store("mirror", "data") == file.parent / "new/one.toml"
        assert settings.mirror("atari") == str(Path("data").absolute())

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("proc", "3", "did you mean procs?"),
            ("mirrors.atary", "/x", "did you mean mirrors.atari?"),
            ("mirrors", "/x", "did you mean mirror?"),
            ("procs", "no", "procs = 8"),
            ("upstream", "nowhere", "auto: the bucket"),
            ("root", "", "config unset root"),
            ("root", None, "where each value comes from"),
        ],
    )
    def test_refuses_nonsense(self, file: Path, name: str, value: str | None, words: str) -> None:
        file.write_text("procs = 2")
        with pytest.raises(UsageError) as raised:
            settings.store(name, value)
        assert words in str(raised.value.hint)
        assert file.read_text() == "procs = 2"

    def test_needs_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RBDATA_CONFIG", "")
        with pytest.raises(UsageError, match="RBDATA_CONFIG is empty"):
            settings.store("procs", "3")


def test_commands_for_hints() -> None:
    assert settings.command("inspect", "a b") == "rbdata inspect 'a b'"
    assert settings.command("inspect", "my/x", root=Path("/data")) == "rbdata inspect my/x --root /data"


def test_a_killed_change_changes_nothing(file: Path) -> None:
    settings.store("procs", "3")
    file.chmod(0o640)
    child = os.fork()
    if not child:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # before the new file has its name
        settings.store("procs", "5")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert effective()["procs"][0] == 3
    left = set(file.parent.iterdir())
    settings.store("procs", "4")
    assert set(file.parent.iterdir()) == left
    assert effective()["procs"][0] == 4 and file.stat().st_mode & 0o777 == 0o640
