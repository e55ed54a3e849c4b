"""What tests of programs with statelog need: twins in memory, their faults, an environment, and a real broker.

No other room imports it but the command line, whose `statelog dev` is the broker.
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
