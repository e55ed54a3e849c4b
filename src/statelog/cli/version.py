"""`statelog version`: the versions of statelog and of its dependencies. Loads no room but what tells them."""

import click

from statelog.cli.output import Output
from statelog.operate.report import Report
from statelog.operate.versions import versions


@click.command("version", help="Print the versions of statelog and its dependencies.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Print versions."""
    Output(as_json=as_json).report(Report("statelog", versions()))
