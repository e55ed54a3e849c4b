"""`worker`: joins a group, and on request makes a log that fits the input.

Invariants:
- A table's Open alone decides who owns it. The lock on a directory only keeps two processes out of one database. If
  another process holds it, the table opens in a directory of this process, which is removed with the worker.
- If an opening fails, nothing stays open.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar

from statelog.environment import current_environment
from statelog.errors import ConfigError, NotFound
from statelog.kafka import Kafka
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.group import GroupKafka, group_settings
from statelog.kafka.member import ConfluentMember
from statelog.log import Log, LogOptions, Where
from statelog.log import open as open_log
from statelog.log.options import K, V
from statelog.log.where import check_where, one_client
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.names import check_kind, data_topic, ledger_topic, settings_or, whole_numbers
from statelog.schemas.topic_policy import parse_waivers
from statelog.store.disk.disk import is_there, local_disk, local_path
from statelog.store.disk.own_directory import make_own, sweep
from statelog.tables.group.context import (
    DescribedInput,
    InputTopic,
    Join,
    WorkerContext,
    WorkerHooks,
    check_fits,
    check_identified,
    describe_input,
)
from statelog.tables.group.worker import Worker
from statelog.tables.open_table import table
from statelog.tables.setup import BackendKind, TableSettings
from statelog.tables.standbys.standby import Standby, StandbyPool, standby
from statelog.tables.table import Table

T = TypeVar("T")

_OWN_PREFIX = ".beside-"
"""The prefix of such directories, which no log's name has. After a kill, the next worker there removes them."""


def worker(
    name: str,
    where: Where,
    *,
    topic: str | InputTopic,
    create: bool | LogOptions[K, V] = False,
    backend: BackendKind | str = BackendKind.DICT,
    directory: str | PathLike[str] | None = None,
    standbys: Collection[int] | Literal["all"] = (),
    hooks: WorkerHooks | None = None,
    settings: TableSettings | None = None,
) -> Worker[K, V]:
    """Join the processes that share a Kafka topic's partitions, with a table for each one, exactly once.

        with statelog.worker("counts", where, topic="words", create=True) as worker:
            signal.signal(signal.SIGTERM, lambda *_: worker.stop())
            for message, table in worker:  # waits; a confluent_kafka.Message, and the table of its partition
                word = message.value()
                table[word] = b"%d" % (int(table.get(word, b"0")) + 1)
                worker.commit_every(1.0)  # the last statement: everything that the message changes is above it

    Start it as often as you like, on any machines: the group gives each process a share of the partitions. Each
    partition's table opens in the process that has the partition, at its last commit. The place in the input is part of
    each commit, so no offset of the group is ever read.

    `name` is the log. It has a partition and a key group for each of the input's partitions, and writers called
    `<name>-<partition>`; `create` makes it so. `topic` is the input, by name or as an `InputTopic` with settings.
    `hooks` are called between messages: `WorkerHooks`. The other arguments are those of `statelog.table`; give the same
    in all processes of a group. A `directory` serves the processes of one machine.

    `standbys` names partitions, or "all". While another process has such a partition, this one has a standby of its
    table, from which it can take over. Then each process needs a `directory` of its own.

    Raises NotFound for the topic, and for the log without `create`. Raises ConfigError for a setting, and for a log
    that does not fit the input; and the errors of `statelog.open`.
    """
    check_where(where)
    check_kind("topic", topic, str, InputTopic, example='topic="words", one topic for each worker')
    check_kind("hooks", hooks or WorkerHooks(), WorkerHooks, example="WorkerHooks(on_tick=function, tick_s=10.0)")
    source = InputTopic(topic) if isinstance(topic, str) else topic
    if source.name in (data_topic(name), ledger_topic(name)) and "bootstrap.servers" not in source.consumer:
        hint = f"Name the log after its state, such as {source.name}-counts: it has topics of its own"
        raise ConfigError("the log has the name of its own input", log=name, topic=source.name, hint=hint)
    chosen, machine = settings_or(settings, TableSettings()), current_environment()
    with ExitStack() as failing:
        cluster, join = _input(name, where, source, failing)
        found = describe_input(cluster, source.name)
        check_identified(found, parse_waivers(where.allow_unsafe))
        descriptor = _fitting(name, found, where, create)
        shared = failing.enter_context(one_client(where))
        release = failing.pop_all()
        failing.push(release)
        tables = _Tables(name, shared, {"backend": backend, "directory": directory, "settings": chosen}, release)
        context = WorkerContext(
            name=name,
            topic=source,
            key_groups=descriptor.key_groups,
            kafka=cluster,
            open_table=tables.open,
            standbys=StandbyPool(_wanted(standbys, found), tables.open_standby, machine.clock),
            join=join,
            unsent_max=chosen.uncommitted_changes_max,
            environment=machine,
            release=release.close,
            hooks=hooks or WorkerHooks(),
        )
        joined = Worker[K, V](context)
        failing.pop_all()
        return joined


