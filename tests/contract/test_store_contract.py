"""The promises of every implementation of the store port, by the same tests."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker.errors import DockerException

from statelog.errors import AlreadyExists, InvalidName, NotFound, StoreRefused, StoreUnavailable, UnsafeStore
from statelog.log.measured import MeasuredStore
from statelog.store.fsspec import open_store
from statelog.store.port import Store
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.services.broker import docker_reason
from tests.support.services.emulators import EmulatedStore
from tests.support.services.hdfs import Hdfs
from tests.support.services.s3 import S3_IMAGE, SECRET_KEY, S3Service, open_s3
from tests.support.services.s3_faulty import faulty_s3

LOG = "orders"
THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One implementation, pointed at a place of its own. `open(log)` gives a new handle, as another process has."""

    open: Callable[[str], Store]
    race_rounds: int


def _s3_service(stack: ExitStack, *, honours_conditions: bool) -> S3Service:
    reason = docker_reason()
    if reason:
        pytest.skip(f"S3 is not tested in this run: {reason}")
    try:
        return open_s3(stack, honours_conditions=honours_conditions)
    except DockerException as error:
        # A machine may lack this image; a gateway that starts and does not answer is a failure.
        pytest.skip(f"S3 is not tested in this run: Docker answers, but {S3_IMAGE} does not start: {error}")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Service]:
    """Yield an S3 service as it should be."""
    with ExitStack() as stack:
        yield _s3_service(stack, honours_conditions=True)


@pytest.fixture(scope="module")
def small_s3() -> Iterator[dict[str, object]]:
    """Yield storage options of a small S3 service inside this process, for the real client without a real service."""
    with faulty_s3() as service:
        yield service.options


def _memory_twin(_request: pytest.FixtureRequest) -> Place:
    disk, ticks = MemoryDisk(lambda: 1000.0), iter(range(1, 10**9))
    disk.clock = lambda: 1000.0 + next(ticks) / 1000
    return Place(open=lambda log: MemoryStore(disk, log), race_rounds=20)


def _measured(request: pytest.FixtureRequest) -> Place:
    twin = _memory_twin(request)
    return Place(open=lambda log: MeasuredStore(twin.open(log), log, []), race_rounds=5)


def _local(request: pytest.FixtureRequest) -> Place:
    root: Path = request.getfixturevalue("tmp_path")
    return Place(open=lambda log: open_store(str(root / "store"), log), race_rounds=20)


def _fsspec_memory(_request: pytest.FixtureRequest) -> Place:
    root = f"memory://{uuid.uuid4().hex}"
    return Place(open=lambda log: open_store(root, log), race_rounds=20)


def _hdfs(request: pytest.FixtureRequest) -> Place:
    service: Hdfs = request.getfixturevalue("hdfs")
    root = service.root(uuid.uuid4().hex)
    return Place(open=lambda log: open_store(root, log), race_rounds=5)


def _s3(request: pytest.FixtureRequest) -> Place:
    service: S3Service = request.getfixturevalue("s3")
    root = f"s3://{service.bucket}/{uuid.uuid4().hex}"
    return Place(open=lambda log: open_store(root, log, service.options), race_rounds=5)


def _small_s3(request: pytest.FixtureRequest) -> Place:
    options: dict[str, object] = request.getfixturevalue("small_s3")
    root = f"s3://bucket/{uuid.uuid4().hex}"
    return Place(open=lambda log: open_store(root, log, options), race_rounds=5)


def _emulated(name: str) -> Callable[[pytest.FixtureRequest], Place]:
    def make(request: pytest.FixtureRequest) -> Place:
        service: EmulatedStore = request.getfixturevalue(name)
        root = service.root()
        return Place(open=lambda log: open_store(root, log, service.options), race_rounds=5)

    return make


