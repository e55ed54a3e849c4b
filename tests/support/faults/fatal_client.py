"""Makes a native producer's error really fatal, by the test function of librdkafka, which Python does not show."""

import ctypes
from pathlib import Path

import confluent_kafka

__all__ = ["make_fatal"]

_OUT_OF_ORDER_SEQUENCE_NUMBER = 45


def make_fatal(producer: object) -> None:
    """Put the client of a `ConfluentProducer` that has sent into its fatal state, as a lost tail does."""
    native = vars(producer)["_native"]
    assert isinstance(native, confluent_kafka.Producer)
    libraries = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    (path,) = libraries.glob("librdkafka*.so*")
    call = ctypes.CDLL(str(path)).rd_kafka_test_fatal_error
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    # The object's first field behind Python's own two is the client's handle.
    handle = ctypes.c_void_p.from_address(id(native) + 2 * ctypes.sizeof(ctypes.c_void_p))
    assert call(handle, _OUT_OF_ORDER_SEQUENCE_NUMBER, b"the tail of the log was lost") == 0
