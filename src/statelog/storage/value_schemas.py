"""A log's value schemas on the store: `schemas/<id>.avsc`, ids from 1, each written once.

Id 0 means opaque bytes and has no file. A schema is stored before the first chunk that uses it is sent,
so an id that is found in a chunk has its schema.
"""

from statelog.errors import AlreadyExists, NotFound, UnknownFormat
from statelog.schemas.names import schema_path
from statelog.schemas.values.schema import OPAQUE, ValueSchema, check_compatible, parse_value_schema
from statelog.storage.store import Store

__all__ = ["ValueSchemas"]


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
                text = self._store.read(schema_path(schema_id)).decode()
            except NotFound as error:
                raise UnknownFormat(
                    "a chunk names a value schema that the log does not have",
                    schema_id=schema_id,
                    path=schema_path(schema_id),
                    hint="Restore the file: nothing deletes it",
                ) from error
            self._known[schema_id] = parse_value_schema(text, schema_id)
        return self._known[schema_id]

    def newest(self) -> ValueSchema:
        """The schema that new changes are written with, asked of the store now."""
        if self._first_id == 0:
            return OPAQUE
        newest = self._first_id
        for info in self._store.list("schemas/"):
            stem = info.path.removeprefix("schemas/").removesuffix(".avsc")
            if stem.isdigit():
                newest = max(newest, int(stem))
        return self.get(newest)

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
                self._store.put_if_absent(schema_path(proposed.id), proposed.avsc.encode())
            except AlreadyExists:
                continue  # Another process added one at the same moment: check against it, too.
            self._known[proposed.id] = proposed
            return proposed