@pytest.fixture(
    params=[
        pytest.param(_memory_twin, id="memory-twin"),
        pytest.param(_measured, id="measured"),
        pytest.param(_local, id="local"),
        pytest.param(_fsspec_memory, id="fsspec-memory"),
        pytest.param(_hdfs, id="hdfs"),
        pytest.param(_emulated("azure"), id="azure"),
        pytest.param(_emulated("gcs"), id="gcs"),
        pytest.param(_small_s3, id="small-s3"),
        pytest.param(_s3, id="s3", marks=pytest.mark.docker),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """Return each implementation in turn, empty."""
    make: Callable[[pytest.FixtureRequest], Place] = request.param
    return make(request)


@pytest.fixture
def store(place: Place) -> Store:
    """Return one handle on an empty log directory."""
    return place.open(LOG)


def _paths(store: Store, prefix: str = "") -> list[str]:
    return sorted(info.path for info in store.list(prefix))


def _together(*bodies: Callable[[], None]) -> None:
    """Run all bodies at the same moment in threads of their own, and raise the first error of any."""
    barrier, errors = threading.Barrier(len(bodies)), list[BaseException]()

    def run(body: Callable[[], None]) -> None:
        try:
            barrier.wait()
            body()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_a_created_file_is_read_whole_by_another_handle(place: Place) -> None:
    """A created file is read whole by another handle: the next call of any other process reads it."""
    place.open(LOG).put_if_absent("manifests/1.avro", b"one")
    assert place.open(LOG).read("manifests/1.avro") == b"one"


def test_a_second_create_is_refused_and_changes_nothing(store: Store) -> None:
    """A second create is refused and changes nothing: put_if_absent never replaces, not even with the same bytes."""
    store.put_if_absent("manifests/1.avro", b"one")
    for data in (b"two", b"one"):
        with pytest.raises(AlreadyExists):
            store.put_if_absent("manifests/1.avro", data)
    assert store.read("manifests/1.avro") == b"one"


def test_of_racing_creates_exactly_one_wins(place: Place) -> None:
    """Of racing creates of one slot exactly one returns, the others raise, and the slot holds the winner's."""
    handles = [place.open(LOG) for _ in range(THREADS)]
    for number in range(place.race_rounds):
        winners: list[int] = []

        def claim(me: int, path: str = f"manifests/{number}.avro", winners: list[int] = winners) -> None:
            try:
                handles[me].put_if_absent(path, f"writer {me}".encode())
            except AlreadyExists:
                return
            winners.append(me)

        _together(*(lambda me=me: claim(me) for me in range(THREADS)))
        assert len(winners) == 1
        assert handles[0].read(f"manifests/{number}.avro") == f"writer {winners[0]}".encode()


def test_put_replaces(store: Store) -> None:
    """A put writes a new file and replaces an old one, and the listing shows the new size."""
    store.put("leases/a.avro", b"first")
    store.put("leases/a.avro", b"second one")
    assert store.read("leases/a.avro") == b"second one"
    assert [info.size_bytes for info in store.list("leases/")] == [10]


def test_nothing_torn_or_temporary_is_ever_seen(place: Place) -> None:
    """While files are created and replaced, readers and listings see whole files under published names only."""
    whole, done = 300_000, threading.Event()
    published = {"leases/a.avro", *(f"runs/{n}.parquet" for n in range(8))}
    place.open(LOG).put("leases/a.avro", b"\0" * whole)

    def write() -> None:
        try:
            handle = place.open(LOG)
            for n in range(8):
                handle.put_if_absent(f"runs/{n}.parquet", bytes([n]) * whole)
                handle.put("leases/a.avro", bytes([n]) * whole)
        finally:
            done.set()

    def read() -> None:
        handle = place.open(LOG)
        while not done.is_set():
            for info in handle.list():
                assert info.path in published
                assert info.size_bytes == whole
            data = handle.read("leases/a.avro")
            assert data == data[:1] * whole

    _together(write, read)
    assert set(_paths(place.open(LOG))) == published


def test_a_listing_sees_every_write_and_delete_at_once(place: Place) -> None:
    """A listing is never answered from a cache: it follows each write and delete of another handle."""
    writer, reader = place.open(LOG), place.open(LOG)
    assert _paths(reader) == []
    for n in range(5):
        writer.put_if_absent(f"runs/{n}.parquet", b"x" * (n + 1))
        assert _paths(reader, "runs/") == [f"runs/{m}.parquet" for m in range(n + 1)]
    writer.delete("runs/2.parquet")
    assert _paths(reader) == ["runs/0.parquet", "runs/1.parquet", "runs/3.parquet", "runs/4.parquet"]
    assert {info.path: info.size_bytes for info in reader.list("runs/3")} == {"runs/3.parquet": 4}


def test_a_listing_is_of_one_prefix_of_one_log(place: Place) -> None:
    """A listing is of one prefix of one log: prefixes cut inside a name and files next to directories count."""
    store, other = place.open(LOG), place.open(LOG + "-2")
    for path in ("descriptor.avro", "runs/a1.parquet", "runs/a2.parquet", "runs/b.parquet", "runs-old/a1.parquet"):
        store.put_if_absent(path, b"x")
    other.put_if_absent("runs/a3.parquet", b"x")
    assert _paths(store, "runs/a") == ["runs/a1.parquet", "runs/a2.parquet"]
    assert _paths(store, "runs/") == ["runs/a1.parquet", "runs/a2.parquet", "runs/b.parquet"]
    assert _paths(store, "runs") == ["runs-old/a1.parquet", "runs/a1.parquet", "runs/a2.parquet", "runs/b.parquet"]
    assert _paths(store, "none/") == []
    assert len(_paths(store)) == 5


def test_the_directories_of_a_root_are_listed(place: Place) -> None:
    """The directories of all logs of a root are listed, from any of them, also from a missing one; files are not."""
    nobody = place.open("nobody")
    assert nobody.siblings() == []
    for log in (LOG, "orders.more", "visits"):
        place.open(log).put_if_absent("manifests/1.avro", b"bytes")
        place.open(log).put_if_absent("descriptor.avro", b"bytes")
    assert sorted(nobody.siblings()) == sorted(place.open(LOG).siblings()) == [LOG, "orders.more", "visits"]


def test_a_measured_store_tells_the_room_of_the_one_below() -> None:
    """A measured store reports the room of the one below: measuring does not make it a store without a bound."""
    disk = MemoryDisk(lambda: 1000.0, capacity_bytes=100)
    assert MeasuredStore(MemoryStore(disk, LOG), LOG, []).free_bytes() == MemoryStore(disk, LOG).free_bytes() == 100


def test_a_local_file_that_is_gone_is_no_refusal_of_the_store(store: Store, tmp_path: Path) -> None:
    """A missing local file, which a cleaner of temporary directories deleted, is no refusal of the store.

    As a raw error, or as a missing bucket, it would end a daemon.
    """
    with pytest.raises(StoreUnavailable):
        store.upload(tmp_path / "gone", "runs/a.parquet")


def test_what_is_not_there_is_not_found(store: Store, tmp_path: Path) -> None:
    """A read of a missing file is NotFound in every way, next to other files or in no directory at all."""
    store.put_if_absent("runs/a.parquet", b"x")
    for path in ("runs/b.parquet", "leases/a.avro"):
        with pytest.raises(NotFound):
            store.read(path)
        with pytest.raises(NotFound), store.open(path) as file:
            file.read()
        with pytest.raises(NotFound):
            store.download(path, tmp_path / "copy")
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "store"] == []


def test_delete_counts_a_missing_file_as_deleted(store: Store) -> None:
    """Deleting a file twice, or a missing one, is no error, and a deleted slot can be created again."""
    store.delete("runs/a.parquet")
    store.put_if_absent("runs/a.parquet", b"x")
    store.delete("runs/a.parquet")
    store.delete("runs/a.parquet")
    assert _paths(store) == []
    store.put_if_absent("runs/a.parquet", b"y")
    assert store.read("runs/a.parquet") == b"y"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../other/a",
        "runs/../../a",
        "runs//a",
        "./a",
        "runs/.",
        "runs/..",
        "a\0b",
        "a\nb",
        "a\\b",
        "runs/.tmp-a",
        "runs/",
    ],
)
def test_a_path_cannot_leave_the_directory(store: Store, tmp_path: Path, path: str) -> None:
    """Every method refuses a path that leaves the log's directory before any I/O."""
    local = tmp_path / "file"
    local.write_bytes(b"x")
    calls: list[Callable[[], object]] = [
        lambda: store.read(path),
        lambda: store.open(path),
        lambda: store.put(path, b"x"),
        lambda: store.put_if_absent(path, b"x"),
        lambda: store.upload(local, path),
        lambda: store.download(path, local),
        lambda: store.delete(path),
    ]
    for call in calls:
        with pytest.raises(InvalidName):
            call()
    if path not in ("", "runs/"):
        with pytest.raises(InvalidName):
            store.list(path)
    assert local.read_bytes() == b"x"


