"""Columns that Spark was given against those of what is read: one check, and the value schema that has them."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statelog.errors import ConfigError
from statelog.schemas.values.schema import ValueSchema, parse_value_schema
from statelog.spark.columns import check_columns, newest_with

_FIELDS = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}%s]}'
_MORE = ', {"name": "more", "type": ["null", "string"], "default": null}'
_SCHEMAS = [parse_value_schema(_FIELDS % more, number) for number, more in enumerate(("", "", _MORE), 1)]
_N = StructField("n", LongType())
_OLD, _NEW = StructType([_N]), StructType([_N, StructField("more", StringType())])


def _columns_of(schema: ValueSchema) -> StructType:
    return _NEW if "more" in str(schema.arrow_type) else _OLD


def test_the_newest_value_schema_that_has_the_columns() -> None:
    """Of two with the same columns it is the later one; a query that is older than the last evolution has its own."""
    assert newest_with(_NEW, _SCHEMAS, _columns_of, "the state").id == 3
    assert newest_with(_OLD, _SCHEMAS, _columns_of, "the state").id == 2


def test_other_columns_are_refused_with_both_lists() -> None:
    """Another type, another name, another order: the error has what was given and what is there."""
    check_columns(_OLD, _OLD, "the view")
    for given in (StructType([StructField("n", StringType())]), StructType(_NEW.fields[::-1])):
        with pytest.raises(ConfigError, match="differs from that of the changes") as caught:
            newest_with(given, _SCHEMAS, _columns_of, "the changes")
        assert caught.value.facts["expected"] == _NEW.simpleString()
        assert caught.value.facts["given"] == given.simpleString()
