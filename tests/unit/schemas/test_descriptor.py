"""The descriptor: its file, and the comparison with the cluster that every open makes."""

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import ConfigError, CorruptDescriptor, IdentityChanged, InvalidName, Misuse, UnknownFormat
from statelog.schemas.avro import FileCodec, RecordCodec
from statelog.schemas.descriptor import TTL_S_MAX, Descriptor, HashRule, ValueFormat, check_ttl, verify
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
WITH_TTL = replace(DESCRIPTOR, ttl_s=600.0)
SCHEMA_TEXT, TEXT_BY_PREFIX, TEXT_OF_SMALL, TEXT_OF_JSON, TEXT_WITH_TTL = (
    RecordCodec(name).text.encode()
    for name in ("descriptor-1", "descriptor-2", "descriptor-3", "descriptor-4", "descriptor")
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
    """Only key groups by prefix need version 2. An older program refuses it, and does not take them for others.

    All other logs stay at version 1, with the same files and digests.
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
    """Only another record limit than 16 MiB needs version 3, which an older program refuses.

    Other files stay as they are.
    """
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
    """Only JSON values need version 4, so an older program refuses them and writes no bytes.

    Other logs stay at their version.
    """
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
    """A file with an unknown kind of values, or with JSON and a value schema, is corrupt."""
    codec = FileCodec("descriptor-4", version=4, error=CorruptDescriptor)
    datum = codec.decode(OF_JSON.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, **lie}), "descriptor.avro")


@pytest.mark.parametrize("kind", [DESCRIPTOR, BY_PREFIX, SMALL, OF_JSON], ids=["whole", "prefix", "small", "json"])
def test_only_a_ttl_needs_the_fifth_version(kind: Descriptor) -> None:
    """Only a ttl needs version 5, so an older program refuses it, and puts no row that stays forever.

    Other logs stay at their version.
    """
    timed = replace(kind, ttl_s=0.5)
    assert Descriptor.from_bytes(timed.to_bytes(), "descriptor.avro") == timed
    earlier = {number: f"descriptor-{number}" for number in (1, 2, 3)}
    former = FileCodec("descriptor-4", version=4, error=CorruptDescriptor, earlier=earlier)
    assert former.decode(kind.to_bytes(), "descriptor.avro", dict)["name"] == "orders"
    assert Descriptor.from_bytes(kind.to_bytes(), "descriptor.avro").ttl_s is None
    with pytest.raises(UnknownFormat) as caught:
        former.decode(timed.to_bytes(), "descriptor.avro", dict)
    assert (caught.value.facts["found"], caught.value.facts["known"]) == (5, 4)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, math.nan, math.inf, TTL_S_MAX + 1.0])
def test_a_ttl_that_no_log_has_is_corrupt(ttl_s: float) -> None:
    """A file with a ttl that is not positive, or of more than a hundred years, is corrupt."""
    codec = FileCodec("descriptor", version=5, error=CorruptDescriptor)
    datum = codec.decode(WITH_TTL.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, "ttl_s": ttl_s}), "descriptor.avro")


@pytest.mark.parametrize("ttl_s", [0, -5, True, "600", math.nan, math.inf, 10**400, TTL_S_MAX + 1])
def test_a_ttl_that_a_caller_cannot_give(ttl_s: Any) -> None:
    """A ttl is a positive number of at most a hundred years; anything else is refused with its value."""
    with pytest.raises(ConfigError, match="ttl_s is"):
        check_ttl(ttl_s)
    assert check_ttl(TTL_S_MAX) == TTL_S_MAX


@pytest.mark.parametrize("size", [0, (1 << 20) - 1, (16 << 20) + 1])
def test_a_limit_that_no_log_has_is_corrupt(size: int) -> None:
    """A file with an impossible record limit is corrupt."""
    codec = FileCodec("descriptor-3", version=3, error=CorruptDescriptor)
    datum = codec.decode(SMALL.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, "record_bytes_max": size}), "descriptor.avro")


def test_a_key_group_that_a_caller_names_follows_from_no_key() -> None:
    """The descriptor does not compute a key group that a caller names."""
    log = replace(DESCRIPTOR, hash_rule=HashRule.CALLER)
    with pytest.raises(Misuse):
        log.key_group_of(1)
    with pytest.raises(Misuse):
        log.key_groups_of(pa.array([1]))


@pytest.mark.parametrize(
    ("descriptor", "text"),
    [
        (DESCRIPTOR, SCHEMA_TEXT),
        (BY_PREFIX, TEXT_BY_PREFIX),
        (SMALL, TEXT_OF_SMALL),
        (OF_JSON, TEXT_OF_JSON),
        (WITH_TTL, TEXT_WITH_TTL),
    ],
)
def test_every_mutation_of_the_file_is_refused(descriptor: Descriptor, text: bytes) -> None:
    """A flipped, missing or added byte is refused, except in the schema text, which is for other tools."""
    for damaged in mutations(descriptor.to_bytes(), spare=text):
        with pytest.raises((CorruptDescriptor, UnknownFormat)):
            Descriptor.from_bytes(damaged, "descriptor.avro")


def test_a_change_in_the_schema_text_changes_nothing() -> None:
    """The schema text inside the file is never interpreted, so a flipped byte there does not change the descriptor."""
    data = DESCRIPTOR.to_bytes()
    at = data.index(SCHEMA_TEXT) + 5
    damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    assert Descriptor.from_bytes(damaged, "descriptor.avro") == DESCRIPTOR


def test_a_newer_format_is_unknown() -> None:
    """A file of a later version is an unknown format, and not damage."""
    newer = DESCRIPTOR.to_bytes().replace(b"statelog.format\x021", b"statelog.format\x026")
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
    """A file with impossible contents is corrupt, even under a right checksum."""
    codec = FileCodec("descriptor-1", version=1, error=CorruptDescriptor)
    datum = codec.decode(DESCRIPTOR.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, **lie}), "descriptor.avro")


@pytest.mark.parametrize(
    "lie", [{"prefix_bytes": 0}, {"prefix_bytes": 257}, {"hash_rule": "crc32"}, {"key_type": "long"}]
)
def test_a_prefix_that_no_log_has_is_corrupt(lie: dict[str, object]) -> None:
    """An impossible prefix length, or one with another rule or with numbers, is corrupt and not ignored."""
    codec = FileCodec("descriptor-2", version=2, error=CorruptDescriptor)
    datum = codec.decode(BY_PREFIX.to_bytes(), "descriptor.avro", dict)
    with pytest.raises(CorruptDescriptor):
        Descriptor.from_bytes(codec.encode({**datum, **lie}), "descriptor.avro")


def test_a_caller_cannot_make_one_that_says_nonsense() -> None:
    """The same checks apply where a descriptor is made, with errors for callers."""
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
    """Verifying the same cluster and topics reports nothing."""
    assert verify(DESCRIPTOR, IDENTITY, 4) is None


@pytest.mark.parametrize("what", ["cluster_id", "data_topic_id", "ledger_topic_id"])
def test_another_identity_is_refused_with_both_values(what: str) -> None:
    """The error has the expected and the found identity."""
    found = replace(IDENTITY, **{what: "found-id"})
    with pytest.raises(IdentityChanged) as caught:
        verify(DESCRIPTOR, found, 4)
    assert caught.value.facts["found"] == "found-id"
    assert caught.value.facts["expected"] == getattr(IDENTITY, what)


def test_added_partitions_only_warn() -> None:
    """Added partitions are a warning, and the log continues with its own ones."""
    warning = verify(DESCRIPTOR, IDENTITY, 6)
    assert warning is not None
    assert "6 partitions" in warning


def test_fewer_partitions_are_refused() -> None:
    """Fewer partitions are refused, since the same topic never loses any."""
    with pytest.raises(IdentityChanged):
        verify(DESCRIPTOR, IDENTITY, 3)
