"""Which shard a job or schedule lives in, and how ids carry it.

An id is a sequence value shifted left by 12 bits, plus the shard. The shard of a key is a prefix of its SHA-256, the
same in SQL (`shardwheel.shard_of`) and here; a contract test holds the two together.
"""

import hashlib

SHARD_BITS = 12
SHARD_MASK = (1 << SHARD_BITS) - 1


def shard_of(shards: int, *parts: str) -> int:
    """Return the shard of a composite key; `shards` is a power of two."""
    encoded = [part.encode() for part in parts]
    text = b"\x1f".join(str(len(part)).encode() + b":" + part for part in encoded)
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") & (shards - 1)


def make_id(sequence: int, shard: int) -> int:
    """Return the id of sequence value `sequence` in `shard`."""
    return sequence << SHARD_BITS | shard


def shard_of_id(object_id: int) -> int:
    """Return the shard that an id carries."""
    return object_id & SHARD_MASK


def partition_of(shard: int, *, shards: int, partitions: int) -> int:
    """Return the index of the partition that holds `shard`: contiguous, equal ranges."""
    return shard // (shards // partitions)
