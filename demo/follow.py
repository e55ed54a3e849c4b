"""The second query, in a process of its own: `python -m demo.follow PLACE`. A user's program would be no longer.

It writes the log's changes to Parquet, live: the state of the newest snapshot first, then every change behind it. Its
reader id is a subscription, so unread changes are not truncated.

It begins when it receives a line. When its input ends, it reads all commits so far and exits with 0.
"""

import select
import sys

from demo.place import ALLOW_UNSAFE, READER, Place
from demo.session import spark_session

__all__ = ["main"]

_LOOK_S = 0.2


def main(place: Place) -> None:
    """Follow the log until the input ends."""
    spark = spark_session("statelog-demo-follow")
    changes = (
        spark.readStream.format("statelog")
        .option("log", place.log)
        .option("root", place.root)
        .option("kafka.bootstrap.servers", place.bootstrap)
        .option("allowUnsafe", ",".join(ALLOW_UNSAFE))
        .option("startingPosition", "snapshot")
        .option("readerId", READER)
        .load()
    )
    sys.stdin.readline()
    query = (
        changes.select("position", "key", "op", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place.followed_checkpoint))
        .trigger(processingTime="500 milliseconds")
        .start(str(place.followed))
    )
    while query.isActive and not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        pass
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Place.from_json(sys.argv[1]))
