"""The doctor's checks of a log, and the verdict on each answer. Pure.

`docs/doctor.md` lists the checks by the same names. `schemas` decides what is valid, retained or safe; this module only
puts it into words.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from statelog.errors import Fact, StatelogError, UnsafeTopic
from statelog.formatting import show_bytes, show_count, show_duration, show_time
from statelog.kafka.port import OffsetRange, TopicDescription
from statelog.materializer.cleanup import check_links
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.tail import Tail
from statelog.operate.finding import Explained, Severity, Verdict, severity_of
from statelog.reading import AgingRecord, HeldLease, StoredSubscriptions
from statelog.schemas.ledger.handle import MANY_PIECES
from statelog.schemas.ledger.records import LossRange, is_forfeited
from statelog.schemas.names import DESCRIPTOR_PATH, MANIFESTS, is_run_path
from statelog.schemas.snapshot.claims import SubscriptionCap, newest_files, over_cap
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import TopicNeeds, TopicRole, Waiver, check_topic, objections
from statelog.store.files import AcceptedLoss
from statelog.store.port import STALE_AFTER_S, FileInfo

ODD_CLOCK_S = 1.0
_STUCK_LEASE_S = 2 * 3600.0
"""A reader that makes progress takes a new lease every hour."""
_SHOWN = 3
_OWN_FOLDERS = ("schemas/", "manifests/", "leases/", "subscriptions/", "truncation/", "losses/")


class Check(Explained):
    """A check, by its name in `docs/doctor.md`; `why` names the consequence of a failure."""

    DESCRIPTOR = "descriptor", "It describes the log: without it, the log cannot be opened"
    STORE = "put-if-absent", "Two materializers that win one slot delete each other's runs"
    MANIFESTS = (
        "manifest chain",
        "Recovery falls back to an older snapshot, if the log reaches back to it; truncation stops until a repair",
    )
    RUNS = "runs", "A restore needs them; it falls back to an older snapshot, if the log reaches back to it"
    VALUE_SCHEMAS = "value schemas", "Values that were written in a missing schema cannot be read"
    IDENTITY = "identity", "Reads and writes are refused: this would be another log"
    TOPICS = "topic settings", "Kafka may delete, rewrite or lose committed records"
    IN_SYNC = "replicas in sync", "Records on a single broker are lost with it; with too few replicas, writes fail"
    LEDGER = "ledger", "It lists all commits: nobody reads or writes until a person decides"
    DATA = "committed records", "Commits list records that are missing: every reader stops"
    TAIL = "tail", "A restore reads it behind the snapshot and stops at the damage; so do rounds"
    LOSSES = "accepted losses", "The record of who accepted a loss, and why, is lost; the ledger has what counts"
    LOG_START = (
        "log start",
        "Records are deleted by someone other than the materializer; the newest snapshot's may be next",
    )
    AGE = "age of what is in no snapshot", "Kafka grows, and a restore takes ever longer"
    AGING = "age of what is needed", "Kafka deletes records by their age, needed or not"
    ROOT = "root", "Rounds truncate and delete nothing while another root may own the log"
    LEASES = "leases", "They hold truncation back: Kafka and the store grow"
    SUBSCRIPTIONS = "subscriptions", "They hold truncation back: Kafka and the store grow"
    FILES = "files", "They take up space, and nothing reads them"
    ROOM = "room on the store", "A round that merges everything writes the whole state again"
    CLOCKS = "clocks", "Ages, alarms and the ends of leases are wrong by this difference; nothing else uses clocks"
    VERSIONS = "versions", ""


def shown(items: Collection[object]) -> str:
    """List the first items, and the number of the others."""
    first = ", ".join(str(item) for item in list(items)[:_SHOWN])
    return f"{first} and {len(items) - _SHOWN} more" if len(items) > _SHOWN else first


# ---- the store


def of_manifests(links: Sequence[Manifest], errors: Mapping[int, StatelogError]) -> Verdict:
    """Judge the manifests: `links` can be read; `errors` has the error of each that cannot, by number."""
    if errors:
        number, worst = max(errors.items())
        facts = {**worst.facts, "manifest": number, "bad": len(errors), "path": MANIFESTS.path(number)}
        hint = worst.hint or "Restore the file from a copy of the store"
        return Verdict(severity_of(worst), f"manifest {number}: {worst.message}", hint, facts)
    if problem := check_links(links):
        hint = "Compare with a copy of the store: one manifest is from a stalled round or another directory"
        return Verdict(Severity.DAMAGED, problem, hint, {"manifests": len(links)})
    newest = links[-1] if links else None
    found = f"snapshots: {len(links)}, the newest at position {newest.position}" if newest else "no snapshot yet"
    return Verdict(Severity.OK, found, facts={"manifests": len(links)})


class BadRun(NamedTuple):
    """A run that a manifest names, and its problem."""

    path: str
    problem: str


def of_runs(count: int, size_bytes: int, bad: Sequence[BadRun], *, deep: bool) -> Verdict:
    """Judge the `count` runs of all manifests; `bad`: the missing and damaged ones."""
    facts: dict[str, Fact] = {"runs": count, "size_bytes": size_bytes, "bad": len(bad), "deep": deep}
    if bad:
        hint = "Restore the files from a copy of the store; until then, a round that merges them fails"
        found = shown([f"{run.path}: {run.problem}" for run in bad])
        return Verdict(Severity.DAMAGED, found, hint, {**facts, "path": bad[0].path})
    how = "every byte read and compared" if deep else "all present in the right size (--deep reads them)"
    return Verdict(Severity.OK, f"runs: {count}, {show_bytes(size_bytes)}, {how}", facts=facts)


def of_files(files: Collection[FileInfo], named: Collection[str], now_s: float) -> Verdict:
    """Judge the files; `named`: the runs that manifests name. A run of the last day may be of a running round."""
    runs = [one for one in files if is_run_path(one.path)]
    orphans = [one for one in runs if one.path not in named and now_s - one.modified_s > STALE_AFTER_S]
    strange = [
        one.path
        for one in files
        if not (is_run_path(one.path) or one.path == DESCRIPTOR_PATH or one.path.startswith(_OWN_FOLDERS))
    ]
    size_bytes = sum(one.size_bytes for one in orphans)
    facts: dict[str, Fact] = {"files": len(files), "orphans": len(orphans), "orphan_bytes": size_bytes}
    if orphans:
        paths = shown([one.path for one in orphans])
        found = f"{len(orphans)} runs, {show_bytes(size_bytes)}, that no manifest has named for a day: {paths}"
        return Verdict(Severity.NOTE, found, "The next round that cleans up deletes them", facts)
    if strange:
        hint = "Move them elsewhere if they are not needed: statelog never deletes them"
        return Verdict(Severity.NOTE, f"not the log's: {shown(sorted(strange))}", hint, facts)
    return Verdict(Severity.OK, f"files: {len(files)}, each in use or just written", facts=facts)


def of_room(free_bytes: int | None, snapshot_bytes: int) -> Verdict:
    """Judge whether the state fits on the store a second time."""
    if free_bytes is None:
        return Verdict(Severity.OK, "the store does not tell")
    facts: dict[str, Fact] = {"free_bytes": free_bytes, "snapshot_bytes": snapshot_bytes}
    found = f"{show_bytes(free_bytes)} free, {show_bytes(snapshot_bytes)} of snapshot"
    if free_bytes >= 2 * snapshot_bytes and free_bytes > 0:
        return Verdict(Severity.OK, found, facts=facts)
    severity = Severity.NOTE if free_bytes > snapshot_bytes else Severity.REFUSED
    return Verdict(severity, found, "Free some space, or move the log to a larger store (`statelog copy`)", facts)


def of_losses(found: Sequence[AcceptedLoss]) -> Verdict:
    """Judge the records of accepted losses, and name the last one."""
    facts: dict[str, Fact] = {"losses": len(found)}
    for one in found:
        if one.record is None:
            hint = "Restore it from a copy of the store; no decision depends on it"
            return Verdict(Severity.DAMAGED, f"{one.path}: {one.problem}", hint, {**facts, "path": one.path})
    if not found or (record := found[-1].record) is None:
        return Verdict(Severity.OK, "none", facts=facts)
    last = f"the last one by {record.operator}, {show_time(found[-1].accepted_s)}: {record.reason}"
    return Verdict(Severity.OK, f"losses: {len(found)}, {last}", facts={**facts, "operator": record.operator})


# ---- what holds truncation back


def of_leases(held: Sequence[HeldLease], listed: int, position: int, now_s: float) -> Verdict:
    """Judge the `listed` lease files, of which `held` could be read; `position`: the newest snapshot's."""
    stuck = [
        one.lease.name
        for one in held
        if now_s <= one.modified_s + one.lease.ttl_s  # It is alive.
        and one.lease.position < position
        and now_s - one.created_s > _STUCK_LEASE_S
    ]
    facts: dict[str, Fact] = {"leases": len(held), "stuck": len(stuck), "unreadable": listed - len(held)}
    if len(held) < listed:
        hint = "Delete the files: a lease that cannot be read holds nothing back"
        return Verdict(Severity.NOTE, f"{listed - len(held)} of {listed} cannot be read", hint, facts)
    if stuck:
        hint = "Check these readers, or stop them: the materializer ends a lease after a day"
        found = f"no progress for {show_duration(_STUCK_LEASE_S)} or more: {shown(stuck)}"
        return Verdict(Severity.NOTE, found, hint, facts)
    return Verdict(Severity.OK, f"leases: {len(held)}", facts=facts)


