"""The judge of a play on a cluster: all observations against the one history that the journals allow. Pure.

Each opening of a writer names the commit that it found last. So the incarnations of a name form a chain: the first of
two openings made the commits between them, each by an attempt in its journal. That gives history commit by commit, with
the ledger offset of each, and a digest of the state at every position.

Judged: every acknowledged commit is in history, once. A fenced or failed attempt is not, unless the next incarnation
found it. Every state that was read is the state at its position. A reader that began after an acknowledgement has it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from tests.sim.cluster.stage import PARTITIONS_OF, Attempt, State, changes_of

__all__ = ["Committed", "History", "Sighting", "judge"]

Entry = Mapping[str, Any]


class Committed(NamedTuple):
    """A commit of history and its ledger offset."""

    offset: int
    attempt: Attempt


class Sighting(NamedTuple):
    """The observed last commit of a writer: checkpoint 0 if there was none."""

    checkpoint: int
    life: str
    offset: int


class _Life(NamedTuple):
    """An opening: the commit that it found, and its attempts and acknowledgements."""

    name: str
    found: Sighting
    epoch: int
    tried: dict[int, Attempt]
    told: dict[int, int]


@dataclass
class History:
    """All valid commits in ledger order, and the digest of the state behind each."""

    commits: list[Committed]
    complaints: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.commits.sort()
        self.offsets = [commit.offset for commit in self.commits]
        self.state = State()
        self._digests, self._of_name = [self.state.digest], {(name, 0): 0 for name in PARTITIONS_OF}
        for commit in self.commits:
            for key, value in changes_of(commit.attempt):
                self.state.change(key, value)
            self._digests.append(self.state.digest)
            attempt = commit.attempt
            self._of_name[attempt.writer, attempt.checkpoint] = self.state.digests[attempt.writer]

    def digest_at(self, position: int) -> int:
        """Return the digest of the state at a ledger position."""
        return self._digests[bisect_left(self.offsets, position)]

    def digest_of(self, writer: str, checkpoint: int) -> int | None:
        """Return the digest of one name's keys behind its checkpoint; None if there is no such commit."""
        return self._of_name.get((writer, checkpoint))


def judge(entries: Sequence[Entry], last: Mapping[str, Sighting]) -> History:
    """Return the history of these journals, with all complaints, given the last commit of each name in the end."""
    complaints: list[str] = []
    lives = _lives(entries)
    commits = [commit for name in PARTITIONS_OF for commit in _chain(lives[name], last[name], complaints)]
    history = History(commits)
    history.complaints += complaints
    history.complaints += _doubled(commits)
    history.complaints += _misread(entries, history)
    history.complaints += _stale(entries)
    return history


def _lives(entries: Sequence[Entry]) -> Mapping[str, list[_Life]]:
    """Return the openings of every name in the order of their epochs."""
    lives: dict[tuple[str, str], _Life] = {}
    for entry in entries:
        name = str(entry["actor"]).partition(".")[0]
        match entry["what"]:
            case "opened":
                metadata = entry.get("metadata", {})
                found = Sighting(entry["checkpoint"], metadata.get("life", ""), entry.get("offset", -1))
                lives[name, entry["life"]] = _Life(name, found, entry["epoch"], {}, {})
            case "attempt":
                facts = {fact: entry[fact] for fact in ("life", "checkpoint", "begin", "end")}
                lives[name, entry["life"]].tried[entry["checkpoint"]] = Attempt(writer=name, **facts)
            case "ack":
                lives[name, entry["life"]].told[entry["checkpoint"]] = entry["offset"]
            case _:
                pass
    by_name: defaultdict[str, list[_Life]] = defaultdict(list)
    for life in sorted(lives.values(), key=lambda life: life.epoch):
        by_name[life.name].append(life)
    return by_name


def _chain(lives: Sequence[_Life], last: Sighting, complaints: list[str]) -> Iterator[Committed]:
    """Yield the commits of one name."""
    first = lives[0].found if lives else last
    if first.checkpoint:
        complaints.append(f"nobody committed what was found first: {first}")
    for life, then in zip(lives, [*(life.found for life in lives[1:]), last], strict=False):
        where = f"{life.name}, the life at epoch {life.epoch} that found {life.found}; the next one found {then}"
        lost = {checkpoint for checkpoint in life.told if checkpoint > then.checkpoint}
        if lost or then.checkpoint < life.found.checkpoint:
            complaints.append(f"{where}: lost acknowledged {sorted(lost)}")
        if then.checkpoint == life.found.checkpoint and then != life.found:
            complaints.append(f"{where}: one checkpoint of two lives")
        for checkpoint in range(life.found.checkpoint + 1, then.checkpoint + 1):
            attempt = life.tried.get(checkpoint)
            offset = life.told.get(checkpoint, then.offset)
            if attempt is None or (checkpoint not in life.told and checkpoint < then.checkpoint):
                complaints.append(f"{where}: nobody was told of {checkpoint}")
            elif checkpoint == then.checkpoint and (offset, attempt.life) != (then.offset, then.life):
                complaints.append(f"{where}: told {attempt} at {offset}")
            else:
                yield Committed(offset, attempt)


def _doubled(commits: Sequence[Committed]) -> Iterator[str]:
    times = Counter(commit.offset for commit in commits)
    yield from (f"two commits at ledger offset {offset}" for offset, count in times.items() if count > 1)


def _misread(entries: Sequence[Entry], history: History) -> Iterator[str]:
    """Yield states that are not the state at their position, and false warnings of damage."""
    for entry in entries:
        match entry["what"]:
            case "read" | "revisited" | "followed":
                if entry["digest"] != history.digest_at(entry["position"]):
                    yield f"{entry['actor']} {entry['what']} another state at position {entry['position']}: {entry}"
                if entry.get("doubled"):
                    yield f"{entry['actor']} saw a commit twice: {entry}"
            case "warned":
                yield f"{entry['actor']} was warned: {entry}"
            case "restored":
                name = str(entry["actor"]).partition(".")[0]
                if entry["digest"] != history.digest_of(name, entry["checkpoint"]):
                    yield f"{entry['actor']} restored another state than that of its checkpoint: {entry}"
            case _:
                pass


def _stale(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield recoveries that lack an earlier acknowledged commit, or the one that their own opening found.

    A replaced writer may restore more than its opening found: it is fenced, and does not know yet.
    """
    acks = [(float(entry["at"]), int(entry["offset"])) for entry in entries if entry["what"] == "ack"]
    times = [at for at, _ in acks]
    highest = list(accumulate((offset for _, offset in acks), max, initial=-1))
    found: dict[tuple[str, str], Entry] = {}
    newest: Counter[str] = Counter()
    for entry in entries:
        name, life = str(entry["actor"]).partition(".")[0], (str(entry["actor"]), str(entry.get("life")))
        if entry["what"] == "read":
            acknowledged = highest[bisect_right(times, float(entry["begun_at"]))]
            if entry["position"] <= acknowledged:
                yield f"{entry['actor']} began after offset {acknowledged} was acknowledged, and read less: {entry}"
        elif entry["what"] == "opened":
            found[life] = entry
            newest[name] = max(newest[name], entry["epoch"])
        elif entry["what"] == "restored":
            was_replaced = newest[name] > found[life]["epoch"]
            if entry["checkpoint"] < found[life]["checkpoint"]:
                yield f"{entry['actor']} opened at {found[life]['checkpoint']} and restored less: {entry}"
            elif entry["checkpoint"] > found[life]["checkpoint"] and not was_replaced:
                yield f"{entry['actor']} opened at {found[life]['checkpoint']}, alone, and restored more: {entry}"
