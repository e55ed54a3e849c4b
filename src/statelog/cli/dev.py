"""`statelog dev`: commands for the development broker of `testing.dev`."""

from pathlib import Path

import click

from statelog.cli.output import CliOutput
from statelog.errors import BrokerUnavailable, NotFound
from statelog.log.where import ONE_BROKER
from statelog.operate.report import Report
from statelog.testing.broker import cache_directory
from statelog.testing.dev import start, status, stop

_directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, resolve_path=True),
    default=cache_directory,
    help="The broker's directory; default: the user's cache.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("dev", help="A real Kafka on this machine, on loopback only, for development.")
def command() -> None:
    """Group the commands."""


@command.command("start", help="Start the broker unless it runs, and print its address.")
@click.option("--port", type=click.IntRange(0, 65535), help="The broker's port; 0 for any free one. Default 9092.")
@click.option("--root", metavar="URL", help="The root to print; default: a directory next to the broker's data.")
@click.option("--heap-mb", type=click.IntRange(128), default=512, show_default=True, help="Java heap in MiB.")
@_directory_option
@_json_option
def start_command(port: int | None, root: str | None, heap_mb: int, directory: Path, as_json: bool) -> None:
    """Start the broker."""
    output = CliOutput(as_json=as_json)
    broker = start(directory, port, heap_mb=heap_mb, on_step=lambda step: output.notice(f"{step} ..."))
    root = root or f"file://{directory / 'logs'}"
    facts = {
        "bootstrap": broker.bootstrap,
        "root": root,
        "pid": broker.pid,
        "kafka_version": broker.kafka_version,
        "was_running": broker.was_running,
        "log": str(broker.log_path),
    }
    output.report(Report("development broker", facts))
    if not as_json:
        output.line(f"\n{_instructions(str(broker.bootstrap), root)}")


@command.command("stop", help="Stop the broker, and keep its data.")
@_directory_option
@_json_option
def stop_command(directory: Path, as_json: bool) -> None:
    """Stop the broker."""
    CliOutput(as_json=as_json).report(Report("development broker", {"stopped": stop(directory)}))


@command.command("status", help="Show the broker's status. Exit code 3: not started; 4: not ready.")
@_directory_option
@_json_option
def status_command(directory: Path, as_json: bool) -> None:
    """Show the broker."""
    found = status(directory)
    facts = {
        "running": found.pid is not None,
        "ready": not found.reason,
        "bootstrap": found.bootstrap,
        "pid": found.pid,
        "kafka_version": found.kafka_version,
        "directory": str(directory),
        "log": str(found.log_path),
    }
    CliOutput(as_json=as_json).report(Report("development broker", facts))
    if found.pid is None:
        raise NotFound("the development broker is not started", hint="Start it with: statelog dev start")
    if found.reason:
        raise BrokerUnavailable("the development broker is not ready", reason=found.reason, log=str(found.log_path))


def _instructions(bootstrap: str, root: str) -> str:
    """Return settings to paste. They waive checks by name, because a single broker cannot be safe."""
    names = ", ".join(f'"{name}"' for name in ONE_BROKER)
    return f"""For this shell:
  export STATELOG_BOOTSTRAP={bootstrap} STATELOG_ROOT={root}
  export STATELOG_REPLICATION_FACTOR=1 STATELOG_ALLOW_UNSAFE={",".join(ONE_BROKER)}
Or in ./statelog.toml:
  bootstrap = "{bootstrap}"
  root = "{root}"
  replication_factor = 1
  allow_unsafe = [{names}]"""
