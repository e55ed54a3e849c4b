"""`Log`: create, open, describe and delete a log, and `statelog.open`. Writers, rounds and readers work through it.

Invariants:
- The ledger's first record, the mark, names the descriptor: topics belong to the log at one root and to no other.
- Every open compares the descriptor with the cluster (ids, partitions) and the topics with the policy. It refuses
  before anything is read or written.
- Any number of processes may open the same name with `create=True` concurrently: one of them makes the log, all open
  it. An option that an existing log contradicts is an error.
- A log holds its two ports, and its maker closes it. It does not outlive a fork: open it again in the child.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from statelog.closing import Closing, undone_by_errors
from statelog.environment import current_environment
from statelog.errors import AlreadyExists, ConfigError, IdentityChanged, NotFound, StatelogError
from statelog.history import History, LedgerSource, Replay
from statelog.kafka.port import Kafka, OffsetRange, Producer
from statelog.log.evidence import Evidence
from statelog.log.making import delete_log, make_log, prove_truncation
from statelog.log.options import LogOptions, differences
from statelog.log.producers import WarmProducer, append_all
from statelog.log.topics import IdentifiedTopics, check_owner, identify, topics_in_force
from statelog.log.where import Where, no_kafka, opened_ports, opened_store
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.descriptor import Descriptor, ValueFormat
from statelog.schemas.ledger.fold import LedgerBase
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.records import VOID_VALUE
from statelog.schemas.ledger.state import LastCommit, LedgerState
from statelog.schemas.names import check_kind, check_whole, data_topic, ledger_topic
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import (
    LEDGER_WRITING,
    NO_RIGHTS,
    READING,
    ROLLING_UP,
    WRITING,
    Rights,
    Truncation,
    Waiver,
    retention_s,
)
from statelog.schemas.values.schema import JSON, OPAQUE, ValueSchema
from statelog.store.files import ManifestChain, ValueSchemas, descriptor_of, put_truncation, truncation_of
from statelog.store.port import Store

_LOG = logging.getLogger("statelog.log")
_FOR_PROGRAMS = (
    "barrier", "close", "commits", "create", "data_topic", "delete", "describe", "descriptor", "evolve_value_schema",
    "kafka", "ledger_topic", "name", "open", "place", "position", "retention_s", "set_truncation", "truncation",
    "value_schemas", "verify",
)  # fmt: skip
"""The names of a log that programs use. All others are for other modules of statelog, and change without notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """A log at one moment: log start and log end of its partitions, and the ledger folded to its end (`state`).

    Also the newest manifest (None before the first), all value schemas by ascending id, and its truncation.
    """

    descriptor: Descriptor
    url: str
    data_offsets: Mapping[int, OffsetRange]
    ledger_offsets: OffsetRange
    state: LedgerState
    manifest: Manifest | None
    manifests: int
    value_schemas: tuple[ValueSchema, ...]
    truncation: Truncation


class _Verified(NamedTuple):
    """A log's topics, verified to be its own, the time of that check, and its truncation once they pass the policy."""

    topics: IdentifiedTopics
    asked_s: float
    truncation: Truncation | None = None


