"""Faults of the in-memory Kafka: on sent records, and on every call of the port.

Owns the names of the faults, and the two hooks that choose them. It is pure and knows no log. A real broker and
librdkafka can produce every fault here.

`Faults.fate(attempt)` is called once for each sent record, and returns the fate of it and of the records behind it.

`QuestionHook(call)` is called once for each request of a view to the cluster, and returns the kind of answer:

| answer      | what happens                                                                          | where          |
|-------------|---------------------------------------------------------------------------------------|----------------|
| TRUE        | the call does what the port says                                                      | everywhere     |
| UNAVAILABLE | failed before: nothing was done; BrokerUnavailable (`poll`: nothing moves, no error)  | everywhere     |
| LOST        | failed after: it was done, the answer is lost; BrokerUnavailable (`poll`: records     | all but `send` |
|             | move, their reports come with a later poll)                                           |                |
| old(n)      | an old broker's answer: ends as they were n appends ago, with an older leader epoch;  | offsets,       |
|             | a topic as it was n changes of it ago (None: not there yet)                           | describe_topic |
| HALF        | one partition's answer is missing, as where a connection broke                        | offsets        |
| broken(k)   | after k records: BrokerUnavailable at once                                            | read           |
| stalled(k)  | after k records: BrokerUnavailable, once `stall_timeout_s` were idled away            | read           |
| gone(k)     | after k records: OffsetGone, as if the log was truncated meanwhile                    | read           |
| short(k)    | after k records: BeyondEnd, as if the log lost its tail meanwhile                     | read           |

An answer that a call cannot have counts as UNAVAILABLE. The calls, by `Call.method`: cluster_id, describe_topic,
create_topic, delete_topic, offsets, delete_records, publish_offset, published, send, poll, read; those of an output
producer: init_transactions, flush, send_offsets, commit_transaction, abort_transaction. `poll` counts only while
records are in flight. `offsets` repeats itself, as in the real client, for offsets that are missing or lower than its
process has observed. Each repetition is a call of its own, and so is its describe_topic, which checks that the topic is
still the same (see `positions`). `Call.number` counts the calls of all views of a cluster, from 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol


class Fate(Enum):
    """The fate of one sent record."""

    DELIVER = "deliver"
    """Appended and reported OK at the next poll."""
    DELAY = "delay"
    """In flight until the cluster's `release`; later records of this producer and partition wait behind it."""
    LOSE = "lose"
    """Reported UNKNOWN, never appended; so is every later record of this producer and partition."""
    SKIP = "skip"
    """Reported UNKNOWN, never appended, but later records are: the gap of a record that timed out in the queue."""
    APPEND_UNANSWERED = "append-unanswered"
    """Appended at the next poll or at close, and reported UNKNOWN: the answer was lost."""
    ACK_WITHOUT_OFFSET = "ack-without-offset"
    """The same, as from a broker that answers 'duplicate sequence number': UNKNOWN for lack of an offset."""
    FATAL = "fatal"
    """Never appended, and the producer ends: UNKNOWN for this record and all in flight; later sends are refused."""
    FATAL_APPENDED = "fatal-appended"
    """The same, but this record was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempt:
    """One record when it is sent. `number` counts the sends of the cluster, from 0; `producer` is an id."""

    number: int
    producer: int
    topic: str
    partition: int
    value: bytes


class Faults(Protocol):
    """Decides the fate of each record. Called once per send, under the cluster's lock, in order."""

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate of this record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedFaults:
    """Fates by the number of the send; all other records are delivered."""

    fates: Mapping[int, Fate] = field(default_factory=dict[int, Fate])

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the scripted fate of this send."""
        return self.fates.get(attempt.number, Fate.DELIVER)


class AnswerKind(Enum):
    """A kind of answer; the table at the top of the module describes each."""

    TRUE = "true"
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    OLD = "old"
    HALF = "half"
    BROKEN = "broken"
    STALLED = "stalled"
    GONE = "gone"
    SHORT = "short"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to one call. `count`: the n of `old`, and the k of answers to a read."""

    kind: AnswerKind
    count: int = 0


TRUE = Answer(AnswerKind.TRUE)
UNAVAILABLE = Answer(AnswerKind.UNAVAILABLE)
LOST = Answer(AnswerKind.LOST)
HALF = Answer(AnswerKind.HALF)
# Made with their `count`: past changes, or records of a read.
old = partial(Answer, AnswerKind.OLD)
broken = partial(Answer, AnswerKind.BROKEN)
stalled = partial(Answer, AnswerKind.STALLED)
gone = partial(Answer, AnswerKind.GONE)
short = partial(Answer, AnswerKind.SHORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call to the cluster. `topic` and `partitions` are empty for a call without them."""

    number: int
    method: str
    topic: str = ""
    partitions: tuple[int, ...] = ()


QuestionHook = Callable[[Call], Answer]
"""Decides how a call is answered. Called once per call, under the cluster's lock, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedQuestions:
    """A hook with answers by the number of the call; all others are true. `calls`: the calls so far."""

    answers: Mapping[int, Answer] = field(default_factory=dict[int, Answer])
    calls: list[Call] = field(default_factory=list[Call])

    def __call__(self, call: Call) -> Answer:
        """Return the scripted answer to this call."""
        self.calls.append(call)
        return self.answers.get(call.number, TRUE)
