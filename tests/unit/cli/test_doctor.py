"""`statelog doctor` reads its arguments and maps severities to exit codes."""

import click
import pytest

from statelog.cli.doctor import EXIT_CODES, command
from statelog.operate.finding import Severity


@pytest.mark.parametrize(
    ("typed", "settings"),
    [
        ("", ()),
        ("--kafka", ()),
        ("--kafka --json", ()),
        ("--kafka client.id=x", ("client.id=x",)),
        ("--kafka --kafka client.id=x --kafka=client.rack=y", ("client.id=x", "client.rack=y")),
        ("--kafka --config=here.toml", ()),
        ("--kafka --storage a=b --kafka", ()),
    ],
)
def test_kafka_alone_is_no_setting(typed: str, settings: tuple[str, ...]) -> None:
    """`--kafka` alone selects the cluster. Followed by NAME=VALUE it is a setting, as in every command."""
    assert command.make_context("doctor", typed.split()).params["kafka"] == settings


def test_what_is_no_setting_is_refused() -> None:
    """A name without a value is no setting."""
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        command.make_context("doctor", ["--kafka", "visits"])


def test_exit_codes() -> None:
    """Each severity has the exit code of the corresponding error."""
    assert [EXIT_CODES[severity] for severity in Severity] == [0, 0, 2, 4, 6]
