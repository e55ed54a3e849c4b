"""Messages for tests, and output chunks that hold them."""

from collections.abc import Sequence

from statelog.schemas.changes.chunk import EncodedChunk
from statelog.schemas.outputs.chunk import decode_output_head, decode_outputs, encode_output_chunk
from statelog.schemas.outputs.output import Output
from tests.support.samples.chunks import KEY, NONCE, WITNESS

__all__ = ["OUTPUTS", "output_chunk_of", "outputs_in"]

OUTPUTS = [
    Output("orders", b"1", b"k"),
    Output("orders", None, b"gone"),
    Output("audit.all_-", b"", None, (("kind", b"new"), ("kind", None), ("ä", b"")), 3),
    Output("orders", b"2"),
]
"""One of every kind: with and without key, value, headers and partition."""


def output_chunk_of(outputs: Sequence[Output], *, sqn: int = 3, index: int = 0) -> EncodedChunk:
    """Return an output chunk of epoch 7 that holds these messages."""
    return encode_output_chunk(epoch=7, nonce=NONCE, sqn=sqn, index=index, witness=WITNESS, key=KEY, outputs=outputs)


def outputs_in(value: bytes) -> list[Output]:
    """Return the messages of an output chunk."""
    found = decode_output_head(value)
    assert found is not None, "it is no output chunk"
    return decode_outputs(value, *found)
