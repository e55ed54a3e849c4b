"""Settings of the materializer are validated, and the first rounds of many logs are spread."""

import math
from typing import Any

import pytest

from statelog.errors import ConfigError
from statelog.materializer.schedule import first_delay_s
from statelog.materializer.settings import MaterializerSettings, MaterializerTuning
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.schemas.snapshot.retention import RetentionPolicy


def test_the_defaults_are_valid() -> None:
    """The default settings are valid."""
    assert MaterializerSettings().budget_bytes == 512 << 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_s", 0.0),
        ("interval_s", -1.0),
        ("interval_s", math.inf),
        ("interval_s", math.nan),
        ("budget_bytes", 0),
        ("failures_tolerated", -1),
        ("fanout", 1),
        ("threads", 0),
        ("fold_bytes", 0),
        ("alarm_age_s", 0.0),
        ("round_timeout_s", 0.0),
        ("restore_budget_s", 0.0),
        ("restore_budget_s", math.inf),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    """A setting out of its range is refused with its name and value."""
    with pytest.raises(ConfigError, match=name) as refused:
        MaterializerSettings(**{name: value})  # type: ignore[arg-type] # one name at a time
    assert str(value) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_s", "10"),
        ("threads", "2"),
        ("restore_budget_s", "2"),
        ("scratch", "/var/tmp"),
        ("retention", 3),
        ("subscriptions", 86_400.0),
    ],
)
def test_a_setting_of_another_kind_is_refused_by_name(name: str, value: object) -> None:
    """A text in place of a number or a path is refused when the settings are made, and not within a round."""
    with pytest.raises(ConfigError, match=f"{name} is of type") as refused:
        MaterializerSettings(**{name: value})  # type: ignore[arg-type] # one name at a time
    assert refused.value.hint


@pytest.mark.parametrize("given", [{"keep": 2.5}, {"keep": math.nan}, {"keep": "2"}, {"keep": 1}, {"min_age_s": "1h"}])
def test_what_cannot_be_a_retention_is_refused_by_name(given: dict[str, Any]) -> None:
    """A retention of NaN is refused by name when the settings are made, and not after an upload."""
    with pytest.raises(ConfigError, match=next(iter(given))):
        RetentionPolicy(**given)


@pytest.mark.parametrize("given", [{"idle_s": "7d"}, {"records": math.nan}, {"records": "5"}])
def test_what_cannot_be_a_cap_of_subscriptions_is_refused_by_name(given: dict[str, Any]) -> None:
    """A cap of NaN, which would end no subscription, and a text are refused by name."""
    with pytest.raises(ConfigError, match=f"{next(iter(given))} is of type") as refused:
        SubscriptionCap(**given)
    assert refused.value.hint


def test_an_alarm_that_a_healthy_daemon_would_raise_is_refused() -> None:
    """The alarm's age must exceed the interval."""
    with pytest.raises(ConfigError, match="alarm_age_s"):
        MaterializerSettings(interval_s=600.0, alarm_age_s=600.0)


def test_first_rounds_are_spread_over_the_interval_and_the_same_at_every_start() -> None:
    """The first delay follows from the log's name, lies within the jitter's share, and differs between logs."""
    settings = MaterializerSettings(interval_s=100.0, _tuning=MaterializerTuning(jitter=0.5))
    delays = [first_delay_s(f"log-{i}", settings) for i in range(200)]
    assert delays == [first_delay_s(f"log-{i}", settings) for i in range(200)]
    assert all(0 <= delay < 50 for delay in delays)
    assert min(delays) < 5
    assert max(delays) > 45
    assert first_delay_s("log-1", MaterializerSettings(_tuning=MaterializerTuning(jitter=0.0))) == 0.0
