"""`statelog materialize`: roll logs up, as a daemon or once; print its rounds; define its options."""

import datetime
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from statelog.cli.output import OTHER, CliOutput
from statelog.cli.serve import JsonLogLines, listen_options, observing, one_health
from statelog.cli.session import Session, complete_log, connected, materializer_settings, stopped_by_signals
from statelog.cli.streams import discard_stdout
from statelog.environment import current_environment
from statelog.errors import ConfigError, Misuse, NotFound
from statelog.log import Log
from statelog.log.config import Config
from statelog.log.config_keys import KEYS, MATERIALIZER
from statelog.log.where import configured_where, log_names, one_client
from statelog.materializer import CompletedRound, Control, Event, LostRound, Materializer, SkippedRound
from statelog.materializer import claim_root as claim
from statelog.materializer.engine import EngineMaker, LocalEngine
from statelog.materializer.fleet import Fleet, FleetSettings, Kit
from statelog.materializer.outcome import RoundOutcome
from statelog.operate.listening import Listening
from statelog.operate.report import Report
from statelog.schemas.topic_policy import ROUND

if TYPE_CHECKING:
    from statelog.operate.drill import OpenLog
    from statelog.operate.health import Health

_RETRY_S = 2.0
_OF_PROCESS = ("rounds", "drill_every_s")
F = TypeVar("F", bound=Callable[..., Any])
_HELP = """Roll the log NAME up into snapshots and truncate what they cover, round after round.

With several names, or --all, one process serves many logs: an error of one does not stop the others.

On SIGTERM or Ctrl-C the current round ends, and the daemon exits with 0; a second signal aborts the round. SIGUSR1
starts a round now."""


def _setting(name: str, text: str, metavar: str = "") -> Callable[[F], F]:
    """Make an option for a key of the configuration's table [materializer], with its unit as metavar."""
    unit = {"s": "TIME", "bytes": "SIZE"}.get(name.rpartition("_")[2], "N")
    flag = KEYS[f"{MATERIALIZER}.{name}"].flag
    return click.option(flag, f"key_of_{MATERIALIZER}__{name}", metavar=metavar or unit, help=text)


@click.command("materialize", help=_HELP)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_log)
@click.option("--once", is_flag=True, help="Run one round now, print its outcome, and exit.")
@click.option("--now", is_flag=True, help="Start with a round at once, without the initial delay.")
@click.option("--wait", is_flag=True, help="Wait for the log if it does not exist yet.")
@click.option("--claim-root", is_flag=True, help="Make this root the log's own, instead of any copy of it.")
@_setting("interval_s", "From the end of a round to the next. Default 10min.")
@_setting("budget_bytes", "Size of one round. Default 512MiB.")
@_setting("failures_tolerated", "Failures in a row to tolerate. Default 3.")
@_setting("keep", "Manifests to keep, at least 2. Default 2.")
@_setting("min_age_s", "Keep manifests superseded more recently. Default 1h.")
@_setting("engine", "What folds and merges: local, in this process, or spark. Default local.", "NAME")
@_setting("fanout", "Merge this many runs of one size. Default 4.")
@_setting("threads", "Files to write or merge at once. Default: one for each core, four at most.")
@_setting("fold_bytes", "Changes to sort in memory at once, at three times their size. Default 128MiB.")
@_setting("scratch", "Where runs are written first; default: the temporary directory.", "DIR")
@_setting("alarm_age_s", "Alarm on older changes that no snapshot holds. Default 1h, or six intervals.")
@_setting("restore_budget_s", "Keep a restore within this time. Default: the tail's within 10s.")
@_setting("round_timeout_s", "Give up a round after this time. Default 6h.")
@_setting("hang_s", "Not live after so long without a step. Default 15min.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="Plain lines, or JSON objects, also for warnings."
)
@click.option("--all", "is_all", is_flag=True, help="All logs below the root, including new ones.")
@_setting("drill_every_s", "Drill a restore at this interval. Default: never.")
@_setting("rounds", "Concurrent rounds of several logs. Default 2.")
@listen_options(None, "Serve /livez, /readyz and /metrics there.", of_daemon=True)
@click.option("--traces", is_flag=True, help="Export OpenTelemetry spans, as its environment configures.")
@connected
def command(
    session: Session,
    names: tuple[str, ...],
    is_all: bool,
    once: bool,
    now: bool,
    wait: bool,
    claim_root: bool,
    log_format: str | None,
    listening: Listening | None,
    probing: Listening | None,
    traces: bool,
) -> None:
    """Materialize logs."""
    if log_format is not None:
        session = replace(session, output=JsonLogLines() if log_format == "json" else CliOutput(as_json=False))
    if is_all == bool(names):
        raise Misuse("name the logs, or give --all")
    name, *others = names or ("",)
    are_many = is_all or bool(others)
    if are_many and (once or claim_root):
        raise Misuse("--once and --claim-root are for one log", hint="Name one log at a time")
    watch = partial(observing, session, listening, probing, traces=traces)
    with stopped_by_signals() as control:
        if now:
            control.trigger()
        if are_many:
            _materialize_all(session, names, control, watch)
        else:
            of_log = replace(session, config=session.config.of_log(name))
            _materialize(of_log, name, control, watch, once=once, wait=wait, claim_root=claim_root)