def _input(name: str, where: Where, topic: InputTopic, stack: ExitStack) -> tuple[Kafka, Join]:
    """Return the cluster of the input, and a function that joins the group. Raises ConfigError for a setting."""
    port = where.kafka
    if isinstance(port, GroupKafka):
        said = group_settings({"bootstrap.servers": "twin", **topic.consumer}, {}, default_group=name)
        return port, lambda listener, _: port.join_group(said.group, topic.name, listener)
    ours = where.client_config()
    group = group_settings(topic.consumer, ours.settings, default_group=name, token=ours.token)
    cluster = ConfluentKafka(group.config)
    stack.callback(cluster.close)
    return cluster, lambda listener, note: ConfluentMember(group, topic.name, listener, note)


class _Tables:
    """Opens the tables of a worker's partitions, by the options of `statelog.table`."""

    def __init__(self, name: str, where: Where, options: Mapping[str, Any], stack: ExitStack) -> None:
        self._name, self._where, self._options = name, where, options
        self._environment = current_environment()
        self._stack = stack
        self._making = Lock()
        self._own_path: Path | None = None
        directory = local_path(options["directory"] or "")
        with local_disk(directory):
            if options["directory"] and is_there(directory):
                sweep(directory, _OWN_PREFIX)

    def open(self, partition: int, in_own_directory: bool) -> Table[Any, Any]:
        """Open an owner's table, on request in a directory of this process."""
        return self._opened(table, partition, {"directory": self._own()} if in_own_directory else {})

    def open_standby(self, partition: int) -> Standby[Any, Any]:
        """Open a follower's standby."""
        return self._opened(standby, partition, {})

    def _opened(self, make: Callable[..., T], partition: int, own: Mapping[str, Any]) -> T:
        options = {"writer": f"{self._name}-{partition}", "key_group": partition, **self._options, **own}
        return self._environment.run(make, self._name, self._where, **options)

    def _own(self) -> Path:
        with self._making:
            if self._own_path is None:
                directory = Path(self._options["directory"])
                with local_disk(directory):
                    own = make_own(directory, _OWN_PREFIX, new_id=self._environment.new_id)
                self._stack.callback(own.close)
                self._own_path = own.path
            return self._own_path


def _wanted(standbys: Collection[int] | Literal["all"], found: DescribedInput) -> Collection[int]:
    """Return the partitions that get standbys. Raises ConfigError for one that the input does not have."""
    if standbys == "all":
        return range(found.partitions)
    wanted = whole_numbers("standbys", standbys, example='"all", or numbers of partitions')
    for one in wanted:
        if one not in range(found.partitions):
            raise ConfigError("the input has no such partition", standby=one, partitions=found.partitions)
    return wanted


def _fitting(name: str, found: DescribedInput, where: Where, create: bool | LogOptions) -> Descriptor:
    """Return the log's descriptor. If there is no log and `create` allows it, make one that fits the input.

    Raises NotFound, ConfigError, Damaged, Unsafe, Unavailable.
    """
    said = LogOptions.of(create)
    if not said.given() <= {"key_type", "value_schema", "value_type", "ttl_s", "truncation", "retention_days"}:
        hint = "Leave out partitions, key_groups, hash_rule and prefix_bytes"
        raise ConfigError("the input determines the partitions and key groups of its log", hint=hint)
    count = found.partitions
    try:
        log = Log.open(name, where)
    except NotFound as error:
        if not create:  # `statelog init` makes no log that fits an input.
            raise error.restated(hint="Pass create=True") from None
        fitted = replace(said, partitions=count, key_groups=count, hash_rule=HashRule.CALLER)
        log = open_log(name, where, create=fitted)
    with log:
        log.check_made_with(said)
        check_fits(log.descriptor, found)
        return log.descriptor
