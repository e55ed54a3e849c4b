"""`MetaBuffer`: meta records that no checkpoint holds yet.

Invariant: all unconfirmed ones, those of pending checkpoints included, fit in one commit.
"""

from statelog.errors import InvalidChange, ValueTooLarge
from statelog.schemas.ledger.metadata import has_utf8

__all__ = ["MetaBuffer", "meta_size"]

_MOST_BYTES = 8 << 20  # Leaves as much of a commit for the handles and the metadata.


class MetaBuffer:
    """Collects meta records until a checkpoint takes them; the last value of a key wins, and None removes it."""

    def __init__(self) -> None:
        self._records: dict[str, bytes | None] = {}
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._records)

    def put(self, key: str, value: bytes | None, held_bytes: int) -> None:
        """Set a record. Raises InvalidChange unless it is text, and bytes or None; ValueTooLarge if no commit could
        hold it beside the others and the `held_bytes` of pending checkpoints.
        """
        _check_types(key, value)
        replaced = meta_size(key, self._records[key]) if key in self._records else 0
        others = self._size_bytes - replaced
        size = meta_size(key, value)
        if held_bytes + others + size > _MOST_BYTES:
            raise ValueTooLarge(
                "meta records are larger than a commit may hold",
                hint="Keep them small, and store the large part elsewhere; what a commit confirmed makes room",
                size_bytes=size,
                held_bytes=held_bytes + others,
                max_bytes=_MOST_BYTES,
            )
        self._size_bytes = others + size
        self._records[key] = value

    def take(self) -> dict[str, bytes | None]:
        """Empty the buffer, and return what was in it."""
        records, self._records, self._size_bytes = self._records, {}, 0
        return records


def meta_size(key: str, value: bytes | None) -> int:
    """The bytes that a meta record, or the removal of one, takes in a commit."""
    return len(key.encode()) + len(value or b"")


def _check_types(key: object, value: object) -> None:
    if type(key) is not str or not (value is None or type(value) is bytes) or not has_utf8(key):
        raise InvalidChange(
            f"a meta record is a text key with bytes or None, not {type(key).__name__} and {type(value).__name__}"
        )
