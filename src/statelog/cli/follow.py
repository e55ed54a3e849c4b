"""`statelog follow`: the commits of a log as they come, until somebody stops it.

For people a commit's line comes first and its changes are indented below; as JSON each change is an object that says
which commit it is part of, and the commit's own object comes last: then all of it is there.
"""

import datetime
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import click
import pyarrow as pa

from statelog.cli.output import Output, as_json, clean, in_text
from statelog.cli.session import Session, connected
from statelog.cli.state_rows import BytesText, json_column
from statelog.cli.streams import check_stdout
from statelog.cli.which_state import (
    From,
    Start,
    bytes_option,
    lease_option,
    parse_from,
    parse_key_groups,
    read_keys,
    rows_of,
)
from statelog.materializer import Control, install_signal_handlers
from statelog.reading.retained_history import RetainedHistory
from statelog.recovery import AtPosition, AtTime, Recovery, RecoverySettings, recover
from statelog.recovery.commit_feed import CommitFeed
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.storage.ledger_client import ValidCommit
from statelog.storage.log.log import Log

_POLL_S = 0.2
_BATCH_ROWS = 10_000


_HELP = """Show the commits of the log NAME as they come, with the last change of each key; of the KEYs only, if any
are named.

Ctrl-C and SIGTERM end it behind the commit that is being printed, with 0; a second one at once. With --json each
change is an object with the commit that it is part of; the commit's own, "event": "commit", follows its changes."""


@click.command("follow", help=_HELP)
@click.argument("name")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--from",
    "start",
    default="now",
    show_default=True,
    metavar="WHERE",
    help="now, state (all that is there, then commits), oldest, a ledger position, a time (ISO 8601), or 10min: ago.",
)
@click.option("--once", is_flag=True, help="End behind what is committed by now.")
@click.option("--writer", "writers", metavar="NAME", multiple=True, help="Only commits of this writer; repeatable.")
@click.option("--key-groups", metavar="LIST", help="Only these key groups, such as 0-63,70.")
@bytes_option
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
    lease: bool,
) -> None:
    """Follow a log."""
    origin, wanted_groups = parse_from(start, time.time()), parse_key_groups(key_groups)
    settings = RecoverySettings(holder="statelog follow", lease=lease)
    with session.open_log(name) as log:
        descriptor = log.descriptor
        named = read_keys(keys, descriptor.key_type, bytes_text) if keys else None
        groups = _groups(wanted_groups, named, descriptor)
        choice = _Choice(frozenset(writers), named, is_part=groups is not None or named is not None)
        lines = CommitLines(
            as_json=session.output.as_json,
            bytes_text=bytes_text,
            with_groups=descriptor.hash_rule is HashRule.CALLER,
        )
        end = recover(log, settings=settings).position if once else None
        at = _at(log, origin, session.output, once=once)
        with recover(log, key_groups=groups, at=at, settings=settings) as recovery:
            control = Control()
            restore = install_signal_handlers(control)
            try:
                with closing(CommitFeed(log, recovery.plan, groups, settings)) as feed:
                    follower = _Follower(feed, lines, choice, session.output, control)
                    if origin is From.STATE:
                        follower.show_state(recovery)
                    follower.run(end)
                    follower.warn_of_writers()
            finally:
                restore()


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which commits and keys are printed. Of a part of the keys, commits that changed none of them are not."""

    writers: frozenset[str]
    keys: pa.Array | None
    is_part: bool

    def rows(self, table: pa.Table) -> pa.Table:
        """What is printed of some changes."""
        return table if self.keys is None else rows_of(table, self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLines:
    """How lines are made: `with_groups` where callers name the key group of a key."""

    as_json: bool
    bytes_text: BytesText
    with_groups: bool

    def heading(self, commit: ValidCommit) -> str | None:
        """What comes before a commit's changes."""
        if self.as_json:
            return None
        told = f", {as_json(dict(commit.metadata))}" if commit.metadata else ""
        time = f", {_time(commit.timestamp_ms)}" if commit.timestamp_ms >= 0 else ""
        return clean(f"commit {commit.checkpoint_id} of {commit.writer}{time}, position {commit.position}{told}")

    def closing(self, commit: ValidCommit, changes: int) -> str | None:
        """What comes behind a commit's changes, of which so many were printed."""
        if not self.as_json:
            return None
        return as_json(
            {
                "event": "commit",
                **_whose(commit),
                "time": _time(commit.timestamp_ms) if commit.timestamp_ms >= 0 else None,
                "changes": changes,
                "metadata": dict(commit.metadata),
            }
        )

    def state_heading(self, position: int) -> str | None:
        """What comes before the keys of a state."""
        return None if self.as_json else f"state at position {position}"

    def state_closing(self, position: int, keys: int) -> str | None:
        """What comes behind the keys of a state."""
        return as_json({"event": "state", "position": position, "keys": keys}) if self.as_json else None

    def changes(self, table: pa.Table, commit: ValidCommit | None) -> Iterator[str]:
        """The lines of changes, many in one text; `commit` is None for the keys of a state."""
        facts = {} if commit is None else _whose(commit)
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield "\n".join(self._change_lines(batch, facts))

    def _change_lines(self, batch: pa.RecordBatch, facts: Mapping[str, object]) -> Iterator[str]:
        bytes_text = self.bytes_text if self.as_json or self.bytes_text is BytesText.BASE64 else None
        ops = ["delete" if op == DELETE else "put" for op in batch.column("op").to_pylist()]
        groups = batch.column("key_group").to_pylist()
        keys = json_column(batch.column("key"), bytes_text)
        values = json_column(batch.column("value"), bytes_text)
        for op, group, key, value in zip(ops, groups, keys, values, strict=True):
            shown = ([group] if self.with_groups else []) + [key] + ([] if op == "delete" else [value])
            if self.as_json:
                names = (["key_group"] if self.with_groups else []) + ["key", "value"]
                yield as_json({"event": op, **dict(zip(names, shown, strict=False)), **facts})
            else:
                yield clean(f"  {op} {' '.join(map(in_text, shown))}").replace("\n", "\\n")


