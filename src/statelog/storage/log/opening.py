"""An Open: appended, and read back. A writer begins its epoch with one; a finishing copy ends everybody else's.

Invariants:
- An Open counts only once it was read back, valid and live, and the cluster still is the log's.
- A producer sends the next Open only after the one before it was acknowledged.
"""

from contextlib import closing

from statelog.environment import current_environment
from statelog.errors import LogInUse
from statelog.schemas.ledger.records import Open
from statelog.schemas.ledger.state import LiveEpoch
from statelog.schemas.names import COPIER
from statelog.schemas.topic_policy import LEDGER_WRITING
from statelog.storage.kafka import Producer
from statelog.storage.ledger_client import LedgerClient
from statelog.storage.log.log import Log

OPENS = 32
"""How many Opens a producer sends before everything is checked again."""


def append_open(
    log: Log, ledger: LedgerClient, producer: Producer, writer: str, partitions: tuple[int, ...], nonce: bytes
) -> LiveEpoch | None:
    """Append an Open that names what `ledger` has folded, and read it back.

    Return None if it is void, because another record came in between. Raises OutcomeUnknown, Damaged, Unavailable.
    """
    fold = ledger.fold
    record = Open(
        writer=writer,
        partitions=partitions,
        nonce=nonce,
        prior=fold.prior(writer, partitions),
        last=fold.last_checkpoint(writer),
        identity=log.descriptor.identity,
        witness=ledger.place,
    )
    epoch = ledger.send(producer, record).result()
    void = ledger.verdict(epoch, record, verify=log.verify_anew)
    live = ledger.fold.live_epoch(epoch)
    return live if void is None and live is not None and live.nonce == nonce else None


def fence_writers(log: Log) -> int:
    """Open all partitions of the log in the name of the copy, and return the epoch.

    While that epoch is live, the commits below it are all that there are. Raises LogInUse if others keep opening,
    ConfigError without the right to write the ledger, OutcomeUnknown, Damaged, Unavailable.
    """
    log.verify(LEDGER_WRITING)
    partitions, environment = tuple(range(log.descriptor.partitions)), current_environment()
    with closing(log.checked_ledger()) as ledger, closing(log.kafka.producer()) as producer:
        for _ in range(OPENS):
            live = append_open(log, ledger, producer, COPIER, partitions, environment.nonce())
            if live is not None:
                log.saw(ledger.place)
                return live.epoch
    raise LogInUse("other writers keep opening at the same time", log=log.name, hint="Stop them, and run it again")