_Watch = Callable[["Callable[[], Health]", Sequence[Path]], AbstractContextManager[None]]


def _materialize(
    session: Session, name: str, control: Control, watch: _Watch, *, once: bool, wait: bool, claim_root: bool
) -> None:
    """Materialize one log. An error that ends its rounds ends the command."""
    settings, clock = materializer_settings(session.config), current_environment().clock
    daemon: Materializer | None = None
    since_s: float | None = None

    def health() -> "Health":
        return one_health(name, settings, daemon, None if since_s is None else clock() - since_s)

    with watch(health, [settings.scratch]):
        if wait and not _wait_for_log(session, name, control):
            return
        since_s = clock()
        with session.open_log(name, ROUND) as log:
            engine = engine_for(session.config, name)
            if claim_root:
                claim(log)
            if once:
                outcome = Materializer(log, settings, control=control, make_engine=engine).run_once()
                session.output.report(outcome_report(name, outcome))
                return
            events = EventLines(session.output, control)
            daemon = Materializer(log, settings, control=control, make_engine=engine, on_event=events.tell)
            with _drills(session, lambda: [name], lambda one: Log.open(one, session.where()), events):
                daemon.run()
            events.check()


def _materialize_all(session: Session, names: Sequence[str], control: Control, watch: _Watch) -> None:
    """Materialize several logs. An error that ends the rounds of one log does not end the command.

    Raises ConfigError if the table of one log has a setting of the process.
    """
    for log, given in session.config.logs.items():
        if (not names or log in names) and (named := [one for one in _OF_PROCESS if one in given]):
            problem = f"logs.{log}.{named[0]} is set for one log, but applies to all logs"
            raise ConfigError(problem, hint=f"Set {named[0]} in [{MATERIALIZER}]")
    settings, events, where = (
        materializer_settings(session.config),
        EventLines(session.output, control),
        session.where(),
    )
    most = cast("int", session.config.materializer.get("rounds", FleetSettings().rounds))

    def kit(name: str) -> Kit:
        config = session.config.of_log(name)
        return Kit(lambda: Log.open(name, shared, ROUND), materializer_settings(config), engine_for(config, name))

    fleet: Fleet | None = None

    def health() -> "Health":
        from statelog.operate.health import Health, health_of_all  # Loaded on demand.

        if fleet is None:
            return Health(logs=())
        return health_of_all(fleet.states(), late_s=fleet.late_s, hang_s=settings.hang_s, problem=fleet.problem)

    # Observers come first: they do not see earlier objects.
    watched = watch(health, [settings.scratch])
    with session.warnings_shown(), watched, one_client(where) as shared:
        fleet = Fleet(
            kit,
            names,
            find=None if names else lambda: log_names(where),
            settings=FleetSettings(rounds=most),
            control=control,
            on_event=events.tell,
        )
        of_all = fleet
        with _drills(session, lambda: [one.log for one in of_all.states()], lambda one: Log.open(one, shared), events):
            fleet.run()
    events.check()


