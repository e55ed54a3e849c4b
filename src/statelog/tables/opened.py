"""`Opened`: what a table is made of, once it is open."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from statelog.environment import Environment
from statelog.producer import Writer
from statelog.producer.sending.change_maker import ChangeMaker
from statelog.storage import Log
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.settings import TableSettings
from statelog.tables.state.home import Home
from statelog.tables.state.opening import Opening
from statelog.tables.state.state import State

__all__ = ["LARGE", "WEIGHED", "Opened"]

LARGE = 1 << 20
"""From here on a change is measured when it is put, and not when it is committed."""
WEIGHED = 4 << 10
"""From here on a put counts for its bytes; smaller ones of bytes are bounded well enough by how many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The parts of an open table. The table releases them."""

    log: Log
    writer: Writer
    keys: KeyRule
    values: ValueRule
    state: State
    home: Home | None
    opening: Opening
    settings: TableSettings
    environment: Environment

    def check_size(self, key: Any, value: Any) -> int:
        """About how large a change is. Raises ValueTooLarge if no chunk could hold it; a value of None deletes."""
        size = self.keys.size(key) + (0 if value is None else self.values.size(value))
        if size < LARGE:
            return size
        grant, keys = self.writer.grant, self.keys
        maker = ChangeMaker(grant.descriptor, grant.value_schema, grant.partitions)
        maker.of_rows([keys.plain(key)], [value], [keys.group(key)])
        return size

    def release(self, *, is_failed: bool) -> None:
        """Close all of it; a writer that failed has nothing to warn of."""
        with ExitStack() as closing:
            closing.callback(self.log.close)
            if self.home is not None:
                closing.callback(self.home.close)
            closing.callback(self.state.close)
            if is_failed:
                self.writer.__exit__(RuntimeError, None, None)
            else:
                self.writer.close()
