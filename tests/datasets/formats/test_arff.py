"""The ARFF reader: whatever is written comes back, whatever is wrong is refused with its line."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.datasets.formats.arff import ArffTable, Attribute
from rbdata.errors import CorruptSourceError


def read(text: str, rows: int = 3) -> tuple[tuple[Attribute, ...], list[list]]:
    """Attributes and columns; nominal codes and numbers as lists, None for text."""
    reader = ArffTable(text.splitlines(keepends=True), "t.arff")
    blocks = list(reader.blocks(rows))
    columns = []
    for at, attribute in enumerate(reader.attributes):
        parts = [block[at] for block in blocks]
        columns.append(None if attribute.kind == "string" else np.concatenate(parts).tolist() if parts else [])
    return reader.attributes, columns


HEAD = "@relation t\n@attribute a numeric\n@attribute b {x, 'y z', \"it's\", 3}\n@attribute c string\n@data\n"


def test_trap_53_quotes_spaces_escapes_percent_and_missing():
    _, columns = read(
        "% a comment\n\n" + HEAD + "1 ,  x ,plain\n"
        "% a comment among rows\n"
        "2.5e3,'y z','a, b'\n"
        '?,"it\'s",50% of it\n'
        '-0,3,"\\"q\\" 100\\%"\n'
        "\t7\t,\tx\t,'it\\'s'\n"
        "+1,'it\\'s',?\n"
    )
    assert columns[1] == [0, 1, 2, 3, 0, 2]
    numbers = columns[0]
    assert np.isnan(numbers[2]) and numbers[:2] + numbers[3:] == [1, 2500, 0, 7, 1]


def test_trap_50_sparse_rows():
    """What is left out is zero, or the first nominal value; a row of nothing is a row."""
    text = (
        "@relation t\n@attribute n numeric\n@attribute c {a, b}\n@data\n{1 b}\n{0 2}\n{ 0 -1 , 1 a }\n{0 ?, 1 b}\n{}\n"
    )
    _, (numbers, codes) = read(text)
    assert codes == [1, 0, 0, 1, 0]
    assert numbers[:3] == [0, 2, -1] and np.isnan(numbers[3]) and numbers[4] == 0


def test_trap_52_codes_follow_the_declaration():
    attributes, (codes,) = read("@attribute c { z, 'a b', m }\n@DATA\nm\n'a b'\nz\n")
    assert attributes[0].values == ("z", "a b", "m") and codes == [2, 1, 0]


def test_declarations_in_every_form():
    attributes, _ = read(
        "@RELATION 'a relation'\n@ATTRIBUTE 'it\\'s' REAL\n@attribute \"d q\" Integer [0, 10]\n@attribute plain{a,b}\n"
        "@attribute when DATE 'yyyy'\n@attribute x\tnumeric\n@attribute 50% {'\\u00e9', \"\\t\"}\n@data\n"
    )
    assert [(attribute.name, attribute.kind) for attribute in attributes] == [
        ("it's", "numeric"),
        ("d q", "numeric"),
        ("plain", "nominal"),
        ("when", "string"),
        ("x", "numeric"),
        ("50%", "nominal"),
    ]
    assert attributes[-1].values == ("é", "\t")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no @data"),
        ("<html></html>\n", "line 1: .* is not an ARFF declaration"),
        ("@data\n1\n", "declares no attributes"),
        ("@attribute a relational\n@data\n", "type 'relational'"),
        ("@attribute a\n@data\n", "without a name and a type"),
        ("@attribute a {x, y\n@data\n", "do not end with a brace"),
        ("@attribute a {x, x}\n@data\n", "declares a value twice"),
        ("@attribute a real\n@attribute a real\n@data\n", "declares 'a' twice"),
        (HEAD + "1,x\n", "line 6: 2 values for 3 attributes"),
        (HEAD + "1,x,y,\n", "line 6: 4 values"),
        (HEAD + "1,x,y,{5}\n", "line 6: 4 values"),
        (HEAD + "one,x,y\n", "line 6: 'a' is numeric, 'one' is not a number"),
        (HEAD + "1,X,y\n", "line 6: 'X' is not among"),
        (HEAD + "1,'x,y\n", "line 6: a quote is out of place"),
        (HEAD + "1,'x'y,y\n", "line 6: a quote is out of place"),
        (HEAD + "{0 1, 0 2}\n", "line 6: the index 0 is out of order"),
        (HEAD + "{7 1}\n", "line 6: the index 7 is out of order or out of range"),
        (HEAD + "{0 1\n", "line 6: a sparse row does not end"),
        (HEAD + "{0}\n", "line 6: not an index and a value"),
        (HEAD + "1,x,fine\n,x,y\n", "line 7: 'a' is numeric, '' is not a number"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text, match):
    with pytest.raises(CorruptSourceError, match=match):
        read(text)


marks = st.sampled_from(["'", '"'])
words = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=8)


def quoted(value: str, mark: str) -> str:
    body = value.replace("\\", "\\\\").replace(mark, "\\" + mark).replace("\t", "\\t")
    return f"{mark}{body}{mark}"


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_whatever_is_written_comes_back(data):
    """Names, values and rows of any text; every value quoted in a way drawn, plain where it may be."""
    names = data.draw(st.lists(words.filter(bool), min_size=1, max_size=3, unique=True))
    lists = [data.draw(st.none() | st.lists(words, min_size=1, max_size=4, unique=True)) for _ in names]

    def written(value: str) -> str:
        plain = value == value.strip() and value not in ("", "?") and not set(value) & set("',\"{}%\\\t")
        form = data.draw(st.sampled_from(["'", '"', ""] if plain else ["'", '"']))
        return quoted(value, form) if form else value

    lines = ["@relation x"]
    for name, values in zip(names, lists):
        kind = "real" if values is None else "{" + " , ".join(map(written, values)) + "}"
        lines.append(f"@attribute {quoted(name, data.draw(marks))} {kind}")
    lines.append("@data")
    columns: list[list] = [[] for _ in names]
    for _ in range(data.draw(st.integers(0, 5))):
        row, sparse = [], data.draw(st.booleans())
        for at, values in enumerate(lists):
            if sparse and data.draw(st.booleans()):
                columns[at].append(0)  # left out
                continue
            if data.draw(st.integers(0, 4)) == 0:
                value, text = (-1 if values else None), "?"
            elif values is None:
                value = data.draw(st.floats(allow_nan=False, allow_infinity=False))
                text = repr(value)
            else:
                value = data.draw(st.integers(0, len(values) - 1))
                text = written(values[value])
            columns[at].append(value)
            row.append(f"{at} {text}" if sparse else text)
        space = data.draw(st.sampled_from(["", " "]))
        lines.append("{" + (space + "," + space).join(row) + "}" if sparse else (space + "," + space).join(row))
    attributes, found = read("\n".join(lines) + "\n", rows=2)
    assert [attribute.name for attribute in attributes] == names
    for attribute, values, column, back in zip(attributes, lists, columns, found):
        assert attribute.values == tuple(values or ())
        assert [None if value != value else value for value in back] == column


def test_a_question_mark_that_is_a_declared_value():
    """Unquoted it is a missing value in rows of every form, quoted it is the value."""
    text = "@relation x\n@attribute a {'?',b}\n@attribute n real\n@data\n?,1\n'?',1\n? , 1\n{0 ?, 1 1}\n{0 '?', 1 1}\nb,?\n"
    _, (codes, numbers) = read(text, rows=2)
    assert codes == [-1, 0, -1, -1, 0, 1] and numbers[:5] == [1] * 5 and numbers[5] != numbers[5]
