"""What a stream hands out: some changes, and how far the reader is once it has applied them. Pure."""

from typing import NamedTuple

import pyarrow as pa

from statelog.recovery.streaming.cursor import Cursor

__all__ = ["Portion"]


class Portion(NamedTuple):
    """Changes (key_group, op, key, value) to apply in order, and how far the reader is once it has applied them.

    A portion may be empty: it tells that the state is complete, or that somebody committed nothing.
    """

    changes: pa.Table
    cursor: Cursor
