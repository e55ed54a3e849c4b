"""A log's files: the descriptor and the first value schema. Written once, never changed."""

import json

from statelog.errors import AlreadyExists, NotFound
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.storage.store import Store

__all__ = ["descriptor_or_none", "put_descriptor", "put_first_schema"]


def descriptor_or_none(store: Store) -> Descriptor | None:
    """The descriptor below this root; None if there is none. Raises Corrupt, UnknownFormat, StoreUnavailable."""
    try:
        return Descriptor.from_bytes(store.read(DESCRIPTOR_PATH), DESCRIPTOR_PATH)
    except NotFound:
        return None


def put_descriptor(store: Store, descriptor: Descriptor) -> None:
    """Put the descriptor; what a repeated request finds there may be this very one."""
    data = descriptor.to_bytes()
    try:
        store.put_if_absent(DESCRIPTOR_PATH, data)
    except AlreadyExists:
        if store.read(DESCRIPTOR_PATH) != data:
            raise


def put_first_schema(store: Store, avsc: str) -> None:
    """Put schema 1; one that a dead create left behind counts if it is the same."""
    try:
        store.put_if_absent("schemas/1.avsc", avsc.encode())
    except AlreadyExists:
        if json.loads(store.read("schemas/1.avsc")) != json.loads(avsc):
            raise
