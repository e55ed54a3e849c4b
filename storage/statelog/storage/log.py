"""`Log`: create, open, describe and delete a log; the door through which writers, rounds and readers get in.

Invariants:
- The descriptor is written last when a log is made and deleted last when it goes: it is there if and only if
  the log is. A create that died on the way can be run again.
- Every open compares the descriptor with the cluster (ids, partitions) and the topics with the policy, and
  refuses before anything is read or written.
- A log holds its two ports; whoever made it closes it. It does not outlive a fork: open it again in the child.
"""

import json
import warnings
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from statelog.schemas.changes import change_schema
from statelog.schemas.descriptor import Descriptor, HashRule, verify
from statelog.schemas.errors import AlreadyExists, ConfigError, IdentityChanged, NotFound, OffsetGone
from statelog.schemas.fold import LedgerFold
from statelog.schemas.identity import LogIdentity
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger import AcceptLoss, LossRange
from statelog.schemas.ledger_state import LastCommit, LedgerState
from statelog.schemas.manifest import Manifest
from statelog.schemas.names import DESCRIPTOR_PATH, check_log_name, data_topic, ledger_topic
from statelog.schemas.topic_policy import TopicRole, Waiver, check_topic, parse_waivers, topic_config
from statelog.schemas.values import ValueSchema, parse_value_schema
from statelog.storage.kafka import Kafka, OffsetRange, TopicDescription, TopicSpec
from statelog.storage.kafka_client import ConfluentKafka
from statelog.storage.kafka_config import client_config
from statelog.storage.ledger_client import LedgerClient, append_record
from statelog.storage.manifest_chain import ManifestChain
from statelog.storage.store import Store
from statelog.storage.store_fsspec import open_store
from statelog.storage.value_schemas import ValueSchemas

__all__ = ["Log", "LogDescription"]

_MOST_REPLICAS = 10_000  # What the client can say.
E = TypeVar("E", bound=StrEnum)

KafkaSource = Kafka | Mapping[str, str]
StoreSource = Store | str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """A log at one moment.

    `data_offsets` and `ledger_offsets` are log start and log end. `state` is the ledger folded to its end,
    `manifest` the newest one, or None before the first, `value_schemas` all of them by ascending id.
    """

    descriptor: Descriptor
    url: str
    data_offsets: Mapping[int, OffsetRange]
    ledger_offsets: OffsetRange
    state: LedgerState
    manifest: Manifest | None
    manifests: int
    value_schemas: tuple[ValueSchema, ...]


