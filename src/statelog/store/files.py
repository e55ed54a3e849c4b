"""A log's files on the store: the descriptor, the value schemas, and the chain of manifests. All are written once.

It executes; which manifests are kept, what a manifest says and what may be deleted is decided in `schemas`.

Invariants:
- A value schema, `schemas/<id>.avsc` with ids from 1, is stored before the first chunk that uses it is sent: an id that
  is found in a chunk has its schema. Id 0 means opaque bytes and has no file.
- A slot of the chain is written once. The nonce inside says who put it, never the outcome of the put.
- "Newest" is the highest number listed. A listing, or the manifest that was read last, is reused only for a caller
  that says how old it may be: what it names may be superseded by then, which a check under a lease finds. One that is
  listed with the size and time that it was read with is the same: it never changes.
- An empty listing is believed only beside the log's own descriptor, and no listing that ends below a number that this
  process has seen: the newest manifest is never deleted, so the directory is not the one that it was.
- Who accepted a loss, and why, is on the store before it is in the ledger, and outlives it there. What counts is what
  the ledger says.
- Nothing is put before this process has seen the store refuse a second create: a gateway may have changed since the log
  was made, and on one that overwrites two winners of a slot delete each other's runs.
"""

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from statelog.environment import current_environment
from statelog.errors import (
    AlreadyExists,
    Corrupt,
    CorruptManifest,
    Fact,
    IdentityChanged,
    NotFound,
    StoreUnavailable,
    UnknownFormat,
)
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.records import AcceptLoss, Restart, decode, encode
from statelog.schemas.names import DESCRIPTOR_PATH, LOSSES, MANIFESTS, SCHEMAS, TRUNCATIONS, Numbered
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import Truncation
from statelog.schemas.values.schema import OPAQUE, ValueSchema, check_compatible, parse_value_schema
from statelog.store.port import FileInfo, Store


def descriptor_or_none(store: Store) -> Descriptor | None:
    """The descriptor below this root; None if there is none. Raises Corrupt, UnknownFormat, StoreUnavailable."""
    try:
        return Descriptor.from_bytes(store.read(DESCRIPTOR_PATH), DESCRIPTOR_PATH)
    except NotFound:
        return None


def descriptor_of(store: Store, name: str, **hint: str) -> Descriptor:
    """The descriptor of the log `name`, which is below this root.

    Raises NotFound, Corrupt, UnknownFormat, StoreUnavailable.
    """
    found = descriptor_or_none(store)
    if found is None:
        raise NotFound(f"there is no log {name}", url=store.url, **hint)
    return found


def put_same(store: Store, path: str, data: bytes, meaning: Callable[[bytes], object] = bytes) -> None:
    """Put a file, or find what a repeated request, or a create that died, put there before. Raises AlreadyExists if
    that has another meaning.
    """
    try:
        store.put_if_absent(path, data)
    except AlreadyExists:
        if meaning(store.read(path)) != meaning(data):
            raise


def is_put(store: Store, path: str, data: bytes, is_ours: Callable[[], bool]) -> bool:
    """Put a file into its slot. Returns whether the one that stands there is ours, as `is_ours` reads it from there.

    Raises StoreUnavailable if it cannot be told, and as `is_ours`; StorageFull.
    """
    try:
        store.put_if_absent(path, data)
    except (AlreadyExists, StoreUnavailable) as error:
        # A store's client retries below us, so "exists" may be our own write, and a failure may have landed.
        try:
            return is_ours()
        except NotFound:
            raise StoreUnavailable("a file was neither written nor refused", path=path) from error
    return True


def truncation_of(store: Store, descriptor: Descriptor) -> Truncation:
    """Who truncates, by the newest of the log's files that says so. Raises Corrupt, UnknownFormat, StoreUnavailable."""
    return _truncation_of(store, descriptor)[1]


