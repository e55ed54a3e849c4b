"""The descriptor: its file, and the comparison with the cluster that every open makes."""

from dataclasses import replace

import pyarrow as pa
import pytest

from statelog.errors import ConfigError, CorruptDescriptor, IdentityChanged, InvalidName, Misuse, UnknownFormat
from statelog.schemas.avro import FileCodec, RecordCodec
from statelog.schemas.descriptor import Descriptor, HashRule, ValueFormat, verify
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LogIdentity
from tests.support.samples.chunks import mutations

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
SMALL = replace(DESCRIPTOR, record_bytes_max=1 << 20)
BY_PREFIX = replace(DESCRIPTOR, hash_rule=HashRule.CRC32_PREFIX, prefix_bytes=8, key_type=KeyType.STRING)
OF_JSON = replace(DESCRIPTOR, value_schema_id=0, value_type=ValueFormat.JSON)
SCHEMA_TEXT, TEXT_BY_PREFIX, TEXT_OF_SMALL, TEXT_OF_JSON = (
    RecordCodec(name).text.encode() for name in ("descriptor-1", "descriptor-2", "descriptor-3", "descriptor")
)


@pytest.mark.parametrize("rule", [HashRule.CRC32, HashRule.CALLER])
@pytest.mark.parametrize("key_type", list(KeyType))
def test_a_descriptor_survives_its_file(rule: HashRule, key_type: KeyType) -> None:
    """The file decodes to the descriptor."""
    descriptor = replace(DESCRIPTOR, hash_rule=rule, key_type=key_type)
    assert Descriptor.from_bytes(descriptor.to_bytes(), "descriptor.avro") == descriptor


@pytest.mark.parametrize("key_type", [KeyType.BYTES, KeyType.STRING])
def test_key_groups_by_prefix_survive_their_file(key_type: KeyType) -> None:
    """The file decodes to the descriptor, with the length of the prefix."""
    descriptor = replace(BY_PREFIX, key_type=key_type)
    assert Descriptor.from_bytes(descriptor.to_bytes(), "descriptor.avro") == descriptor


def test_only_key_groups_by_prefix_need_the_second_version() -> None:
    """Who knows version 1 alone reads all other logs, whose files and digests stay as they are; this one it refuses by
    its version, before it could take the key groups for those of whole keys.
    """
    former = FileCodec("descriptor-1", version=1, error=CorruptDescriptor)
    for rule in (HashRule.CRC32, HashRule.CALLER):
        data = replace(DESCRIPTOR, hash_rule=rule).to_bytes()
        assert former.encode(former.decode(data, "descriptor.avro", dict)) == data
    with pytest.raises(UnknownFormat) as caught:
        former.decode(BY_PREFIX.to_bytes(), "descriptor.avro", dict)
    assert (caught.value.facts["found"], caught.value.facts["known"]) == (2, 1)


@pytest.mark.parametrize("kind", [DESCRIPTOR, BY_PREFIX], ids=["whole", "prefix"])
def test_only_other_records_than_of_16_mib_need_the_third_version(kind: Descriptor) -> None:
    """All logs of before are of 16 MiB, and their files stay as they are; who knows no limits refuses one."""
    small = replace(kind, record_bytes_max=8 << 20)
    assert Descriptor.from_bytes(small.to_bytes(), "descriptor.avro") == small
    former = FileCodec("descriptor-2", version=2, error=CorruptDescriptor, earlier={1: "descriptor-1"})
    assert former.decode(kind.to_bytes(), "descriptor.avro", dict)["name"] == "orders"
    assert Descriptor.from_bytes(kind.to_bytes(), "descriptor.avro").record_bytes_max == 16 << 20
    with pytest.raises(UnknownFormat) as caught:
        former.decode(small.to_bytes(), "descriptor.avro", dict)
    assert (caught.value.facts["found"], caught.value.facts["known"]) == (3, 2)


@pytest.mark.parametrize("kind", [DESCRIPTOR, BY_PREFIX, SMALL], ids=["whole", "prefix", "small"])
def test_only_json_values_need_the_fourth_version(kind: Descriptor) -> None:
    """Other logs stay at their version; an older program refuses JSON values by the version, and writes no bytes."""
    of_json = replace(kind, value_schema_id=0, value_type=ValueFormat.JSON)
    assert Descriptor.from_bytes(of_json.to_bytes(), "descriptor.avro") == of_json
    former = FileCodec(
        "descriptor-3", version=3, error=CorruptDescriptor, earlier={1: "descriptor-1", 2: "descriptor-2"}
    )
    assert former.decode(kind.to_bytes(), "descriptor.avro", dict)["name"] == "orders"
    assert Descriptor.from_bytes(kind.to_bytes(), "descriptor.avro").value_type is ValueFormat.BYTES
    with pytest.raises(UnknownFormat) as caught:
        former.decode(of_json.to_bytes(), "descriptor.avro", dict)
    assert (caught.value.facts["found"], caught.value.facts["known"]) == (4, 3)


