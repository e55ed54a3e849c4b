"""`worker`: makes a process a member of a group of workers, and makes their log first if asked to.

1  check the settings of the group         storage/kafka/group_settings.py
2  describe the input                      its id, its partitions
3  open the log, or make it to fit; check  input.py
4  join the group                          holdings.py
"""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from statelog.environment import Environment, current_environment
from statelog.errors import ConfigError, NotFound
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.names import parse_enum
from statelog.storage import Log, LogOptions, Where
from statelog.storage import open as open_log
from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import client_config
from statelog.storage.kafka.group import ConfluentMember, group_settings
from statelog.storage.local.disk import local_disk
from statelog.storage.local.own_directory import make_own, sweep
from statelog.tables.opening.open_table import table
from statelog.tables.settings import TableSettings
from statelog.tables.standing.open_standby import standby
from statelog.tables.standing.standby import Standby
from statelog.tables.state.store import BackendKind
from statelog.tables.table import Table
from statelog.tables.working.input import Input, InputStart, check_fits
from statelog.tables.working.reserves import Reserves
from statelog.tables.working.worker import Worker
from statelog.tables.working.workplace import Hook, Hooks, Workplace, describe_input

__all__ = ["worker"]

_BESIDE = ".beside-"
"""No log is called so; what a kill leaves of it is removed by the next worker there."""


def worker(
    name: str,
    where: Where,
    *,
    topic: str,
    consumer: Mapping[str, str] | None = None,
    create: bool | LogOptions = False,
    start: InputStart | str = InputStart.EARLIEST,
    accept_input_loss: bool = False,
    backend: BackendKind | str = BackendKind.DICT,
    directory: str | PathLike[str] | None = None,
    standbys: Collection[int] | Literal["all"] = (),
    on_open: Hook | None = None,
    on_tick: Hook | None = None,
    on_commit: Hook | None = None,
    on_close: Hook | None = None,
    tick_s: float = 1.0,
    settings: TableSettings | None = None,
) -> Worker[Any, Any]:
    """Join the processes that share a Kafka topic's partitions, with a table for each partition, exactly once.

        with statelog.worker("counts", where, topic="words", create=True) as worker:
            signal.signal(signal.SIGTERM, lambda *_: worker.stop())
            for message, table in worker:  # waits; a confluent_kafka.Message, and the table of its partition
                word = message.value()
                table[word] = b"%d" % (int(table.get(word, b"0")) + 1)
                worker.commit_every(1.0)  # the last statement: everything that the message changes is above it

    Start it as often as you like, on any machines: the group gives each process a share of the partitions, and each
    partition's table opens where its partition is, at what was committed last. `name` is the log: it has a partition
    and a key group for each of the input's partitions, and writers called `<name>-<partition>`; `create` makes it so.
    The place in the input is part of each commit, so no offset of the group is ever read.

    `consumer` are librdkafka's settings of the group's member: `group.id` (by default the log's name), timeouts, and
    `bootstrap.servers` with what belongs to them if the input is in another cluster than the log. The assignor is
    cooperative-sticky unless it says otherwise: with another one, each change in the group closes every table.

    `start` is where a table without any commit begins: "earliest", or "latest". Where the input does not have any more
    what comes next, it is an error; `accept_input_loss` goes on with what is there. The others are those of
    `statelog.table`: all processes of a group give the same. A `directory` serves the processes of one machine.

    `standbys` names partitions, or "all": while such a one is another process's, this one keeps a standby of its table,
    and takes over from it. Then each process needs a `directory` of its own.

    Hooks take a partition and its table. `on_open` is called before the table's first message, `on_tick` every `tick_s`
    seconds, whether messages come or not, `on_commit` once commits are history, up to the table's `progress`. What they
    change is in the next commit. `on_close` comes last, whatever ended the table, which takes no commit any more. What
    they raise comes out of the loop. A worker's method but `stop` is Misuse inside of them.

    Raises NotFound for the topic, and for the log without `create`; ConfigError for a setting, and for a log that does
    not fit the input; as `statelog.open`.
    """
    kafka = where.kafka_settings()
    group = group_settings(consumer or {}, kafka, default_group=name)
    chosen, machine = settings or TableSettings(), current_environment()
    kept: dict[str, Any] = {"backend": backend, "directory": directory, "settings": chosen}
    hooks = Hooks(on_open=on_open, on_tick=on_tick, on_commit=on_commit, on_close=on_close, tick_s=tick_s)
    with ExitStack() as failing:
        source = ConfluentKafka(group.config)
        failing.callback(source.close)
        found = describe_input(source, topic)
        descriptor = _fitting(name, found, where, create)
        check_fits(descriptor, found)
        shared = ConfluentKafka(client_config(kafka))
        failing.callback(shared.close)
        release = failing.pop_all()
        failing.push(release)
        doors = _Doors(name, replace(where, kafka=shared.lend()), kept, machine, release)
        workplace = Workplace(
            name=name,
            topic=topic,
            key_groups=descriptor.key_groups,
            kafka=source,
            open_table=doors.table,
            start_opening=machine.start,
            reserves=Reserves(_wanted(standbys, found), doors.standby, machine.clock),
            join=lambda listener, note: ConfluentMember(group, topic, listener, note),
            start=parse_enum(InputStart, "start", start),
            accepts_input_loss=accept_input_loss,
            unsent_max=chosen.uncommitted_changes_max,
            environment=machine,
            release=release.close,
            hooks=hooks,
        )
        joined = Worker[Any, Any](workplace)
        failing.pop_all()
        return joined


