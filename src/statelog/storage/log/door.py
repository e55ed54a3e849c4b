"""Two more doors to a log: its snapshots alone, without Kafka; and a new one that is closed to all but its maker."""

from functools import partial

from statelog.schemas.ledger.records import Restart
from statelog.storage.log.files import ManifestChain, descriptor_of
from statelog.storage.log.log import Log
from statelog.storage.log.making import make_log
from statelog.storage.log.options import LogOptions
from statelog.storage.log.where import Where, no_kafka, opened_ports, opened_store


def open_snapshots(name: str, where: Where) -> Log:
    """A log whose cluster is not asked, to read its snapshots alone. Raises NotFound, Damaged, StoreUnavailable,
    ConfigError.
    """
    store = opened_store(name, where)
    made = descriptor_of(store, name)
    newest = ManifestChain(store, made).newest_of_any()
    return Log(made.at(newest.manifest.identity) if newest else made, no_kafka(), store)


def create_closed(name: str, where: Where, options: LogOptions, *, reason: str, operator: str) -> Log:
    """Make a log that is read and written only from a snapshot on that somebody has yet to put: its ledger begins with
    a Restart behind which nothing counts that was folded from the first record.

    Raises AlreadyExists, InvalidName, ConfigError, UnsafeTopic, UnsafeStore, Unavailable.
    """
    mark = partial(Restart, position=1, reason=reason, operator=operator)
    with opened_ports(name, where) as ports:
        made = make_log(ports, name, options, where.replication_factor, mark)
    return Log(made, ports.kafka, ports.store, waived=ports.waived)
