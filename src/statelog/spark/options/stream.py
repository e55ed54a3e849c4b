"""Options of a stream of committed changes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from statelog.errors import ConfigError
from statelog.reading.plan import Bound
from statelog.schemas.names import check_name
from statelog.spark.options.address import LogAddress
from statelog.spark.options.bounds import bound
from statelog.spark.options.parsing import lowered, refuse_unknown
from statelog.spark.options.reading import READING, positive, reading_options

__all__ = ["Beginning", "OnTruncation", "StreamOptions", "names_stream", "stream_options"]

LEASE_S = 3600
_STARTS = ("startingPosition", "startingWriter", "startingCheckpoint", "startingTime")
_LIMITS = ("maxChangesPerTrigger", "maxBytesPerTrigger")
_OWN = (*_STARTS, *_LIMITS, "readerId", "onTruncation")
_KNOWN = (*READING, *_OWN)


class Beginning(StrEnum):
    """Where a new stream begins, if not at a named place of the history."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"


class OnTruncation(StrEnum):
    """What a stream does whose place was truncated: end with an error, or begin anew from a snapshot."""

    FAIL = "fail"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """A stream of changes.

    `max_changes` and `max_bytes` (of record values) end a micro-batch at the last commit within them, at least one;
    None for no limit. `reader` is the id of its subscription, None for a lease, which holds `lease_s` after the last
    micro-batch began, 0 for not.
    """

    where: LogAddress
    start: Beginning | Bound
    reader: str | None = None
    max_changes: int | None = None
    max_bytes: int | None = None
    on_truncation: OnTruncation = OnTruncation.FAIL
    key_groups: tuple[int, ...] | None = None
    min_partitions: int | None = None
    columns: tuple[str, ...] | None = None
    lease_s: int = LEASE_S


def names_stream(options: Mapping[str, str]) -> bool:
    """Whether the options can only be those of a stream. Spark asks for columns without saying what it is for."""
    given = lowered(options)
    if given.get("read", "changes").lower() != "changes":
        return False
    own = {name.lower() for name in _OWN} - ({name.lower() for name in _STARTS} if "read" in given else set())
    begins = given.get("startingposition", "").lower()
    return bool(own & given.keys()) or begins in (Beginning.LATEST, Beginning.SNAPSHOT)


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of a stream. Raises ConfigError that names the option, InvalidName."""
    given = lowered(options)
    refuse_unknown(given, _KNOWN, "stream of changes")
    if given.get("read", "changes").lower() != "changes":
        raise ConfigError(
            f"a stream cannot read {given['read']!r}", hint="Leave the option read out: a stream reads changes"
        )
    reader = given.get("readerid")
    return StreamOptions(
        **reading_options(given, lease_s=LEASE_S),
        start=_start(given),
        reader=None if reader is None else check_name("reader", reader),
        max_changes=positive(given, "maxChangesPerTrigger"),
        max_bytes=positive(given, "maxBytesPerTrigger"),
        on_truncation=_on_truncation(given),
    )


def _start(given: Mapping[str, str]) -> Beginning | Bound:
    word = given.get("startingposition", "").lower()
    words = [one.value for one in Beginning]
    if not any(name.lower() in given for name in _STARTS):
        raise ConfigError(
            "the option startingPosition is missing",
            hint=f"Say where a new stream begins: {', '.join(words)}, or a ledger position; or startingWriter with"
            " startingCheckpoint; or startingTime",
        )
    if word in (Beginning.LATEST, Beginning.SNAPSHOT):
        bound({**given, "startingposition": Beginning.EARLIEST}, "starting", open_word=Beginning.EARLIEST)
        return Beginning(word)
    return bound(given, "starting", open_word=Beginning.EARLIEST) or Beginning.EARLIEST


def _on_truncation(given: Mapping[str, str]) -> OnTruncation:
    text = given.get("ontruncation", OnTruncation.FAIL).lower()
    if text not in list(OnTruncation):
        raise ConfigError(f"the option onTruncation is {text!r}", hint="Give fail or snapshot")
    return OnTruncation(text)
