"""`statelog completion`: print click's completion script for a shell; `statelog version`.

Imports no other package than `versions`.
"""

import click
from click.shell_completion import get_completion_class

from statelog.cli.output import CliOutput
from statelog.errors import ConfigError
from statelog.operate.report import Report
from statelog.operate.versions import versions

_COMPLETION_HELP = """Print the script with which a shell completes `statelog`, its commands and their options.

bash: `statelog completion bash > ~/.local/share/bash-completion/completions/statelog`; zsh: into a file `_statelog` of
a directory of $fpath; fish: into ~/.config/fish/completions/statelog.fish."""


@click.command("completion", help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's script."""
    made = get_completion_class(shell)
    if made is None:
        raise ConfigError(f"this version of click does not know {shell}", hint="Update click")
    click.echo(made(context.find_root().command, {}, "statelog", "_STATELOG_COMPLETE").source())


@click.command("version", help="Print the versions of statelog and its dependencies.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def print_versions(as_json: bool) -> None:
    """Print versions."""
    CliOutput(as_json=as_json).report(Report("statelog", versions()))
