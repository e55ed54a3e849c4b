"""`statelog.open`: the second run, concurrent creation of the log, and options that contradict it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog.errors import AlreadyExists, ConfigError, InvalidName, NotFound, StoreUnavailable
from statelog.kafka.port import TopicSpec
from statelog.log import Log, Where
from statelog.log import log as log_module
from statelog.log import where as where_module
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, FaultHook, MemoryDisk, MemoryStore
from tests.support.rigs.log import where_at

_POINT = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]}'
_WIDER = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "long", "default": 0}]}'  # noqa: E501 - one document
_OTHER = '{"type": "record", "name": "Point", "fields": [{"name": "z", "type": "long"}]}'


class _World:
    """A cluster and a disk on which any number of processes open the log `visits`."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.disk = MemoryDisk(lambda: 1_000.0)

    def open(self, faults: FaultHook | None = None, *, create: bool = True, **options: Any) -> Log:
        """Open as a process of its own, with `create` by default."""
        store = MemoryStore(self.disk, "visits", **({"faults": faults} if faults else {}))
        where = where_at(MemoryKafka(cluster=self.cluster), store)
        return statelog.open("visits", where, create=create and statelog.LogOptions(**options))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> _World:
    """Return a world in which nothing waits for a competing creator: each has finished when it is checked."""
    monkeypatch.setattr(log_module, "_PAUSES_S", (0.0,) * 5)
    return _World()


def test_the_second_run_opens_what_the_first_one_made(world: _World) -> None:
    """A program that runs twice has the state of the first run in the second."""
    with world.open(partitions=3) as log, statelog.Writer(log, "web") as writer:
        writer.put(b"alice", b"1")
        writer.commit(checkpoint_id=1)
    with world.open(partitions=3) as log:
        assert log.descriptor.partitions == 3
        assert statelog.recover(log).to_dict() == {b"alice": b"1"}


def test_without_create_nothing_is_made(world: _World) -> None:
    """Without `create`, an absent log is NotFound with a hint, and neither topics nor files are made."""
    with pytest.raises(NotFound, match="no log visits") as raised:
        world.open(create=False)
    assert raised.value.hint == "Pass create=True, or make it with `statelog init`"
    assert MemoryKafka(cluster=world.cluster).describe_topic("visits") is None
    assert list(world.disk.files("visits/")) == []


def test_a_log_that_is_deleted_leaves_no_directory_behind(world: _World, tmp_path: Path) -> None:
    """Deleting a log on a local root removes its directories with its files. Other files stay."""
    (tmp_path / "orders").mkdir()
    where = where_at(MemoryKafka(cluster=world.cluster), tmp_path)
    with statelog.open("visits", where, create=statelog.LogOptions(value_schema=_POINT)) as log:
        statelog.recover(log).to_dict()
    assert (tmp_path / "visits" / "schemas").is_dir()
    Log.delete("visits", Where(MemoryKafka(cluster=world.cluster), str(tmp_path)))
    assert list(tmp_path.iterdir()) == [tmp_path / "orders"]


def test_an_address_is_no_kafka() -> None:
    """A text in place of a mapping of settings is refused by name, with the mapping to write."""
    with pytest.raises(ConfigError, match="a mapping of settings, or a Kafka port, and not str") as raised:
        Where("127.0.0.1:9092", "/nowhere")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] # as said
    assert raised.value.hint == 'Where({"bootstrap.servers": "127.0.0.1:9092"}, root)'


def test_a_name_is_checked_first(world: _World) -> None:
    """An impossible name is refused before anything is asked."""
    with pytest.raises(InvalidName):
        statelog.open("no such name", Where(MemoryKafka(), "/nowhere"), create=True)


def test_options_that_differ_are_named(world: _World) -> None:
    """Every option that contradicts the log is named with both values, and no other."""
    with world.open(partitions=3, key_groups=16, key_type="string"):
        pass
    with pytest.raises(ConfigError) as raised:
        world.open(partitions=4, key_groups=16, key_type="bytes", hash_rule="caller", value_schema=_POINT)
    text = str(raised.value)
    assert "partitions is 3 and not 4, " in text
    assert "key_type is string and not bytes, " in text
    assert "hash_rule is crc32 and not caller, " in text
    assert "value_schema is not one of the log's" in text
    assert "key_groups" not in text
    assert "Leave them out" in raised.value.hint


def test_options_that_agree_are_no_error(world: _World) -> None:
    """Options that agree with the log are accepted, whether they were given at first or were defaults."""
    with world.open():
        pass
    with world.open(partitions=8, key_groups=128, key_type="bytes", hash_rule="crc32") as log:
        assert log.name == "visits"


def test_key_groups_by_prefix_are_an_option_of_the_log(world: _World) -> None:
    """Key groups by prefix need both options, and keys that are not numbers. Otherwise nothing is made.

    An open with another prefix fails.
    """
    halves: list[dict[str, Any]] = [{"hash_rule": "crc32-prefix"}, {"prefix_bytes": 8}]
    halves.append({"hash_rule": "caller", "prefix_bytes": 8})
    for half in halves:
        with pytest.raises(ConfigError, match="prefix_bytes"):
            world.open(**half)
    with pytest.raises(ConfigError, match="long"):
        world.open(hash_rule="crc32-prefix", prefix_bytes=8, key_type="long")
    with pytest.raises(NotFound):
        world.open(create=False)
    with world.open(hash_rule="crc32-prefix", prefix_bytes=8) as log:
        assert log.descriptor.prefix_bytes == 8
    with world.open(create=False) as log:
        assert log.descriptor.key_group_of(b"12345678x") == log.descriptor.key_group_of(b"12345678y")
    with pytest.raises(ConfigError, match="prefix_bytes is 8 and not 4") as raised:
        world.open(prefix_bytes=4)
    assert "hash_rule" not in str(raised.value)
    with pytest.raises(ConfigError, match="hash_rule is crc32-prefix and not crc32"):
        world.open(hash_rule="crc32")


