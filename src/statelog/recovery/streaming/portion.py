"""`Portion`: some changes, and the cursor of a reader that has applied them. Pure."""

from typing import NamedTuple

import pyarrow as pa

from statelog.recovery.streaming.cursor import Cursor

__all__ = ["Portion"]


class Portion(NamedTuple):
    """Changes (key_group, op, key, value) to apply in order, and how far the reader is once it has applied them.

    A portion may be empty: then the state is complete, or a commit changed nothing.
    """

    changes: pa.Table
    cursor: Cursor