class _Doors:
    """The ways to the tables of a worker's partitions, by the options of `statelog.table`.

    Who owns a table is said by its Open. A lock on a directory keeps two processes out of one database, and no more: a
    table opens beside one that is held, in a directory of this process alone, which goes with the stack.
    """

    def __init__(
        self, name: str, where: Where, options: Mapping[str, Any], environment: Environment, stack: ExitStack
    ) -> None:
        self._name = name
        self._where = where
        self._options = options
        self._environment = environment
        self._stack = stack
        self._making = Lock()
        self._beside: Path | None = None
        directory = Path(options["directory"] or "")
        if options["directory"] and directory.exists():
            with local_disk(directory):
                sweep(directory, _BESIDE)

    def table(self, partition: int, is_beside: bool) -> Table[Any, Any]:
        """The owner's, beside the directory if that is in use."""
        own: dict[str, Any] = {"directory": self._own()} if is_beside else {}
        return self._environment.run(table, self._name, self._where, **self._of(partition), **{**self._options, **own})

    def standby(self, partition: int) -> Standby[Any, Any]:
        """A follower's."""
        return self._environment.run(standby, self._name, self._where, **self._of(partition), **self._options)

    def _of(self, partition: int) -> dict[str, Any]:
        return {"writer": f"{self._name}-{partition}", "own_key_group": partition}

    def _own(self) -> Path:
        with self._making:
            if self._beside is None:
                directory = Path(self._options["directory"])
                with local_disk(directory):
                    own = make_own(directory, _BESIDE, new_id=self._environment.new_id)
                self._stack.callback(own.remove)
                self._beside = own.path
            return self._beside


def _wanted(standbys: Collection[int] | Literal["all"], found: Input) -> Collection[int]:
    """The partitions to keep standbys for. Raises ConfigError for one that is not there."""
    if standbys == "all":
        return range(found.partitions)
    if isinstance(standbys, str):
        raise ConfigError(f"standbys is {standbys!r}", hint='Give "all", or numbers of partitions')
    for one in standbys:
        if one not in range(found.partitions):
            raise ConfigError("the input has no such partition", standby=one, partitions=found.partitions)
    return standbys


def _fitting(name: str, found: Input, where: Where, create: bool | LogOptions) -> Descriptor:
    """What the log is; made to fit the input if there is none and it may be. Raises as `statelog.open`."""
    said = create if isinstance(create, LogOptions) else LogOptions()
    if not said.given() <= {"key_type", "value_schema"}:
        raise ConfigError("the input says how many partitions and key groups its log has", hint="Leave them out")
    count = found.partitions
    try:
        log = Log.open(name, where)
    except NotFound as error:
        if not create:  # `statelog init` makes no log that fits an input.
            raise error.restated(hint="Pass create=True") from None
        fitted = replace(said, partitions=count, key_groups=count, hash_rule=HashRule.CALLER)
        log = open_log(name, where, create=fitted)
    with log:
        said.check(log.descriptor, log.value_schemas.all)
        return log.descriptor