@pytest.mark.parametrize("lie", [{"value_type": "xml"}, {"value_schema_id": 1}], ids=str)
def test_values_that_no_log_has_are_corrupt(lie: dict[str, object]) -> None:
    """A file that names another kind of values, or JSON beside a value schema, is no descriptor."""
    codec = FileCodec("descriptor", version=4, error=CorruptDescriptor)
    datum = codec.decode(OF_JSON.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, **lie}), "descriptor.avro")


@pytest.mark.parametrize("size", [0, (1 << 20) - 1, (16 << 20) + 1])
def test_a_limit_that_no_log_has_is_corrupt(size: int) -> None:
    """A file that names one is no descriptor."""
    codec = FileCodec("descriptor-3", version=3, error=CorruptDescriptor)
    datum = codec.decode(SMALL.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, "record_bytes_max": size}), "descriptor.avro")


def test_a_key_group_that_a_caller_names_follows_from_no_key() -> None:
    """The descriptor does not make one up."""
    log = replace(DESCRIPTOR, hash_rule=HashRule.CALLER)
    with pytest.raises(Misuse):
        log.key_group_of(1)
    with pytest.raises(Misuse):
        log.key_groups_of(pa.array([1]))


@pytest.mark.parametrize(
    ("descriptor", "text"),
    [(DESCRIPTOR, SCHEMA_TEXT), (BY_PREFIX, TEXT_BY_PREFIX), (SMALL, TEXT_OF_SMALL), (OF_JSON, TEXT_OF_JSON)],
)
def test_every_mutation_of_the_file_is_refused(descriptor: Descriptor, text: bytes) -> None:
    """No flipped, missing or added byte passes, but in the schema text, which is for other tools."""
    for damaged in mutations(descriptor.to_bytes(), spare=text):
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
    newer = DESCRIPTOR.to_bytes().replace(b"statelog.format\x021", b"statelog.format\x025")
    with pytest.raises(UnknownFormat):
        Descriptor.from_bytes(newer, "descriptor.avro")


@pytest.mark.parametrize(
    "lie",
    [
        {"name": "../x"}, {"partitions": 0}, {"partitions": 200}, {"hash_rule": "md5"}, {"key_type": "date"},
        {"hash_rule": "crc32-prefix"},
    ],
    ids=str,
)  # fmt: skip
def test_a_whole_file_that_says_nonsense_is_corrupt(lie: dict[str, object]) -> None:
    """A right checksum does not excuse what no descriptor says."""
    codec = FileCodec("descriptor-1", version=1, error=CorruptDescriptor)
    datum = codec.decode(DESCRIPTOR.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, **lie}), "descriptor.avro")


@pytest.mark.parametrize(
    "lie", [{"prefix_bytes": 0}, {"prefix_bytes": 257}, {"hash_rule": "crc32"}, {"key_type": "long"}]
)
def test_a_prefix_that_no_log_has_is_corrupt(lie: dict[str, object]) -> None:
    """A length that is none, and one beside another rule or behind numbers, is not left aside."""
    codec = FileCodec("descriptor-2", version=2, error=CorruptDescriptor)
    datum = codec.decode(BY_PREFIX.to_bytes(), "descriptor.avro", dict)
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
    for lie in ({"hash_rule": HashRule.CRC32_PREFIX}, {"prefix_bytes": 8}):
        with pytest.raises(ConfigError):
            replace(DESCRIPTOR, **lie)


def test_the_same_cluster_and_topics_verify() -> None:
    """Nothing to say."""
    assert verify(DESCRIPTOR, IDENTITY, 4) is None


@pytest.mark.parametrize("what", ["cluster_id", "data_topic_id", "ledger_topic_id"])
def test_another_identity_is_refused_with_both_values(what: str) -> None:
    """The message names what was expected and what was found."""
    found = replace(IDENTITY, **{what: "found-id"})
    with pytest.raises(IdentityChanged) as caught:
        verify(DESCRIPTOR, found, 4)
    assert caught.value.facts["found"] == "found-id"
    assert caught.value.facts["expected"] == getattr(IDENTITY, what)


def test_added_partitions_only_warn() -> None:
    """The log goes on with the partitions that it had."""
    warning = verify(DESCRIPTOR, IDENTITY, 6)
    assert warning is not None
    assert "6 partitions" in warning


def test_fewer_partitions_are_refused() -> None:
    """Partitions never go away from a topic that is still the same one."""
    with pytest.raises(IdentityChanged):
        verify(DESCRIPTOR, IDENTITY, 3)
