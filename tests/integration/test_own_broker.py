"""The brokers of the test fixtures keep their promises."""

import pytest

from statelog.testing.broker import produce_probe
from tests.support.services.broker import Broker, OwnBroker

pytestmark = pytest.mark.broker


def test_the_shared_broker_takes_records(broker: Broker) -> None:
    """The shared broker accepts a record as soon as the fixture hands it out."""
    assert produce_probe(broker.bootstrap, 10.0) == ""


def test_an_own_broker_survives_being_killed(own_broker: OwnBroker) -> None:
    """A killed broker is dead at once, and takes records at the same address after a restart."""
    before = own_broker.bootstrap
    own_broker.kill()
    assert not own_broker.alive
    assert produce_probe(before, 1.0) != ""
    own_broker.restart()
    assert own_broker.bootstrap == before
    assert produce_probe(before, 10.0) == ""


def test_a_paused_broker_answers_again(own_broker: OwnBroker) -> None:
    """A paused broker is alive and silent; after resume it takes records."""
    own_broker.pause()
    assert own_broker.alive
    assert produce_probe(own_broker.bootstrap, 1.0) != ""
    own_broker.resume()
    assert produce_probe(own_broker.bootstrap, 10.0) == ""
