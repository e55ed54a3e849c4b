"""Type checkers learn the types of a table's keys and values from the options of its log: `make check` proves it."""

from dataclasses import asdict, dataclass
from typing import Any, assert_type, cast

import pytest

import statelog
from statelog import Writer
from statelog.errors import InvalidChange
from statelog.log import LogOptions, Where
from statelog.tables import Table, Worker
from tests.support.rigs.log import twin_rig

_SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}'


def doors(where: Where) -> None:
    """Check types. Nothing calls this function."""
    assert_type(statelog.table("t", where), Table[Any, Any])
    assert_type(statelog.table("t", where, create=True), Table[Any, Any])
    assert_type(statelog.table("t", where, create=LogOptions()), Table[bytes, bytes])
    assert_type(statelog.table("t", where, create=LogOptions(key_type="long", partitions=2)), Table[int, bytes])
    assert_type(statelog.worker("t", where, topic="in", create=LogOptions(key_type="string")), Worker[str, bytes])
    assert_type(statelog.table("t", where, create=LogOptions(value_type="json")), Table[bytes, Any])
    assert_type(statelog.table("t", where, create=LogOptions(key_type="long", value_type="json")), Table[int, Any])


def test_a_table_has_the_types_of_its_options() -> None:
    """A table accepts and returns the types that checkers derive."""
    rig = twin_rig("typed")
    options = assert_type(LogOptions(key_type="string", value_schema=_SCHEMA), LogOptions[str, dict[str, Any]])
    with statelog.table("typed", rig.where(), create=options) as table:
        assert_type(table, Table[str, dict[str, Any]])
        table["a"] = {"amount": 1}
        assert table["a"] == {"amount": 1}


@dataclass(frozen=True)
class _Order:
    amount: int


def test_an_object_as_a_value_is_refused_with_a_way_to_store_it() -> None:
    """A table and a writer refuse an object as a value. The hint names its conversion to a dict, which is accepted."""
    rig = twin_rig("typed")
    options, order = LogOptions(key_type="string", value_schema=_SCHEMA), cast("Any", _Order(amount=1))
    with statelog.table("typed", rig.where(), create=options) as table:
        with pytest.raises(InvalidChange, match=r"dataclasses\.asdict\(value\)"):
            table["a"] = order
        table["a"] = asdict(order)
    with rig.open() as log, Writer(log, "w") as writer, pytest.raises(InvalidChange, match=r"dataclasses\.asdict\("):
        writer.put("b", order)
