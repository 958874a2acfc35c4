import pytest
from rbdata.datasets.card.target import MARK, check_outside, check_target
from rbdata.errors import DatasetExistsError, UsageError
from rbdata.storage.durable import write_atomically
from rbdata.storage.manifest import read_manifest
from storage_tools import Recipe, make_episodes


@pytest.mark.parametrize("name", ["plot", "plot.txt", "nowhere/plot.png", "folder.png"])
def test_names_that_cannot_be_written(name, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError) as error:
        check_target(tmp_path / name, (".png", ".pdf"), force=True)
    assert error.value.hint


def test_only_our_own_files_are_replaced(tmp_path):
    theirs, ours, large = (tmp_path / f"{name}.png" for name in ("theirs", "ours", "large"))
    theirs.write_bytes(b"a picture")
    write_atomically(ours, f"a picture {MARK}".encode())
    write_atomically(large, bytes(1 << 20) + MARK.encode())
    for target in (ours, large, tmp_path / "new.png"):
        check_target(target, (".png",))
    with pytest.raises(DatasetExistsError, match="theirs"):
        check_target(theirs, (".png",))
    check_target(theirs, (".png",), force=True)
    assert theirs.read_bytes() == b"a picture"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.png", "ours.png", "theirs.png"]


def test_files_of_the_dataset_are_safe(tmp_path):
    folder = Recipe(make_episodes([3])).write(tmp_path)
    manifest = read_manifest(folder)
    check_outside(folder / "card.html", folder, manifest)
    for name in ("rbdata.json", "next/../action.memmap"):
        with pytest.raises(UsageError, match="dataset itself"):
            check_outside(folder / name, folder, manifest)
