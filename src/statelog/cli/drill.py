"""`statelog drill`: a restore into nothing, timed, and compared; `statelog verify`: every byte of a state is read."""

from functools import partial

import click

from statelog.cli.progress import open_bar
from statelog.cli.recover import show_progress, statistics_facts
from statelog.cli.session import Session, connected
from statelog.cli.which_state import at_options, lease_option
from statelog.operate.drill import drill
from statelog.operate.report import Report
from statelog.reading.plan import At
from statelog.recovery import RecoverySettings, RecoveryStatistics, recover
from statelog.schemas.changes.digest import StateDigest

_DRILL_HELP = """Restore the newest state of the log NAME into nothing: how long that takes, and whether it is right.

The state is read from the newest snapshot and the tail behind it, as every recovery does, and then from the log alone,
or from the oldest snapshot that is kept: both have to have one digest. Else the exit code is 6."""
_VERIFY_HELP = """Read the state of the log NAME whole, and compare every checksum on the way.

Equal digests mean equal states, of a log and its copy, say, where the same version of statelog prints them."""


@click.command("drill", help=_DRILL_HELP)
@click.argument("name")
@lease_option
@connected
def command(session: Session, name: str, lease: bool) -> None:
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
    session.output.report(Report(f"restored {name} into nothing", facts))
    done.check()


@click.command("verify", help=_VERIFY_HELP)
@click.argument("name")
@at_options
@lease_option
@connected
def verify(session: Session, name: str, at: At | None, lease: bool) -> None:
    """Verify a state."""
    settings = RecoverySettings(holder="statelog verify", lease=lease)
    with session.open_log(name) as log, open_bar(f"verify {name}", as_json=session.output.as_json) as bar:
        with recover(log, at=at, progress=partial(show_progress, bar), settings=settings) as recovery:
            digest = recovery.digest()
            for text in recovery.warnings:
                session.output.warning(text)
        facts = {"log": name, **_facts(recovery.statistics(), digest)}
    session.output.report(Report(f"verified {name}", facts))


def _facts(done: RecoveryStatistics, digest: StateDigest) -> dict[str, object]:
    return {**statistics_facts(done, "restore_s"), "digest": str(digest)}
