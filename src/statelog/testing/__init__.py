"""What tests of programs with statelog need: twins of Kafka and of the store in memory, their faults, a real broker.

No other room imports it but the command line, whose `statelog dev` is the broker.
"""

from statelog.testing.broker import EmbeddedBroker
from statelog.testing.cluster import MemoryCluster, Sending
from statelog.testing.faults import (
    HALF,
    LOST,
    TRUE,
    UNAVAILABLE,
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

__all__ = [
    "HALF",
    "LOST",
    "TRUE",
    "UNAVAILABLE",
    "Answer",
    "Call",
    "EmbeddedBroker",
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
]
