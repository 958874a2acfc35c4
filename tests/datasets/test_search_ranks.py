"""Words, kinds and sizes against a few entries."""

from __future__ import annotations

import pytest
from rbdata.datasets.search import nearest_words, rank, select
from rbdata.datasets.sources.catalogue_entry import CatalogueEntry, Place
from rbdata.errors import UsageError

OPEN, CLOSED = Place("web", "https://x", "open"), Place("bucket", "gs://x", "closed")
ENTRIES = [
    CatalogueEntry("a/hopper-medium-v0", places=(OPEN,), observations="vector", bytes=10),
    CatalogueEntry("a/hopper-medium-replay-v2", places=(OPEN,), observations="vector", bytes=2000),
    CatalogueEntry("a/hopper-medium-v2", places=(OPEN,), observations="vector", actions="continuous"),
    CatalogueEntry("a/hopper-medium-v3", places=(CLOSED,)),
    CatalogueEntry("b/CartPole-v1", tags=("classic control",), observations="vector", actions="discrete"),
    CatalogueEntry("b/Pong/1", environment="Pong", tags=("atari", "grasshopper"), observations="image"),
]


def ids(*words: str) -> list[str]:
    return [entry.id for entry in rank(ENTRIES, words)]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["hopper", "medium"], "a/hopper-medium-v2"),  # fewest other words, newest, and can be had
        (["hopper medium replay"], "a/hopper-medium-replay-v2"),
        (["MEDIUM", "v0"], "a/hopper-medium-v0"),
        (["cart"], "b/CartPole-v1"),
        (["cartpole-v1"], "b/CartPole-v1"),
        (["control"], "b/CartPole-v1"),
        (["pixels"], "b/Pong/1"),
        (["atar"], "b/Pong/1"),
        (["1"], "b/Pong/1"),
    ],
)
def test_the_best_match_comes_first(words, first):
    assert ids(*words)[0] == first


def test_all_words_must_match_somewhere():
    assert ids("hopper", "discrete") == []
    assert ids("hopper")[-1] == "b/Pong/1"  # inside a word of a tag: last, after what is closed
    assert ids("op") == [] or "b/Pong/1" not in ids("op")  # two letters are not searched for inside words
    assert ids() == [entry.id for entry in ENTRIES] == ids("-", "")


def test_kinds_and_size():
    vector, unknown = select(ENTRIES, "vector", None, 100)
    assert ([entry.id for entry in vector], unknown) == (["a/hopper-medium-v0"], 2)
    assert [entry.id for entry in select(ENTRIES, None, "discrete")[0]] == ["b/CartPole-v1"]
    for kinds in ({"observations": "images"}, {"actions": "box"}):
        with pytest.raises(UsageError, match="there is no kind"):
            select(ENTRIES, **kinds)


def test_words_to_try_instead():
    assert nearest_words(ENTRIES, ["hoper", "medium"]) == ["hopper"]
    assert nearest_words(ENTRIES, ["zzzz"]) == []