def put_truncation(store: Store, descriptor: Descriptor, wanted: Truncation) -> None:
    """Say from now on who truncates the log. Raises StoreUnavailable, after which the same call is safe."""
    while (said := _truncation_of(store, descriptor))[1] != wanted:
        with suppress(AlreadyExists):  # Another process said something at the same moment: what counts is looked at.
            store.put_if_absent(TRUNCATIONS.path(said[0] + 1), wanted.to_bytes(descriptor.digest))


def _truncation_of(store: Store, descriptor: Descriptor) -> tuple[int, Truncation]:
    """The number of the newest file, 0 without one, and what the newest one of the log says."""
    files = _numbered(store, TRUNCATIONS)
    for info in reversed(files.values()):
        digest, found = Truncation.from_bytes(store.read(info.path), info.path)
        if digest == descriptor.digest:  # Else a create that died left it, or the file was copied here.
            return max(files), found
    return max(files, default=0), Truncation()


class AcceptedLoss(NamedTuple):
    """What a person gave up, as the ledger's record says it, and when, by the store's time. Without a `record` the file
    at `path` cannot be read, and `problem` says why.
    """

    path: str
    accepted_s: float
    record: AcceptLoss | Restart | None
    problem: str = ""


def put_loss(store: Store, record: AcceptLoss | Restart) -> None:
    """Say who accepts a loss, and why, in a file that nothing deletes, before the ledger has the same record.

    A loss that is accepted again, because the outcome was unknown, is said once. Raises StoreRefused; Unavailable,
    after which the same call is safe.
    """
    while True:
        last = max(_numbered(store, LOSSES), default=0)
        if last and store.read(LOSSES.path(last)) == encode(record):
            return
        with suppress(AlreadyExists):  # Another person was faster, or this very call was repeated: look again.
            store.put_if_absent(LOSSES.path(last + 1), encode(record))
            return


def losses_of(store: Store) -> list[AcceptedLoss]:
    """What people gave up, oldest first, also where the ledger was truncated past it. Nothing is decided by it, so what
    cannot be read is reported, and stops nobody. Raises StoreUnavailable.
    """
    files = _numbered(store, LOSSES).values()
    return [AcceptedLoss(one.path, one.modified_s, *_loss(store.read(one.path))) for one in files]


def _loss(data: bytes) -> tuple[AcceptLoss | Restart | None, str]:
    try:
        record = decode(data)
    except (Corrupt, UnknownFormat) as error:
        return None, error.message
    return (record, "") if isinstance(record, AcceptLoss | Restart) else (None, "it says something else")


def _numbered(store: Store, files: Numbered) -> dict[int, FileInfo]:
    """The files that there are, by ascending number."""
    found = ((files.number(info.path), info) for info in store.list(files.folder))
    return dict(sorted((number, info) for number, info in found if number))


# ---- manifests


_LOOKS = 5
_GONE_HINT = "Mount the volume again, or check the root URL; nothing was written and nothing was truncated"


