"""A log's files on the store: the descriptor, the value schemas, and the chain of manifests. All are written once.

`schemas` decides what a manifest contains, which manifests are retained, and which files may be deleted.

Invariants:
- A value schema, `schemas/<id>.avsc` with ids from 1, is stored before the first chunk that uses it is sent. So every
  id in a chunk has its schema. Id 0 means opaque bytes and has no file.
- A slot of the chain is written once. The nonce inside identifies its writer; the outcome of the put does not.
- "Newest" is the highest number listed. A listing, or the manifest read last, is reused only for a caller that names a
  maximum age. Callers check under a lease whether it was superseded. A manifest that is listed with the size and time
  that it was read with is the same: it never changes.
- An empty listing counts only if the log's own descriptor is there. A listing that ends below a number that this
  process has observed never counts: the newest manifest is never deleted, so this is another directory.
- The person who accepted a loss, and the reason, are on the store before they are in the ledger, and stay there longer.
  Only the ledger's record has an effect.
- Nothing is put before this process has observed that the store refuses a second create. The gateway may have changed
  since the log was created, and if it overwrites, two winners of a slot delete each other's runs.
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
    """Return the descriptor below this root; None if there is none. Raises Corrupt, UnknownFormat, StoreUnavailable."""
    try:
        return Descriptor.from_bytes(store.read(DESCRIPTOR_PATH), DESCRIPTOR_PATH)
    except NotFound:
        return None


def descriptor_of(store: Store, name: str, **hint: str) -> Descriptor:
    """Return the descriptor of the log `name`. Raises NotFound, Corrupt, UnknownFormat, StoreUnavailable."""
    found = descriptor_or_none(store)
    if found is None:
        raise NotFound(f"there is no log {name}", url=store.url, **hint)
    return found


def put_same(store: Store, path: str, data: bytes, meaning: Callable[[bytes], object] = bytes) -> None:
    """Put a file, or accept the same one from a retried request or a killed creation.

    Raises AlreadyExists if the file that is there has another meaning.
    """
    try:
        store.put_if_absent(path, data)
    except AlreadyExists:
        if meaning(store.read(path)) != meaning(data):
            raise


def is_put(store: Store, path: str, data: bytes, is_ours: Callable[[], bool]) -> bool:
    """Put a file into its slot. Return whether the file in the slot is ours, as `is_ours` reads it from there.

    Raises StoreUnavailable if that is unknown, StorageFull, and the errors of `is_ours`.
    """
    try:
        store.put_if_absent(path, data)
    except (AlreadyExists, StoreUnavailable) as error:
        # The store's client retries, so AlreadyExists may be our own write, and a failed write may have taken effect.
        try:
            return is_ours()
        except NotFound:
            raise StoreUnavailable("a file was neither written nor refused", path=path) from error
    return True


def truncation_of(store: Store, descriptor: Descriptor) -> Truncation:
    """Return who truncates, by the newest of the log's files. Raises Corrupt, UnknownFormat, StoreUnavailable."""
    return _truncation_of(store, descriptor)[1]


def put_truncation(store: Store, descriptor: Descriptor, wanted: Truncation) -> None:
    """Set who truncates the log. After StoreUnavailable, the call can be repeated."""
    while (found := _truncation_of(store, descriptor))[1] != wanted:
        with suppress(AlreadyExists):  # Another process set it concurrently: read it again.
            store.put_if_absent(TRUNCATIONS.path(found[0] + 1), wanted.to_bytes(descriptor.digest))


def _truncation_of(store: Store, descriptor: Descriptor) -> tuple[int, Truncation]:
    """Return the number of the newest file, 0 without one, and the content of the newest one of this log."""
    files = _numbered(store, TRUNCATIONS)
    for info in reversed(files.values()):
        digest, found = Truncation.from_bytes(store.read(info.path), info.path)
        if digest == descriptor.digest:  # Else it is left from a killed creation, or was copied here.
            return max(files), found
    return max(files, default=0), Truncation()


class AcceptedLoss(NamedTuple):
    """A loss that a person accepted: the ledger's record, and the time by the store.

    Without a `record` the file at `path` is unreadable, and `problem` says why.
    """

    path: str
    accepted_s: float
    record: AcceptLoss | Restart | None
    problem: str = ""


