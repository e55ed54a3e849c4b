"""What the command tells of itself: `statelog completion`, which a shell reads, and `statelog man`, manual pages, both
from click; `statelog version`. Loads no room but what tells versions.
"""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from statelog.cli.output import Output
from statelog.errors import ConfigError
from statelog.operate.report import Report
from statelog.operate.versions import versions

_COMPLETION_HELP = """Print what a shell has to read to complete `statelog`, its commands and their options.

bash: `statelog completion bash > ~/.local/share/bash-completion/completions/statelog`; zsh: into a file `_statelog` of
a directory of $fpath; fish: into ~/.config/fish/completions/statelog.fish."""
_MAN_HELP = """Write the manual pages, statelog(1) and one for each command, into DIRECTORY.

With ~/.local/share/man/man1, `man statelog` and `man statelog-init` find them."""


@click.command("completion", help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's script."""
    made = get_completion_class(shell)
    if made is None:
        raise ConfigError(f"this click knows no {shell}", hint="Update click")
    click.echo(made(context.find_root().command, {}, "statelog", "_STATELOG_COMPLETE").source())


@click.command("man", help=_MAN_HELP)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.pass_context
def man(context: click.Context, directory: Path) -> None:
    """Write manual pages."""
    directory.mkdir(parents=True, exist_ok=True)
    pages = dict(_pages(context.find_root().command, "statelog"))
    for name, text in pages.items():
        (directory / f"{name}.1").write_text(text, encoding="utf-8")
    Output(as_json=False).report(Report("manual pages", {"directory": str(directory), "pages": len(pages)}))


def _pages(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """The page of a command, by its name with dashes, and those of its own commands."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, **command.context_settings)
    below = {}
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        below = {name: one for name in names if (one := command.get_command(context, name)) is not None}
    yield path.replace(" ", "-"), "\n".join([*_page(command, path, context), *_commands(path, below)]) + "\n"
    for name, one in below.items():
        yield from _pages(one, f"{path} {name}", context)


def _page(command: click.Command, path: str, context: click.Context) -> Iterator[str]:
    text, title = (command.help or "").strip(), path.replace(" ", "-")
    usage, short = " ".join(command.collect_usage_pieces(context)), command.get_short_help_str(200)
    yield f'.TH "{title.upper()}" "1" "" "statelog {version("statelog")}" "statelog"'
    yield f".SH NAME\n{_roff(title)} \\- {_roff(short)}"
    yield f".SH SYNOPSIS\n.B {_roff(path)}\n{_roff(usage)}"
    yield ".SH DESCRIPTION"
    yield "\n.PP\n".join(_roff(part.strip()) for part in text.split("\n\n"))
    yield ".SH OPTIONS"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            yield f".TP\n.B {_roff(record[0])}\n{_roff(record[1] or '')}"


def _commands(path: str, below: dict[str, click.Command]) -> Iterator[str]:
    if below:
        yield ".SH COMMANDS"
    for name, one in below.items():
        yield f".TP\n.B {_roff(f'{path}-{name}'.replace(' ', '-'))}(1)\n{_roff(one.get_short_help_str(200))}"


def _roff(text: str) -> str:
    """Text as it is, to roff: a line that begins with a dot, or a quote, would be a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.splitlines())


@click.command("version", help="Print the versions of statelog and its dependencies.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def print_versions(as_json: bool) -> None:
    """Print versions."""
    Output(as_json=as_json).report(Report("statelog", versions()))