def test_ranges_of_an_open_file(store: Store) -> None:
    """An open file reads any range, from either end, small or large, and ends at the file's end."""
    data = bytes(range(256)) * 4096
    store.put_if_absent("runs/a.parquet", data)
    with store.open("runs/a.parquet") as file:
        assert file.seek(0, 2) == len(data)
        assert file.read(1) == b""
        file.seek(-8, 2)
        assert file.read() == data[-8:]
        file.seek(1000)
        assert file.read(700_000) == data[1000:701_000]
        assert file.tell() == 701_000
        file.seek(255)
        assert file.read(2) == b"\xff\0"
        file.seek(-8, 2)
        assert file.read(100) == data[-8:]  # A run that is shorter than its manifest says ends early, everywhere.


def test_readers_of_one_file_do_not_disturb_each_other(store: Store) -> None:
    """Two open readers of the same file have a position each."""
    store.put_if_absent("runs/a.parquet", b"abcdef")
    with store.open("runs/a.parquet") as one, store.open("runs/a.parquet") as two:
        assert one.read(3) == b"abc"
        assert two.read(2) == b"ab"
        assert one.read() == b"def"


def test_upload_and_download_keep_every_byte(store: Store, tmp_path: Path) -> None:
    """A file of some megabytes goes up and comes down unchanged, and only the named copy is left here."""
    data, source, copy = uuid.uuid4().bytes * 200_000, tmp_path / "run", tmp_path / "down" / "copy"
    copy.parent.mkdir()
    source.write_bytes(data)
    store.upload(source, "runs/a.parquet")
    store.download("runs/a.parquet", copy)
    assert copy.read_bytes() == data
    assert store.read("runs/a.parquet") == data
    assert list(copy.parent.iterdir()) == [copy]


