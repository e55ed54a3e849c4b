"""`statelog doctor`: find what is wrong with a log, or, with `--kafka`, whether a Kafka has what a log needs.

`operate` checks and judges.
"""

import signal
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import FrameType

import click

from statelog.cli.output import DAMAGED, MISUSE, OK, UNAVAILABLE, as_typed
from statelog.cli.session import Session, complete_log, connected, materializer_settings
from statelog.environment import current_environment
from statelog.errors import ConfigError
from statelog.log.where import configured_where, opened_ports
from statelog.operate.examination import examine
from statelog.operate.finding import Finding, Severity, worst
from statelog.operate.kafka_needs import KafkaAnswers, findings, times
from statelog.operate.kafka_probe import ThrowAwayTopics, ask_kafka
from statelog.operate.report import Listing, Report

_HELP = """Check the log NAME for everything that can be wrong with it, without writing: topics, files, committed
records, what holds truncation back, ages, clocks.

Without NAME, or with `--kafka`: try everything that a log needs of this Kafka, and measure the time of a commit. This
makes two topics and removes them. Without the right to create topics, have two empty ones created, NAME and
NAME.ledger, and pass --topics NAME; they are not removed.

`--kafka` alone selects the check of Kafka; with NAME=VALUE it is a setting of the client, as for every command."""
EXIT_CODES = {
    Severity.OK: OK,
    Severity.NOTE: OK,
    Severity.REFUSED: MISUSE,
    Severity.UNAVAILABLE: UNAVAILABLE,
    Severity.DAMAGED: DAMAGED,
}
_COLUMNS = ("need", "severity", "answer", "consequence", "what to set")
_OF_LOG = ("check", "severity", "found", "why it matters", "what to do")
_FIELDS = ("name", "severity", "found", "why", "hint", "facts")


class _Doctor(click.Command):
    """A command that takes `--kafka` without a setting."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Drop a bare `--kafka`, and refuse a log's name with it."""
        is_bare = [
            arg == "--kafka" and (after[:1] in ("-", "") or "=" not in after) for arg, after in pairwise([*args, ""])
        ]
        rest = super().parse_args(ctx, [arg for arg, bare in zip(args, is_bare, strict=True) if not bare])
        if any(is_bare) and ctx.params["log"]:
            ctx.fail(f"Got unexpected extra argument ({ctx.params['log']})")
        return rest


@click.command("doctor", cls=_Doctor, help=_HELP)
@click.argument("log", metavar="[NAME]", required=False, shell_complete=complete_log)
@click.option("--deep", is_flag=True, help="Read and compare every run, and all commits in no run yet.")
@click.option("--prove-store", is_flag=True, help="Try put-if-absent with two files, which are removed.")
@click.option("--topics", "named", metavar="NAME", help="Use the empty topics NAME and NAME.ledger.")
@click.option("--replication-factor", "key_of_replication_factor", type=int, help="Replicas of each topic. Default 3.")
@connected
def command(session: Session, log: str | None, deep: bool, prove_store: bool, named: str | None) -> None:
    """Examine a log or a Kafka."""
    if log is not None:
        if named is not None:
            raise ConfigError("--topics is for a check of Kafka", hint="Omit NAME")
        settings = materializer_settings(session.config, log)
        with session.warnings_shown():
            found = examine(log, session.where(), settings, deep=deep, proves=prove_store)
        facts = {"log": log, "worst": worst(found).value}
        return _end(session, log, facts, found, _OF_LOG)
    return _examine_kafka(session, named)


def _examine_kafka(session: Session, named: str | None) -> None:
    name = named or f"statelog-doctor-{current_environment().new_id()[:12]}"
    with tempfile.TemporaryDirectory(prefix="statelog-doctor-") as root:
        where = configured_where(replace(session.config, root=root, storage={}))
        with session.warnings_shown(), opened_ports(name, where, keeps=False) as (kafka, store, waived):
            topics = ThrowAwayTopics(
                kafka=kafka,
                name=name,
                are_somebodys=named is not None,
                replication_factor=where.replication_factor,
                waived=waived,
            )
            session.output.notice("asking Kafka: this takes up to a minute")
            with _removed(topics, session):
                answers = ask_kafka(topics, store)
    found = findings(answers)
    _end(session, "Kafka", _facts(answers, found), found, _COLUMNS)


def _end(
    session: Session, title: str, facts: Mapping[str, object], found: Sequence[Finding], columns: tuple[str, ...]
) -> None:
    """Show the findings, to people worst first. Exit with the code of the worst."""
    if not session.output.as_json:
        found = sorted(found, key=lambda one: list(Severity).index(one.severity), reverse=True)
    rows = [(one.name, one.severity.value, one.found, one.why, as_typed(one.hint), one.facts) for one in found]
    listing = Listing("findings", _FIELDS, rows)
    if not session.output.as_json:
        listing = Listing("findings", columns, [row[:-1] for row in rows])
    session.output.report(Report(title, facts, (listing,)))
    if code := EXIT_CODES[worst(found)]:
        sys.exit(code)


@contextmanager
def _removed(topics: ThrowAwayTopics, session: Session) -> Generator[None]:
    """Remove the topics at the end, also after Ctrl-C or SIGTERM. Further signals are then ignored."""
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ignore_signals() -> None:
        for number in earlier:
            signal.signal(number, signal.SIG_IGN)

    def interrupt(_: int, frame: FrameType | None) -> None:
        ignore_signals()
        act = earlier[signal.SIGINT]
        (act if callable(act) else signal.default_int_handler)(signal.SIGINT, frame)

    for number in earlier:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        ignore_signals()
        for topic, error in topics.remove().items():
            session.output.warning(f"topic {topic} could not be removed, delete it: {error.message}")
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _facts(answers: KafkaAnswers, found: Sequence[Finding]) -> dict[str, object]:
    produce, commit = times(answers.sent.latencies_s if answers.sent else ()), times(answers.commits_s or ())
    return {
        "cluster": answers.cluster_id,
        "replication_factor": answers.topics[0].found.replication_factor if answers.topics else None,
        "worst": worst(found).value,
        **{f"produce_{name}": produce.get(name) for name in ("p50_s", "p99_s")},
        **{f"commit_{name}": commit.get(name) for name in ("p50_s", "p99_s")},
    }
