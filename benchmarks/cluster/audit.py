"""Each claim, and each rise of an epoch, as the database saw it."""

from dataclasses import dataclass

from server.store.database import Database

_INSTALL = (
    """
    CREATE UNLOGGED TABLE public.bench_audit (
        n bigint GENERATED ALWAYS AS IDENTITY, shard int, epoch bigint, job bigint, owner text, due_at timestamptz,
        at timestamptz DEFAULT clock_timestamp())""",
    """
    CREATE FUNCTION public.bench_claimed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.bench_audit (shard, epoch, job, due_at)
            VALUES (NEW.shard, NEW.claim_epoch, NEW.id, GREATEST(NEW.due_at, NEW.created_at));
        RETURN NULL; END $$""",
    """
    CREATE FUNCTION public.bench_fenced() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.bench_audit (shard, epoch, owner) VALUES (NEW.shard, NEW.epoch, NEW.owner);
        RETURN NULL; END $$""",
    """
    CREATE TRIGGER bench_claimed AFTER UPDATE OF claim ON jobs FOR EACH ROW WHEN (NEW.claim > OLD.claim)
        EXECUTE FUNCTION public.bench_claimed()""",
    """
    CREATE TRIGGER bench_fenced AFTER UPDATE OF epoch ON shards FOR EACH ROW
        EXECUTE FUNCTION public.bench_fenced()""",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A claim of `job` or, with `job` None, a fence-in by `owner`. `at` is seconds since 1970, `late` seconds."""

    shard: int
    epoch: int
    job: int | None
    owner: str | None
    at: float
    late: float | None


class Audit:
    """Triggers, and what they wrote."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def install(self) -> None:
        """Make the triggers."""
        for statement in _INSTALL:
            await self._database.run(statement, api=True)

    async def entries(self, since: float = 0.0) -> list[Entry]:
        """All entries from an instant on, in order."""
        rows = await self._database.run(
            "SELECT shard, epoch, job, owner, extract(epoch FROM at)::float8, "
            "extract(epoch FROM at - due_at)::float8 "
            "FROM public.bench_audit WHERE at >= to_timestamp(%s::float8) ORDER BY n",
            (since,),
            timeout=60,
            api=True,
        )
        return [Entry(*row) for row in rows]


def claims_again(entries: list[Entry], shards: set[int], since: float) -> dict[int, float]:
    """Of each of `shards` the seconds from `since` to its first claim under an epoch that began after it."""
    fenced: dict[int, int] = {}
    found: dict[int, float] = {}
    for entry in entries:
        if entry.shard not in shards or entry.at < since:
            continue
        if entry.job is None:
            fenced.setdefault(entry.shard, entry.epoch)
        elif entry.epoch >= fenced.get(entry.shard, entry.epoch + 1):
            found.setdefault(entry.shard, entry.at - since)
    return {shard: found.get(shard, float("inf")) for shard in shards}


def stale_claims(entries: list[Entry]) -> int:
    """Claims under an epoch that had been overtaken."""
    newest: dict[int, int] = {}
    stale = 0
    for entry in entries:
        if entry.job is None:
            newest[entry.shard] = entry.epoch
        elif entry.epoch < newest.get(entry.shard, 0):
            stale += 1
    return stale


def lateness(entries: list[Entry], shards: set[int], until: float) -> list[float]:
    """Seconds from submit or due time to the claim, in order of size, of claims in `shards` until an instant."""
    return sorted(
        entry.late for entry in entries if entry.late is not None and entry.shard in shards and entry.at <= until
    )


def run_twice(entries: list[Entry]) -> int:
    """Claims beyond one per job."""
    claims = [entry.job for entry in entries if entry.job is not None]
    return len(claims) - len(set(claims))
