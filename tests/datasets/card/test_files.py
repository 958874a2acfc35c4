import pytest
from rbdata.datasets.card.files import check_target
from rbdata.errors import DatasetExistsError, UsageError


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
