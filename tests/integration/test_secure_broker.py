"""The broker of the security tests: a principal may do what it was granted, over TLS and with a password."""

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.services.secure_broker import SecureBroker, topic

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def secure(secure_node: SecureBroker) -> SecureBroker:
    """Return a broker with one user who has no rights yet."""
    return secure_node.serve({"alice": "wonder"})


def test_a_principal_sees_what_it_was_granted(secure: SecureBroker) -> None:
    """A principal has a right once it was granted, and lacks it once it was revoked."""
    secure.grant("alice", topic("__statelog_ready", "DESCRIBE"))
    assert "__statelog_ready" in AdminClient({**secure.client("alice")}).list_topics(timeout=60).topics
    secure.grant("alice", [])
    assert "__statelog_ready" not in AdminClient({**secure.client("alice")}).list_topics(timeout=60).topics


def test_a_wrong_password_is_no_principal(secure: SecureBroker) -> None:
    """A wrong password admits nobody."""
    with pytest.raises(KafkaException):
        AdminClient({**secure.client("alice", sasl_password="queen"), "log_level": 0}).list_topics(timeout=2)