class Log:
    """A named history of keyed state changes: two topics and a directory, verified to belong together."""

    def __init__(
        self, descriptor: Descriptor, kafka: Kafka, store: Store, *, waived: frozenset[Waiver] = frozenset()
    ) -> None:
        self.descriptor = descriptor
        self.kafka = kafka
        self.store = store
        self.manifests = ManifestChain(store)
        self.value_schemas = ValueSchemas(store, descriptor.value_schema_id)
        self._waived = waived
        self._schemas: dict[int, pa.Schema] = {}

    # ---- life

    @classmethod
    def create(
        cls,
        name: str,
        *,
        kafka: KafkaSource,
        root: StoreSource,
        partitions: int = 8,
        key_groups: int = 128,
        key_type: KeyType | str = KeyType.BYTES,
        hash_rule: HashRule | str = HashRule.CRC32,
        value_schema: str | None = None,
        replication_factor: int = 3,
        allow_unsafe: Collection[str] = (),
        storage_options: Mapping[str, object] | None = None,
    ) -> "Log":
        """Make a log and open it.

        `kafka` are client settings (`bootstrap.servers` and what TLS or SASL need), `root` an fsspec URL;
        `value_schema` is the text of an Avro record schema, None for opaque bytes. `allow_unsafe` names waived checks.

        Raises AlreadyExists, InvalidName, ConfigError, UnsafeTopic, UnsafeStore, Unavailable.
        """
        _check_counts(partitions, key_groups, replication_factor)
        rule, kind = _one_of(HashRule, "hash_rule", hash_rule), _one_of(KeyType, "key_type", key_type)
        schema = parse_value_schema(value_schema, 1) if value_schema is not None else None
        waived = parse_waivers(allow_unsafe)
        client, store = _ports(check_log_name(name), kafka, root, storage_options)
        with _closing(client, kafka, on_success=False):
            store.check()
            if _descriptor_or_none(store) is not None:
                raise AlreadyExists(f"the log {name} is there already", log=name, url=store.url)
            topics = {
                role: _make_topic(client, topic, role, count, replication_factor, waived)
                for role, topic, count in (
                    (TopicRole.DATA, data_topic(name), partitions),
                    (TopicRole.LEDGER, ledger_topic(name), 1),
                )
            }
            descriptor = Descriptor(
                name=name,
                identity=_identity(client, topics[TopicRole.DATA], topics[TopicRole.LEDGER]),
                partitions=partitions,
                key_groups=key_groups,
                hash_rule=rule,
                key_type=kind,
                value_schema_id=1 if schema else 0,
            )
            if schema is not None:
                _put_first_schema(store, schema.avsc)
            store.put_if_absent(DESCRIPTOR_PATH, descriptor.to_bytes())
        return cls(descriptor, client, store, waived=waived)

    @classmethod
    def open(
        cls,
        name: str,
        *,
        kafka: KafkaSource,
        root: StoreSource,
        allow_unsafe: Collection[str] = (),
        storage_options: Mapping[str, object] | None = None,
    ) -> "Log":
        """Open a log, verified against cluster and store.

        Raises NotFound, IdentityChanged, UnsafeTopic, CorruptDescriptor, UnknownFormat, Unavailable, ConfigError.
        """
        waived = parse_waivers(allow_unsafe)
        client, store = _ports(check_log_name(name), kafka, root, storage_options)
        with _closing(client, kafka, on_success=False):
            descriptor = _descriptor_or_none(store)
            if descriptor is None:
                hint = "Create it with Log.create or `statelog init`"
                raise NotFound(f"there is no log {name}", url=store.url, hint=hint)
            log = cls(descriptor, client, store, waived=waived)
            log.verify()
        return log

    @classmethod
    def delete(
        cls,
        name: str,
        *,
        kafka: KafkaSource,
        root: StoreSource,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        """Delete a log for good: topics, snapshots, descriptor. Run again, it finishes what it began.

        Topics that are not the log's own (made anew since) are left alone. Raises NotFound, Unavailable.
        """
        client, store = _ports(check_log_name(name), kafka, root, storage_options)
        with _closing(client, kafka, on_success=True):
            descriptor = _descriptor_or_none(store)
            if descriptor is None:
                raise NotFound(f"there is no log {name}", url=store.url)
            ids = {
                data_topic(name): descriptor.identity.data_topic_id,
                ledger_topic(name): descriptor.identity.ledger_topic_id,
            }
            if client.cluster_id() != descriptor.identity.cluster_id:
                raise IdentityChanged("the log lives on another cluster", log=name, found=client.cluster_id())
            for topic, topic_id in ids.items():
                found = client.describe_topic(topic)
                if found is not None and found.topic_id == topic_id:
                    client.delete_topic(topic)
            for info in list(store.list()):
                if info.path != DESCRIPTOR_PATH:
                    store.delete(info.path)
            store.delete(DESCRIPTOR_PATH)

    def verify(self) -> None:
        """Compare descriptor, cluster and topic settings, as every open, round and recovery does.

        Raises IdentityChanged, UnsafeTopic, BrokerUnavailable. Partitions that were added later only warn.
        """
        data = self._describe(self.data_topic)
        ledger = self._describe(self.ledger_topic)
        warning = verify(self.descriptor, _identity(self.kafka, data, ledger), data.partitions)
        if warning:
            warnings.warn(warning, stacklevel=3)
        for role, topic in ((TopicRole.DATA, data), (TopicRole.LEDGER, ledger)):
            _check(topic, role, self._waived)

    def close(self) -> None:
        """Release the clients. Idempotent."""
        self.kafka.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Log({self.name!r}, url={self.store.url!r})"

    # ---- what it is

    @property
    def name(self) -> str:
        """The log's name."""
        return self.descriptor.name

    @property
    def data_topic(self) -> str:
        """The topic of the chunks."""
        return data_topic(self.name)

    @property
    def ledger_topic(self) -> str:
        """The topic of the ledger."""
        return ledger_topic(self.name)

    def evolve_value_schema(self, avsc: str) -> ValueSchema:
        """Make the text of an Avro record schema the newest value schema, or find that the log has it already.

        Writers that open from now on write with the newest; those that are open go on with theirs, and readers get all
        values in the newest. Which changes are allowed is in docs/values.md; two processes may evolve at once.

        Raises IncompatibleSchema, with the field and both types, before anything is written; ConfigError, Unavailable.
        """
        return self.value_schemas.add(avsc)

    def change_schema(self, value_schema_id: int) -> pa.Schema:
        """The Arrow schema of changes whose values have this schema id."""
        if value_schema_id not in self._schemas:
            value_type = self.value_schemas.get(value_schema_id).arrow_type
            self._schemas[value_schema_id] = change_schema(self.descriptor.key_type, value_type)
        return self._schemas[value_schema_id]

    def data_offsets(self) -> dict[int, OffsetRange]:
        """Log start and log end of every data partition, now."""
        return self.kafka.offsets(self.data_topic, range(self.descriptor.partitions))

    def commits(self) -> dict[str, LastCommit]:
        """Every writer's last commit (checkpoint, ledger offset, metadata), now. Reads the ledger behind the newest
        manifest, and no data.

        After a writer opened, those of the writers that it replaced are final: this is where a job that was re-scaled
        finds the source positions of the partitions that it took over. Raises Damaged, Unavailable.
        """
        return self._fold_to_end().freeze().commits

    def describe(self) -> LogDescription:
        """The log at this moment. Raises Damaged, Unavailable."""
        stored = self.manifests.newest()
        ledger = self.ledger(stored.manifest if stored else None)
        try:
            ledger.fold_end()
            return LogDescription(
                descriptor=self.descriptor,
                url=self.store.url,
                data_offsets=self.data_offsets(),
                ledger_offsets=self.kafka.offsets(self.ledger_topic, [0])[0],
                state=ledger.fold.freeze(),
                manifest=stored.manifest if stored else None,
                manifests=len(self.manifests.numbers()),
                value_schemas=self.value_schemas.all(),
            )
        finally:
            ledger.close()

    # ---- the ledger

    def ledger(
        self, base: Manifest | None = None, *, rebase: Callable[[], LedgerState | None] | None = None
    ) -> LedgerClient:
        """A ledger client that starts from `base`, or from the ledger's first record; see LedgerClient for `rebase`.

        Raises OffsetGone if there is no base and the ledger was truncated: an unknown epoch would silently void
        valid commits.
        """
        if base is None:
            start = self.kafka.offsets(self.ledger_topic, [0])[0].start
            if start > 0:
                raise OffsetGone(
                    "the ledger was truncated, and no manifest says what stood there",
                    topic=self.ledger_topic,
                    log_start=start,
                    url=self.store.url,
                    hint="Restore the manifests, or check that the root URL is the right one",
                )
        state = base.state if base else None
        return LedgerClient(self.kafka, self.ledger_topic, self.descriptor.identity, state, rebase=rebase)

    def newest_ledger(self) -> LedgerClient:
        """A ledger client that starts from the newest manifest, and again so if it was idle for too long."""
        stored = self.manifests.newest()
        return self.ledger(stored.manifest if stored else None, rebase=self._newest_state)

    def _newest_state(self) -> LedgerState | None:
        stored = self.manifests.newest()
        return stored.manifest.state if stored else None

    def accept_loss(self, ranges: Collection[LossRange], *, reason: str, operator: str) -> int:
        """Record that a person gives up these ranges of the data topic. Returns the ledger offset.

        A range holds committed offsets only: accepted beyond them, it would hide losses that are yet to come. The
        system itself never calls this. Raises ConfigError, OutcomeUnknown, Damaged, Unavailable.
        """
        if not ranges or not reason.strip() or not operator.strip():
            raise ConfigError("accepting a loss needs ranges, a reason and an operator")
        committed = self._fold_to_end().committed_positions
        for lost in ranges:
            end = committed.get(lost.partition, 0)
            if not 0 <= lost.start_offset < lost.end_offset <= end:
                raise ConfigError(
                    "only committed offsets can be given up, as a range that is not empty",
                    hint="Take the range from the error that reported the loss",
                    **lost._asdict(),
                    committed_position=end,
                )
        producer = self.kafka.producer()
        try:
            record = AcceptLoss(ranges=tuple(ranges), reason=reason, operator=operator)
            return append_record(producer, self.ledger_topic, record)
        finally:
            producer.close()

    def _fold_to_end(self) -> LedgerFold:
        ledger = self.newest_ledger()
        try:
            ledger.fold_end()
            return ledger.fold
        finally:
            ledger.close()

    def _describe(self, topic: str) -> TopicDescription:
        found = self.kafka.describe_topic(topic)
        if found is None:
            raise IdentityChanged(
                "the log's topic is gone",
                topic=topic,
                log=self.name,
                hint="Check bootstrap.servers; else delete the log",
            )
        return found


def _ports(
    name: str, kafka: KafkaSource, root: StoreSource, storage_options: Mapping[str, object] | None
) -> tuple[Kafka, Store]:
    client = ConfluentKafka(client_config(kafka)) if isinstance(kafka, Mapping) else kafka
    store = open_store(root, name, storage_options or {}) if isinstance(root, str) else root
    return client, store


@contextmanager
def _closing(client: Kafka, kafka: KafkaSource, *, on_success: bool) -> Generator[None]:
    """Close a client that was made here from settings, if nobody will hold it. The caller's own is left alone."""
    made_here = isinstance(kafka, Mapping)
    try:
        yield
    except BaseException:
        if made_here:
            client.close()
        raise
    if made_here and on_success:
        client.close()


def _descriptor_or_none(store: Store) -> Descriptor | None:
    try:
        return Descriptor.from_bytes(store.read(DESCRIPTOR_PATH), DESCRIPTOR_PATH)
    except NotFound:
        return None


def _check_counts(partitions: object, key_groups: object, replication_factor: object) -> None:
    groups = _whole("key_groups", key_groups, 65536, "65536")
    _whole("partitions", partitions, groups, f"key_groups, which is {groups}")
    _whole("replication_factor", replication_factor, _MOST_REPLICAS, str(_MOST_REPLICAS))


def _whole(name: str, value: object, most: int, most_text: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r} and must be a whole number from 1 to {most_text}")
    return value


def _one_of(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}", hint=f"Use one of {', '.join(kind)}") from None


def _make_topic(
    client: Kafka, topic: str, role: TopicRole, partitions: int, replication_factor: int, waived: frozenset[Waiver]
) -> TopicDescription:
    """Create the topic, or take over an empty one of a create that died before its descriptor."""
    config = topic_config(role, replication_factor)
    check_topic(topic, role, partitions=partitions, replication_factor=replication_factor, config=config, waived=waived)
    try:
        client.create_topic(
            TopicSpec(name=topic, partitions=partitions, replication_factor=replication_factor, config=config)
        )
    except AlreadyExists:
        _require_empty(client, topic, partitions)
    found = client.describe_topic(topic)
    if found is None:
        raise NotFound("the topic went away while the log was made", topic=topic)
    _check(found, role, waived)
    return found


def _require_empty(client: Kafka, topic: str, partitions: int) -> None:
    found = client.describe_topic(topic)
    count = found.partitions if found else 0
    used = any(end > 0 for _, end in client.offsets(topic, range(count)).values())
    if used or count != partitions:
        raise AlreadyExists(
            "a topic of this name is there, and it is not an empty one of this shape",
            topic=topic,
            partitions=count,
            hint="Choose another log name, or delete the topic if nobody needs it",
        )


def _check(topic: TopicDescription, role: TopicRole, waived: frozenset[Waiver]) -> None:
    check_topic(
        topic.name,
        role,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        config=topic.config,
        waived=waived,
    )


def _identity(client: Kafka, data: TopicDescription, ledger: TopicDescription) -> LogIdentity:
    return LogIdentity(cluster_id=client.cluster_id(), data_topic_id=data.topic_id, ledger_topic_id=ledger.topic_id)


def _put_first_schema(store: Store, avsc: str) -> None:
    """Put schema 1; one that a dead create left behind counts if it is the same."""
    try:
        store.put_if_absent("schemas/1.avsc", avsc.encode())
    except AlreadyExists:
        if json.loads(store.read("schemas/1.avsc")) != json.loads(avsc):
            raise
