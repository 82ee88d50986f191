"""Crontabs as distributions ship them and as people write them, read line by line."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.domain.cron import parse_cron
from server.domain.crontab import (
    ENTRIES_LIMIT,
    LINE_LIMIT,
    PROBLEMS_LIMIT,
    TEXT_LIMIT,
    VARIABLES_LIMIT,
    CrontabEntry,
    CrontabProblem,
    parse_crontab,
)
from server.domain.zones import load_zone

ETC_CRONTAB = """\
# /etc/crontab: the table of the whole machine
# A change here needs no `crontab` command: cron notices it.

SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin

# minute hour day month weekday
# *  *  *  *  * user-name command to be executed
17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly
25 6\t* * *\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
47 6\t* * 7\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.weekly; }
52 6\t1 * *\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.monthly; }
#
"""

CRON_D_PHP = """\
# Old sessions are removed every half hour, unless systemd does it with a timer.
09,39 *     * * *     root   [ -x /usr/lib/php/sessionclean ] && if [ ! -d /run/systemd/system ]; then /usr/lib/php/sessionclean; fi
"""  # noqa: E501

CRON_D_SYSSTAT = """\
# The collector sits in a folder of its own
PATH=/usr/lib/sysstat:/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin

# Every ten minutes, and once more at midnight to turn the file
5-55/10 * * * * root command -v sa-collect > /dev/null && sa-collect 1 1
59 23 * * * root command -v sa-collect > /dev/null && sa-collect 60 2
"""

CRON_D_SCRUB = """\
30 3 * * 0 root test -e /run/systemd/system || SERVICE_MODE=1 /usr/lib/e2fsprogs/scrub_cron
10 3 * * * root test -e /run/systemd/system || SERVICE_MODE=1 /sbin/scrub_all -A -r
"""

CRON_D_MDADM = r"""
# A check of all arrays on the first Sunday of the month: cron would run a line with both days given on either of
# them, hence the comparison in the command.
57 0 * * 0 root if [ -x /usr/share/mdadm/checkarray ] && [ $(date +\%d) -le 7 ]; then /usr/share/mdadm/checkarray --cron --all --idle --quiet; fi
"""  # noqa: E501

USER_CRONTAB = r"""
# m h  dom mon dow   command
MAILTO=""
CRON_TZ=America/New_York
TZ = 'Europe/Berlin'
BACKUP_DIR="/srv/backup of the shop"   

@daily      $HOME/bin/backup "$BACKUP_DIR"
@reboot     /usr/local/bin/tunnel --keep
*/5 9-17 * jan-nov mon-fri  /usr/local/bin/poll >> "$HOME/poll-$(date +\%F).log" 2>&1
    0 22 * * 1-5   mail -s "It's 10pm" joe%Joe,%%Where are your kids? 100\% sure?%
