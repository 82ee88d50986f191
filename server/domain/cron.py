"""Cron expressions: what is accepted, what it means, and its one stored form.

The dialect (version 1). Five fields (minute, hour, day of month, month, day of week), or six with the seconds first.
Each is a list of `*`, `a`, `a-b`, `*/n`, `a-b/n` or `a/n` (from a on), with names for months and weekdays; 0 and 7
are Sunday; `FRI-MON` and `22-2` wrap around. `L` is the last day of the month, `5#2` the second Friday, `5L` the last
one. `H`, `H(a-b)` and `H/n` stand for values hashed from the name of the schedule. `@yearly`, `@annually`, `@monthly`,
`@weekly`, `@daily`, `@midnight` and `@hourly` are short for what they say.

Days. If both day fields are restricted, a day matches if either does, which is the rule of POSIX. A day field that
contains a `*`, alone or with a step, is not restricted (the rule of Vixie cron and its heirs): then a day must match
both. So `0 0 13 * 5` is every 13th and every Friday, `0 0 */2 * 3` is every Wednesday with an odd date.

How civil time becomes instants is told in `cron_walk`.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from server.domain.cron_fields import CronFields, CronTable, compile_table
from server.domain.cron_syntax import MAX_EXPRESSION_CHARS, expand, refusal, split_fields
from server.domain.cron_text import canonical_text, describe, remarks

DIALECT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CronExpression:
    """A valid expression. Two are equal if they have the same canonical text, which is what has to be stored.

    `notes` tells what may surprise in the text that was written. `fields` and `table` are its expansion.
    """

    canonical: str
    dialect: int = DIALECT
    notes: tuple[str, ...] = field(default=(), compare=False)
    fields: CronFields = field(compare=False, repr=False)
    table: CronTable = field(compare=False, repr=False)

    @property
    def description(self) -> str:
        """The meaning in English words, made when it is asked for."""
        return describe(self.canonical)


def parse_cron(text: str, *, hash_key: str = "") -> CronExpression:
    """Read a cron expression; `hash_key` (the name of its schedule) decides what `H` stands for.

    Raise InvalidInput, with the cron field and the reason, for anything outside the dialect and for dates that never
    occur. Work is bounded by the 256 characters that an expression may have. The canonical text of the result parses
    to an equal expression, without a hash key.
    """
    return _parse(text, hash_key if "H" in text.upper() else "")


@lru_cache(maxsize=2048)
def _parse(text: str, hash_key: str) -> CronExpression:
    texts = split_fields(text)
    fields = expand(text, texts, hash_key)
    table = compile_table(fields)
    if not table.possible():
        also = "" if fields.every_weekday else f" on day-of-week {texts[5]}"
        raise refusal(text, f"day-of-month: {texts[3]} never occurs in month {texts[4]}{also}")
    canonical = canonical_text(fields)
    if len(canonical) > MAX_EXPRESSION_CHARS:
        raise refusal(text, f"has too many single values (more than {MAX_EXPRESSION_CHARS} characters); split it")
    return CronExpression(canonical=canonical, notes=remarks(fields, texts), fields=fields, table=table)
