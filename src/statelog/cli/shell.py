"""`statelog completion`, the script that a shell reads, from click; `statelog version`.

Loads no room but what tells versions.
"""

import click
from click.shell_completion import get_completion_class

from statelog.cli.output import Output
from statelog.errors import ConfigError
from statelog.operate.report import Report
from statelog.operate.versions import versions

_COMPLETION_HELP = """Print what a shell has to read to complete `statelog`, its commands and their options.

bash: `statelog completion bash > ~/.local/share/bash-completion/completions/statelog`; zsh: into a file `_statelog` of
a directory of $fpath; fish: into ~/.config/fish/completions/statelog.fish."""


@click.command("completion", help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's script."""
    made = get_completion_class(shell)
    if made is None:
        raise ConfigError(f"this click knows no {shell}", hint="Update click")
    click.echo(made(context.find_root().command, {}, "statelog", "_STATELOG_COMPLETE").source())


@click.command("version", help="Print the versions of statelog and its dependencies.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def print_versions(as_json: bool) -> None:
    """Print versions."""
    Output(as_json=as_json).report(Report("statelog", versions()))