class Log(Closing):
    """A named history of keyed state changes: two topics and a directory, verified to belong together.

    with Log.open("visits", where) as log:
        print(log.position, log.describe().manifests)
    """

    patience_s: float = 10.0
    """How long Kafka is asked again before an end below a known one is believed."""
    recheck_s: float = 1.0
    """How long `verify` trusts the cluster's last answer, by the clock of the environment that opened the log."""

    def __init__(
        self, descriptor: Descriptor, kafka: Kafka, store: Store, *, waived: frozenset[Waiver] = frozenset()
    ) -> None:
        self.descriptor = descriptor
        self.name = descriptor.name
        self.data_topic = data_topic(self.name)
        """The topic of the chunks."""
        self.ledger_topic = ledger_topic(self.name)
        """The topic of the ledger."""
        self.kafka = kafka
        self.store = store
        self.manifests = ManifestChain(store, descriptor)
        opaque = JSON if descriptor.value_type is ValueFormat.JSON else OPAQUE
        self.value_schemas = ValueSchemas(store, descriptor.value_schema_id, opaque)
        self.warm_producer = WarmProducer(self._writing_producer)
        """A producer made ahead of an Open, for callers that `keep` one."""
        self.ledger = LedgerSource(
            kafka=kafka,
            topic=self.ledger_topic,
            identity=descriptor.identity,
            snapshots=self.manifests,
            identify=self._judge,
            url=store.url,
            clock=current_environment().clock,
            patience_s=lambda: self.patience_s,
        )
        """The ledger's topic and its end."""
        self.history = History.of(self.ledger)
        """The ledger as this process has read it."""
        self.evidence = Evidence(descriptor, self.ledger, self.history)
        """The checks that the topics are the observed ones."""
        self._closing = ExitStack()
        for one in (kafka, self.history, self.warm_producer):
            self._closing.callback(one.close)
        self._verified: _Verified | None = None
        self.deletions = ""
        """The topics' settings by which Kafka deletes committed records, as last verified; or empty."""
        self._waived = waived
        self._schemas: dict[int, pa.Schema] = {}

    # ---- life

    @classmethod
    def create(cls, name: str, where: Where, options: LogOptions | None = None) -> "Log":
        """Make a log and open it.

        Raises AlreadyExists, InvalidName, ConfigError, UnsafeTopic, UnsafeStore, Unavailable.
        """
        with opened_ports(name, where) as ports:
            made = make_log(ports, name, options or LogOptions(), where.replication_factor)
        return cls(made, ports.kafka, ports.store, waived=ports.waived)

    @classmethod
    def open(cls, name: str, where: Where, rights: Rights = NO_RIGHTS) -> "Log":
        """Open a log, verified against cluster and store. `rights`: those that the caller is going to need.

        Raises NotFound, IdentityChanged, UnsafeTopic, CorruptDescriptor, UnknownFormat, Unavailable, ConfigError.
        """
        with current_environment().step("open", name), opened_ports(name, where) as (client, store, waived):
            descriptor = descriptor_of(store, name, hint="Pass create=True, or make it with `statelog init`")
            log = cls(descriptor, client, store, waived=waived)
            try:
                log.verify(rights)
            except IdentityChanged:
                accepted = topics_in_force(client, store, descriptor)
                if accepted == descriptor:
                    raise
                log = cls(accepted, client, store, waived=waived)
                log.verify(rights)
            check_owner(client, log.descriptor, log.manifests, store.url)
        return log

    @classmethod
    def delete(cls, name: str, where: Where) -> None:
        """Delete a log for good: topics, snapshots, descriptor. Run again, it finishes what it began.

        Topics that are not the log's own (recreated since) are left alone. Raises NotFound, ConfigError, Unavailable.
        """
        with opened_ports(name, where, keeps=False) as (client, store, _):
            delete_log(client, store, name)

    def verify(self, rights: Rights = NO_RIGHTS) -> Truncation:
        """Check descriptor, cluster and topic settings, as every open, round and recovery does. Return the truncation.

        Uses an answer of the cluster that is younger than `recheck_s`. `rights`: those that this client will need.
        Added partitions only cause a log line. Raises ConfigError if a right is missing, NotFound for a deleted log,
        IdentityChanged, UnsafeTopic, Unavailable.
        """
        return self._check(self._identify(self.recheck_s), rights)

    def _check(self, verified: _Verified, rights: Rights) -> Truncation:
        data, ledger, warning = verified.topics
        truncation = verified.truncation
        try:
            if truncation is None:
                if warning:
                    _LOG.warning(warning)
                truncation = self._truncation_of(verified)
                self.deletions = verified.topics.check_made(
                    self.descriptor, truncation, self._waived, saves=rights.saves
                )
            rights.check(data, ledger)
        except BaseException:
            self._verified = None  # The next call asks the cluster again.
            raise
        # Settings that only a round accepts are checked again by the next caller, and may be refused.
        self._verified = verified._replace(truncation=None if self.deletions else truncation)
        return truncation

    def _truncation_of(self, verified: _Verified) -> Truncation:
        """Return the truncation. Asks the store only if Kafka deletes by age."""
        is_kept = retention_s(*(one.config for one in verified.topics[:2])) is None
        return Truncation() if is_kept else self.truncation()

    def verify_now(self, rights: Rights = NO_RIGHTS) -> Truncation:
        """Verify as `verify` does, by a new answer of the cluster: before records are deleted, or a verdict counts."""
        return self._check(self._identify(0.0), rights)

    def checking_cluster(self) -> AbstractContextManager[None]:
        """Identify the cluster before an error of the block about missing records is raised. Raise IdentityChanged
        instead if it is another cluster, or the log was re-created.
        """
        return self.ledger.checking_cluster()

    def _judge(self, max_age_s: float) -> None:
        """Identify the cluster. Warn if Kafka now deletes what an open writer commits; the writer goes on."""
        known = self._verified
        verified = self._identify(max_age_s)
        if verified is known or not self.history.has_appended:
            return
        with suppress(StatelogError):  # The next open refuses anything else that is wrong.
            truncation = self._truncation_of(verified)
            self.deletions = verified.topics.check_made(self.descriptor, truncation, self._waived, saves=True)
            if self.deletions:
                _LOG.warning("%s: %s: correct the settings with Kafka's own tools, at once", self.name, self.deletions)

    def _identify(self, max_age_s: float) -> _Verified:
        known, asked_s = self._verified, self.ledger.clock()
        if known is not None and asked_s - known.asked_s < max_age_s:
            return known
        try:
            self._verified = found = _Verified(identify(self.kafka, self.store, self.descriptor), asked_s)
        except (NotFound, IdentityChanged):
            self._verified = None  # The earlier answer no longer holds for any caller.
            raise
        return found

    @property
    def retention_s(self) -> float | None:
        """The age at which Kafka deletes records, as last verified; None: never."""
        verified = self._verified
        return retention_s(*(one.config for one in verified.topics[:2])) if verified else None

    def close(self) -> None:
        """Release the clients. Idempotent."""
        self._closing.close()

    def __repr__(self) -> str:
        return f"Log({self.name!r}, url={self.store.url!r})"

    def __dir__(self) -> tuple[str, ...]:
        return _FOR_PROGRAMS

    # ---- what it is

    def check_made_with(self, options: LogOptions) -> None:
        """Raise ConfigError, with every difference, if the log contradicts these options. Earlier schemas agree."""
        different = list(differences(options, self.descriptor, self.store, self.value_schemas))
        if different:
            what = f"the log {self.name} was made with other options: {', '.join(different)}"
            hint = "Leave them out to open the log as it is, or choose another name"
            raise ConfigError(what, log=self.name, hint=hint)

    def evolve_value_schema(self, avsc: str) -> ValueSchema:
        """Make the text of an Avro record schema the newest value schema, unless the log has it already.

        Writers that open from now on write with the newest. Open writers keep theirs, and readers get all values in the
        newest. docs/values.md lists the allowed changes. Two processes may evolve at once.

        Raises IncompatibleSchema, with the field and both types, before anything is written; ConfigError, Unavailable.
        """
        return self.value_schemas.add(avsc)

    def truncation(self) -> Truncation:
        """Read the truncation from the store. Raises Corrupt, UnknownFormat, StoreUnavailable."""
        return truncation_of(self.store, self.descriptor)

    def set_truncation(self, truncation: str, retention_days: int | None = None) -> Truncation:
        """Set the truncation, as in `LogOptions`, for rounds that begin from now on.

        For "retention", set the topics' `retention.ms` afterwards, with Kafka's own tools: until then they grow. For
        "delete-records", set it to -1 before. Raises UnsafeTopic if the topics' settings forbid it, ConfigError, also
        if records cannot be deleted, Unavailable.
        """
        wanted = Truncation.named(truncation, retention_days)
        topics = self._identify(0.0).topics
        topics.check_made(self.descriptor, wanted, self._waived)
        if not wanted.is_by_kafka:
            ROLLING_UP.check(topics.data, topics.ledger)
            prove_truncation(self.kafka, (self.data_topic, self.ledger_topic))
        put_truncation(self.store, self.descriptor, wanted)
        return wanted

    def change_schema(self, value_schema_id: int) -> pa.Schema:
        """Return the Arrow schema of changes whose values have this schema id. Raises ConfigError for a wrong id,
        UnknownFormat for an unknown one, StoreUnavailable.
        """
        check_whole("value_schema_id", value_schema_id, 0)
        if value_schema_id not in self._schemas:
            value_type = self.value_schemas.get(value_schema_id).arrow_type
            self._schemas[value_schema_id] = change_schema(self.descriptor.key_type, value_type)
        return self._schemas[value_schema_id]

    @property
    def position(self) -> int:
        """The highest ledger position that was read through this object. All that it had acknowledged lies below."""
        return self.history.place.position

    @property
    def place(self) -> Place:
        """`position` with the record below it, for `recover(at_least=)` in other processes."""
        return self.history.place

    def replay(self, base: LedgerBase | None = None, position: int = 0) -> Replay:
        """Fold the ledger from `base`, or its first record, up to an earlier position. The caller closes the replay.

        Raises OffsetGone without a base if the ledger was truncated, because an unknown epoch would void valid commits;
        else as `Replay.commits`.
        """
        if base is None:
            self.ledger.require_whole()
        made = Replay(self.ledger, base)
        with undone_by_errors(made.close):
            if position > made.position:
                made.fold_to(position)
            is_stored = base is not None and not isinstance(base, Manifest)
            made.fold.followed = made.position if is_stored or position else 0
        return made

    def barrier(self) -> int:
        """Append a void record to the ledger, and return the position behind it. A read up to there is linearizable: it
        includes everything that was acknowledged to anyone before the call. Needs the right to write the ledger.

        Appends nothing to a ledger that lost records: it would take their offsets. Raises ConfigError without that
        right, OutcomeUnknown, Damaged, Unavailable.
        """
        self.verify(LEDGER_WRITING)  # Without the right, a producer would only report an unknown outcome.
        self.evidence.check_ledger()
        with closing(self.kafka.producer()) as producer:
            position = append_all(producer, self.ledger_topic, 0, VOID_VALUE, 1)[0] + 1
        self.history.read_to(position)
        return position

    def data_offsets(self, *, at_least: Mapping[int, int] | None = None) -> dict[int, OffsetRange]:
        """Return log start and log end of every data partition. Asks again for an end below `at_least`."""
        return self.kafka.offsets(self.data_topic, range(self.descriptor.partitions), at_least=at_least)

    def commits(self) -> dict[str, LastCommit]:
        """Return every writer's last commit (checkpoint, ledger offset, metadata). Reads the ledger behind the newest
        manifest, and no data.

        After a writer opened, the commits of the writers that it replaced are final. So a rescaled job finds here the
        source positions of the partitions that it took over. Raises Damaged, Unavailable.
        """
        self._identify(self.recheck_s)
        return self.evidence.check_ledger().state.commits

    def describe(self) -> LogDescription:
        """Describe the log now. Raises Damaged, Unavailable, ConfigError without the right to read both topics."""
        self.verify(READING)
        view, manifest = self.evidence.check_ledger(), self.manifests.newest()
        return LogDescription(
            descriptor=self.descriptor,
            url=self.store.url,
            data_offsets=self.data_offsets(),
            ledger_offsets=self.ledger.range(),
            state=view.state,
            manifest=manifest,
            manifests=len(self.manifests.numbers()),
            value_schemas=self.value_schemas.all(),
            truncation=self.truncation(),
        )

    def _writing_producer(self) -> Producer:
        """Make a producer. Only for writers: without the right to write, its client would report a fatal error."""
        self.verify(WRITING)
        return self.kafka.producer()