CRON_TZ=
30 4 1,15 * 5 echo "runs on the 1st, the 15th and every Friday"
"""  # noqa: W291


def entries(text: str | bytes, *, system: bool = False, source: str = "crontab") -> list[CrontabEntry]:
    lines = parse_crontab(text, system=system, source=source, validate=parse_cron, validate_time_zone=load_zone)
    read = [line for line in lines if isinstance(line, CrontabEntry)]
    assert lines == read
    return read


def entry(line: str, *, system: bool = False) -> CrontabEntry:
    [only] = entries(line, system=system)
    return only


def problem(text: str | bytes, *, system: bool = False) -> CrontabProblem:
    [only] = parse_crontab(text, system=system, validate=parse_cron, validate_time_zone=load_zone)
    assert isinstance(only, CrontabProblem)
    return only


def test_etc_crontab_of_debian() -> None:
    hourly, daily, weekly, monthly = entries(ETC_CRONTAB, system=True, source="/etc/crontab")
    assert hourly == CrontabEntry(
        line=9,
        expression="17 * * * *",
        command="cd / && run-parts --report /etc/cron.hourly",
        stdin=None,
        user="root",
        environment={"SHELL": "/bin/sh", "PATH": "/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin"},
        time_zone=None,
        reboot=False,
        name="crontab:cd-run-parts-report-etc-cron.hourly",
    )
    assert [e.expression for e in (daily, weekly, monthly)] == ["25 6 * * *", "47 6 * * 7", "52 6 1 * *"]
    assert daily.command == "test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }"
    assert [e.line for e in (daily, weekly, monthly)] == [10, 11, 12]
    assert len({e.name for e in (hourly, daily, weekly, monthly)}) == 4


def test_files_of_packages_in_cron_d() -> None:
    [php] = entries(CRON_D_PHP, system=True, source="/etc/cron.d/php")
    assert (php.expression, php.user) == ("09,39 * * * *", "root")
    assert php.command.startswith("[ -x /usr/lib/php/sessionclean ] && if [ ! -d ")
    assert php.name.startswith("php:x-usr-lib-php-sessionclean-if-d-run")

    collect, turn = entries(CRON_D_SYSSTAT, system=True, source="/etc/cron.d/sysstat")
    assert collect.expression == "5-55/10 * * * *"
    assert collect.environment == {"PATH": "/usr/lib/sysstat:/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
    assert (collect.name, turn.name) == (
        "sysstat:command-v-sa-collect-dev-null-sa-collect-1-1",
        "sysstat:command-v-sa-collect-dev-null-sa-collect-60-2",
    )

    # SERVICE_MODE=1 belongs to the command: only a line that begins with a name and = is a setting.
    weekly, daily = entries(CRON_D_SCRUB, system=True, source="/etc/cron.d/e2scrub_all")
    assert weekly.command.endswith("|| SERVICE_MODE=1 /usr/lib/e2fsprogs/scrub_cron")
    assert daily.environment == {}

    [check] = entries(CRON_D_MDADM, system=True, source="/etc/cron.d/mdadm")
    assert "[ $(date +%d) -le 7 ]" in check.command
    assert check.stdin is None


def test_crontab_of_a_user() -> None:
    backup, tunnel, poll, mail, later = entries(USER_CRONTAB, source="/var/spool/cron/crontabs/joe")
    assert backup.expression == "@daily"
    assert backup.command == '$HOME/bin/backup "$BACKUP_DIR"'
    assert backup.environment == {
        "MAILTO": "",
        "CRON_TZ": "America/New_York",
        "TZ": "Europe/Berlin",
        "BACKUP_DIR": "/srv/backup of the shop",
    }
    assert backup.time_zone == "America/New_York"
    assert backup.user is None
    assert backup.name == "joe:home-bin-backup-backup_dir"

    assert tunnel.reboot
    assert tunnel.expression == "@reboot"
    assert "no schedule" in tunnel.notes[0]
    assert not any(e.reboot or e.notes for e in (backup, poll, mail, later))

    assert poll.expression == "*/5 9-17 * jan-nov mon-fri"
    assert poll.command == '/usr/local/bin/poll >> "$HOME/poll-$(date +%F).log" 2>&1'

    assert (mail.line, mail.expression, mail.command) == (11, "0 22 * * 1-5", 'mail -s "It\'s 10pm" joe')
    assert mail.stdin == "Joe,\n\nWhere are your kids? 100% sure?\n"

    assert later.time_zone is None
    assert later.environment["CRON_TZ"] == ""
    assert backup.environment["CRON_TZ"] == "America/New_York"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("A=b", "A", "b"),
        ("A=b c # d", "A", "b c # d"),
        ("A=", "A", ""),
        ("  A \t= \t b  ", "A", "b"),
        ('A="  b "', "A", "  b "),
        ("A='b=\"c\"'", "A", 'b="c"'),
        ('"A"=b', "A", "b"),
        ("'A' = b", "A", "b"),
        ("PATH=$HOME/bin:~/x", "PATH", "$HOME/bin:~/x"),
        ("A=b=c", "A", "b=c"),
        ("A=\\%x", "A", "\\%x"),
        ("A=b\r", "A", "b"),
        ("_a1=ü", "_a1", "ü"),
    ],
)
def test_a_setting_holds_for_the_lines_below(line: str, name: str, value: str) -> None:
    above, below = entries(f"@hourly above\n{line}\n@hourly below")
    assert above.environment == {}
    assert below.environment == {name: value}


def test_a_later_setting_replaces_an_earlier_one_from_there_on() -> None:
    first, second = entries("A=1\n@hourly x\nA=2\nB=3\n@hourly y")
    assert first.environment == {"A": "1"}
    assert second.environment == {"A": "2", "B": "3"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("foo-bar=1", "'foo-bar' is no name of an environment variable"),
        ("1A=1", "no name of an environment variable"),
        ("=1", "expected five time fields"),
        ('""=1', "no name of an environment variable"),
        ('A="b', 'the quote " is not closed'),
        ("A='b\"", "the quote ' is not closed"),
        ('A="b" # c', "text follows the closing quote"),
    ],
)
def test_half_a_setting_is_a_problem(line: str, reason: str) -> None:
    assert reason in problem(line).reason


@pytest.mark.parametrize(
    ("rest", "command", "stdin"),
    [
        ("cmd", "cmd", None),
        ("cmd%", "cmd", ""),
        ("cmd%a", "cmd", "a\n"),
        ("cmd%a%b", "cmd", "a\nb\n"),
        ("cmd%a%", "cmd", "a\n"),
        ("cmd%%", "cmd", "\n"),
        (r"date +\%F", "date +%F", None),
        (r"date +\%F%in\%put", "date +%F", "in%put\n"),
        (r"echo \a\\ \n", r"echo \a\\ \n", None),
        (r"echo \\%x", r"echo \\", "x\n"),
        (r"echo \\\%x", r"echo \\%x", None),
        (r"cat%\\%x", "cat", "\\%x\n"),
        (r"cat%a\b\\", "cat", "a\\b\\\\\n"),
        ("echo '100%'", "echo '100", "'\n"),
        ("cmd  # not a comment", "cmd  # not a comment", None),
    ],
)
def test_percent_signs(rest: str, command: str, stdin: str | None) -> None:
    """What Vixie cron's and cronie's own code makes of them, the odd cases included."""
    read = entry(f"@daily {rest}")
    assert (read.command, read.stdin) == (command, stdin)


@pytest.mark.parametrize(
    ("line", "system", "reason"),
    [
        ("5 4 * *", False, "expected five time fields (or one @name) and a command, found 4 fields"),
        ("5 4 * * *   ", False, "found 5 fields"),
        ("garbage", False, "found 1 field"),
        ("@daily", False, "found 1 field"),
        ("@daily ", True, "a user and a command, found 1 field"),
        ("5 4 * * * root", True, "no command behind the user"),
        ("5 4 * * * root  ", True, "no command behind the user"),
        ("5 4 * * * /usr/bin/backup --all", True, "'/usr/bin/backup' is no user name; is this the user form"),
        ("5 4 * * * [ -x /a ] && /a", True, "'[' is no user name"),
        ("0 5 4 * * * root cmd", True, "a sixth time field"),
        ("0 5 4 * * * cmd", False, "a sixth time field"),
        ("@daily %input", False, "the command is empty"),
        ("61 * * * * cmd", False, "61"),
        ("0 0 31 2 * cmd", False, "31 never occurs"),
        ("@noon cmd", False, "@noon"),
        ("-5 4 * * * cmd", False, "-5"),
        ("5 4\u00a0* * * cmd", False, "found 5 fields; U+00A0 parts no fields, replace it"),
        ("CRON_TZ=Mars/Olympus", False, "'Mars/Olympus': is not an IANA time zone"),
    ],
)
def test_a_bad_line_is_a_problem_that_says_what_would_be_right(line: str, system: bool, reason: str) -> None:
    found = problem(f"# first\n{line}\n", system=system)
    assert found.line == 2
    assert reason in found.reason
    assert str(found).startswith("line 2: ")


def test_reading_goes_on_behind_a_problem() -> None:
    lines = parse_crontab("bad\n0 1 * * * one\n61 * * * * two\n@weekly three\n", system=False, validate=parse_cron)
    assert [(type(line), line.line) for line in lines] == [
        (CrontabProblem, 1),
        (CrontabEntry, 2),
        (CrontabProblem, 3),
        (CrontabEntry, 4),
    ]


@pytest.mark.parametrize("bad", ["CRON_TZ=Mars/Olympus", 'CRON_TZ="Europe/Paris', "CRON_TZ=\udcff", '"CRON_TZ"=x y'])
def test_nothing_runs_by_a_wrong_zone_below_a_refused_one(bad: str) -> None:
    text = f"CRON_TZ=Asia/Tokyo\n@daily a\n{bad}\n@daily b\nCRON_TZ=:Europe/Paris\n@daily c\n"
    a, refused, b, c = parse_crontab(text, system=False, validate_time_zone=load_zone)
    assert isinstance(a, CrontabEntry)
    assert a.time_zone == "Asia/Tokyo"
    assert isinstance(refused, CrontabProblem)
    assert isinstance(b, CrontabProblem)
    assert b.reason == "its time zone, CRON_TZ in line 3, was refused"
    assert isinstance(c, CrontabEntry)
    assert c.time_zone == "Europe/Paris"


def test_line_ends_byte_order_mark_and_a_missing_last_line_break() -> None:
    text = "\ufeff# comment\r\nA=1\r\n\r\n0 5 * * * cmd one\r\n \t\r\n\t0\t6 * * *  cmd two"
    for form in (text, text.encode()):
        one, two = entries(form)
        assert (one.command, one.line, one.environment) == ("cmd one", 4, {"A": "1"})
        assert (two.command, two.line, two.expression) == ("cmd two", 6, "0 6 * * *")


def test_only_a_line_feed_ends_a_line() -> None:
    assert entry("@daily printf 'a\x0bb\u2028c\x85d'").command == "printf 'a\x0bb\u2028c\x85d'"


def test_bytes_outside_utf_8_matter_in_entries_and_not_in_comments() -> None:
    [one, bad, two] = parse_crontab(b"# caf\xe9\n@daily one \xc3\xa9\n@daily caf\xe9\n@daily two\n", system=False)
    assert isinstance(one, CrontabEntry)
    assert one.command == "one é"
    assert isinstance(bad, CrontabProblem)
    assert (bad.line, bad.text) == (3, "@daily caf\N{REPLACEMENT CHARACTER}")
    assert "not UTF-8" in bad.reason
    assert isinstance(two, CrontabEntry)


def test_nul_is_a_problem_that_can_be_shown() -> None:
    found = problem(b"@daily a\0b\x1b[31m\n")
    assert "NUL" in found.reason
    assert found.text.isprintable()


def test_suse_marks_lines_that_are_not_to_be_logged() -> None:
    read = entry("-*/15 * * * *   root  test -x /usr/lib/cron/run-crons && /usr/lib/cron/run-crons", system=True)
    assert (read.expression, read.user) == ("*/15 * * * *", "root")
    assert entry("-@daily root cmd", system=True).expression == "@daily"


@pytest.mark.parametrize(
    "user", ["root", "www-data", "svc$", "DOMAIN\\joe", "joe:staff", "joe:staff/batch", "j.d@corp"]
)
def test_users_of_many_kinds(user: str) -> None:
    read = entry(f"@daily {user}\tcmd", system=True)
    assert (read.user, read.command) == (user, "cmd")


def test_a_random_delay_is_noted() -> None:
    assert "jitter" in entry("RANDOM_DELAY=45\n@daily x").notes[0]
    assert entry("RANDOM_DELAY=0\n@daily x").notes == ()


def test_payload_is_what_a_shell_needs_and_fits_json() -> None:
    read = entry("SHELL=/bin/bash\nA=1\n@daily joe cat%in", system=True)
    assert json.loads(json.dumps(read.payload())) == {
        "command": "cat",
        "stdin": "in\n",
        "environment": {"SHELL": "/bin/bash", "A": "1"},
        "user": "joe",
        "shell": "/bin/bash",
    }
    assert entry("SHELL=\n@daily x").shell == "/bin/sh"


def test_names_are_unique_and_do_not_depend_on_the_place_in_the_file() -> None:
    one = entries("0 1 * * * cmd a\n0 2 * * * cmd b\n0 3 * * * cmd a\n0 4 * * * cmd-a-2\n0 5 * * * cmd a\n")
    assert [e.name for e in one] == [
        "crontab:cmd-a",
        "crontab:cmd-b",
        "crontab:cmd-a-2",
        "crontab:cmd-a-2-2",
        "crontab:cmd-a-3",
    ]
    other = entries("# moved\nA=1\n0 9 * * * cmd b\n0 8 * * * cmd a\n")
    assert [e.name for e in other] == ["crontab:cmd-b", "crontab:cmd-a"]


def test_long_and_wordless_commands_get_a_hash_in_their_name() -> None:
    long = [entry(f"@daily {'x' * 60} {n}").name for n in (1, 2)]
    assert long[0] != long[1]
    assert all(len(name) <= 70 for name in long)
    names = [entry(f"@daily {command}").name for command in ("《》", "«»")]
    assert names[0] != names[1]
    assert all(name.startswith("crontab:") and len(name) == len("crontab:") + 8 for name in names)


def test_names_avoid_those_of_other_files() -> None:
    [read] = parse_crontab("@daily cmd", system=False, source="/a/joe", taken_names={"joe:cmd", "joe:cmd-2"})
    assert isinstance(read, CrontabEntry)
    assert read.name == "joe:cmd-3"


@pytest.mark.parametrize("source", ["", "-", "/", "/etc/cron.d/Backup (old)", "x" * 300])
def test_names_suit_schedules_whatever_the_file_is_called(source: str) -> None:
    [read] = entries("@daily cmd --now", source=source)
    assert len(read.name) <= 200
    assert all(char.isascii() and (char.isalnum() or char in "._-/:") for char in read.name)


def test_a_very_long_line_is_refused_unless_it_is_a_comment() -> None:
    assert str(LINE_LIMIT) in problem(f"#{'x' * LINE_LIMIT}\n@daily {'x' * LINE_LIMIT}\n").reason
    assert len(problem("x" * (LINE_LIMIT + 1)).text) < 200


def test_a_crontab_without_bound_is_refused_at_once() -> None:
    assert str(TEXT_LIMIT) in problem(b"#" * (TEXT_LIMIT + 1)).reason
    many = parse_crontab("@daily x\n" * (ENTRIES_LIMIT + 5), system=False)
    assert len(many) == ENTRIES_LIMIT + 1
    assert isinstance(many[-1], CrontabProblem)
    assert many[-1].line == ENTRIES_LIMIT + 1
    assert len(parse_crontab("@daily x\n" * ENTRIES_LIMIT, system=False)) == ENTRIES_LIMIT
    assert len(parse_crontab("x\n" * (TEXT_LIMIT // 2), system=False)) == PROBLEMS_LIMIT + 1
    settings = "".join(f"A{n}=1\n@daily x\n" for n in range(VARIABLES_LIMIT + 1))
    problems = [line for line in parse_crontab(settings, system=False) if isinstance(line, CrontabProblem)]
    assert [p.line for p in problems] == [2 * VARIABLES_LIMIT + 1]


@given(
    text=st.text(max_size=200) | st.binary(max_size=200) | st.text("@daily \t\r\n%\\=\"'#*05ABroot/", max_size=200),
    system=st.booleans(),
)
@example(text="@daily root \x0b\n\x1c\n", system=True)
def test_any_text_is_read_into_entries_that_can_be_sent(text: str | bytes, system: bool) -> None:
    lines = parse_crontab(text, system=system, validate=parse_cron, validate_time_zone=load_zone)
    numbers = [line.line for line in lines]
    assert numbers == sorted(set(numbers))
    names = [line.name for line in lines if isinstance(line, CrontabEntry)]
    assert len(names) == len(set(names))
    for line in lines:
        if isinstance(line, CrontabEntry):
            assert line.command.strip()
            assert (line.user is not None) is system
            json.dumps(line.payload(), ensure_ascii=False).encode()
        else:
            assert str(line).isprintable()


word = st.text("abcdefgh/.-$(){}&|<>'\"*[]! \\%=#", min_size=1, max_size=30).map(str.strip).filter(bool)


@given(command=word.filter(lambda text: not text.startswith("*")))
def test_a_command_written_with_escaped_percent_signs_comes_back_as_it_was(command: str) -> None:
    # A backslash before a % cannot be written in a crontab without changing what the shell sees.
    if "\\%" not in command:
        assert entry(f"0 5 * * * {command.replace('%', chr(92) + '%')}").command == command