def of_subscriptions(
    found: StoredSubscriptions, newest: Manifest | None, cap: SubscriptionCap, now_s: float
) -> Verdict:
    """Judge the subscriptions: those that cannot be read, and those that the next round ends."""
    files = newest_files(found.files)
    facts: dict[str, Fact] = {"subscriptions": len(files), "unreadable": len(found.unreadable)}
    if found.unreadable:
        names = shown(sorted({one.reader for one in found.unreadable}))
        hint = "Upgrade statelog, or remove it: `statelog subscriptions NAME --remove READER`"
        return Verdict(Severity.REFUSED, f"cannot be read, and hold truncation back: {names}", hint, facts)
    for reader, one in files.items():
        if newest is None:
            break  # No round ends a subscription.
        why = over_cap(one, cap, position=newest.position, next_offsets=newest.next_offsets, now_s=now_s)
        if why:
            hint = "Start the reader, or remove its subscription; otherwise the next round ends it"
            return Verdict(Severity.NOTE, f"{reader}: {why}", hint, facts)
    holding = sum(not one.subscription.ended for one in files.values())
    return Verdict(Severity.OK, f"subscriptions that hold: {holding}", facts=facts)


# ---- the topics


def of_topics(topics: Sequence[TopicDescription], waived: frozenset[Waiver], needs: TopicNeeds) -> Verdict:
    """Judge the settings of the data and the ledger topic, as every open does."""
    refused: list[UnsafeTopic] = []
    tolerated: list[str] = []
    for role, topic in zip(TopicRole, topics, strict=True):
        try:
            check_topic(topic, role, waived, needs)
        except UnsafeTopic as error:
            refused.append(error)
        tolerated += [f"{topic.name}: {text} (waived)" for text, _ in objections(topic, role, needs)]
    if refused:
        found = "; ".join(f"{error.facts['topic']}: {error.message}" for error in refused)
        return Verdict(Severity.REFUSED, found, refused[0].hint, refused[0].facts)
    if tolerated:
        return Verdict(Severity.NOTE, "; ".join(tolerated), "Ignore this on a test cluster")
    return Verdict(Severity.OK, "as a log needs them")


