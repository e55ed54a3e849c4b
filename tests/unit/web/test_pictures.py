"""The contents of a log's pictures."""

from statelog.web.pictures import WIDTH, picture_of_runs, picture_of_topics


def _partition(number: int, start: int, covered: int, committed: int, end: int) -> dict[str, int]:
    return {
        "partition": number,
        "log_start": start,
        "log_end": end,
        "committed_position": committed,
        "snapshot_next_offset": covered,
    }


def _run(level: int, end_position: int, first: int, end: int, rows: int = 10) -> dict[str, int]:
    return {
        "level": level,
        "start_position": 0,
        "end_position": end_position,
        "first_key_group": first,
        "end_key_group": end,
        "rows": rows,
        "size_bytes": 1024,
    }


def test_a_partition_shows_what_is_covered_what_is_open_and_what_is_loose() -> None:
    """A partition is drawn in offsets on one scale, and the fullest one is as wide as the picture."""
    picture = picture_of_topics([_partition(0, 100, 150, 180, 200), _partition(1, 0, 10, 10, 10)])
    shown = [(one.kind, one.x, one.width) for one in picture.shapes]
    assert shown == [
        ("covered", 0.0, WIDTH / 2),
        ("open", 500.0, 300.0),
        ("loose", 800.0, 200.0),
        ("covered", 0.0, 100.0),
    ]
    assert picture.alt == "2 partitions with 110 offsets, 30 of them committed and in no snapshot yet"
    assert picture.shapes[1].title == "partition 0: offsets 150 to 180, committed, in no snapshot yet"


def test_positions_that_contradict_each_other_are_drawn_within_the_log() -> None:
    """Contradicting positions are drawn within the log, without negative shapes.

    A snapshot reaches beyond a truncated end, and a start lies above both.
    """
    odd = [_partition(0, 50, 0, 0, 60), _partition(1, 0, 99, 10, 20), _partition(2, 5, 0, 0, 5)]
    shapes = picture_of_topics(odd).shapes
    assert all(one.width > 0 and one.x >= 0 and one.x + one.width <= WIDTH + 2 for one in shapes)
    assert {one.kind for one in shapes} == {"loose", "covered"}
    assert picture_of_topics([]).alt.startswith("0 partitions")


def test_runs_lie_by_level_over_their_key_groups() -> None:
    """Files of one run share a lane. The lowest level, whose newest run is first, is on top."""
    runs = [_run(2, 10, 0, 512), _run(2, 10, 512, 1024), _run(0, 30, 0, 1024), _run(0, 20, 0, 1024)]
    picture = picture_of_runs(runs, 1024)
    lanes = sorted({one.y for one in picture.shapes})
    assert len(lanes) == 3
    assert [(one.kind, one.y == lanes[0]) for one in picture.shapes][:2] == [("level0", True), ("level0", False)]
    assert [(one.x, one.y) for one in picture.shapes if one.kind == "level2"] == [(0.0, lanes[2]), (500.0, lanes[2])]
    assert [one.text for one in picture.labels] == ["L0", "L2"]
    assert picture.alt == "4 runs on 2 levels with 40 rows in 4.0 KiB, over 1024 key groups"


def test_a_thousand_lanes_are_still_a_picture() -> None:
    """A picture of a thousand lanes has a bounded height, and its labels do not overlap."""
    picture = picture_of_topics([_partition(number, 0, 1, 2, 3) for number in range(1024)])
    assert picture.height <= 2048 + 1
    gaps = [after.y - before.y for before, after in zip(picture.labels, picture.labels[1:], strict=False)]
    assert min(gaps) > 15.9
