"""`statelog materialize`: rolls a log up, as a daemon or once; how its rounds are shown; and its settings."""

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

from statelog.cli.output import OTHER, Output
from statelog.cli.serve import JsonLogLines, listen_options, observing, one_health
from statelog.cli.session import Session, complete_log, connected, materializer_settings, stopped_by_signals
from statelog.cli.streams import give_up_stdout
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

_LOOK_AGAIN_S = 2.0
_OF_PROCESS = ("rounds", "drill_every_s")
F = TypeVar("F", bound=Callable[..., Any])
_HELP = """Roll the log NAME up into snapshots and truncate what they cover, round after round.

With several names, or --all, one process does it for many logs: an error of one does not stop the others.

SIGTERM and Ctrl-C let the round in flight end, and then the daemon exits with 0; a second one gives the round up.
SIGUSR1 starts a round now."""


def _setting(name: str, text: str, metavar: str = "") -> Callable[[F], F]:
    """An option for a key of the configuration's table [materializer], with what its unit is called."""
    unit = {"s": "TIME", "bytes": "SIZE"}.get(name.rpartition("_")[2], "N")
    flag = KEYS[f"{MATERIALIZER}.{name}"].flag
    return click.option(flag, f"key_of_{MATERIALIZER}__{name}", metavar=metavar or unit, help=text)


@click.command("materialize", help=_HELP)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_log)
@click.option("--once", is_flag=True, help="Run one round now, print its outcome, and exit.")
@click.option("--now", is_flag=True, help="Start with a round at once, without the initial delay.")
@click.option("--wait", is_flag=True, help="Wait for the log if it does not exist yet.")
@click.option("--claim-root", is_flag=True, help="The log's root is this one from now on, and no copy of it.")
@_setting("interval_s", "From the end of a round to the next. Default 10min.")
@_setting("jitter", "Spread of the first round, 0 to 1. Default 1.", "0..1")
@_setting("budget_bytes", "Size of one round. Default 512MiB.")
@_setting("failures_tolerated", "Failures in a row to tolerate. Default 3.")
@_setting("failures_tolerated_s", "Tolerate any number of failures for this long. Default 15min.")
@_setting("stop_grace_s", "How long a round may go on after a stop. Default 1min.")
@_setting("keep", "Manifests to keep, at least 2. Default 2.")
@_setting("min_age_s", "Keep manifests superseded more recently. Default 1h.")
@_setting("engine", "Who folds and merges: local, this process, or spark. Default local.", "NAME")
@_setting("fanout", "Merge this many runs of one size. Default 4.")
@_setting("merge_bytes", "Merge so much in a round, and more beside it. Default 2GiB.")
@_setting("max_run_bytes", "Cut larger runs into several files. Default 4GiB.")
@_setting("threads", "Files to write or merge at once. Default: one for each core, four at most.")
@_setting("fold_bytes", "Changes to sort in memory at once, at three times their size. Default 128MiB.")
@_setting("scratch", "Where runs are written first; default: the temporary directory.", "DIR")
@_setting("alarm_age_s", "Alarm on older changes that no snapshot holds. Default 1h, or six intervals.")
@_setting("restore_budget_s", "Keep a restore within this time. Default: the tail's within 10s.")
@_setting("round_timeout_s", "Give up a round after this time. Default 6h.")
@_setting("hang_s", "Not live after so long without a step. Default 15min.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Lines of words, or objects, warnings as well.")
@click.option("--all", "is_all", is_flag=True, help="All logs below the root, also those that are made meanwhile.")
@_setting("drill_every_s", "Drill a restore each time that so long has passed; else never.")
@_setting("rounds", "Of several logs, rounds at once. Default 2.")
@listen_options(None, "Serve /livez, /readyz and /metrics there.", of_daemon=True)
@click.option("--traces", is_flag=True, help="Make spans for OpenTelemetry, as its environment says.")
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
        session = replace(session, output=JsonLogLines() if log_format == "json" else Output(as_json=False))
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
    """One log: what ends its rounds ends the command."""
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
    """Several logs: what ends the rounds of one does not end the command. Raises ConfigError for what is said of one
    log, and holds for the process.
    """
    for log, said in session.config.logs.items():
        if (not names or log in names) and (named := [one for one in _OF_PROCESS if one in said]):
            what, hint = f"logs.{log}.{named[0]} is said of one log of many", f"Say {named[0]} in [{MATERIALIZER}]"
            raise ConfigError(f"{what}: it holds for all of them", hint=hint)
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
        from statelog.operate.health import Health, health_of_all  # Loaded if it is asked for.

        if fleet is None:
            return Health(logs=())
        return health_of_all(fleet.states(), late_s=fleet.late_s, hang_s=settings.hang_s, problem=fleet.problem)

    # What is made before somebody watches is not seen.
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
    """What drills the logs beside the rounds in the block, if the configuration wants it."""
    every_s = cast("float", session.config.materializer.get("drill_every_s", 0.0))
    if not every_s:
        return nullcontext()
    from statelog.operate.drill import drilling  # Loaded if it is asked for.

    return drilling(names, open_log, every_s, events.tell)