def put_loss(store: Store, record: AcceptLoss | Restart) -> None:
    """Store the record of an accepted loss in a file that nothing deletes, before it goes to the ledger.

    A repetition after an unknown outcome is stored once. Raises StoreRefused, Unavailable.
    """
    while True:
        last = max(_numbered(store, LOSSES), default=0)
        if last and store.read(LOSSES.path(last)) == encode(record):
            return
        with suppress(AlreadyExists):  # Another person was faster, or the client retried this call: check again.
            store.put_if_absent(LOSSES.path(last + 1), encode(record))
            return


def losses_of(store: Store) -> list[AcceptedLoss]:
    """Return the accepted losses, oldest first, also those whose ledger records were truncated.

    They are for people only, so an unreadable file is reported as a `problem`. Raises StoreUnavailable.
    """
    files = _numbered(store, LOSSES).values()
    return [AcceptedLoss(one.path, one.modified_s, *_loss(store.read(one.path))) for one in files]


def _loss(data: bytes) -> tuple[AcceptLoss | Restart | None, str]:
    try:
        record = decode(data)
    except (Corrupt, UnknownFormat) as error:
        return None, error.message
    return (record, "") if isinstance(record, AcceptLoss | Restart) else (None, "it accepts no loss")


def _numbered(store: Store, files: Numbered) -> dict[int, FileInfo]:
    """Return the existing files by ascending number."""
    found = ((files.number(info.path), info) for info in store.list(files.folder))
    return dict(sorted((number, info) for number, info in found if number))


# ---- manifests


_TRIES = 5
_GONE_HINT = "Mount the volume again, or check the root URL; nothing was written and nothing was truncated"


