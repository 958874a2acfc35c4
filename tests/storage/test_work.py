"""The working folder: whose it is, and what becomes of what another run left there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rbdata.errors import DatasetExistsError
from rbdata.storage import work
from rbdata.storage.folder import RUN, DatasetPlace
from rbdata.storage.work import Work, command_of, read_run
from storage_tools import contents


def begin(place: DatasetPlace, fingerprint: str = "print", *, kind: str = "log", **options: Any) -> Work:
    """A run that leaves something to go on with."""
    begun = Work(place, fingerprint, **options)
    begun.remember(kind, True)
    return begun


@pytest.fixture
def place(tmp_path: Path) -> DatasetPlace:
    return DatasetPlace(tmp_path, "my/test")


def test_the_same_run_goes_on(place: DatasetPlace) -> None:
    begin(place)
    assert Work.belongs(place, "print", restart=False) and not Work.belongs(place, "print", restart=True)
    assert begin(place).remembered("log") and Work(place, "print").holds_work()


@pytest.mark.parametrize("kind", ["log", "copy"])
def test_work_of_another_run_is_left_alone(place: DatasetPlace, kind: str) -> None:
    begin(place, kind=kind, command="rbdata download x")
    before = contents(place.working)
    with pytest.raises(DatasetExistsError, match="started with other options") as caught:
        Work(place, "another")
    assert "`rbdata download x`" in (caught.value.hint or "") and "--force" in (caught.value.hint or "")
    assert contents(place.working) == before
    assert not Work(place, "another", restart=True).holds_work()


def test_without_work_another_run_starts(place: DatasetPlace) -> None:
    begin(place, kind="units")
    assert not Work(place, "another").holds_work()
    assert Work.belongs(place, "another", restart=False)


def test_a_restart_discards_what_the_same_run_left(place: DatasetPlace) -> None:
    begin(place)
    assert not Work(place, "print", restart=True).holds_work()


def test_a_forced_run_goes_on_where_a_forced_run_stopped(place: DatasetPlace) -> None:
    begin(place, restart=True)
    assert Work.belongs(place, "print", restart=True)
    assert Work(place, "print", restart=True).holds_work()


def test_what_no_run_can_go_on_with_is_discarded(place: DatasetPlace) -> None:
    assert not begin(place, continues=False).holds_work()
    assert Work(place, "another").discarded


def test_a_folder_in_place_of_the_record(place: DatasetPlace) -> None:
    begin(place)
    (place.working / RUN).unlink()
    (place.working / RUN).mkdir()
    assert not Work(place, "another").holds_work()


def test_the_record_cut_or_changed_at_every_byte(place: DatasetPlace) -> None:
    begin(place, command="rbdata download é")
    whole = (place.working / RUN).read_bytes()
    assert read_run(place.working)["fingerprint"] == "print" and command_of(place.working) == "rbdata download é"
    for at in range(len(whole)):
        for changed in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            (place.working / RUN).write_bytes(changed)
            assert read_run(place.working) == {}
            assert (place.working / RUN).read_bytes() == changed  # reading changes nothing


def test_a_failed_write_is_not_recorded(place: DatasetPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(place)

    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(work, "write_atomically", fail)
    with pytest.raises(OSError, match="no space"):
        begun.remember("units", 3)
    monkeypatch.undo()
    assert begun.remembered("units") is None
    begun.remember("units", 4)
    assert read_run(place.working)["units"] == 4


@pytest.mark.parametrize("line", ["rm \x1b[2J", 3, None])
def test_a_command_that_no_run_writes(place: DatasetPlace, line: Any) -> None:
    begin(place).remember("command", line)
    assert command_of(place.working) == ""