def of_in_sync(topics: Sequence[TopicDescription]) -> Verdict:
    """Judge every partition's in-sync replicas against the replication factor, and against the number a write needs."""
    least = min((count for topic in topics for count in topic.in_sync), default=None)
    behind = [
        f"{topic.name}[{partition}]: {count} of {topic.replication_factor}"
        for topic in topics
        for partition, count in enumerate(topic.in_sync)
        if count < topic.replication_factor
    ]
    facts: dict[str, Fact] = {"behind": len(behind), "least": least}
    if not behind:
        return Verdict(Severity.OK, "all" if least is not None else "unknown: the brokers do not tell", facts=facts)
    needed = [int(topic.config.get("min.insync.replicas", "1")) for topic in topics]
    is_short = any(min(topic.in_sync, default=1) < count for topic, count in zip(topics, needed, strict=True))
    severity = Severity.UNAVAILABLE if is_short else Severity.NOTE
    return Verdict(severity, shown(behind), "Start the brokers that are down, or replace their disks", facts)


def of_log_start(
    retained: Sequence[Manifest],
    data: Mapping[int, OffsetRange],
    ledger: OffsetRange,
    accepted: Collection[LossRange],
    listed: Mapping[int, int] | None,
) -> Verdict:
    """Judge the log start against the offsets that every snapshot needs, except for accepted losses.

    The offsets must be older than the list of manifests, so that a round cannot truncate in between. `listed`: the
    first offsets that commits behind the newest snapshot list, if Kafka deletes by age; deleting others is harmless.
    """
    facts: dict[str, Fact] = {"ledger_start": ledger.start, "snapshots": len(retained)}
    for manifest in reversed(retained):
        needed = {p: manifest.next_offsets.get(p, 0) for p in data}
        if listed is not None:
            idle = [p for p in data if needed[p] == retained[-1].next_offsets.get(p, 0)]
            needed |= {p: listed.get(p, data[p].start) for p in idle}
        deleted = [p for p, there in sorted(data.items()) if not is_forfeited(accepted, p, needed[p], there.start)]
        is_behind = ledger.start > manifest.position
        if not (deleted or is_behind):
            continue
        is_newest = manifest is retained[-1]
        where = "the ledger" if is_behind else f"partition {deleted[0]}"
        found = f"{where} starts above what snapshot {manifest.number} needs"
        hint = "Find out what deletes records: a setting of the topic, a person, or a materializer of another root"
        if is_newest:
            hint = f"Restore the topic. {hint}. If records cannot be restored, use `statelog accept-loss`"
        severity = Severity.DAMAGED if is_newest else Severity.REFUSED
        partition = None if is_behind else deleted[0]
        return Verdict(severity, found, hint, {**facts, "manifest": manifest.number, "partition": partition})
    return Verdict(Severity.OK, f"snapshots: {len(retained)}, each with all the records that it needs", facts=facts)


