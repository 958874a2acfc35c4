"""Sizes as users write them."""

import pytest
from rbdata.errors import UsageError
from rbdata.storage.amounts import parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * 10**9), ("1.5 mb", 1_500_000), ("3KiB", 3072), ("7", 7), (12, 12), ("1T", 10**12)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "two", "-1MB", "1 2", "1PB"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)
