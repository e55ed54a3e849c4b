"""The `statelog` program: find commands by name, load the one in use, turn errors into exit codes.

Invariants:
- Every error is reported in one place, as text for people or as JSON, with the exit code of `output`.
- `statelog version` and `--help` load neither Kafka's client nor Arrow.
"""

import errno
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import StringIO
from typing import Any, NoReturn, cast

import click

from statelog.cli.streams import Interrupt, discard_stdout, discard_unread_stderr, fit_streams, is_stdout_unread, tell
from statelog.errors import ConfigError, Misuse, StatelogError, StorageFull, StoreUnavailable

COMMANDS: Mapping[str, str] = {
    "init": "Create a log: its topics and its directory.",
    "append": "Append the changes of a file or a pipe to a log, exactly once.",
    "evolve": "Give a log its next value schema.",
    "truncate": "Show what truncates a log and what holds truncation back; or change the mode.",
    "materialize": "Roll a log up into snapshots, as a daemon or once.",
    "recover": "Read the state of a log, whole or in part, now or at an earlier position.",
    "get": "Read the committed values of some keys.",
    "follow": "Show the commits of a log as they come.",
    "diff": "Show the keys that differ between two states of a log.",
    "verify": "Read a whole state of a log, compare every checksum, and print its digest.",
    "list": "Show the logs below a root.",
    "watch": "Show the progress of a log, line by line.",
    "describe": "Show the properties and the status of a log.",
    "serve": "Serve a page that shows the logs below a root.",
    "subscriptions": "Show the readers that hold truncation back, or remove one.",
    "copy": "Copy a log into a new one, on another cluster or below another root.",
    "accept-loss": "Accept what a log has lost, so that it can continue.",
    "delete": "Delete a log for good.",
    "doctor": "Find what is wrong with a log; or try everything that a log needs of Kafka.",
    "drill": "Restore a log in two ways without keeping it, time it, and compare.",
    "dev": "Start, stop or show the development broker.",
    "completion": "Print the script with which a shell completes this command.",
    "version": "Print the versions of statelog and its dependencies.",
}
"""The overview's text for each command."""
SECTIONS: Mapping[str, str] = {
    "Start": "dev init append",
    "Look": "list describe get follow diff watch recover serve",
    "Run": "materialize evolve truncate subscriptions drill",
    "Check and repair": "doctor verify copy accept-loss delete",
    "The command itself": "completion version",
}
"""The sections of the overview, and the commands in each."""
_HOMES = {
    "init": "log",
    "evolve": "log",
    "truncate": "log",
    "delete": "log",
    "accept-loss": "log:accept_loss",
    "list": "describe:list_logs",
    "watch": "describe",
    "subscriptions": "describe",
    "diff": "get",
    "verify": "recover",
    "drill": "recover:drilled",
    "completion": "shell",
    "version": "shell:print_versions",
}
"""The module of each command that has no module of its own name; after the colon, the object's name if it differs."""
MEANT = {
    "create": "init",
    "consume": "follow",
    "tail": "follow",
    "produce": "append",
    "export": "recover",
    "restore": "recover",
    "compact": "materialize",
    "snapshot": "materialize",
    "status": "describe",
    "show": "describe",
    "ls": "list",
    "remove": "delete",
    "rm": "delete",
}
"""The names of commands in other tools."""


class Program(click.Group):
    """The group of commands, each in the module of its name unless `_HOMES` names another."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Load a command."""
        if cmd_name not in COMMANDS:
            return None
        home, _, named = _HOMES.get(cmd_name, f"{cmd_name.replace('-', '_')}:command").partition(":")
        return cast("click.Command", getattr(import_module(f"statelog.cli.{home}"), named or cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, and suggest the nearest name for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # Imported only after a failure.

            close = get_close_matches(args[0], [*COMMANDS, *MEANT], n=1, cutoff=0.75)
            if not close:
                raise
            meant = f"{error.message} Did you mean '{MEANT.get(close[0], close[0])}'?"
            raise click.UsageError(meant, ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the overview without loading any command."""
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), COMMANDS[name]) for name in names.split()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - click's signature; this program always exits itself
        **extra: Any,
    ) -> NoReturn:
        """Run and exit. Click's own `main` would exit with 1 if the reader of standard output has gone away."""
        given, name = list(sys.argv[1:] if args is None else args), prog_name or "statelog"
        self._main_shell_completion(extra, name, complete_var)
        interrupt, code = Interrupt(), 0
        fit_streams(as_json="--json" in given)
        try:
            with self.make_context(name, given, **extra) as context:
                self.invoke(context)
        except click.exceptions.Exit as ended:
            code = ended.exit_code
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - unknown errors are raised again
            code = _failed(error, as_json="--json" in given, interrupted=interrupt.seen)
        finally:
            interrupt.close()
            discard_unread_stderr()
        sys.exit(code)


def _failed(error: Exception | KeyboardInterrupt, *, as_json: bool, interrupted: bool) -> int:
    """Report an error and return the exit code. A defect of statelog is raised again unchanged."""
    # Imported late: a successful run without Kafka and Arrow must not wait for them.
    from statelog.cli.output import INTERRUPTED, MISUSE, OK, CliOutput, exit_code

    is_unread, output = isinstance(error, BrokenPipeError) and is_stdout_unread(), CliOutput(as_json=as_json)
    if is_unread:
        discard_stdout()
    if interrupted or isinstance(error, KeyboardInterrupt):
        if isinstance(error, StatelogError):
            output.error(error)  # A library may have swallowed the Ctrl-C on the way here.
        else:
            tell("")  # Ends the line with the ^C of a terminal.
        return INTERRUPTED
    match error:
        case click.UsageError() if not as_json:
            error.show(shown := StringIO())
            tell(shown.getvalue().rstrip("\n"))
            return MISUSE
        case click.Abort():
            return MISUSE  # A question without an answer.
        case BrokenPipeError() if is_unread:
            return OK  # The reader has what it wanted.
        case click.UsageError():
            output.error(Misuse(error.format_message()))
            return MISUSE
        case StatelogError() | OSError():
            refused = _refused(error) if isinstance(error, OSError) else error
            output.error(refused)
            return exit_code(refused)
        case _:
            raise error


def _refused(error: OSError) -> StatelogError:
    """Return the error for a refusal of the operating system to the command itself: its output or its directory."""
    problem, path = error.strerror or str(error), str(error.filename or "standard output")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        if error.filename is None:
            discard_stdout()
        return StorageFull("the output cannot be written", file=path, problem=problem)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "Check the file's permissions, and HOME"
        return ConfigError("the file cannot be used", file=path, problem=problem, hint=hint)
    return StoreUnavailable("the operating system refuses the request", file=path, problem=problem)


program = Program(
    name="statelog",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A durable, event-sourced state log on Kafka. Exit codes: 0 done, 2 misuse, 3 not found or taken, "
    "4 unavailable, 5 fenced, 6 data loss or damage, 7 no such key, 130 interrupted, 1 anything else.",
)
click.version_option(
    package_name="statelog",
    prog_name="statelog",
    message="%(prog)s %(version)s",
    help="Print statelog's version; `statelog version` adds its dependencies.",
)(program)
