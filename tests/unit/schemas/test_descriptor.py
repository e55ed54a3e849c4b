"""The descriptor: its file, and the comparison with the cluster that every open makes."""

from dataclasses import replace

import pytest

from statelog.errors import ConfigError, CorruptDescriptor, IdentityChanged, InvalidName, UnknownFormat
from statelog.schemas.avro import FileCodec, RecordCodec
from statelog.schemas.descriptor import Descriptor, HashRule, verify
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.ledger.identity import LogIdentity
from tests.support.samples.mutation import mutations

IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")
DESCRIPTOR = Descriptor(
    name="orders",
    identity=IDENTITY,
    partitions=4,
    key_groups=128,
    hash_rule=HashRule.CRC32,
    key_type=KeyType.LONG,
    value_schema_id=1,
    nonce=bytes(range(16)),
)
SCHEMA_TEXT = RecordCodec("descriptor").text.encode()


@pytest.mark.parametrize("rule", list(HashRule))
@pytest.mark.parametrize("key_type", list(KeyType))
def test_a_descriptor_survives_its_file(rule: HashRule, key_type: KeyType) -> None:
    """The file decodes to the descriptor."""
    descriptor = replace(DESCRIPTOR, hash_rule=rule, key_type=key_type)
    assert Descriptor.from_bytes(descriptor.to_bytes(), "descriptor.avro") == descriptor


def test_every_mutation_of_the_file_is_refused() -> None:
    """No flipped, missing or added byte passes, but in the schema text, which is for other tools."""
    for damaged in mutations(DESCRIPTOR.to_bytes(), spare=SCHEMA_TEXT):
        with pytest.raises((CorruptDescriptor, UnknownFormat)):
            Descriptor.from_bytes(damaged, "descriptor.avro")


def test_a_change_in_the_schema_text_changes_nothing() -> None:
    """The text inside the file is never interpreted: a flipped byte there leaves the descriptor as it is."""
    data = DESCRIPTOR.to_bytes()
    at = data.index(SCHEMA_TEXT) + 5
    damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    assert Descriptor.from_bytes(damaged, "descriptor.avro") == DESCRIPTOR


def test_a_newer_format_is_unknown() -> None:
    """A file of a later version says so, instead of looking damaged."""
    newer = DESCRIPTOR.to_bytes().replace(b"statelog.format\x021", b"statelog.format\x022")
    with pytest.raises(UnknownFormat):
        Descriptor.from_bytes(newer, "descriptor.avro")


@pytest.mark.parametrize(
    "lie",
    [{"name": "../x"}, {"partitions": 0}, {"partitions": 200}, {"hash_rule": "md5"}, {"key_type": "date"}],
    ids=str,
)
def test_a_whole_file_that_says_nonsense_is_corrupt(lie: dict[str, object]) -> None:
    """A right checksum does not excuse what no descriptor says."""
    codec = FileCodec("descriptor", version=1, error=CorruptDescriptor)
    datum = codec.decode(DESCRIPTOR.to_bytes(), "descriptor.avro")
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, **lie}), "descriptor.avro")


def test_a_caller_cannot_make_one_that_says_nonsense() -> None:
    """The same checks hold where a descriptor is made, with errors of the caller's kind."""
    with pytest.raises(InvalidName):
        replace(DESCRIPTOR, name="a/b")
    with pytest.raises(ConfigError):
        replace(DESCRIPTOR, partitions=129)
    with pytest.raises(ConfigError):
        replace(DESCRIPTOR, value_schema_id=-1)


def test_the_same_cluster_and_topics_verify() -> None:
    """Nothing to say."""
    assert verify(DESCRIPTOR, IDENTITY, 4) is None


@pytest.mark.parametrize("what", ["cluster_id", "data_topic_id", "ledger_topic_id"])
def test_another_identity_is_refused_with_both_values(what: str) -> None:
    """The message names what was expected and what was found."""
    found = LogIdentity.from_datum({**IDENTITY.to_datum(), what: "found-id"})
    with pytest.raises(IdentityChanged) as caught:
        verify(DESCRIPTOR, found, 4)
    assert caught.value.facts["found"] == "found-id"
    assert caught.value.facts["expected"] == IDENTITY.to_datum()[what]


def test_added_partitions_only_warn() -> None:
    """The log goes on with the partitions that it had."""
    warning = verify(DESCRIPTOR, IDENTITY, 6)
    assert warning is not None
    assert "6 partitions" in warning


def test_fewer_partitions_are_refused() -> None:
    """Partitions never go away from a topic that is still the same one."""
    with pytest.raises(IdentityChanged):
        verify(DESCRIPTOR, IDENTITY, 3)
