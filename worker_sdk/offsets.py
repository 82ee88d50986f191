"""Which offset of each partition may be committed: all messages before it are done with."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Partition:
    taken: deque[int] = field(default_factory=deque)
    done: set[int] = field(default_factory=set)


class OffsetBook:
    """Follows the messages of one topic, which end in any order. Used from one thread."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def take(self, partition: int, offset: int) -> None:
        """Note that a message was read. What a new reading of the partition repeats takes the place of the old one."""
        book = self._partitions.setdefault(partition, _Partition())
        if book.taken and offset <= book.taken[-1]:
            book = self._partitions[partition] = _Partition()
        book.taken.append(offset)

    def finish(self, partition: int, offset: int) -> int | None:
        """Note that a message is done with; return the offset to commit, if that has moved."""
        book = self._partitions.get(partition)
        if book is None:
            return None
        book.done.add(offset)
        commit = None
        while book.taken and book.taken[0] in book.done:
            last = book.taken.popleft()
            book.done.discard(last)
            commit = last + 1
        return commit

    def forget(self, partition: int) -> None:
        """Drop a partition that another consumer reads from now on."""
        self._partitions.pop(partition, None)
