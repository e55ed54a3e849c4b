"""`statelog version`: the versions of statelog and of its dependencies. Loads no room."""

import platform
from importlib.metadata import PackageNotFoundError, version

import click

from statelog.cli.output import Output
from statelog.operate.report import Report


@click.command("version", help="Print the versions of statelog and its dependencies.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Print versions."""
    facts = {
        "statelog": _version("statelog"),
        "confluent_kafka": _version("confluent-kafka"),
        "librdkafka": _librdkafka(),
        "pyarrow": _version("pyarrow"),
        "pyspark": _version("pyspark"),
        "python": platform.python_version(),
    }
    Output(as_json=as_json).report(Report("statelog", facts))


def _version(distribution: str) -> str | None:
    """From the installed metadata, because importing the package would take longer than all else."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _librdkafka() -> str:
    """Of the library that is really loaded."""
    from confluent_kafka import libversion

    return libversion()[0]
