import pytest
from rbdata.datasets.card.files import check_outside, check_target
from rbdata.errors import DatasetExistsError, UsageError
from rbdata.storage.manifest import read_manifest
from storage_tools import Recipe, make_episodes


@pytest.mark.parametrize("name", ["plot", "plot.txt", "nowhere/plot.png", "folder.png"])
def test_names_that_cannot_be_written(name, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError) as error:
        check_target(tmp_path / name, (".png", ".pdf"), force=True)
    assert error.value.hint


def test_a_file_that_is_there_is_replaced_when_asked(tmp_path):
    (tmp_path / "there.png").write_bytes(b"a picture")
    check_target(tmp_path / "new.png", (".png",))
    with pytest.raises(DatasetExistsError, match="there"):
        check_target(tmp_path / "there.png", (".png",))
    check_target(tmp_path / "there.png", (".png",), force=True)


def test_files_of_the_dataset_are_safe(tmp_path):
    folder = Recipe(make_episodes([3])).write(tmp_path)
    manifest = read_manifest(folder)
    check_outside(folder / "card.html", folder, manifest)
    for name in ("rbdata.json", "next/../action.memmap"):
        with pytest.raises(UsageError, match="dataset itself"):
            check_outside(folder / name, folder, manifest)
