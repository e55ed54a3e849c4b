"""`examine`: check a log, its topics and its files for everything that can be wrong with them, without writing.

It does not open the log, because an open refuses a damaged one. The checks use the functions of every reader;
`log_checks` judges their answers.

Invariants:
- Nothing is written on either port, except for two temporary files if the caller asks to prove the store. So ages are
  by this machine's clock: reading the store's clock takes a write.
- A check that fails with an error is a finding, and the next check runs, unless it depends on the failed one.
- Rounds may run concurrently: files that they dropped after the listing do not count as missing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property

import pyarrow as pa

from statelog.environment import current_environment
from statelog.errors import (
    Corrupt,
    CorruptChunk,
    CorruptDescriptor,
    Fact,
    IdentityChanged,
    NotFound,
    OffsetGone,
    StatelogError,
)
from statelog.formatting import show_bytes, show_count
from statelog.log import Log, Where
from statelog.log.topics import IdentifiedTopics, check_owner, identify, topics_in_force
from statelog.log.where import Ports, opened_ports
from statelog.materializer.cleanup import VerifiedRuns, aging_need
from statelog.materializer.copy import is_closed_copy
from statelog.materializer.publication import other_root, published
from statelog.materializer.settings import MaterializerSettings, tuning_of
from statelog.materializer.tail import Tail
from statelog.operate import log_checks
from statelog.operate.finding import Finding, Severity, Verdict, error_verdict
from statelog.operate.log_checks import BadRun, Check
from statelog.operate.versions import versions
from statelog.reading import (
    ATTEMPTS,
    Converter,
    HeldLease,
    LogOffsets,
    Plan,
    StoredSubscriptions,
    check_reach,
    claims_of,
    data_offsets,
    fold_to,
    list_leases,
    list_subscriptions,
    living,
    plan_of,
)
from statelog.recovery.plan_reader import committed_chunks
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.fold import ValidCommit
from statelog.schemas.snapshot.manifest import FORMAT_VERSION, Manifest
from statelog.schemas.snapshot.retention import truncation_floor
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.topic_policy import TopicNeeds, retention_s
from statelog.store.files import descriptor_or_none, losses_of
from statelog.store.run_reader import read_back

_BAD = frozenset({Severity.REFUSED, Severity.UNAVAILABLE, Severity.DAMAGED})


def examine(
    name: str, where: Where, settings: MaterializerSettings, *, deep: bool = False, proves: bool = False
) -> tuple[Finding, ...]:
    """Return a finding for each check. Raises NotFound if there is no such log, InvalidName, ConfigError.

    `settings`: the materializer's, for its alarms, caps and bounds.
    `deep`: read every run, and the tail behind the newest snapshot.
    `proves`: test whether the store honours put-if-absent.
    """
    with opened_ports(name, where, keeps=False) as ports:
        return _Examination(name, ports, settings, deep=deep, proves=proves).findings()


class _Examination:
    """The checks, and the answers so far."""

    def __init__(self, name: str, ports: Ports, settings: MaterializerSettings, *, deep: bool, proves: bool) -> None:
        self._name = name
        self._kafka, self._store, self._waived = ports
        self._settings, self._is_deep, self._proves = settings, deep, proves
        self._environment = current_environment()
        self._now_s = self._environment.wall_clock()
        self._links: list[Manifest] = []
        self._commits: Sequence[ValidCommit] = ()
        self._plan: Plan | None = None
        self._there: LogOffsets | None = None
        self._log: Log
        self._topics: IdentifiedTopics

    def findings(self) -> tuple[Finding, ...]:
        found: dict[Check, Finding] = {}
        for check in Check:
            ask, *rests_on = _QUESTIONS[check]
            is_open = all(found[other].severity not in _BAD and found[other].found != "not asked" for other in rests_on)
            found[check] = Finding.of(check, self._asked(ask) if is_open else None)
        return tuple(found.values())

    def _asked(self, ask: "_Question") -> Verdict | None:
        try:
            return self._answered(ask)
        except StatelogError as error:
            if isinstance(error, NotFound) and ask is _Examination.descriptor:
                raise
            return error_verdict(error)
        except Exception as error:  # noqa: BLE001 - a defect of one check must not hide what the others find
            hint = "Report this: it is a defect of statelog"
            return Verdict(Severity.UNAVAILABLE, f"the check failed: {error!r}", hint)

    def _answered(self, ask: "_Question") -> Verdict | None:
        """Return the answer. Ask again from the newest snapshot if rounds truncated past the snapshot in use."""
        for _ in range(ATTEMPTS - 1):
            try:
                return ask(self)
            except OffsetGone:
                began = self._newest.number if self._newest else 0
                if max(self._log.manifests.numbers(), default=0) <= began:
                    raise
                self.manifests()
                if ask is not _Examination.ledger:
                    self.ledger()
        return ask(self)

    @property
    def _newest(self) -> Manifest | None:
        return self._links[-1] if self._links else None

    # ---- the store

    def descriptor(self) -> Verdict:
        made = descriptor_or_none(self._store)
        if made is None and not list(self._store.list()):
            raise NotFound(f"there is no log {self._name}", url=self._store.url, hint="Check the name and the root")
        if made is None:
            hint = "Restore it from a copy of the store: only deleting the log deletes it"
            raise CorruptDescriptor("the descriptor is missing, and other files exist", url=self._store.url, hint=hint)
        self._log = self._of(made)
        facts: dict[str, Fact] = {"url": self._store.url, "partitions": made.partitions, "key_groups": made.key_groups}
        return Verdict(Severity.OK, f"{made.partitions} partitions, {made.key_groups} key groups", facts=facts)

    def _of(self, descriptor: Descriptor) -> Log:
        """Make a log. It is never closed: that would close the caller's port."""
        return Log(descriptor, self._kafka, self._store, waived=self._waived)

    def put_if_absent(self) -> Verdict:
        """Test put-if-absent if the caller asks for it."""
        if not self._proves:
            found = "not tried, because it writes (--prove-store); the manifest chain shows overwriting"
            return Verdict(Severity.OK, found)
        self._store.check()
        return Verdict(Severity.OK, "the second of two creates is refused")

    def manifests(self) -> Verdict:
        """Check every manifest, and the links between them."""
        chain, bad = self._log.manifests, dict[int, StatelogError]()
        self._links = []
        for number in chain.numbers():
            try:
                self._links.append(chain.read(number))
            except StatelogError as error:
                bad[number] = error
        there = chain.numbers() if bad else ()
        errors = {number: error for number, error in bad.items() if number in there}
        return log_checks.of_manifests(self._links, errors)

    def runs(self) -> Verdict:
        named = self._named()
        sizes = {info.path: info.size_bytes for info in self._store.list("runs/")}
        bad = [one for path, run in named.items() if (one := self._checked_run(run, sizes.get(path)))]
        if bad:
            numbers = self._log.manifests.numbers()  # Runs that a round dropped meanwhile are not missing.
            still = {run.path for one in self._links if one.number in numbers for run in one.runs}
            bad = [one for one in bad if one.path in still]
        size_bytes = sum(run.size_bytes for run in named.values())
        return log_checks.of_runs(len(named), size_bytes, bad, deep=self._is_deep)

    def _named(self) -> dict[str, RunRef]:
        return {run.path: run for one in self._links for run in one.runs}

    def _checked_run(self, run: RunRef, size_bytes: int | None) -> BadRun | None:
        if size_bytes != run.size_bytes:
            is_missing = size_bytes is None
            return BadRun(run.path, "is missing" if is_missing else f"has {size_bytes} bytes, not {run.size_bytes}")
        try:
            if self._is_deep:
                read_back(self._store, run, self._log.descriptor)
        except (Corrupt, NotFound) as error:
            return BadRun(run.path, error.message)
        return None

    def value_schemas(self) -> Verdict:
        known = self._log.value_schemas.all()
        plain = "values are JSON" if known[0].is_json else "values are bytes"
        return Verdict(Severity.OK, plain if known[0].is_opaque else f"schemas: {len(known)}")

    def files(self) -> Verdict:
        return log_checks.of_files(list(self._store.list()), self._named().keys(), self._now_s)

    def room(self) -> Verdict:
        return log_checks.of_room(self._store.free_bytes(), Tail.behind(self._newest).snapshot_bytes)

    # ---- the topics

    def identity(self) -> Verdict:
        accepted = topics_in_force(self._kafka, self._store, self._log.descriptor)
        self._log = self._of(accepted)
        self._topics = identify(self._kafka, self._store, accepted)
        check_owner(self._kafka, accepted, self._log.manifests, self._store.url)
        newest = self._newest
        if newest is not None and newest.identity != accepted.identity:
            hint = "Restore this log's own files: these were copied from another directory"
            raise IdentityChanged("the newest manifest belongs to other topics", manifest=newest.number, hint=hint)
        if self._topics.warning:
            return Verdict(Severity.NOTE, self._topics.warning, "No action is needed")
        return Verdict(Severity.OK, f"cluster {accepted.identity.cluster_id}, both topics are the log's")

    def topics(self) -> Verdict:
        needs = TopicNeeds(self._log.descriptor.record_bytes_max, self._log.truncation().retention_ms)
        return log_checks.of_topics(self._topics[:2], self._waived, needs)

    def in_sync(self) -> Verdict:
        return log_checks.of_in_sync(self._topics[:2])

    def ledger(self) -> Verdict:
        """Fold the ledger from the newest readable snapshot, and check the result."""
        log, newest = self._log, self._newest
        if is_closed_copy(log, newest):
            hint = "Finish it with `statelog copy --finish`, or delete it"
            return Verdict(Severity.NOTE, "this copy is not finished, and the log is closed", hint)
        since_s = log.history.now_s()
        end = log.history.end(newest.position if newest else 0)
        folding = fold_to(log, newest, end, end, since_s)
        plan = plan_of(log, folding, None)
        there = data_offsets(log, plan)
        log.evidence.check_ledger(there=there, end=end, since_s=since_s)
        self._commits, self._plan = folding.commits, plan
        self._there = LogOffsets(there, log.ledger.range(at_least=plan.position))
        state = plan.state
        facts = {"position": plan.position, "writers": len(state.writers), "accepted_losses": len(state.accepted)}
        found = f"folded up to position {plan.position}; writers: {len(state.writers)}"
        return Verdict(Severity.OK, found, facts=facts)

    def data(self) -> Verdict | None:
        if self._plan is None or self._there is None:
            return None
        check_reach(self._plan, self._there, self._name)
        accepted = self._plan.state.accepted
        self._log.evidence.check_data_anchors(self._newest, self._plan.partitions, accepted, self._there.data)
        return Verdict(Severity.OK, "up to the committed position of every partition")

    def tail(self) -> Verdict | None:
        plan, log = self._plan, self._log
        if plan is None:
            return None
        commits, size = len(self._commits), show_bytes(plan.replay.size_bytes)
        if not self._is_deep:
            return Verdict(Severity.OK, f"commits: {show_count(commits)}, {size} (--deep reads them)")
        changes = 0
        clock = self._environment.clock
        alone = committed_chunks(log, plan, Converter(log), RecoverySettings(), clock=clock, together=False)
        with closing(alone) as chunks:
            for chunk in chunks:
                place: dict[str, Fact] = {"topic": chunk.topic, "partition": chunk.partition, "offset": chunk.offset}
                log.descriptor.check_key_groups(pa.Table.from_batches([chunk.changes]), CorruptChunk, **place)
                changes += chunk.changes.num_rows
        facts = {"commits": commits, "changes": changes}
        return Verdict(Severity.OK, f"commits: {show_count(commits)}, {size}, all read and compared", facts=facts)

    def losses(self) -> Verdict:
        return log_checks.of_losses(losses_of(self._store))

    def log_start(self) -> Verdict:
        """Check that both topics have what snapshots need. Offsets come first: rounds drop manifests, then truncate."""
        log = self._log
        data, ledger = log.data_offsets(), self._kafka.offsets(log.ledger_topic, [0])[0]
        numbers = set(log.manifests.numbers())
        retained = [one for one in self._links if one.number in numbers]
        own = [one for one in retained if one.identity == log.descriptor.identity]
        accepted = self._plan.state.accepted if self._plan else ()
        is_aging = retention_s(*(one.config for one in self._topics[:2])) is not None
        listed = self._plan.next_offsets if self._plan and is_aging else None
        return log_checks.of_log_start(own, data, ledger, accepted, listed)

    # ---- ages, leases and subscriptions

    @cached_property
    def _held(self) -> tuple[int, list[HeldLease]]:
        """The number of lease files, and the readable leases."""
        listed = list(self._store.list("leases/"))
        return len(listed), list_leases(self._store, listed)

    @cached_property
    def _subscribed(self) -> StoredSubscriptions:
        return list_subscriptions(self._store)

    def age(self) -> Verdict | None:
        if self._plan is None:
            return None
        tail = Tail.behind(self._newest).with_commits(self._commits, self._plan.position, self._now_s)
        largest = max((one.commit for one in self._commits), key=lambda one: one.size_bytes, default=None)
        pieces = sum(len(handle.entries) for handle in largest.read_body().handles) if largest is not None else 0
        return log_checks.of_tail(tail, self._settings.alarm_age_s, pieces)

    def aging(self) -> Verdict | None:
        log, newest = self._log, self._newest
        log.verify()
        need = None
        if newest is not None and log.retention_s is not None:
            leases = living(self._held[1], self._now_s, tuning_of(self._settings).lease_cap_s)
            floor = truncation_floor(self._links, claims_of(log, leases, self._subscribed))
            need = aging_need(log, newest, self._links, floor, self._now_s)
        return log_checks.of_aging(need, log.retention_s)

    def root(self) -> Verdict:
        newest = self._newest
        problem = ""
        if newest is not None:
            found = published(self._log)
            problem = other_root(self._log, newest, found, self._log.manifests.listed(), VerifiedRuns())
        if problem:
            hint = "Stop the materializers of the other root, and claim this one: `statelog materialize --claim-root`"
            return Verdict(Severity.REFUSED, problem, hint)
        return Verdict(Severity.OK, "no other root has published a round")

    def leases(self) -> Verdict:
        listed, held = self._held
        position = self._newest.position if self._newest else 0
        return log_checks.of_leases(held, listed, position, self._now_s)

    def subscriptions(self) -> Verdict:
        cap = self._settings.subscriptions
        return log_checks.of_subscriptions(self._subscribed, self._newest, cap, self._now_s)

    def clocks(self) -> Verdict:
        """Check clocks by the timestamps of brokers, materializers and the store."""
        times_s: dict[str, float] = {}
        if stamped := [one.timestamp_ms / 1000 for one in self._commits if one.timestamp_ms >= 0]:
            times_s["broker"] = max(stamped)
        if newest := self._newest:
            times_s["materializer"] = newest.created_s
            times_s["store"] = max(info.modified_s for info in self._log.manifests.listed().values())
        return log_checks.of_clocks(self._now_s, times_s)

    def versions(self) -> Verdict:
        """List the versions of clients, and of the newest manifest format that this statelog writes and reads."""
        found = {name: text for name, text in versions().items() if text is not None}
        found["manifest_format"] = str(FORMAT_VERSION)
        return Verdict(Severity.OK, ", ".join(f"{name} {text}" for name, text in found.items()), facts=found)


