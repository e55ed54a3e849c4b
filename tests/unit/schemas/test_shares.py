"""Shares are complete, disjoint and even, for every count and every number of workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.errors import ConfigError
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, key_groups_of_partition, partition_of, share
from statelog.schemas.ledger.place import LogIdentity

counts = st.integers(0, 65536)
workers = st.integers(1, 200)


def descriptor(partitions: int, key_groups: int) -> Descriptor:
    """Return the descriptor of a log with these counts."""
    return Descriptor(
        name="log",
        identity=LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger"),
        partitions=partitions,
        key_groups=key_groups,
        hash_rule=HashRule.CRC32,
        key_type=KeyType.BYTES,
        value_schema_id=0,
        nonce=bytes(16),
    )


@given(counts, workers)
def test_shares_are_adjacent_complete_and_even(count: int, workers: int) -> None:
    """Adjacent shares count from 0 to the end, and their sizes differ by one at most."""
    shares = [share(count, worker=worker, workers=workers) for worker in range(workers)]
    assert [shares[0].start, *(one.stop for one in shares)] == [*(one.start for one in shares), count]
    sizes = {len(one) for one in shares}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) == count // workers


@pytest.mark.parametrize(("count", "worker", "workers"), [(8, -1, 4), (8, 4, 4), (8, 0, 0), (-1, 0, 1)])
def test_a_worker_that_does_not_exist_has_no_share(count: int, worker: int, workers: int) -> None:
    """A worker's number out of range is a typed refusal, never an empty or another worker's share."""
    with pytest.raises(ConfigError):
        share(count, worker=worker, workers=workers)


@given(st.data(), workers)
def test_key_groups_of_a_share_of_the_partitions(data: st.DataObject, workers: int) -> None:
    """A worker restores exactly the key groups of its partitions, and all workers together restore all."""
    key_groups = data.draw(st.integers(1, 512))
    log = descriptor(data.draw(st.integers(1, key_groups)), key_groups)
    seen: list[int] = []
    for worker in range(workers):
        mine = share(log.partitions, worker=worker, workers=workers)
        held = log.key_groups_in(mine)
        assert all(partition_of(group, log.partitions, key_groups) in mine for group in held)
        seen.extend(held)
    assert sorted(seen) == list(range(key_groups))


@given(st.data())
def test_partitions_are_shares_of_the_key_groups(data: st.DataObject) -> None:
    """Partitions are shares of the key groups, by the same rule as for workers."""
    key_groups = data.draw(st.integers(1, 512))
    partitions = data.draw(st.integers(1, key_groups))
    for partition in range(partitions):
        held = key_groups_of_partition(partition, partitions, key_groups)
        assert share(key_groups, worker=partition, workers=partitions) == held