def _wait_for_log(session: Session, name: str, control: Control) -> bool:
    """Return once the log is there; False if the stop came first. Any trouble but its absence is raised."""
    is_told = False
    while not control.is_stopped:
        try:
            with session.open_log(name, ROUND):
                return True
        except NotFound:
            if not is_told:
                session.output.notice(f"waiting for the log {name}; create it with: statelog init {name}")
            is_told = True
            control.wait(_LOOK_AGAIN_S)
    return False


class EventLines:
    """Prints events, on any thread. If stdout takes none the daemon stops, with an error: unlike a reader, it has not
    finished.
    """

    def __init__(self, output: Output, control: Control) -> None:
        self._output = output
        self._control = control
        self._problem: OSError | None = None

    def tell(self, event: Event) -> None:
        """Print it. Raises nothing."""
        now = datetime.datetime.now(datetime.UTC)
        fields = event_fields(event, now)
        if isinstance(self._output, JsonLogLines):
            fields = {"time": fields["time"], "level": logging.getLevelName(event.level).lower(), **fields}
        try:
            self._output.event(event_line(event, now), fields)
        except OSError as error:
            give_up_stdout()
            self._problem = error
            self._control.stop()

    def check(self) -> None:
        """Once the daemon has ended: exit with an error if it ended because of that. Raises OSError."""
        if isinstance(self._problem, BrokenPipeError):
            self._output.warning("the daemon has ended because nobody reads its events any more")
            sys.exit(OTHER)
        if self._problem is not None:
            raise self._problem


def engine_for(config: Config, log: str) -> EngineMaker:
    """The engine that the configuration names, for this log. Raises ConfigError.

    `spark` is the session of this process: that of spark-submit, of Spark Connect where SPARK_REMOTE names it, or a
    local one. It lives as long as the process.
    """
    if config.materializer.get("engine", "local") == "local":
        return LocalEngine
    try:
        from pyspark.sql import SparkSession  # Loaded for this engine alone: it takes a second.

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
    """How one round ended: what it says of itself, and beside that what its clean-up says."""
    word, more = _ENDED[type(outcome)]
    facts = asdict(outcome)
    facts |= facts.pop("cleanup", {})
    if isinstance(outcome, CompletedRound):
        facts["subscriptions_ended"] = ", ".join(one["reader"] for one in facts.pop("capped"))
        facts["cleanup_held_back"] = facts.pop("held_back")
    facts = {"outcome": word, "manifest": facts.pop("number"), **facts}
    return Report(f"round on {log}{more}", {name: None if fact == "" else fact for name, fact in facts.items()})


def event_line(event: Event, now: datetime.datetime) -> str:
    """A line for people; WARNING or ERROR stands before what a person should look at."""
    loud = f"{logging.getLevelName(event.level)}: " if event.level > logging.INFO else ""
    return f"{now.isoformat(timespec='seconds')} {event.log}: {loud}{event.text}"


def event_fields(event: Event, now: datetime.datetime) -> dict[str, object]:
    """An object for programs."""
    time = now.isoformat(timespec="milliseconds")
    return {"time": time, "event": event.kind.value, "log": event.log, **event.facts}
