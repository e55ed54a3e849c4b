"""`statelog`: the program itself. Knows the commands by name, loads one when it is asked for, turns errors into exits.

Invariants:
- Every error leaves through one place, as text for people or as JSON, with the exit code of `exit_codes`.
- `statelog version` and `--help` load neither Kafka's client nor Arrow.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn, cast

import click

__all__ = ["COMMANDS", "Program", "program"]

COMMANDS: Mapping[str, str] = {
    "init": "Make a log: its topics and its directory.",
    "append": "Append the changes of a file or a pipe to a log, exactly once.",
    "evolve": "Give a log its next value schema.",
    "materialize": "Roll a log up into snapshots, as a daemon or once.",
    "recover": "Read the state of a log, whole or in part, now or at an earlier position.",
    "describe": "Show what a log is and how it stands.",
    "delete": "Delete a log for good.",
    "dev": "Start, stop or look at the development broker.",
    "version": "Print the versions of statelog and of what it rests on.",
}
"""Name to what the overview says about it."""


class Program(click.Group):
    """The group of commands, each in a module of its own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Load a command."""
        if cmd_name not in COMMANDS:
            return None
        return cast("click.Command", import_module(f"statelog.cli.commands.{cmd_name}").command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The overview, without loading any command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - click's signature; this program always exits itself
        **extra: Any,
    ) -> NoReturn:
        """Run and exit."""
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(given, prog_name or "statelog", complete_var, False, **extra)
        except Exception as error:  # noqa: BLE001 - what is not ours is raised again
            code = _failed(error, as_json="--json" in given)
        sys.exit(code if isinstance(code, int) else 0)


def _failed(error: Exception, *, as_json: bool) -> int:
    """Tell what went wrong; returns the exit code. What is a defect of ours goes on as it is."""
    # Imported here, because a run that goes well without Kafka and Arrow shall not wait for them.
    from statelog.cli.exit_codes import INTERRUPTED, MISUSE, OTHER, exit_code
    from statelog.cli.output import print_error
    from statelog.schemas.errors import Misuse, StatelogError

    match error:
        case click.UsageError() if not as_json:
            error.show()
            return MISUSE
        case click.UsageError():
            print_error(Misuse(error.format_message()), as_json=True)
            return MISUSE
        case click.Abort():
            return INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else MISUSE
        case StatelogError():
            print_error(error, as_json=as_json)
            return exit_code(error)
        case BrokenPipeError():
            # Whoever read our output has gone; nobody is left to tell, and Python must not try again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return OTHER
        case _:
            raise error


program = Program(
    name="statelog",
    help="A durable, event-sourced state log on Kafka. Exit codes: 0 done, 2 misuse, 3 not found or taken, "
    "4 unavailable, 5 fenced, 6 data loss or damage, 130 interrupted, 1 anything else.",
)
