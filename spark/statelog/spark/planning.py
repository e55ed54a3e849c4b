"""The planning process: gives every batch a task grant, out of an epoch that it opens once.

Spark plans all batches of a query in a Python worker beside the driver, which usually lives as long as the session. It
is the only process that pickles a sink's writer, and that is when this module is called. So the epoch is opened when
the first batch is planned, and for later ones the ledger is read on from there: a batch is planned only after the
one before was committed, so what is read then is the base of the next commit.

Invariants:
- One Open per planning process and query run, except after the epoch was lost to a sibling: Spark may plan with
  another idle worker, and the commit process may have settled an unknown outcome. Siblings know each other by the
  first half of their nonces.
- An epoch that a stranger fenced is never taken back. The query fails with Fenced; started again, it opens anew.
- Task attempt ids are the slots of change sets. They are unique within a Spark context, and a planning process, so
  an epoch, never outlives its context.
"""

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path

from statelog.producer.opening import Opened, open_epoch
from statelog.producer.tasks import TaskGrant
from statelog.schemas.errors import Fenced
from statelog.schemas.ledger_state import LiveEpoch
from statelog.spark.clients import ProcessCache, cached_log
from statelog.spark.options import LogOptions, WriteOptions

__all__ = ["plan_batch", "sibling_nonces"]

_TAG_BYTES = 8
_epochs: ProcessCache[tuple[LogOptions, str, str], Opened] = ProcessCache()

NewNonce = Callable[[], bytes]


def plan_batch(options: WriteOptions) -> TaskGrant:
    """The right to write the next batch. Raises Fenced, OutcomeUnknown, Damaged, Unavailable, ConfigError."""
    key = (options.where, options.writer, options.checkpoint_location)
    opened = _epochs.get(key)
    try:
        if opened is None:
            opened = _epochs.put(key, _open(options, None))
        else:
            opened.ledger.read_end()
            if not _is_live(opened):
                opened = _epochs.put(key, _open(options, _successor(opened, options)))
    except BaseException:
        _epochs.drop(key)
        raise
    base = opened.ledger.fold.last_checkpoint(options.writer)
    return TaskGrant(grant=opened.grant, base=base, checkpoint_id=base.id + 1)


def sibling_nonces(nonce: bytes) -> NewNonce:
    """Makes nonces of the same run as `nonce`, for a process that acts for the one that opened."""
    return lambda: nonce[:_TAG_BYTES] + os.urandom(16 - _TAG_BYTES)


def _open(options: WriteOptions, successor: LiveEpoch | None) -> Opened:
    opened = open_epoch(
        cached_log(options.where),
        options.writer,
        ours=None if successor is None else [successor.nonce],
        new_nonce=sibling_nonces(_run_tag(options)),
    )
    opened.producer.close()  # It was for the Open; commits go out from the commit process.
    return opened


def _is_live(opened: Opened) -> bool:
    live = opened.ledger.fold.live_epoch(opened.grant.epoch)
    return live is not None and live.nonce == opened.grant.nonce


def _successor(opened: Opened, options: WriteOptions) -> LiveEpoch | None:
    """The sibling's epoch that replaced ours. None for a plain batch write, whose every run may open anew."""
    fold = opened.ledger.fold
    newest = fold.live_epoch(fold.prior(options.writer, opened.grant.partitions))
    if newest is not None and newest.nonce[:_TAG_BYTES] == opened.grant.nonce[:_TAG_BYTES]:
        return newest
    if options.serves_query:
        raise Fenced(
            "another writer took over",
            writer=options.writer,
            by_writer=newest.writer if newest else None,
            hint="Stop this query if the other one should go on; started again, it takes over itself",
        )
    return None


def _run_tag(options: WriteOptions) -> bytes:
    """The same in all planning workers of one Spark session that serve this query, for they have one parent."""
    parent = os.getppid()
    started = _start_time(parent)
    facts = (platform.node(), parent, started, options.where.log, options.writer, options.checkpoint_location)
    return hashlib.sha256(repr(facts).encode()).digest()[:_TAG_BYTES]


def _start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; '' where the kernel does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