def test_an_unknown_kind_is_refused(world: _World) -> None:
    """An unknown kind is refused as such, and not as a difference."""
    with world.open():
        pass
    with pytest.raises(ConfigError, match="key_type is 'text'") as raised:
        world.open(key_type="text")
    assert "bytes" in raised.value.hint


def test_a_schema_that_the_log_had_or_has_agrees(world: _World) -> None:
    """An old program opens a log whose schema has evolved.

    A program with an unknown schema has to evolve the log first.
    """
    with world.open(value_schema=_POINT) as log:
        log.evolve_value_schema(_WIDER)
    for known in (_POINT, _WIDER):
        with world.open(value_schema=known) as log:
            assert log.value_schemas.newest().id == 2
    with pytest.raises(ConfigError, match="evolve_value_schema"):
        world.open(value_schema=_OTHER)


def test_a_log_just_made_is_not_asked_for_its_schemas(world: _World) -> None:
    """A log that was just made with these options is not asked for its schemas. An existing log is compared."""
    asked: list[str] = []

    def noting(method: str, path: str) -> None:
        asked.append(f"{method} {path}")

    for expected in ([], ["list schemas/"]):
        asked.clear()
        world.open(noting, value_schema=_POINT).close()
        assert [one for one in asked if one.startswith("list schemas")] == expected


def test_an_error_closes_the_client_made_here(monkeypatch: pytest.MonkeyPatch, world: _World) -> None:
    """An error closes the client that was made of settings, since the caller has no access to it."""
    made = MemoryKafka(cluster=world.cluster)
    closed: list[bool] = []

    def client(*_: object) -> MemoryKafka:
        return made

    def no_store(_: str) -> MemoryStore:
        raise ConfigError("there is no such place")

    monkeypatch.setattr(where_module, "_client", client)
    monkeypatch.setattr(made, "close", lambda: closed.append(True))
    with pytest.raises(NotFound):
        statelog.open("visits", Where({"bootstrap.servers": "nowhere:1"}, MemoryStore(world.disk, "visits")))
    with pytest.raises(ConfigError, match="no such place"):
        statelog.open("visits", Where({"bootstrap.servers": "nowhere:1"}, no_store))
    assert closed == [True, True]


# ---- concurrent creators


class _At:
    """A store's hook that acts at one of its calls, once. `calls` counts them all."""

    def __init__(self, number: int, work: Callable[[], Fault | None]) -> None:
        self.calls = 0
        self._number = number
        self._work = work

    def __call__(self, _method: str, _path: str) -> Fault | None:
        self.calls += 1
        return self._work() if self.calls == self._number else None


def _calls_of_a_create() -> int:
    counting = _At(0, lambda: None)
    _World().open(counting).close()
    return counting.calls


@pytest.mark.parametrize("number", range(1, _calls_of_a_create() + 1))
def test_a_rival_that_makes_it_meanwhile(world: _World, number: int) -> None:
    """A process that makes the log before any step of ours opens the same log as we do."""
    rivals: list[Log] = []

    def rival() -> None:
        rivals.append(world.open(partitions=2))

    with world.open(_At(number, rival), partitions=2) as log:
        assert [one.descriptor for one in rivals] == [log.descriptor]
        with statelog.Writer(rivals[0], "rival") as writer:
            writer.put(b"k", b"v")
            writer.commit(checkpoint_id=1)
        assert statelog.recover(log).to_dict() == {b"k": b"v"}


@pytest.mark.parametrize("number", range(1, _calls_of_a_create() + 1))
def test_a_create_that_died_is_completed(number: int) -> None:
    """A creation that died at any step, with or without its effect, is completed by the next one."""
    for fault in (Fault.BEFORE, Fault.AFTER):
        world = _World()
        dies: Callable[[], Fault] = partial(Fault, fault)
        try:
            world.open(_At(number, dies)).close()
        except StoreUnavailable:
            world.open().close()
        with world.open(create=False) as log:
            assert log.describe().ledger_offsets.end >= 1, fault


def test_a_rival_of_other_options_wins(world: _World) -> None:
    """The log of the first creator remains, and another one with other options is refused."""
    step = _At(3, lambda: world.open(partitions=2).close())
    with pytest.raises(ConfigError, match="partitions is 2 and not 3"):
        world.open(step, partitions=3)


def test_a_topic_in_the_way_is_told(world: _World) -> None:
    """A foreign topic of this name is neither taken over nor waited for without an end."""
    kafka = MemoryKafka(cluster=world.cluster)
    kafka.create_topic(TopicSpec(name="visits", partitions=1, replication_factor=1))
    with pytest.raises(AlreadyExists, match="not an empty one of this shape"):
        world.open()


def test_a_log_below_another_root_is_told(world: _World) -> None:
    """Making a log that exists below another root is refused, whether or not it has changes."""
    with world.open() as log:
        for changes in range(2):
            elsewhere = MemoryStore(MemoryDisk(lambda: 1_000.0), "visits")
            where = where_at(MemoryKafka(cluster=world.cluster), elsewhere)
            with pytest.raises(AlreadyExists, match="belongs to a log of this name below another root"):
                statelog.open("visits", where, create=True)
            with statelog.Writer(log, "web") as writer:
                writer.put(b"alice", b"%d" % changes)
                writer.commit()
