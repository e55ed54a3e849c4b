"""Faults of the in-memory Kafka: on sent records, and on every call of the port.

Owns the names of what can go wrong, and the two hooks that decide it. It is pure and knows no log. Everything here is
what a real broker and librdkafka can produce.

`Faults.fate(attempt)` is asked once for each record that is sent: what becomes of it, and of the records behind it.

`QuestionHook(call)` is asked once for each question that a view puts to the cluster, and says how it is answered:

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
create_topic, delete_topic, offsets, delete_records, publish_offset, send, poll, read. `poll` is asked only while
records are in flight. `offsets` asks again by itself, as the real client does, what is missing or lower than what its
process has seen: each time is a call of its own, and so is the describe_topic that it then makes to see whether the
topic is still the same (see `positions`). `Call.number` counts the calls of all views of a cluster, from 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol


class Fate(Enum):
    """What becomes of one record that was sent."""

    DELIVER = "deliver"
    """Appended and reported OK at the next poll."""
    DELAY = "delay"
    """On its way until the cluster's `release`; later records of this producer and partition wait behind it."""
    LOSE = "lose"
    """Reported UNKNOWN, never appended; so is every later record of this producer and partition."""
    SKIP = "skip"
    """Reported UNKNOWN, never appended, but later records are: the hole of a record that timed out in the queue."""
    APPEND_UNANSWERED = "append-unanswered"
    """Appended at the next poll or at close, and reported UNKNOWN: the answer was lost."""
    ACK_WITHOUT_OFFSET = "ack-without-offset"
    """The same, as a broker does that answers 'duplicate sequence number': UNKNOWN for lack of an offset."""
    FATAL = "fatal"
    """Never appended, and the producer is over: UNKNOWN for this record and all in flight, later sends are refused."""
    FATAL_APPENDED = "fatal-appended"
    """The same, but this record was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempt:
    """One record at the moment it is sent. `number` counts the sends of the cluster, from 0; `producer` is an id."""

    number: int
    producer: int
    topic: str
    partition: int
    value: bytes


class Faults(Protocol):
    """Decides the fate of each record. Called once per send, under the cluster's lock, in order."""

    def fate(self, attempt: SendAttempt) -> Fate:
        """The fate of this record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedFaults:
    """Fates by number of the send; all others are delivered."""

    fates: Mapping[int, Fate] = field(default_factory=dict[int, Fate])

    def fate(self, attempt: SendAttempt) -> Fate:
        """The fate that the script names for this send."""
        return self.fates.get(attempt.number, Fate.DELIVER)


class AnswerKind(Enum):
    """How a question is answered; the table at the top says what each does."""

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
    """How one question is answered. `count` is n of `old`, and k of what happens to a read."""

    kind: AnswerKind
    count: int = 0


TRUE = Answer(AnswerKind.TRUE)
UNAVAILABLE = Answer(AnswerKind.UNAVAILABLE)
LOST = Answer(AnswerKind.LOST)
HALF = Answer(AnswerKind.HALF)
# Made with their `count`: changes of the past, or records of a read.
old = partial(Answer, AnswerKind.OLD)
broken = partial(Answer, AnswerKind.BROKEN)
stalled = partial(Answer, AnswerKind.STALLED)
gone = partial(Answer, AnswerKind.GONE)
short = partial(Answer, AnswerKind.SHORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One question at the moment it is put. `topic` is empty and `partitions` are none where a call has none."""

    number: int
    method: str
    topic: str = ""
    partitions: tuple[int, ...] = ()


QuestionHook = Callable[[Call], Answer]
"""Decides how a question is answered. Called once per question, under the cluster's lock, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedQuestions:
    """A hook out of answers by the number of the call; all others are true. `calls` is what was asked."""

    answers: Mapping[int, Answer] = field(default_factory=dict[int, Answer])
    calls: list[Call] = field(default_factory=list[Call])

    def __call__(self, call: Call) -> Answer:
        """The answer that the script names for this call."""
        self.calls.append(call)
        return self.answers.get(call.number, TRUE)
