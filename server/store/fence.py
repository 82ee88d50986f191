"""The fence that every claim, reap, firing and clean-up carries, and how fenced statements are put together.

`FENCE` takes FOR SHARE on the shard rows whose epoch is the expected one, so that no new owner can fence in until the
statement has committed, and so that a statement of a former owner finds no row. Its first two parameters are the shards
and their epochs. Statements report the shards that were found; the missing ones are fenced.
"""

from typing import Final, LiteralString

FENCE: Final[LiteralString] = """me AS MATERIALIZED (
    SELECT s.shard, s.epoch
    FROM unnest(%s::int4[], %s::int8[]) AS o(shard, epoch)
    JOIN shards s ON s.shard = o.shard AND s.epoch = o.epoch
    ORDER BY s.shard FOR SHARE OF s)"""
