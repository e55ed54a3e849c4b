"""`statelog copy`: copy a log into a new one, on another cluster or below another root, and finish the copy."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from statelog.cli.log import TRUNCATION_MODES
from statelog.cli.progress import open_bar
from statelog.cli.session import FILE, Session, connected, log_argument, materializer_settings
from statelog.errors import ConfigError
from statelog.log.config import file_layer, merge, read_text
from statelog.log.log import open_snapshots
from statelog.materializer.copy import Copied, copy_log, finish_copy
from statelog.operate.report import Report

_HELP = """Copy the log NAME into the new log COPY: its state and its writers' progress, and no history.

Each further run copies the commits since the last one. COPY stays closed until --finish. Stop the writers of NAME
before that: --finish fences the remaining ones. Writers continue in COPY, each at its last checkpoint.

COPY may lie on another cluster and below another root: --to-config names a configuration file for it. Everything that
the --to options do not set is as for NAME."""


@click.command("copy", help=_HELP)
@log_argument
@click.argument("copy")
@click.option("--to-config", type=FILE, metavar="FILE", help="Configuration file for COPY.")
@click.option("--to-bootstrap", metavar="HOST:PORT", help="Kafka brokers of COPY.")
@click.option("--to-root", metavar="URL", help="URL below which COPY has its directory.")
@click.option(
    "--replication-factor", "to_replication_factor", type=int, help="Replicas of each topic of COPY. Default 3."
)
@click.option("--finish", is_flag=True, help="Copy the rest and open COPY, which is then a log of its own.")
@click.option(
    "--snapshot", is_flag=True, help="Copy the newest snapshot alone, because NAME's cluster or a topic is lost."
)
@click.option("--as-copied", is_flag=True, help="With --finish: open COPY unchanged, because NAME is lost.")
@click.option("--truncation", type=TRUNCATION_MODES, help="Who deletes records of COPY, as in init.")
@click.option("--retention-days", type=int, help="With retention, as in init.")
@click.option("--verify/--no-verify", default=True, show_default=True, help="Compare both whole states.")
@connected
def command(session: Session, /, name: str, copy: str, **options: Any) -> None:
    """Copy a log; `options` are the options of `_copied` and `_target`."""
    target = _target(session, **{option: options.pop(option) for option in list(options) if option.startswith("to_")})
    others = [f"--{one.replace('_', '-')}" for one in ("snapshot", "truncation", "retention_days") if options[one]]
    if options["as_copied"] and (others or not options["finish"]):
        hint = f"Use it with --finish{', and without ' * bool(others)}{' and '.join(others)}"
        raise ConfigError("--as-copied only opens a copy", hint=hint)
    with session.warnings_shown():
        done = _copied(session, target, name, copy, **options)
    title = f"{'finished' if done.is_finished else 'copied'} {name} into {copy}"
    session.output.report(Report(title, {"log": name, "copy": copy, **asdict(done)}))


def _copied(
    session: Session,
    target: Session,
    name: str,
    copy: str,
    *,
    finish: bool,
    as_copied: bool,
    snapshot: bool,
    **options: Any,
) -> Copied:
    settings = materializer_settings(target.config, copy)
    if as_copied:
        return finish_copy(name, copy, target.where(), settings=settings)
    source = open_snapshots(name, session.where_without_kafka()) if snapshot else session.open_log(name)
    with open_bar(f"copy {name}", as_json=session.output.as_json) as bar, source as log:
        return copy_log(
            log,
            copy,
            target.where(),
            finish=finish,
            is_alone=snapshot,
            settings=settings,
            on_progress=lambda share: bar.update(share, "copied"),
            **options,
        )


def _target(session: Session, *, to_config: Path | None, **named: Any) -> Session:
    config = session.config
    if to_config is not None:
        config = merge([file_layer(read_text(to_config, "configuration file"), str(to_config))])
    given = {name.removeprefix("to_"): value for name, value in named.items() if value not in (None, "")}
    return replace(session, config=replace(config, **given))
