"""Settings of a new log: its counts, checked before any request to Kafka. Pure."""

from statelog.errors import ConfigError

__all__ = ["check_log_counts"]

_MOST_REPLICAS = 10_000  # What the client can say.


def check_log_counts(partitions: object, key_groups: object, replication_factor: object) -> None:
    """Raise ConfigError for a number that no log can have."""
    groups = _whole("key_groups", key_groups, 65536, "65536")
    _whole("partitions", partitions, groups, f"key_groups, which is {groups}")
    _whole("replication_factor", replication_factor, _MOST_REPLICAS, str(_MOST_REPLICAS))


def _whole(name: str, value: object, most: int, most_text: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r} and must be a whole number from 1 to {most_text}")
    return value
