"""What it costs to open a log, and a writer on it: milliseconds of this process's processors, and on the clock.

The floor is what no way into Kafka can do without: a client that connects, asks for the topics, and ends. Each log is
opened with a client of its own, as by a program that starts; the modules are loaded, and all is open once before.
"""

from confluent_kafka.admin import AdminClient

import statelog
from bench.figures import Figure, Took, medians, timed
from bench.logs import bench_log, bench_where
from bench.setting import Setting
from statelog.producer import Writer

__all__ = ["opens"]

_TIMES = 10
_FLOOR = "floor: a client asks for the topics"


def opens(setting: Setting) -> list[Figure]:
    """Medians of ten openings a round, each beside the floor's."""
    with bench_log(setting.bootstrap, setting.root) as log:
        where = bench_where(setting.bootstrap, setting.root)

        def open_log() -> None:
            statelog.open(log.name, where).close()

        def open_writer() -> None:
            with statelog.open(log.name, where) as opened:
                Writer(opened, "bench").close()

        def ask() -> None:
            AdminClient({"bootstrap.servers": setting.bootstrap}).list_topics(timeout=10)

        ways = {"open a log": open_log, "open a log and a writer": open_writer, _FLOOR: ask}
        took: dict[str, list[Took]] = {name: [] for name in ways}
        for turn in range(_TIMES * setting.rounds + 1):
            for name, way in ways.items():
                one = timed(way)
                if turn:
                    took[name].append(one)
    floor = took.pop(_FLOOR)
    return [
        medians(f"{name}{label}", unit, [1e3 * each(one) for one in ours], _FLOOR, [1e3 * each(one) for one in floor])
        for name, ours in took.items()
        for label, unit, each in (("", "ms", float), (", by CPU", "CPU ms", _cpu_s))
    ]


def _cpu_s(took: Took) -> float:
    return took.cpu_s
