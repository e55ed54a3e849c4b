"""`statelog follow`: print the commits of a log as they come, until it is stopped.

For people, a commit's line comes first and its changes are indented below. As JSON, each change is an object that names
its commit. The commit's own object comes last, and shows that all changes were printed.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import click
import pyarrow as pa

from statelog.cli.output import CliOutput
from statelog.cli.session import Session, connected, log_argument, stopped_by_signals
from statelog.cli.streams import check_stdout
from statelog.cli.which_state import (
    From,
    Start,
    bytes_option,
    due_option,
    lease_option,
    parse_from,
    parse_key_groups,
)
from statelog.formatting import as_json, clean, in_text, show_time
from statelog.log import Log
from statelog.materializer.control import Control
from statelog.operate.rows import BytesText, json_column, read_keys, rows_of, value_column
from statelog.reading import RetainedHistory
from statelog.recovery import AtPosition, AtTime, Recovery, RecoverySettings, recover
from statelog.recovery.changes import CommitFeed
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.changes.due import DUE, shown
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.ledger.fold import ValidCommit
from statelog.schemas.values.schema import with_text

_PAUSE_S = 0.1
_BATCH_ROWS = 10_000
_HELP = """Show the commits of the log NAME as they come, with the last change of each key; only of the KEYs, if any
are named.

Ctrl-C and SIGTERM end it after the current commit, with exit code 0; a second signal ends it at once. With --json each
change is an object that names its commit; the commit's own object, "event": "commit", follows its changes."""


@click.command("follow", help=_HELP)
@log_argument
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--from",
    "start",
    default="now",
    show_default=True,
    metavar="WHERE",
    help="now, state (all rows, then commits), oldest, a ledger position, a time (ISO 8601), or a duration ago: 10min.",
)
@click.option("--once", is_flag=True, help="End after the commits made so far.")
@click.option("--writer", "writers", metavar="NAME", multiple=True, help="Only commits of this writer; repeatable.")
@click.option("--key-groups", metavar="LIST", help="Only these key groups, such as 0-63,70.")
@bytes_option
@due_option
@lease_option
@connected
def command(
    session: Session,
    name: str,
    keys: tuple[str, ...],
    start: str,
    once: bool,
    writers: tuple[str, ...],
    key_groups: str | None,
    bytes_text: BytesText,
    due: bool,
    lease: bool,
) -> None:
    """Follow a log."""
    origin, wanted_groups = parse_from(start, time.time()), parse_key_groups(key_groups)
    settings = RecoverySettings(holder="statelog follow", lease=lease)
    with session.open_log(name) as log:
        descriptor = log.descriptor
        named = read_keys(keys, descriptor.key_type, bytes_text) if keys else None
        groups = _groups(wanted_groups, named, descriptor)
        end = recover(log, settings=settings).position if once else None
        at = _at(log, origin, session.output, once=once)
        with (
            recover(log, key_groups=groups, at=at, settings=settings) as recovery,
            stopped_by_signals() as control,
            closing(CommitFeed(log, recovery.plan, groups, settings)) as feed,
        ):
            follower = _Follower(
                feed=feed,
                output=session.output,
                control=control,
                writers=frozenset(writers),
                keys=named,
                is_part=groups is not None or named is not None,
                bytes_text=bytes_text,
                due=due,
                with_groups=descriptor.hash_rule is HashRule.CALLER,
            )
            if origin is From.STATE:
                follower.show_state(recovery)
            follower.run(end)
            follower.warn_of_writers()