class ManifestChain:
    """The `manifests/` folder of the log that `descriptor` describes."""

    def __init__(self, store: Store, descriptor: Descriptor) -> None:
        self._store = store
        self._descriptor = descriptor
        self._highest = 0
        self._observing = Lock()
        self._is_proved = False
        self._clock = current_environment().clock
        self._listing: tuple[dict[int, FileInfo], float] | None = None
        self._read: tuple[Manifest, float, FileInfo | None] | None = None

    def numbers(self, *, max_age_s: float = 0.0) -> list[int]:
        """Return the existing numbers, ascending. Raises IdentityChanged, StoreUnavailable."""
        return list(self.listed(max_age_s=max_age_s))

    def listed(self, *, max_age_s: float = 0.0) -> dict[int, FileInfo]:
        """Return the existing files by ascending number. A listing less than `max_age_s` old may be reused.

        Raises IdentityChanged if the directory is another log's, StoreUnavailable, also if the directory is missing or
        an older copy.
        """
        known, now_s = self._listing, self._clock()
        # An empty listing is never reused: each time, the directory is checked by its descriptor.
        if known is not None and known[0] and now_s - known[1] < max_age_s:
            return known[0]
        seen = self._highest  # Read before the listing: other threads may put meanwhile.
        listed = _numbered(self._store, MANIFESTS)
        newest = max(listed, default=0)
        if newest == 0 or newest < seen:
            self.check_place()
        if newest < seen:
            what = "the store went back: the newest manifest is older than one observed before"
            hint = "Restore the log's directory: the root URL leads to another one, or to an older copy"
            raise StoreUnavailable(what, hint=hint, store=self._store.url, newest=newest, seen=seen)
        self._observe(newest)
        self._listing = (listed, now_s)
        return listed

    def check_place(self) -> None:
        """Check by its descriptor that the directory is the log's.

        Raises StoreUnavailable if there is none, IdentityChanged if it is another log's, CorruptDescriptor.
        """
        found = descriptor_or_none(self._store)
        if found is None:
            message = "the store is not there: the log's directory holds no descriptor"
            raise StoreUnavailable(message, hint=_GONE_HINT, store=self._store.url)
        if found.digest != self._descriptor.digest:
            raise self._another(found.identity, "the directory is another log's", "Check the root URL")

    def read(self, number: int, *, max_age_s: float = 0.0, listed: FileInfo | None = None) -> Manifest:
        """Return one manifest. The last read is reused if it is less than `max_age_s` old, or of the `listed` file.

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
            self._read = None  # Never reuse a manifest that is damaged by now.
            raise
        if known is not None and listed is None and found.nonce == known[0].nonce:
            listed = known[2]
        self._read = (found, now_s, listed)
        return found

    def find(self, number: int, *, listed: FileInfo | None = None) -> Manifest | None:
        """Return one manifest as `read` does; None if it was deleted, for example since it was listed."""
        with suppress(NotFound):
            return self.read(number, listed=listed)
        return None

    def at(self, position: int) -> Manifest | None:
        """Return the manifest at a ledger position; None if there is no readable one.

        Raises IdentityChanged, UnknownFormat, StoreUnavailable.
        """
        for number, listed in reversed(self.listed().items()):
            with suppress(CorruptManifest):
                found = self.find(number, listed=listed)
                if found and found.position == position and found.identity == self._descriptor.identity:
                    return found
        return None

    def newest(self, *, max_age_s: float = 0.0) -> Manifest | None:
        """Return the newest manifest, or None before the first. One less than `max_age_s` old may be reused.

        Raises IdentityChanged if it was made for other topics, StoreUnavailable if it is listed and unreadable.
        """
        found = self.newest_of_any(max_age_s=max_age_s)
        if found is not None and found.identity != self._descriptor.identity:
            what = "the newest manifest was made for other topics"
            hint = "Open the log again. If that fails, restore the log's own files: these are another log's"
            raise self._another(found.identity, what, hint, manifest=found.number)
        return found

    def newest_sound(self, *, max_age_s: float = 0.0) -> Manifest | None:
        """Return the newest manifest that is not damaged. Damage is reported by readers."""
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
        """Return the newest manifest, whichever topics it was made for. Raises Damaged, StoreUnavailable."""
        missed: list[int] = []
        while numbers := self.numbers(max_age_s=0.0 if missed else max_age_s):
            try:
                return self.read(numbers[-1], max_age_s=max_age_s)
            except NotFound as error:
                # Only superseded numbers are ever deleted: the listing is stale, so list again.
                missed.append(numbers[-1])
                if missed.count(numbers[-1]) >= _TRIES:
                    what = "the store lists the newest manifest, but says that it does not exist"
                    raise StoreUnavailable(what, hint=_GONE_HINT, **error.facts) from error
        return None

    def prove_store(self) -> None:
        """Check, once in this process, that the store refuses a second create.

        Raises UnsafeStore, StoreUnavailable, StorageFull.
        """
        if not self._is_proved:
            self._store.check()
            self._is_proved = True

    def put(self, manifest: Manifest) -> bool:
        """Put a manifest into its slot. Return True if the manifest in the slot is ours, False if it is another one.

        The first put checks the store. Raises UnsafeStore, with nothing put, if it overwrites; StoreUnavailable if it
        is unknown whose manifest is there; StorageFull.
        """
        self.prove_store()
        self._listing = None
        number = manifest.number
        is_ours = is_put(
            self._store, MANIFESTS.path(number), manifest.to_bytes(), lambda: self.read(number).nonce == manifest.nonce
        )
        self._observe(number)  # The slot is taken, by ours or another one.
        return is_ours

    def _observe(self, number: int) -> None:
        with self._observing:  # Rounds and readers in other threads do the same.
            self._highest = max(self._highest, number)


# ---- value schemas


class ValueSchemas:
    """All value schemas of one log, read when first needed."""

    def __init__(self, store: Store, first_id: int, opaque: ValueSchema = OPAQUE) -> None:
        self._store = store
        self._known: dict[int, ValueSchema] = {0: opaque}
        self._first_id = first_id

    def get(self, schema_id: int) -> ValueSchema:
        """Return the schema with this id. Raises UnknownFormat if the log does not have it, StoreUnavailable."""
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
        """Return the schema for new changes. Reads the store's listing."""
        if self._first_id == 0:
            return self._known[0]
        return self.get(max(_numbered(self._store, SCHEMAS), default=self._first_id))

    def all(self) -> tuple[ValueSchema, ...]:
        """Return all schemas of the log by ascending id; only the opaque one in a log of bytes. Reads the listing."""
        newest = self.newest()
        return tuple(self.get(schema_id) for schema_id in range(self._first_id, newest.id + 1))

    def add(self, avsc: str) -> ValueSchema:
        """Store a schema under the next id, or return the same one if the log has it under any id.

        So a program may add its schema at every start: an old program that restarts reverts nothing.

        Raises IncompatibleSchema, before anything is written, if it cannot read the values of an earlier one. Raises
        ConfigError if it is no value schema, and StoreUnavailable, after which the call can be repeated.
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
                continue  # Another process added one concurrently: check against it, too.
            self._known[proposed.id] = proposed
            return proposed
