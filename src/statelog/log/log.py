"""`Log`: create, open, describe and delete a log, and `statelog.open`; what writers, rounds and readers work through.

Invariants:
- The ledger's first record, the mark, names the descriptor: topics belong to the log at one root and to no other.
- Every open compares the descriptor with the cluster (ids, partitions) and the topics with the policy, and
  refuses before anything is read or written.
- Any number of processes may open the same name with `create=True` concurrently: one of them makes the log, all open
  it. A given option must hold for the log: one that an existing log contradicts is an error.
- A log holds its two ports, and is closed by its maker. It does not outlive a fork: open it again in the child.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """A log at one moment: log start and log end of its partitions, the ledger folded to its end, the newest manifest
    (None before the first), all value schemas by ascending id, who truncates.
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
    """What the cluster said of a log's topics, which are the descriptor's, and when it was asked; and who truncates
    them, once it was seen that they may be used. The store is only asked where they keep nothing for ever.
    """

    topics: IdentifiedTopics
    asked_s: float
    truncation: Truncation | None = None


class Log(Closing):
    """A named history of keyed state changes: two topics and a directory, verified to belong together.

    with Log.open("visits", where) as log:
        print(log.position, log.describe().manifests)
    """

    patience_s: float = 10.0
    """How long an answer of Kafka's that goes back behind what is known is asked again before it is believed."""
    look_again_s: float = 1.0
    """How long, by the clock of the environment that opened the log, `verify` does not ask the cluster again whether it
    still is the log's."""

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
        """A producer made ahead of an Open, for who keeps one."""
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
        """Where the ledger is, and its end."""
        self.history = History.of(self.ledger)
        """The ledger, as this process has read it."""
        self.evidence = Evidence(descriptor, self.ledger, self.history)
        """What shows that the topics are those that were seen before."""
        self._closing = ExitStack()
        for one in (kafka, self.history, self.warm_producer):
            self._closing.callback(one.close)
        self._verified: _Verified | None = None
        self.deletions = ""
        """The topics' settings by which Kafka deletes what is committed, as a round or an open writer saw them last; or
        an empty text."""
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
        """Compare descriptor, cluster and topic settings, as every open, round and recovery does. What the cluster has
        answered through this object within `look_again_s` it is not asked again. Returns who truncates.

        `rights` are those that this client is going to need. Raises ConfigError if one is missing,
        NotFound for a log that was deleted, IdentityChanged, UnsafeTopic, Unavailable. Partitions that were added later
        are a log line only.
        """
        return self._check(self._identify(self.look_again_s), rights)

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
            self._verified = None  # What is refused here is asked anew.
            raise
        # What only a round goes on with is checked again by the next one who asks, and may be refused.
        self._verified = verified._replace(truncation=None if self.deletions else truncation)
        return truncation

    def _truncation_of(self, verified: _Verified) -> Truncation:
        """Return who truncates, asked of the store only where Kafka deletes by age."""
        is_kept = retention_s(*(one.config for one in verified.topics[:2])) is None
        return Truncation() if is_kept else self.truncation()

    def verify_anew(self, rights: Rights = NO_RIGHTS) -> Truncation:
        """As `verify`, of what the cluster answers now: before a verdict is believed, or records are deleted."""
        return self._check(self._identify(0.0), rights)

    def asking_who_answers(self) -> AbstractContextManager[None]:
        """Report what is found missing inside only after the cluster was asked: it may be another one, or the log may
        have been made anew. Raises IdentityChanged then.
        """
        return self.ledger.asking_who_answers()

    def _judge(self, max_age_s: float) -> None:
        """Ask who the cluster is. Warn if Kafka has come to delete what an open writer commits; the writer goes on."""
        known = self._verified
        verified = self._identify(max_age_s)
        if verified is known or not self.history.has_appended:
            return
        with suppress(StatelogError):  # All else that may be wrong is for an open to refuse.
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
            self._verified = None  # What was answered before is true no more, whoever hears of it.
            raise
        return found

    @property
    def retention_s(self) -> float | None:
        """After how long Kafka deletes records of the topics, as they were verified last; None: never."""
        verified = self._verified
        return retention_s(*(one.config for one in verified.topics[:2])) if verified else None

    def close(self) -> None:
        """Release the clients. Idempotent."""
        self._closing.close()

    def __repr__(self) -> str:
        return f"Log({self.name!r}, url={self.store.url!r})"

    # ---- what it is

    def check_made_with(self, options: LogOptions) -> None:
        """Raise ConfigError if the log is not what these options say, and name all that differs. A value schema that
        the log has moved on from still agrees with it.
        """
        different = list(differences(options, self.descriptor, self.store, self.value_schemas))
        if different:
            what = f"the log {self.name} was made with other options: {', '.join(different)}"
            hint = "Leave them out to open the log as it is, or choose another name"
            raise ConfigError(what, log=self.name, hint=hint)

    def evolve_value_schema(self, avsc: str) -> ValueSchema:
        """Make the text of an Avro record schema the newest value schema, or find that the log has it already.

        Writers that open from now on write with the newest; those that are open go on with theirs, and readers get all
        values in the newest. Which changes are allowed is in docs/values.md; two processes may evolve at once.

        Raises IncompatibleSchema, with the field and both types, before anything is written; ConfigError, Unavailable.
        """
        return self.value_schemas.add(avsc)

    def truncation(self) -> Truncation:
        """Who truncates, asked of the store now. Raises Corrupt, UnknownFormat, StoreUnavailable."""
        return truncation_of(self.store, self.descriptor)

    def set_truncation(self, truncation: str, retention_days: int | None = None) -> Truncation:
        """Say who truncates from now on, as in `LogOptions`; rounds that begin from now on keep to it.

        For "retention" the topics get their `retention.ms` afterwards, with Kafka's own tools: until then they grow.
        For "delete-records" they get back their -1 before. Raises UnsafeTopic if what the topics have does not allow
        it, ConfigError, also where records cannot be deleted; Unavailable.
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
        """The Arrow schema of changes whose values have this schema id. Raises ConfigError for what is no id,
        UnknownFormat for one that the log does not have, StoreUnavailable.
        """
        check_whole("value_schema_id", value_schema_id, 0)
        if value_schema_id not in self._schemas:
            value_type = self.value_schemas.get(value_schema_id).arrow_type
            self._schemas[value_schema_id] = change_schema(self.descriptor.key_type, value_type)
        return self._schemas[value_schema_id]

    @property
    def position(self) -> int:
        """The highest ledger position that was read through this object: what it was told lies below."""
        return self.history.place.position

    @property
    def place(self) -> Place:
        """That position with the record below it: for `recover(at_least=)` elsewhere."""
        return self.history.place

    def replay(self, base: LedgerBase | None = None, position: int = 0) -> Replay:
        """Fold the ledger from `base` on, or from its first record, up to a position of the past. The caller closes it.

        Raises OffsetGone if there is no base and the ledger was truncated: an unknown epoch would silently void valid
        commits; else as `Replay.commits`.
        """
        if base is None:
            self.ledger.require_whole()
        made = Replay(self.ledger, base)
        with undone_by_errors(made.close):
            if position > made.position:
                made.fold_to(position)
            is_kept = base is not None and not isinstance(base, Manifest)
            made.fold.followed = made.position if is_kept or position else 0
        return made

    def barrier(self) -> int:
        """Append a void record to the ledger. What is read up to the position returned includes everything that anybody
        was told before the call: a linearizable read. Needs the right to write the ledger.

        Nothing is appended to a ledger that lost records: it would stand where they did. Raises ConfigError without
        that right, OutcomeUnknown, Damaged, Unavailable.
        """
        self.verify(LEDGER_WRITING)  # Refused at once: the producer would only not know what became of its record.
        self.evidence.check_ledger()
        with closing(self.kafka.producer()) as producer:
            position = append_all(producer, self.ledger_topic, 0, VOID_VALUE, 1)[0] + 1
        self.history.read_to(position)
        return position

    def data_offsets(self, *, at_least: Mapping[int, int] | None = None) -> dict[int, OffsetRange]:
        """Log start and log end of every data partition, now; an end below `at_least` is asked for again."""
        return self.kafka.offsets(self.data_topic, range(self.descriptor.partitions), at_least=at_least)

    def commits(self) -> dict[str, LastCommit]:
        """Every writer's last commit (checkpoint, ledger offset, metadata), now. Reads the ledger behind the newest
        manifest, and no data.

        After a writer opened, those of the writers that it replaced are final: this is where a job that was rescaled
        finds the source positions of the partitions that it took over. Raises Damaged, Unavailable.
        """
        self._identify(self.look_again_s)
        return self.evidence.check_ledger().state.commits

    def describe(self) -> LogDescription:
        """The log at this moment. Raises Damaged, Unavailable, ConfigError without the right to read both topics."""
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
        """A new producer. Only for writers: without the right to write, its client would report a fatal error."""
        self.verify(WRITING)
        return self.kafka.producer()


# ---- the door


_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Between two looks at a log that a rival is making: most of its time goes to Kafka's two topics."""