class ManifestChain:
    """The `manifests/` folder of the log that `descriptor` describes."""

    def __init__(self, store: Store, descriptor: Descriptor) -> None:
        self._store = store
        self._descriptor = descriptor
        self._highest = 0
        self._noting = Lock()
        self._is_proved = False
        self._clock = current_environment().clock
        self._listing: tuple[dict[int, FileInfo], float] | None = None
        self._read: tuple[Manifest, float, FileInfo | None] | None = None

    def numbers(self, *, max_age_s: float = 0.0) -> list[int]:
        """The numbers that there are, ascending. Raises IdentityChanged, StoreUnavailable."""
        return list(self.listed(max_age_s=max_age_s))

    def listed(self, *, max_age_s: float = 0.0) -> dict[int, FileInfo]:
        """The files that there are, by ascending number; as they were less than `max_age_s` ago, if asked for then.

        Raises StoreUnavailable, also if the directory is not there or went back, IdentityChanged if it is another's.
        """
        known, now_s = self._listing, self._clock()
        # That there is none is never remembered: who finds none looks whether the directory is still the log's.
        if known is not None and known[0] and now_s - known[1] < max_age_s:
            return known[0]
        seen = self._highest  # Asked for before the listing: other threads may put meanwhile.
        listed = _numbered(self._store, MANIFESTS)
        newest = max(listed, default=0)
        if newest == 0 or newest < seen:
            self.check_place()
        if newest < seen:
            what = "the store went back: the newest manifest is older than one that stood here"
            hint = "Another directory, or an older copy, lies at the root URL: bring the right one back"
            raise StoreUnavailable(what, hint=hint, store=self._store.url, newest=newest, seen=seen)
        self._saw(newest)
        self._listing = (listed, now_s)
        return listed

    def check_place(self) -> None:
        """See that the directory is the log's, by its descriptor.

        Raises StoreUnavailable if there is none, IdentityChanged if it is another log's, CorruptDescriptor.
        """
        found = descriptor_or_none(self._store)
        if found is None:
            message = "the store is not there: the log's directory holds no descriptor"
            raise StoreUnavailable(message, hint=_GONE_HINT, store=self._store.url)
        if found.digest != self._descriptor.digest:
            raise self._another(found.identity, "the directory is another log's", "Check the root URL")

    def read(self, number: int, *, max_age_s: float = 0.0, listed: FileInfo | None = None) -> Manifest:
        """One manifest; as it was read last, if that was less than `max_age_s` ago, or of the file that is `listed`.

        Raises NotFound, CorruptManifest, UnknownFormat, StoreUnavailable.
        """
        known, now_s = self._read, self._clock()
        if known is not None and known[0].number == number:
            if now_s - known[1] < max_age_s or listed == known[2] is not None:
                return known[0]
        else:
            known = None
        path = MANIFESTS.path(number)
        try:
            found = Manifest.from_bytes(self._store.read(path), path)
        except CorruptManifest:
            self._read = None  # What is damaged by now is not known any more.
            raise
        if known is not None and listed is None and found.nonce == known[0].nonce:
            listed = known[2]
        self._read = (found, now_s, listed)
        return found

    def find(self, number: int, *, listed: FileInfo | None = None) -> Manifest | None:
        """As `read`; None if it is gone, cleaned up since it was listed, say."""
        with suppress(NotFound):
            return self.read(number, listed=listed)
        return None

    def at(self, position: int) -> Manifest | None:
        """That of a ledger position, if there is one that can be read. Raises IdentityChanged, UnknownFormat,
        StoreUnavailable.
        """
        for number, listed in reversed(self.listed().items()):
            with suppress(CorruptManifest):
                found = self.find(number, listed=listed)
                if found and found.position == position and found.identity == self._descriptor.identity:
                    return found
        return None

    def newest(self, *, max_age_s: float = 0.0) -> Manifest | None:
        """The newest manifest, or None before the first; as it was less than `max_age_s` ago, if it was read then.

        Raises IdentityChanged if it is that of other topics, StoreUnavailable if it is listed and cannot be read.
        """
        found = self.newest_of_any(max_age_s=max_age_s)
        if found is not None and found.identity != self._descriptor.identity:
            what = "the newest manifest was made for other topics"
            hint = "Open the log again. If that fails, the files are another log's: restore this one's own"
            raise self._another(found.identity, what, hint, manifest=found.number)
        return found

    def newest_sound(self, *, max_age_s: float = 0.0) -> Manifest | None:
        """As `newest`, but pass over those that are damaged: of that, readers tell."""
        with suppress(CorruptManifest):
            return self.newest(max_age_s=max_age_s)
        for number, listed in reversed(self.listed().items()):
            with suppress(CorruptManifest):
                found = self.find(number, listed=listed)
                if found is not None and found.identity == self._descriptor.identity:
                    return found
        return None

    def _another(self, found: LogIdentity, what: str, hint: str, **facts: Fact) -> IdentityChanged:
        ids = {"expected": self._descriptor.identity.ledger_topic_id, "found": found.ledger_topic_id}
        return IdentityChanged(what, hint=hint, store=self._store.url, **ids, **facts)

    def newest_of_any(self, *, max_age_s: float = 0.0) -> Manifest | None:
        """The newest manifest, whichever topics it was made for. Raises Damaged, StoreUnavailable."""
        missed: list[int] = []
        while numbers := self.numbers(max_age_s=0.0 if missed else max_age_s):
            try:
                return self.read(numbers[-1], max_age_s=max_age_s)
            except NotFound as error:
                # Only numbers that a newer one replaced are ever deleted: the list is stale, ask again.
                missed.append(numbers[-1])
                if missed.count(numbers[-1]) >= _LOOKS:
                    what = "the store lists the newest manifest, and then says that it is not there"
                    raise StoreUnavailable(what, hint=_GONE_HINT, **error.facts) from error
        return None

    def prove_store(self) -> None:
        """See, once in this process, that the store refuses a second create. Raises UnsafeStore, StoreUnavailable,
        StorageFull.
        """
        if not self._is_proved:
            self._store.check()
            self._is_proved = True

    def put(self, manifest: Manifest) -> bool:
        """Put a manifest into its slot. True if it is ours that stands there, False if another one does.

        The first put proves the store. Raises UnsafeStore, with nothing put, if it overwrites; StoreUnavailable if it
        cannot be told whose manifest it is; StorageFull.
        """
        self.prove_store()
        self._listing = None
        number = manifest.number
        is_ours = is_put(
            self._store, MANIFESTS.path(number), manifest.to_bytes(), lambda: self.read(number).nonce == manifest.nonce
        )
        self._saw(number)  # Whose it is: one stands there.
        return is_ours

    def _saw(self, number: int) -> None:
        with self._noting:  # Rounds and readers in other threads note theirs.
            self._highest = max(self._highest, number)


