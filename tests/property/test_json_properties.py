"""Any JSON value comes back equal: in the table, after a commit, in another process, and in every reader."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statelog
from statelog.errors import InvalidChange
from statelog.log import LogOptions
from statelog.producer import Writer
from statelog.recovery import read
from statelog.schemas.values.json_text import decode_json, encode_json
from tests.support.rigs.log import twin_rig

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    st.none() | SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12
).filter(lambda value: value is not None)
STRANGE = st.binary() | st.just(float("nan")) | st.tuples(st.integers()) | st.just("\udfff") | st.sets(st.integers())


def _spelt(value: object) -> str:
    """Return a spelling that tells 1 from 1.0, True and -0.0."""
    return json.dumps(value)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=8))
def test_values_come_back_equal(state: dict[str, Any]) -> None:
    """Values come back equal from a table, from a recovery, and as the text of a column, which a writer takes."""
    rig = twin_rig("log")
    options = LogOptions(partitions=2, key_groups=4, key_type="string", value_type="json")
    with statelog.table("log", rig.where(), create=options) as table:
        table.update(state)
        assert _spelt(dict(table.range())) == _spelt({key: state[key] for key in sorted(state)})
        table.commit({"n": 1})
        assert {key: _spelt(table[key]) for key in state} == {key: _spelt(value) for key, value in state.items()}
    found = read("log", rig.where())
    assert {key: _spelt(value) for key, value in found.to_dict().items()} == {
        key: _spelt(value) for key, value in state.items()
    }
    texts = found.to_arrow().select(["key", "value"])
    assert texts.schema.field("value").type == pa.string()
    with statelog.open("copy", rig.where(), create=options) as log, Writer(log, "w") as writer:
        writer.append_batch(texts)
        writer.commit()
    assert read("copy", rig.where()).to_dict() == state


@settings(max_examples=200, deadline=None)
@given(st.recursive(SCALARS | STRANGE, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=6))
def test_a_value_comes_back_or_is_refused(value: object) -> None:
    """A value comes back or is refused: none comes back as another one."""
    try:
        text = encode_json(value, "k")
    except InvalidChange as error:
        assert str(error.facts["field"]).startswith("value")
        with pytest.raises((TypeError, ValueError, AssertionError)):
            assert json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode()) == value
    else:
        assert decode_json(text) == value