# ---- the entry point


_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses between two checks of a log that another process is making, mostly Kafka's two topics."""


def open(name: str, where: Where, *, create: bool | LogOptions = False) -> Log:  # noqa: A001 - it is statelog.open, as gzip.open
    """Open a log; with `create`, make it first if there is none.

        with statelog.open("visits", where, create=True) as log:
            print(log.describe())

    `create` may hold options: `create=LogOptions(key_type="string")`. An existing log must agree with each of them. A
    `value_schema` agrees if it is the log's newest or an earlier one.

    Raises NotFound without `create`; ConfigError, which names the options that differ; IdentityChanged, UnsafeTopic,
    UnsafeStore, InvalidName, CorruptDescriptor, UnknownFormat, Unavailable.
    """
    options = LogOptions.of(create)
    with opened_ports(name, where) as (client, store, _):
        here = replace(where, kafka=client, kafka_token=None, root=store, storage_options={})
        return _open_or_create(name, here, options) if create else Log.open(name, here)


def check_log(log: object) -> None:
    """Raise ConfigError unless it is a `Log`: for a name, for example."""
    check_kind("log", log, Log, example="statelog.open(name, where)")


def open_snapshots(name: str, where: Where) -> Log:
    """Open a log without its cluster, to read its snapshots alone. Raises NotFound, Damaged, StoreUnavailable,
    ConfigError.
    """
    store = opened_store(name, where)
    made = descriptor_of(store, name)
    newest = ManifestChain(store, made).newest_of_any()
    return Log(made.at(newest.identity) if newest else made, no_kafka(), store)


def _open_or_create(name: str, where: Where, options: LogOptions) -> Log:
    """Open the log, or create it, or open it again if another process creates it concurrently."""
    for pause_s in (*_PAUSES_S, None):
        # If there is none, another create may be under way, or have died: a second one completes it.
        with suppress(NotFound):
            log = Log.open(name, where)
            log.check_made_with(options)
            return log
        try:
            return Log.create(name, where, options)  # Made with these options, so they need no check.
        except AlreadyExists:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")
