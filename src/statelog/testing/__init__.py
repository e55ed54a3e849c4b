"""Tools for tests of programs with statelog: twins in memory, their faults, an environment, and a real broker.

Only the command line imports it, for the broker of `statelog dev`.
"""

from statelog.environment import Environment
from statelog.testing.broker import EmbeddedBroker
from statelog.testing.cluster import MemoryCluster, Sending
from statelog.testing.faults import (
    Answer,
    Call,
    Fate,
    Faults,
    QuestionHook,
    ScriptedFaults,
    ScriptedQuestions,
    SendAttempt,
)
from statelog.testing.kafka import MemoryKafka
from statelog.testing.process import ProcessId
from statelog.testing.store import Fault, FaultHook, MemoryDisk, MemoryStore
from statelog.testing.twin import Crash, StillClock, Twin, crash_at, environment

__all__ = [
    "Answer",
    "Call",
    "Crash",
    "EmbeddedBroker",
    "Environment",
    "Fate",
    "Fault",
    "FaultHook",
    "Faults",
    "MemoryCluster",
    "MemoryDisk",
    "MemoryKafka",
    "MemoryStore",
    "ProcessId",
    "QuestionHook",
    "ScriptedFaults",
    "ScriptedQuestions",
    "SendAttempt",
    "Sending",
    "StillClock",
    "Twin",
    "crash_at",
    "environment",
]
