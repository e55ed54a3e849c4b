"""A log's value schemas on the store: evolution, refusals, and concurrent processes."""

import json
import threading
from pathlib import Path

import pytest

from statelog.errors import ConfigError, IncompatibleSchema, StoreUnavailable
from statelog.schemas.values.schema import check_compatible
from statelog.store.files import ValueSchemas
from statelog.store.fsspec import open_store
from statelog.testing.store import Fault, MemoryDisk, MemoryStore

INT = {"name": "n", "type": "int"}


def _avsc(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "V", "fields": list(fields)})


def _added(name: str, kind: object = "int", default: object = 0) -> dict[str, object]:
    return {"name": name, "type": kind, "default": default}


def _disk() -> MemoryDisk:
    disk = MemoryDisk(lambda: 0.0)
    MemoryStore(disk, "log").put("schemas/1.avsc", _avsc(INT).encode())
    return disk


def _schemas(disk: MemoryDisk) -> ValueSchemas:
    return ValueSchemas(MemoryStore(disk, "log"), 1)


def _files(disk: MemoryDisk) -> list[str]:
    return sorted(info.path for info in disk.files("log/"))


def test_ids_count_up_and_nobody_takes_a_schema_back() -> None:
    """Each new schema gets the next id. A schema that the log had before, newest or not, changes nothing."""
    disk = _disk()
    second = _avsc(INT, _added("s"))
    assert _schemas(disk).add(second).id == 2
    assert _schemas(disk).add(json.dumps(json.loads(second), indent=4)).id == 2
    assert _schemas(disk).add(_avsc(INT)).id == 1
    assert _schemas(disk).newest().id == 2
    assert [one.id for one in _schemas(disk).all()] == [1, 2]
    assert _files(disk) == ["log/schemas/1.avsc", "log/schemas/2.avsc"]


@pytest.mark.parametrize(
    ("avsc", "error"),
    [
        (_avsc({"name": "n", "type": "string"}), IncompatibleSchema),
        (_avsc(INT, {"name": "s", "type": "string"}), IncompatibleSchema),
        (_avsc({"name": "n", "type": "nothing"}), ConfigError),
        ('"int"', ConfigError),
        ("{", ConfigError),
    ],
)
def test_what_is_refused_writes_nothing(avsc: str, error: type[Exception]) -> None:
    """Neither an incompatible schema nor an invalid one writes a byte to the store."""
    disk = _disk()
    with pytest.raises(error):
        _schemas(disk).add(avsc)
    assert _files(disk) == ["log/schemas/1.avsc"]


def test_a_refusal_tells_field_types_and_way_out() -> None:
    """The error has the field's path, the new type, and the earlier type with its schema's way out."""
    with pytest.raises(IncompatibleSchema) as caught:
        _schemas(_disk()).add(_avsc({"name": "n", "type": "string"}))
    assert caught.value.facts == {"field": "value.n", "new": "string", "earlier": "int"}
    assert "default" in caught.value.hint


def test_bytes_stay_bytes() -> None:
    """A log of opaque bytes refuses a schema."""
    disk = MemoryDisk(lambda: 0.0)
    with pytest.raises(IncompatibleSchema):
        ValueSchemas(MemoryStore(disk, "log"), 0).add(_avsc(INT))
    assert _files(disk) == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (_avsc(INT, _added("other")), 3),
        (_avsc(INT, _added("mine")), 2),
        (_avsc(INT, _added("mine", default=5)), None),
        (_avsc(INT, _added("mine", "string", "")), None),
    ],
)
def test_two_processes_that_evolve_at_once(other: str, expected: int | None) -> None:
    """The later of two concurrent schemas is checked against the first. It gets the next id, the same, or a refusal."""
    disk = _disk()
    rivals = [other]

    def overtake(method: str, path: str) -> None:
        if method == "put_if_absent" and path == "schemas/2.avsc" and rivals:
            assert _schemas(disk).add(rivals.pop()).id == 2

    mine = ValueSchemas(MemoryStore(disk, "log", faults=overtake), 1)
    if expected is None:
        with pytest.raises(IncompatibleSchema):
            mine.add(_avsc(INT, _added("mine")))
        assert [one.id for one in _schemas(disk).all()] == [1, 2]
    else:
        assert mine.add(_avsc(INT, _added("mine"))).id == expected
    assert not rivals


def test_a_lost_answer_is_asked_again() -> None:
    """A put whose answer was lost raises. The same call finds the schema, and makes no second one."""
    disk = _disk()
    faults = [Fault.AFTER]

    def once(method: str, _path: str) -> Fault | None:
        return faults.pop() if method == "put_if_absent" and faults else None

    schemas = ValueSchemas(MemoryStore(disk, "log", faults=once), 1)
    second = _avsc(INT, _added("s"))
    with pytest.raises(StoreUnavailable):
        schemas.add(second)
    assert schemas.add(second).id == 2
    assert len(_files(disk)) == 2


def test_many_threads_evolve_a_real_directory(tmp_path: Path) -> None:
    """Each thread gets its own id or a refusal, in any order, and every schema reads all before it."""
    open_store(str(tmp_path), "log").put("schemas/1.avsc", _avsc(INT).encode())
    ids: list[int] = []

    def evolve(number: int) -> None:
        schemas = ValueSchemas(open_store(str(tmp_path), "log"), 1)
        ids.append(schemas.add(_avsc(INT, _added(f"f{number}"))).id)

    threads = [threading.Thread(target=evolve, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chain = ValueSchemas(open_store(str(tmp_path), "log"), 1).all()
    assert sorted(ids) == [one.id for one in chain][1:]
    for number in range(1, len(chain)):
        check_compatible(chain[number], chain[:number])