def test_check_passes_and_leaves_nothing(store: Store) -> None:
    """A store that honours put-if-absent passes its own proof, any number of times, without a trace of it."""
    store.check()
    store.check()
    assert _paths(store) == []


def test_the_clock_is_the_one_that_stamps_files(store: Store) -> None:
    """The clock is the one that stamps files: a file written between two calls of now_s was modified in between."""
    before = store.now_s()
    store.put_if_absent("leases/a.avro", b"x")
    (info,) = store.list("leases/")
    after = store.now_s()
    assert before <= info.modified_s <= after
    assert after - before < 60


def test_room_is_told_or_is_not_known(store: Store) -> None:
    """The room is known or unknown: for a log with a file its disk has some left, or the store does not say."""
    store.put("leases/a.avro", b"x")
    free_bytes = store.free_bytes()
    assert free_bytes is None or free_bytes > 0


def test_the_url_names_the_log_and_no_secret(store: Store) -> None:
    """The URL ends with the log's name; neither it nor the repr shows a secret."""
    assert store.url.endswith(f"/{LOG}")
    assert SECRET_KEY not in store.url + repr(store)


@pytest.mark.docker
def test_the_proof_refuses_a_real_gateway_that_ignores_the_condition() -> None:
    """The proof refuses a real gateway without metadata, which answers 200 to the second create."""
    with ExitStack() as stack:
        service = _s3_service(stack, honours_conditions=False)
        with pytest.raises(UnsafeStore):
            open_store(f"s3://{service.bucket}/state", LOG, service.options).check()


def _calls_of_every_kind(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.list("runs/"),
        lambda: store.read("descriptor.avro"),
        lambda: store.put_if_absent("descriptor.avro", b"x"),
        lambda: store.delete("descriptor.avro"),
        store.check,
        store.now_s,
    ]


@pytest.mark.docker
def test_an_s3_store_that_refuses_is_told_as_that_and_not_empty(s3: S3Service) -> None:
    """A missing bucket and a refused login are StoreRefused for every call, with a hint and without the secret."""
    wrong = {**s3.options, "secret": "another-canary-secret"}
    for root, options, hint in (
        (f"s3://{s3.bucket}/state", wrong, "credentials"),
        ("s3://no-such-bucket/s", s3.options, "bucket"),
    ):
        store = open_store(root, LOG, options)
        for call in _calls_of_every_kind(store):
            with pytest.raises(StoreRefused) as caught:
                call()
            assert hint in caught.value.hint
            assert "canary-secret" not in str(caught.value) + repr(store)
