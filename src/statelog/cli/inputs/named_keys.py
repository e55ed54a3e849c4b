"""Keys as a person names them on the command line: texts to keys of the log's type, and their rows in a state. Pure."""

import base64
import binascii
import os
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statelog.cli.inputs.fields import BytesText
from statelog.errors import InvalidChange
from statelog.schemas.keys.key_groups import KeyType, key_bytes

__all__ = ["read_keys", "rows_of"]

_NUMBER = re.compile(r"[+-]?[0-9]+")


def read_keys(texts: Sequence[str], key_type: KeyType, bytes_text: BytesText) -> pa.Array:
    """The keys as a column, in their order. Bytes are UTF-8, or whatever bytes the shell gave; or base64.

    Raises InvalidChange for a text that is no such key.
    """
    keys = [_read_key(text, key_type, bytes_text) for text in texts]
    for key in keys:
        key_bytes(key, key_type)  # Which refuses what no key can be.
    return pa.array(keys, key_type.arrow_type)


def rows_of(table: pa.Table, keys: pa.Array) -> pa.Table:
    """The rows of these keys, in the table's order."""
    return table.filter(pc.is_in(table.column("key"), value_set=keys))


def _read_key(text: str, key_type: KeyType, bytes_text: BytesText) -> Any:
    match key_type:
        case KeyType.STRING:
            return text
        case KeyType.LONG if _NUMBER.fullmatch(text):
            return int(text)
        case KeyType.LONG:
            raise InvalidChange("this log has numbers as keys", key=text, hint="Write digits, negative ones behind --")
        case KeyType.BYTES if bytes_text is BytesText.BASE64:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise InvalidChange("a key is not base64", key=text, hint="Check --bytes") from None
        case KeyType.BYTES:
            return os.fsencode(text)
