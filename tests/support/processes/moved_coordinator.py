"""A process that asks a group's coordinator which says that it is none: librdkafka's admin client would crash it.

The brokers are librdkafka's own mock cluster, which answers as it is told to. It is made by C calls: Python has none.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import confluent_kafka

from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import client_config

__all__ = ["moved_coordinator"]

_PRODUCER, _OFFSET_FETCH, _NOT_COORDINATOR = 0, 9, 16
_ANSWERS = 2


def moved_coordinator() -> None:
    """Write the text beside a group's offset, which the coordinator tells when it is asked for the third time."""
    with _mock_cluster() as (library, cluster, bootstrap), closing(_kafka(bootstrap)) as kafka:
        kafka.publish_offset("group", "topic", 0, 5, "text")
        errors = (ctypes.c_int * _ANSWERS)(*[_NOT_COORDINATOR] * _ANSWERS)
        library.rd_kafka_mock_push_request_errors_array(
            cluster, ctypes.c_int16(_OFFSET_FETCH), ctypes.c_size_t(_ANSWERS), errors
        )
        sys.stdout.write(kafka.published("group", "topic", 0))


def _kafka(bootstrap: str) -> ConfluentKafka:
    return ConfluentKafka(client_config({"bootstrap.servers": bootstrap}), request_timeout_s=30.0)


@contextmanager
def _mock_cluster() -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p, str]]:
    library = ctypes.CDLL(str(_library()))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, error, ctypes.c_size_t(len(error))))
    assert client, error.value
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    library.rd_kafka_mock_topic_create(cluster, b"topic", 1, 1)
    try:
        yield library, cluster, library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)


def _library() -> Path:
    """The librdkafka that the client brings along, which is loaded by now."""
    (found,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*.so*")
    return found