_Question = Callable[[_Examination], Verdict | None]
_TOPICS = (Check.DESCRIPTOR, Check.IDENTITY)
_QUESTIONS: Mapping[Check, tuple[_Question, *tuple[Check, ...]]] = {
    Check.DESCRIPTOR: (_Examination.descriptor,),
    Check.STORE: (_Examination.put_if_absent, Check.DESCRIPTOR),
    Check.MANIFESTS: (_Examination.manifests, Check.DESCRIPTOR),
    Check.RUNS: (_Examination.runs, Check.DESCRIPTOR),
    Check.VALUE_SCHEMAS: (_Examination.value_schemas, Check.DESCRIPTOR),
    Check.IDENTITY: (_Examination.identity, Check.DESCRIPTOR),
    Check.TOPICS: (_Examination.topics, *_TOPICS),
    Check.IN_SYNC: (_Examination.in_sync, *_TOPICS),
    Check.LEDGER: (_Examination.ledger, *_TOPICS),
    Check.DATA: (_Examination.data, *_TOPICS, Check.LEDGER),
    Check.TAIL: (_Examination.tail, *_TOPICS, Check.DATA),
    Check.LOSSES: (_Examination.losses, Check.DESCRIPTOR),
    Check.LOG_START: (_Examination.log_start, *_TOPICS),
    Check.AGE: (_Examination.age, *_TOPICS, Check.LEDGER),
    Check.AGING: (_Examination.aging, *_TOPICS, Check.TOPICS),
    Check.ROOT: (_Examination.root, *_TOPICS, Check.MANIFESTS),
    Check.LEASES: (_Examination.leases, Check.DESCRIPTOR),
    Check.SUBSCRIPTIONS: (_Examination.subscriptions, Check.DESCRIPTOR),
    Check.FILES: (_Examination.files, Check.DESCRIPTOR, Check.MANIFESTS),
    Check.ROOM: (_Examination.room, Check.DESCRIPTOR),
    Check.CLOCKS: (_Examination.clocks, Check.DESCRIPTOR),
    Check.VERSIONS: (_Examination.versions,),
}
"""The function of each check, and the checks that it depends on."""