@dataclass(slots=True, kw_only=True)
class _Follower:
    """Prints the commits of a feed until it is stopped.

    `writers`: print only their commits; empty: all. `keys`: print only their changes; None: all.
    `is_part`: only some keys are followed; commits without a change of these are not printed.
    `due`: show from when a row is expired. `with_groups`: callers name the key group of a key.
    """

    feed: CommitFeed
    output: CliOutput
    control: Control
    writers: frozenset[str]
    keys: pa.Array | None
    is_part: bool
    bytes_text: BytesText
    due: bool
    with_groups: bool
    _chosen: int = 0
    _left_out: int = 0

    def run(self, end_position: int | None) -> None:
        """Print commits until the command is stopped, or until all below `end_position` are printed."""
        while not self.control.is_stopped and (end_position is None or self.feed.passed_position < end_position):
            commits = self.feed.commits()
            for commit in commits:
                if not self.writers or commit.writer in self.writers:
                    self._chosen += 1
                    self._show(commit)
                else:
                    self._left_out += 1
                self.feed.passed([commit])
                if self.control.is_stopped:
                    return
            if not commits:
                check_stdout()
                if end_position is None or self.feed.passed_position < end_position:
                    self.control.wait(_PAUSE_S)
                    self.feed.wait(self._is_over)

    def _is_over(self) -> bool:
        """Tell whether the command was stopped. Raises BrokenPipeError if nobody reads its output any more."""
        check_stdout()
        return self.control.is_stopped

    def warn_of_writers(self) -> None:
        """Warn if there were commits, but none of the named writers: a name may be misspelt."""
        if self._left_out and not self._chosen:
            self.output.warning(f"no commit of writer {' or '.join(sorted(self.writers))} was found")

    def show_state(self, recovery: Recovery) -> None:
        self._head(f"state at position {recovery.position}")
        rows = 0
        with recovery.stream(due=self.due) as stream:
            for changes, _ in stream:
                self._check()
                self.feed.renew()
                table = self._wanted(changes)
                rows += table.num_rows
                self._show_changes(table, {})
        self._close({"event": "state", "position": recovery.position, "keys": rows})

    def _show(self, commit: ValidCommit) -> None:
        """Print a commit: its head comes first for people, and last for programs."""
        whose = {"writer": commit.writer, "checkpoint": commit.checkpoint_id, "position": commit.position}
        time = show_time(commit.timestamp_ms / 1000, "milliseconds") if commit.timestamp_ms >= 0 else None
        rows = 0
        metadata = f", {as_json(dict(commit.metadata))}" if commit.metadata else ""
        when = f", {time}" if time else ""
        head = f"commit {commit.checkpoint_id} of {commit.writer}{when}, position {commit.position}{metadata}"
        if not self.is_part:
            self._head(head)
        with closing(self.feed.changes([commit], self._check)) as tables:
            for table in map(self._wanted, tables):
                if table.num_rows:
                    if self.is_part and not rows:
                        self._head(head)
                    rows += table.num_rows
                    self._show_changes(table, whose)
        if rows or not self.is_part:
            self._close({"event": "commit", **whose, "time": time, "changes": rows, "metadata": dict(commit.metadata)})

    def _head(self, text: str) -> None:
        if not self.output.as_json:
            self.output.line(clean(text))

    def _close(self, fields: Mapping[str, object]) -> None:
        if self.output.as_json:
            self.output.line(as_json(fields))

    def _wanted(self, table: pa.Table) -> pa.Table:
        return table if self.keys is None else rows_of(table, self.keys)

    def _show_changes(self, table: pa.Table, whose: Mapping[str, object]) -> None:
        """Print changes, many at a time; `whose` identifies their commit."""
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            self.output.line("\n".join(self._lines(batch, whose)))

    def _lines(self, batch: pa.RecordBatch, whose: Mapping[str, object]) -> Iterator[str]:
        for_programs = self.output.as_json
        bytes_text = self.bytes_text if for_programs or self.bytes_text is BytesText.BASE64 else None
        ops = ["delete" if op == DELETE else "put" for op in batch.column("op").to_pylist()]
        groups = batch.column("key_group").to_pylist()
        keys = json_column(batch.column("key"), bytes_text)
        values = value_column(with_text(batch, self.feed.converter.target).column("value"), bytes_text)
        dues = json_column(shown(batch, due=True).column(DUE.name), bytes_text)
        for op, group, key, value, due in zip(ops, groups, keys, values, dues, strict=True):
            fields = {"key_group": group} if self.with_groups else {}
            fields |= {"key": key} if op == "delete" else {"key": key, "value": value}
            if for_programs:
                fields |= {"due": due} if self.due and op == "put" else {}
                yield as_json({"event": op, **fields, **whose})
            else:
                when = f", due {due}" if self.due and due else ""
                yield clean(f"  {op} {' '.join(map(in_text, fields.values()))}{when}").replace("\n", "\\n")

    def _check(self, *_: object) -> None:
        """Raise KeyboardInterrupt after a second signal."""
        if self.control.is_abandoned:
            raise KeyboardInterrupt


def _at(log: Log, start: Start, output: CliOutput, *, once: bool) -> AtPosition | None:
    """Return the state after which commits are printed; None for the newest. Warn if the time is in the future."""
    match start:
        case From.NOW | From.STATE:
            return None
        case From.OLDEST:
            return AtPosition(RetainedHistory(log, None).oldest_position)
        case _:
            history = RetainedHistory(log, None)
            position = history.resolve(start)
            # The brokers' clocks may be ahead of ours.
            if isinstance(start, AtTime) and position == history.ledger.end and start.timestamp_ms > time.time() * 1000:
                then = "" if once else "; commits from now on are printed"
                output.warning(f"nothing is selected yet: the time is in the future{then}")
            return AtPosition(position)


def _groups(asked: tuple[int, ...] | None, keys: pa.Array | None, descriptor: Descriptor) -> frozenset[int] | None:
    """Return the key groups to read: the named ones, or the keys' own; None for all."""
    if asked is not None:
        return frozenset(asked)
    if keys is None or descriptor.hash_rule is HashRule.CALLER:
        return None
    return frozenset(descriptor.key_groups_of(keys).tolist())
