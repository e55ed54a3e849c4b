"""`state`: a DataFrame of a log's state that is held for as long as the program wants.

A thread of the driver's process renews one lease, which stops truncation short of what the DataFrame reads; it is
removed at the end. So that process has to reach the store, and the brokers to plan.

Invariant: the lease is capped by its age, as every lease is (`lease_cap_s` of the materializer): a program that forgot
to end does not hold a log for ever.
"""

import logging
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from threading import Event, Thread

from pyspark.sql import DataFrame, SparkSession

from statelog.environment import Environment
from statelog.errors import Misuse, StatelogError
from statelog.reading.planner import Planner
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.settings import RecoverySettings
from statelog.spark.clients import open_log
from statelog.spark.options.address import address_options
from statelog.spark.options.read import LEASE_S, read_of, read_options
from statelog.storage import Where

__all__ = ["state"]

_LOG = logging.getLogger("statelog.spark")
_AT = ("atposition", "atwriter", "atcheckpoint")
_LOOKS_PER_TTL = 6


@contextmanager
def state(
    spark: SparkSession,
    log: str,
    where: Where,
    *,
    options: Mapping[str, str] | None = None,
    lease_s: float = LEASE_S,
) -> Generator[DataFrame]:
    """The state of a log as a DataFrame, which holds it as long as the `with` lasts, however long it rests.

        >>> with state(spark, log.name, where) as df:
        ...     df.count()
        2

    `options` are more options of a read, such as `atPosition`, `keyGroups` or `columns`. The lease is renewed every
    third of `lease_s` and removed at the end; if this process dies it runs out by itself, and it never outlives the cap
    on leases of the log's materializer. Raises as a read does.
    """
    given = {**address_options(log, where), **(options or {})}
    if read_of(given) != "state":
        raise Misuse("only a state is held like this", hint="Leave the option read out")
    read = read_options(given)
    settings = RecoverySettings(holder="spark-state", lease_ttl_s=lease_s)
    with closing(open_log(read.where)) as opened:
        planner = Planner(opened, read.at, None if read.key_groups is None else frozenset(read.key_groups))
        held = HeldPlan(opened, planner, settings, Environment(), planner.key_groups)
        position = held.claim().position
        with _renewing(held, lease_s):
            fixed = {name: value for name, value in given.items() if name.lower() not in (*_AT, "leaseseconds")}
            reader = spark.read.format("statelog").options(**fixed)
            yield reader.options(atPosition=str(position), leaseSeconds="0").load()


@contextmanager
def _renewing(held: HeldPlan, lease_s: float) -> Generator[None]:
    """Renew the lease of a claimed plan on a thread of its own, and remove it at the end."""
    stop = Event()

    def renew() -> None:
        while not stop.wait(lease_s / _LOOKS_PER_TTL):
            try:
                held.renew()
            except StatelogError as error:
                _LOG.warning("the state of a DataFrame is no longer held: %s", error)

    thread = Thread(target=renew, name="statelog-spark-state", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        held.release()
