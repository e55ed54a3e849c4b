"""Messages under Hypothesis: what a commit carries or lists comes out as it went in."""

from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.schemas.outputs.batch import read_outputs, serialize_outputs
from statelog.schemas.outputs.output import Output, make_output
from tests.support.samples.outputs import output_chunk_of, outputs_in

_DATA = st.none() | st.binary(max_size=40)
_NAMES = st.text(max_size=8).filter(lambda name: name != "statelog" and "\ud800" not in name)
OUTPUTS = st.builds(
    make_output,
    topic=st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda name: name not in (".", "..")),
    value=_DATA | st.text(max_size=10),
    key=_DATA,
    headers=st.none() | st.lists(st.tuples(_NAMES, _DATA), max_size=4) | st.dictionaries(_NAMES, _DATA, max_size=3),
    partition=st.none() | st.integers(0, (1 << 31) - 1),
)


@settings(deadline=None)
@given(outputs=st.lists(OUTPUTS, min_size=1, max_size=80), before=st.integers(0, 4))
def test_what_is_sent_comes_out(outputs: list[Output], before: int) -> None:
    """Messages survive a chunk, and a batch in the middle of a record."""
    assert outputs_in(output_chunk_of(outputs).value) == outputs
    record = bytes(8 * before) + serialize_outputs(outputs) + bytes(16)
    assert read_outputs(record, 8 * before, len(outputs)) == outputs