# ---- ages


def lag_facts(tail: Tail) -> dict[str, Fact]:
    """Return the size and age of the tail that no snapshot covers, under the names of reports."""
    return {
        "lag_commits": tail.commits,
        "lag_changes": tail.changes,
        "lag_bytes": tail.size_bytes,
        "lag_age_s": tail.age_s,
    }


def of_tail(tail: Tail, alarm_age_s: float, pieces: int = 0) -> Verdict:
    """Judge the tail that no snapshot covers. `alarm_age_s`: the materializer's own alarm.

    `pieces`: the largest number of change sets that one of its commits has, counted by partition.
    """
    facts = {**lag_facts(tail), "commit_pieces": pieces}
    found = f"commits: {show_count(tail.commits)}, the oldest {show_duration(tail.age_s)} old"
    if tail.age_s < alarm_age_s and pieces >= MANY_PIECES:
        hint = "Write from fewer tasks, or behind statelog.spark.repartition_by_key_group(df, log)"
        return Verdict(Severity.NOTE, f"{found}; one has {show_count(pieces)} pieces", hint, facts)
    if tail.age_s < alarm_age_s:
        return Verdict(Severity.OK, found if tail.commits else "nothing", facts=facts)
    hint = "Start the materializer, or check in its log why no round completes"
    return Verdict(Severity.REFUSED, found, hint, facts)


def of_rounds(tail: Tail, restore_s: float, settings: MaterializerSettings) -> Verdict:
    """Judge whether rounds keep up with a log, in a few words for `list`, `describe` and the page.

    `restore_s`: the estimated time of a restore. `settings`: its materializer's, for the alarm age and the budget.
    """
    age, budget_s = of_tail(tail, settings.alarm_age_s), settings.restore_budget_s
    if age.severity is not Severity.OK:
        return Verdict(age.severity, f"in no snapshot for {show_duration(tail.age_s)}", age.hint)
    if budget_s is not None and restore_s >= budget_s:
        hint = f"Run rounds more often, or restore parts in several workers: the budget is {show_duration(budget_s)}"
        return Verdict(Severity.NOTE, f"a restore takes {show_duration(restore_s)}", hint)
    if tail.commits and not tail.number:
        return Verdict(Severity.NOTE, "no round was seen", "Start a materializer for this log")
    return Verdict(Severity.OK, "ok" if tail.number else "empty")


def of_aging(need: AgingRecord | None, retention_s: float | None) -> Verdict:
    """Judge the age of `need`, the oldest record that a snapshot or a reader still needs."""
    if retention_s is None:
        return Verdict(Severity.OK, "Kafka keeps records forever")
    if need is None or not need.is_alarming:
        found = f"Kafka deletes after {show_duration(retention_s)}"
        return Verdict(Severity.OK, found, facts={"retention_s": retention_s})
    facts: dict[str, Fact] = {name: getattr(need, name) for name in ("topic", "partition", "offset", "age_s")}
    found = f"{need.topic}[{need.partition}] at {need.offset}, for {need.held_by}, of {show_duration(retention_s)}"
    hint = "Run the materializer now, or raise retention.ms with Kafka's own tools"
    if need.is_gone:
        return Verdict(Severity.DAMAGED, f"deleted: {found}", hint, facts)
    return Verdict(Severity.REFUSED, f"{show_duration(need.age_s)} old: {found}", hint, facts)


def of_clocks(now_s: float, times_s: Mapping[str, float]) -> Verdict:
    """Judge the clocks. `times_s`: past timestamps by the clock that made them; none may lie in the future."""
    ahead = {who: then_s - now_s for who, then_s in times_s.items() if then_s - now_s > ODD_CLOCK_S}
    facts: dict[str, Fact] = {f"{who}_s": round(skew_s, 3) for who, skew_s in ahead.items()}
    if not ahead:
        return Verdict(Severity.OK, "none is known to be ahead of this machine's", facts=facts)
    who, skew_s = max(ahead.items(), key=lambda one: one[1])
    ahead_of = f"{show_duration(skew_s)} ahead of this machine's"
    found = f"the {who}'s clock is {ahead_of}: it stamped {show_time(times_s[who])}"
    return Verdict(Severity.NOTE, found, "Set this machine's clock, or that one", facts)
