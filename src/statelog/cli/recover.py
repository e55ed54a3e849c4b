"""`statelog recover`: show the state of a log, or write it to a file. `verify`: read every byte of a state. `drill`:
time a restore without keeping the result, and compare it.
"""

import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from statelog.cli.output import CliOutput
from statelog.cli.progress import PlainBar, open_bar
from statelog.cli.session import FILE, Session, connected, log_argument
from statelog.cli.which_state import at_options, bytes_option, due_option, lease_option, parse_key_groups
from statelog.errors import ConfigError
from statelog.formatting import show_bytes, show_duration
from statelog.operate.drill import drill
from statelog.operate.report import Listing, Report
from statelog.operate.rows import BytesText, json_lines, shown_rows, whole_file
from statelog.reading import At
from statelog.recovery import Progress, Recovery, RecoverySettings, recover, recover_snapshot
from statelog.recovery.progress import RecoveryStatistics
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.descriptor import HashRule

STDOUT = "-"
_HELP = """Read the state of the log NAME: all or some key groups, the newest state or an earlier one that is retained.

Without a target it shows a summary and the first rows. With --to-json - the rows go to standard output, the summary to
standard error."""
_DRILL_HELP = """Restore the newest state of the log NAME without keeping it, to time it and to check it.

The state is read from the newest snapshot and the tail behind it, as in every recovery. Then it is read from the log
alone, or from the oldest retained snapshot. If the digests differ, the exit code is 6."""
_VERIFY_HELP = """Read the whole state of the log NAME, and compare every checksum.

Equal digests from the same version of statelog mean equal states, for example of a log and its copy."""


@click.command("recover", help=_HELP)
@log_argument
@click.option("--to-parquet", type=FILE, metavar="FILE", help="Write a Parquet file.")
@click.option("--to-rocksdb", type=FILE, metavar="DIR", help="Write a RocksDB database.")
@click.option("--to-json", metavar="FILE", help="Write JSON lines; - for standard output.")
@bytes_option
@click.option("--key-groups", metavar="LIST", help="Only these key groups, such as 0-63,70.")
@at_options
@due_option
@click.option("--snapshot", is_flag=True, help="Read the newest snapshot alone, without Kafka.")
@lease_option
@click.option("--rows", type=click.IntRange(0), default=10, show_default=True, help="The number of rows to show.")
@connected
def command(
    session: Session, /, name: str, key_groups: str | None, at: At | None, snapshot: bool, lease: bool, **target: Any
) -> None:
    """Recover a log into the `target`, which has the options of `_fill`."""
    if sum(one.startswith("to_") and path is not None for one, path in target.items()) > 1:
        raise ConfigError("--to-parquet, --to-rocksdb and --to-json exclude each other", hint="Give one of them")
    groups = parse_key_groups(key_groups)
    as_json = session.output.as_json
    with ExitStack() as opened, open_bar(f"recover {name}", as_json=as_json) as bar:
        options: dict[str, Any] = {
            "key_groups": groups,
            "on_progress": partial(show_progress, bar),
            "settings": RecoverySettings(holder="statelog recover", lease=lease),
        }
        if snapshot:
            opened.enter_context(session.warnings_shown())
            plan = recover_snapshot(name, session.where_without_kafka(), at=at, **options)
        else:
            plan = recover(opened.enter_context(session.open_log(name)), at=at, **options)
        with plan as recovery:
            listing = _fill(recovery, **target)
            for text in recovery.warnings:
                session.output.warning(text)
            report = _report(name, recovery, listing)
    if snapshot:
        session.output.warning(f"read without Kafka: commits after position {recovery.position} are not included")
    # Rows and summary go to different streams.
    output = CliOutput(as_json=as_json, to_stderr=True) if target["to_json"] == STDOUT else session.output
    output.report(report)


