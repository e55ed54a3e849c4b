"""`promote`: a standby's state becomes its owner's table: the Open, the rest up to it, and the same state.

    1  stop    the follower makes no more steps                         follower.py
    2  Open    fences the former owner: what is committed is final      producer
    3  judge   the state stands below that Open, in its value schema    here
    4  read    what was committed between the state and the Open        follower.py
    5  hand    state, directory and log over to the table             here

Invariants:
- The table's state is that at the owner's Open: every commit that anybody was told of is in it.
- Before the Open stands, a failure changes nothing: the standby goes on. After it, it ends the standby.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress

from statelog.errors import BeyondEnd, BrokerUnavailable, DataLoss
from statelog.producer import Writer
from statelog.tables.opened import Opened
from statelog.tables.opening.share import Share
from statelog.tables.standing.follower import Follower
from statelog.tables.state.opening import Opening, Wanted

__all__ = ["promote"]

_PAUSE_S = 0.05


def promote(follower: Follower, share: Share) -> Opened:
    """The parts of the table. Raises what opening a writer raises, and then the standby goes on; and what reading the
    rest raises, and then it has failed.
    """
    of, environment = follower.builder, follower.builder.environment
    with follower.state.without_scans(), _turn(follower, of.settings.recovery.stall_timeout_s):
        follower.state.check()
        writer = environment.run(Writer, of.log, of.owner, partitions=share.partitions, settings=of.settings.writer)
        try:
            environment.crash("promoting")
            opening = _catch_up(follower, writer)
            version = follower.state.version
            environment.crash("promoted")
            follower.stop()
            follower.state.let_go("promoted")
            environment.start(follower.feed.close)
        except BaseException as error:
            follower.state.fail(error)
            with suppress(Exception):
                writer.__exit__(type(error), error, None)
            raise
        return Opened(
            log=of.log,
            writer=writer,
            keys=of.keys,
            values=version.values,
            state=version.state,
            home=of.home,
            opening=opening,
            settings=of.settings,
            environment=environment,
        )


@contextmanager
def _turn(follower: Follower, timeout_s: float) -> Generator[None]:
    """Between two of its steps. Raises BrokerUnavailable if one does not end in time."""
    if not follower.lock.acquire(timeout=timeout_s):
        raise BrokerUnavailable("the standby waits for Kafka or the store to go on", waited_s=timeout_s)
    try:
        yield
    finally:
        follower.lock.release()


def _catch_up(follower: Follower, writer: Writer) -> Opening:
    """Bring the state to the owner's Open."""
    before, position = follower.state.version, writer.position
    if before.place.position > position:
        raise BeyondEnd(
            "the owner's Open stands below what the standby has followed",
            position=before.place.position,
            open_position=position,
            hint="The ledger lost records that were committed: restore the topic",
        )
    schema = writer.grant.value_schema
    if schema.id != before.values.schema.id:
        follower.rebuild("the table has a newer value schema", position, schema)
    while follower.state.version.place.position < position:
        follower.step(position)
        if not follower.feed.is_answered:
            follower.pause(_PAUSE_S)
    if follower.state.version.values.schema.id != schema.id:
        follower.rebuild("it was made anew in another value schema than the table's", position, schema)
    place, reached = Wanted.by(writer).place, follower.state.version
    if place.losses != reached.place.losses:
        raise DataLoss("a loss was accepted while the standby was promoted", hint="Open the table")
    with follower.state.moving():
        reached.state.move(place)
    is_same = reached.state is before.state
    return Opening(
        position=position,
        from_position=before.place.position if is_same else None,
        set_aside=None if is_same else reached.opening.set_aside,
        reason="" if is_same else reached.opening.reason,
    )