def open(name: str, where: Where, *, create: bool | LogOptions = False) -> Log:  # noqa: A001 - it is statelog.open, as gzip.open
    """Open a log; with `create`, make it first if there is none.

        with statelog.open("visits", where, create=True) as log:
            print(log.describe())

    `create` may say how: `create=LogOptions(key_type="string")`. An existing log has to agree with each option that is
    given. A `value_schema` agrees if the log has it, as its newest or as an earlier one.

    Raises NotFound without `create`; ConfigError, which names the options that differ; IdentityChanged, UnsafeTopic,
    UnsafeStore, InvalidName, CorruptDescriptor, UnknownFormat, Unavailable.
    """
    options = LogOptions.of(create)
    with opened_ports(name, where) as (client, store, _):
        here = replace(where, kafka=client, kafka_token=None, root=store, storage_options={})
        return _open_or_create(name, here, options) if create else Log.open(name, here)


def check_log(log: object) -> None:
    """Raise ConfigError unless it is an open log: a name where one belongs, say."""
    check_kind("log", log, Log, example="statelog.open(name, where)")


def open_snapshots(name: str, where: Where) -> Log:
    """A log whose cluster is not asked, to read its snapshots alone. Raises NotFound, Damaged, StoreUnavailable,
    ConfigError.
    """
    store = opened_store(name, where)
    made = descriptor_of(store, name)
    newest = ManifestChain(store, made).newest_of_any()
    return Log(made.at(newest.identity) if newest else made, no_kafka(), store)


def _open_or_create(name: str, where: Where, options: LogOptions) -> Log:
    """Open; make what is not there; and look again if a rival makes it at the same moment."""
    for pause_s in (*_PAUSES_S, None):
        # If there is none, its create may be under way, or have died: to create it once more completes it.
        with suppress(NotFound):
            log = Log.open(name, where)
            log.check_made_with(options)
            return log
        try:
            return Log.create(name, where, options)  # Made by these options: nothing is left to check.
        except AlreadyExists:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")