class _Follower:
    """Prints what a feed has, until it is stopped."""

    def __init__(self, feed: CommitFeed, lines: CommitLines, choice: _Choice, output: Output, control: Control) -> None:
        self._feed = feed
        self._lines = lines
        self._choice = choice
        self._output = output
        self._control = control
        self._chosen = 0
        self._left_out = 0

    def run(self, end_position: int | None) -> None:
        """Print every commit; return once it is stopped, or once all below `end_position` are printed."""
        while not self._control.is_stopped and (end_position is None or self._feed.passed_position < end_position):
            commits = self._feed.commits()
            for commit in commits:
                if not self._choice.writers or commit.writer in self._choice.writers:
                    self._chosen += 1
                    self._show(commit)
                else:
                    self._left_out += 1
                self._feed.passed([commit])
                if self._control.is_stopped:
                    return
            if not commits:
                check_stdout()
                if end_position is None or self._feed.passed_position < end_position:
                    self._control.wait(_POLL_S)

    def warn_of_writers(self) -> None:
        """Say that commits were there, and none of the writers that were named: perhaps a slip of the pen."""
        if self._left_out and not self._chosen:
            self._output.warning(f"no commit of writer {' or '.join(sorted(self._choice.writers))} was found")

    def show_state(self, recovery: Recovery) -> None:
        """Print the keys of a state."""
        self._say(self._lines.state_heading(recovery.position))
        rows = 0
        with recovery.stream() as stream:
            for changes, _ in stream:
                self._check()
                self._feed.renew()
                table = self._choice.rows(changes)
                rows += table.num_rows
                self._say_all(table, None)
        self._say(self._lines.state_closing(recovery.position, rows))

    def _show(self, commit: ValidCommit) -> None:
        heading, rows = self._lines.heading(commit), 0
        if not self._choice.is_part:
            self._say(heading)
            heading = None
        with closing(self._feed.changes([commit], self._check)) as tables:
            for table in map(self._choice.rows, tables):
                if table.num_rows:
                    self._say(heading)
                    heading = None
                    rows += table.num_rows
                    self._say_all(table, commit)
        if rows or not self._choice.is_part:
            self._say(self._lines.closing(commit, rows))

    def _say_all(self, table: pa.Table, commit: ValidCommit | None) -> None:
        for text in self._lines.changes(table, commit):
            self._output.line(text)

    def _say(self, text: str | None) -> None:
        if text is not None:
            self._output.line(text)

    def _check(self, *_: object) -> None:
        """Raise KeyboardInterrupt once a second signal has come."""
        if self._control.is_abandoned:
            raise KeyboardInterrupt


def _at(log: Log, start: Start, output: Output, *, once: bool) -> AtPosition | None:
    """The state behind which the commits are printed; None for the newest. Warns of a time that is still to come."""
    match start:
        case From.NOW | From.STATE:
            return None
        case From.OLDEST:
            return AtPosition(RetainedHistory(log, None).oldest_position)
        case _:
            reach = RetainedHistory(log, None)
            position = reach.resolve(start)
            # By the brokers' clocks it may have come.
            if isinstance(start, AtTime) and position == reach.end_position and start.timestamp_ms > time.time() * 1000:
                then = "" if once else "; what is committed from now on is printed"
                output.warning(f"nothing is selected yet: the time is in the future{then}")
            return AtPosition(position)


def _groups(asked: tuple[int, ...] | None, keys: pa.Array | None, descriptor: Descriptor) -> frozenset[int] | None:
    """The key groups to read: those that were asked for, or those of the keys."""
    if asked is not None:
        return frozenset(asked)
    if keys is None or descriptor.hash_rule is HashRule.CALLER:
        return None
    return frozenset(descriptor.key_groups_of(keys).tolist())


def _whose(commit: ValidCommit) -> dict[str, object]:
    return {"writer": commit.writer, "checkpoint": commit.checkpoint_id, "position": commit.position}


def _time(timestamp_ms: int) -> str:
    return datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