def _fill(
    recovery: Recovery,
    to_parquet: Path | None,
    to_rocksdb: Path | None,
    to_json: str | None,
    bytes_text: BytesText,
    rows: int,
    due: bool,
) -> tuple[Listing, ...]:
    """Fill the named target, with `due` where it is a choice; without one, return the first rows as a listing."""
    if to_parquet is not None:
        recovery.to_parquet(to_parquet, due=due)
        return ()
    if to_rocksdb is not None:
        recovery.to_rocksdb(to_rocksdb)
        return ()
    table = recovery.to_arrow(ordered=True, due=due)
    if to_json is None:
        return (Listing("first_rows", tuple(table.column_names), shown_rows(table, rows)),)
    _write(table, to_json, bytes_text, with_groups=recovery.descriptor.hash_rule is HashRule.CALLER)
    return ()


def _write(table: pa.Table, target: str, bytes_text: BytesText, *, with_groups: bool) -> None:
    lines = json_lines(table, bytes_text, with_groups=with_groups)
    if target == STDOUT:
        output = sys.stdout.buffer  # JSON lines are UTF-8, whatever the locale.
        output.writelines(f"{line}\n".encode() for line in lines)
        output.flush()
        return
    with whole_file(Path(target)) as file:
        file.writelines(f"{line}\n" for line in lines)


def show_progress(bar: PlainBar, now: Progress) -> None:
    """Show the progress of a recovery."""
    left = "" if now.eta_s is None else f", {show_duration(now.eta_s)} left"
    text = f"{now.phase.value}: {show_bytes(now.bytes_done)} of {show_bytes(now.bytes_total)}"
    bar.update(now.fraction, f"{text}, {show_bytes(now.rate_bytes_s)}/s{left}")


def statistics_facts(done: RecoveryStatistics, duration: str) -> dict[str, object]:
    """Return the statistics of a recovery as facts; `duration`: the name of the fact for the total time."""
    facts = {**asdict(done), "manifest": done.manifest or None}
    facts[duration] = facts.pop("total_s")
    return {**facts, "bytes_per_s": done.bytes_per_s}


def _report(name: str, recovery: Recovery, listings: tuple[Listing, ...]) -> Report:
    done = recovery.statistics()
    commits = [
        (writer, commit.checkpoint.id, dict(commit.metadata)) for writer, commit in sorted(recovery.commits.items())
    ]
    facts = {"log": name, **statistics_facts(done, "duration_s"), "changes_per_s": done.changes_per_s}
    writers = Listing("writers", ("writer", "checkpoint", "metadata"), commits)
    return Report(f"state of {name} at position {done.position}", facts, (writers, *listings))


@click.command("drill", help=_DRILL_HELP)
@log_argument
@lease_option
@connected
def drilled(session: Session, name: str, lease: bool) -> None:
    """Drill a restore."""
    settings = RecoverySettings(holder="statelog drill", lease=lease)
    with session.open_log(name) as log, open_bar(f"drill {name}", as_json=session.output.as_json) as bar:
        done = drill(log, settings, partial(show_progress, bar))
    other = done.other
    facts = {
        "log": name,
        **_facts(done.restored.statistics, done.restored.digest),
        "restored_from": done.restored.name,
        "compared_with": other.name if other else None,
        "not_compared": done.why or None,
        "compared_rows": other.digest.rows if other else None,
        "compared_digest": str(other.digest) if other else None,
        "compared_s": other.statistics.total_s if other else None,
    }
    session.output.report(Report(f"drilled a restore of {name}", facts))
    done.check()


@click.command("verify", help=_VERIFY_HELP)
@log_argument
@at_options
@lease_option
@connected
def verify(session: Session, name: str, at: At | None, lease: bool) -> None:
    """Verify a state."""
    settings = RecoverySettings(holder="statelog verify", lease=lease)
    with session.open_log(name) as log, open_bar(f"verify {name}", as_json=session.output.as_json) as bar:
        with recover(log, at=at, on_progress=partial(show_progress, bar), settings=settings) as recovery:
            digest = recovery.digest()
            for text in recovery.warnings:
                session.output.warning(text)
        facts = {"log": name, **_facts(recovery.statistics(), digest)}
    session.output.report(Report(f"verified {name}", facts))


def _facts(done: RecoveryStatistics, digest: StateDigest) -> dict[str, object]:
    return {**statistics_facts(done, "restore_s"), "digest": str(digest)}
