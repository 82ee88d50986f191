"""What may be committed: all messages before it are done with."""

import random

from worker_sdk.offsets import OffsetBook


def test_an_offset_is_committed_when_all_before_it_are_done_with() -> None:
    book = OffsetBook()
    for offset in (5, 6, 9):
        book.take(0, offset)
    assert book.finish(0, 6) is None
    assert book.finish(0, 5) == 7
    assert book.finish(0, 9) == 10


def test_partitions_are_independent() -> None:
    book = OffsetBook()
    book.take(0, 1)
    book.take(1, 1)
    assert book.finish(1, 1) == 2
    assert book.finish(0, 1) == 2


def test_a_partition_that_was_given_away_commits_nothing() -> None:
    book = OffsetBook()
    book.take(0, 1)
    book.forget(0)
    assert book.finish(0, 1) is None


def test_a_partition_that_is_read_again_begins_anew() -> None:
    book = OffsetBook()
    for offset in (1, 2, 3):
        book.take(0, offset)
    book.take(0, 2)
    assert book.finish(0, 1) is None
    assert book.finish(0, 2) == 3


def test_commits_never_go_back_nor_past_what_is_under_way() -> None:
    draw = random.Random(7)
    book, under_way, latest, read = OffsetBook(), set[int](), 0, 0
    for _ in range(5000):
        if draw.random() < 0.5:
            book.take(3, read)
            under_way.add(read)
            read += 1
        elif under_way:
            done = draw.choice(sorted(under_way))
            under_way.discard(done)
            commit = book.finish(3, done)
            if commit is not None:
                assert latest < commit <= min(under_way, default=read)
                latest = commit
    for offset in sorted(under_way):
        latest = book.finish(3, offset) or latest
    assert latest == read