# ---- value schemas


class ValueSchemas:
    """All value schemas of one log, read when first asked for."""

    def __init__(self, store: Store, first_id: int) -> None:
        self._store = store
        self._known: dict[int, ValueSchema] = {0: OPAQUE}
        self._first_id = first_id

    def get(self, schema_id: int) -> ValueSchema:
        """The schema with this id. Raises UnknownFormat if the log does not have it, StoreUnavailable."""
        if schema_id not in self._known:
            try:
                text = self._store.read(SCHEMAS.path(schema_id)).decode()
            except NotFound as error:
                what, path = "a chunk names a value schema that the log does not have", SCHEMAS.path(schema_id)
                hint = "Restore the file: nothing deletes it"
                raise UnknownFormat(what, schema_id=schema_id, path=path, hint=hint) from error
            self._known[schema_id] = parse_value_schema(text, schema_id)
        return self._known[schema_id]

    def newest(self) -> ValueSchema:
        """The schema that new changes are written with, asked of the store now."""
        if self._first_id == 0:
            return OPAQUE
        return self.get(max(_numbered(self._store, SCHEMAS), default=self._first_id))

    def all(self) -> tuple[ValueSchema, ...]:
        """Every schema of the log by ascending id, asked of the store now; the opaque one alone in a log of bytes."""
        newest = self.newest()
        return tuple(self.get(schema_id) for schema_id in range(self._first_id, newest.id + 1))

    def add(self, avsc: str) -> ValueSchema:
        """Store a schema under the next id, unless the log has it already, under any id; that one is returned then.

        So a program may ask for its schema whenever it starts: an old one that starts again takes nothing back.

        Raises IncompatibleSchema, before anything is written, if it cannot read what any earlier one wrote; ConfigError
        if it is no value schema; StoreUnavailable, after which the same call is safe.
        """
        while True:
            known = self.all()
            proposed = parse_value_schema(avsc, known[-1].id + 1)
            same = [one for one in known if one.avsc == proposed.avsc]
            if same:
                return same[0]
            check_compatible(proposed, known)
            try:
                self._store.put_if_absent(SCHEMAS.path(proposed.id), proposed.avsc.encode())
            except AlreadyExists:
                continue  # Another process added one at the same moment: check against it, too.
            self._known[proposed.id] = proposed
            return proposed