def _drills(
    session: Session, names: Callable[[], Collection[str]], open_log: "OpenLog", events: "EventLines"
) -> AbstractContextManager[object]:
    """Drill the logs concurrently with the rounds in the block, if the configuration asks for it."""
    every_s = cast("float", session.config.materializer.get("drill_every_s", 0.0))
    if not every_s:
        return nullcontext()
    from statelog.operate.drill import drilling  # Loaded on demand.

    return drilling(names, open_log, every_s, events.tell)


def _wait_for_log(session: Session, name: str, control: Control) -> bool:
    """Wait until the log exists; False if the stop came first. Raises every error other than NotFound."""
    is_noted = False
    while not control.is_stopped:
        try:
            with session.open_log(name, ROUND):
                return True
        except NotFound:
            if not is_noted:
                session.output.notice(f"waiting for the log {name}; create it with: statelog init {name}")
            is_noted = True
            control.wait(_RETRY_S)
    return False


class EventLines:
    """Prints events, on any thread. If standard output fails, the daemon stops with an error: its work is not done."""

    def __init__(self, output: CliOutput, control: Control) -> None:
        self._output = output
        self._control = control
        self._problem: OSError | None = None

    def tell(self, event: Event) -> None:
        """Print an event. Raises nothing."""
        now = datetime.datetime.now(datetime.UTC)
        fields = event_fields(event, now)
        if isinstance(self._output, JsonLogLines):
            fields = {"time": fields["time"], "level": logging.getLevelName(event.level).lower(), **fields}
        try:
            self._output.event(event_line(event, now), fields)
        except OSError as error:
            discard_stdout()
            self._problem = error
            self._control.stop()

    def check(self) -> None:
        """Exit with an error if the daemon stopped because its output failed. Raises OSError."""
        if isinstance(self._problem, BrokenPipeError):
            self._output.warning("the daemon has ended because its output is no longer read")
            sys.exit(OTHER)
        if self._problem is not None:
            raise self._problem


def engine_for(config: Config, log: str) -> EngineMaker:
    """Return the maker of the configured engine for this log. Raises ConfigError.

    `spark` uses the session of this process: from spark-submit, from Spark Connect if SPARK_REMOTE is set, or a local
    one. The session lives as long as the process.
    """
    if config.materializer.get("engine", "local") == "local":
        return LocalEngine
    try:
        from pyspark.sql import SparkSession  # Loaded for this engine only: it takes a second.

        from statelog.spark import spark_engine
    except ImportError as error:
        raise ConfigError("the engine spark needs pyspark", hint="pip install 'statelog[spark]'") from error
    builder: SparkSession.Builder = SparkSession.builder  # pyright: ignore[reportAssignmentType] # a class property
    return spark_engine(builder.appName(f"statelog materialize {log}").getOrCreate(), log, configured_where(config))


_ENDED = {
    CompletedRound: ("completed", ""),
    SkippedRound: ("skipped", ": nothing new"),
    LostRound: ("lost", ": another materializer was faster"),
}


def outcome_report(log: str, outcome: RoundOutcome) -> Report:
    """Return the report on one round and its clean-up."""
    word, more = _ENDED[type(outcome)]
    facts = asdict(outcome)
    facts |= facts.pop("cleanup", {})
    if isinstance(outcome, CompletedRound):
        facts["subscriptions_ended"] = ", ".join(one["reader"] for one in facts.pop("capped"))
        facts["cleanup_held_back"] = facts.pop("held_back")
    facts = {"outcome": word, "manifest": facts.pop("number"), **facts}
    return Report(f"round on {log}{more}", {name: None if fact == "" else fact for name, fact in facts.items()})


def event_line(event: Event, now: datetime.datetime) -> str:
    """Return an event as a line for people, marked with WARNING or ERROR if it is one."""
    loud = f"{logging.getLevelName(event.level)}: " if event.level > logging.INFO else ""
    return f"{now.isoformat(timespec='seconds')} {event.log}: {loud}{event.text}"


def event_fields(event: Event, now: datetime.datetime) -> dict[str, object]:
    """Return an event as an object for programs."""
    time = now.isoformat(timespec="milliseconds")
    return {"time": time, "event": event.kind.value, "log": event.log, **event.facts}
