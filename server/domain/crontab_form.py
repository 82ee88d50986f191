"""Which of the two forms a crontab is in, and which files a cron daemon would not read at all."""

import re
from pathlib import PurePosixPath
from typing import Final

from server.domain.crontab_line import BadLine, split_entry, split_setting

# Looking at more lines than these would not change the answer.
_LINES_LOOKED_AT: Final = 500
_CHARS_LOOKED_AT: Final = 1 << 17

_ACCOUNT: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}\$?")
_SYSTEM_ACCOUNT: Final = re.compile(
    "root|daemon|bin|sys|man|lp|mail|news|uucp|proxy|www-data|backup|list|irc|nobody|apache|nginx|httpd|operator"
    "|postgres|mysql|redis|mongodb|git|gitlab|munin|logcheck|smmsp|amavis|clamav|debian-tor|nagios|zabbix|sysstat"
    "|ubuntu|ec2-user|admin"
)
# Words that begin commands. A few are accounts as well; then what stands behind decides.
_COMMAND_WORD: Final = re.compile(
    "cd|test|if|for|while|case|command|exec|export|set|eval|source|sh|bash|zsh|dash|python3?|perl|ruby|node|php|java"
    "|make|git|find|rsync|scp|ssh|cp|mv|rm|mkdir|touch|echo|printf|date|sleep|true|false|cat|tar|gzip|curl|wget"
    "|env|nice|ionice|chronic|flock|timeout|sudo|su|nohup|setsid|systemctl|service|docker|podman|kubectl|run-parts"
    "|certbot|restic|borg|rclone|pg_dump|mysqldump|psql|mysql|aws|gcloud|logrotate|umask|ulimit|time|crontab"
)
# The heading that most crontabs have above their entries: "# m h dom mon dow user command".
_HEADING: Final = r"^#.*(?:\bdow|\bwday|\*)[ \t]+"
_HEADS_SYSTEM: Final = re.compile(_HEADING + r"(?:user|user-?name|who)[ \t]+(?:command|cmd)\b", re.MULTILINE | re.I)
_HEADS_USER: Final = re.compile(_HEADING + r"(?:command|cmd)\b", re.MULTILINE | re.I)
_RUN_PARTS_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


def looks_like_system_crontab(path: str, text: str | bytes) -> bool:
    """Tell whether a crontab has a user column: by its path if that says so, else by what its lines look like.

    /etc/crontab and /etc/cron.d have the column, files below a spool folder of crontabs do not. For other paths (a copy
    in a repository) it is a guess: the heading comment that most files have, else whether the words behind the time
    fields are accounts with a command behind them. A file that says nothing counts as a user's.
    """
    by_path = _by_path(PurePosixPath(path))
    if by_path is not None:
        return by_path
    decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
    head = decoded[:_CHARS_LOOKED_AT]
    if _HEADS_SYSTEM.search(head):
        return True
    if _HEADS_USER.search(head):
        return False
    signs = [sign for line in head.split("\n")[:_LINES_LOOKED_AT] if (sign := _sign(line)) is not None]
    return sum(signs) * 2 > len(signs)


def _by_path(path: PurePosixPath) -> bool | None:
    parts = path.parts
    if parts[-2:] == ("etc", "crontab") or "cron.d" in parts[:-1]:
        return True
    if "spool" in parts or "crontabs" in parts[:-1]:
        return False
    return None


def _sign(line: str) -> bool | None:
    """Whether this line speaks for the system form; None if it is no entry."""
    content = line.strip(" \t\r")
    if not content or content.startswith("#"):
        return None
    try:
        if split_setting(content) is not None:
            return None
        rest = split_entry(content, system=False).command
    except BadLine:
        return None
    word, behind = _first_word(rest)
    if not behind or not _ACCOUNT.fullmatch(word):
        return False
    runs_a_command = behind.startswith(("/", "[")) or _COMMAND_WORD.fullmatch(_first_word(behind)[0]) is not None
    known_account = _SYSTEM_ACCOUNT.fullmatch(word) is not None
    if _COMMAND_WORD.fullmatch(word):
        return known_account and runs_a_command
    return known_account or runs_a_command


def _first_word(text: str) -> tuple[str, str]:
    word, _, behind = text.replace("\t", " ").partition(" ")
    return word, behind.strip(" ")


def ignored_in_cron_d(path: str) -> bool:
    """Tell whether cron passes over this file: it lies in a cron.d, and its name is not one that run-parts takes.

    Such files are left-overs of editors and package managers (`php.dpkg-old`, `.placeholder`). This is the rule of
    Debian's cron: letters, digits, `_` and `-`. Cronie takes names with dots inside as well.
    """
    file = PurePosixPath(path)
    return file.parent.name == "cron.d" and not _RUN_PARTS_NAME.fullmatch(file.name)
