"""System form or user form: by path, by heading, by content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.crontab_form import ignored_in_cron_d, looks_like_system_crontab
from tests.unit.domain.test_crontab import (
    CRON_D_MDADM,
    CRON_D_PHP,
    CRON_D_SCRUB,
    CRON_D_SYSSTAT,
    ETC_CRONTAB,
    USER_CRONTAB,
)


@pytest.mark.parametrize("path", ["/etc/crontab", "etc/crontab", "/etc/cron.d/php", "/mnt/old/etc/cron.d/x"])
def test_the_path_of_a_system_crontab_decides(path: str) -> None:
    assert looks_like_system_crontab(path, USER_CRONTAB)


@pytest.mark.parametrize("path", ["/var/spool/cron/root", "/var/spool/cron/crontabs/joe", "backup/crontabs/joe"])
def test_the_path_of_a_users_crontab_decides(path: str) -> None:
    assert not looks_like_system_crontab(path, ETC_CRONTAB)


@pytest.mark.parametrize(
    "text",
    [
        ETC_CRONTAB,
        CRON_D_PHP,
        CRON_D_SYSSTAT,
        CRON_D_SCRUB,
        CRON_D_MDADM,
        "#minute\thour\tmday\tmonth\twday\twho\tcommand\n*/5\t*\t*\t*\t*\toperator\t/usr/libexec/save-entropy\n",
        "-*/15 * * * * root test -x /usr/lib/cron/run-crons && /usr/lib/cron/run-crons >/dev/null 2>&1\n",
        "SHELL=/bin/bash\n0 3 * * * deploy /srv/app/bin/nightly\n@hourly www-data php /var/www/cron.php\n",
        "0 3 * * * backup /usr/local/bin/snapshot\r\n",
        b"# caf\xe9\n0 3 * * * root /bin/x\n",
    ],
)
def test_the_content_of_a_system_crontab(text: str | bytes) -> None:
    assert looks_like_system_crontab("saved.txt", text)


@pytest.mark.parametrize(
    "text",
    [
        USER_CRONTAB,
        "",
        "# nothing yet\nMAILTO=root\n",
        "0 3 * * * /usr/local/bin/snapshot\n",
        "0 3 * * * cd /srv/app && make nightly\n*/5 * * * * curl -fsS https://example.org/ping\n",
        "@daily $HOME/bin/backup\n@hourly ./sync.sh now\n@weekly X=1 run\n",
        "# *  *  *  *  *  command to be executed\n0 3 * * * deploy /srv/app\n",
        "0 4 * * * sync\n",
        "0 4 * * * mysql -e 'select 1'\n",
        "garbage\n@daily \x0b\n",
    ],
)
def test_the_content_of_a_users_crontab(text: str) -> None:
    assert not looks_like_system_crontab("saved.txt", text)


@given(path=st.text(max_size=50), text=st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_gets_an_answer(path: str, text: str | bytes) -> None:
    assert looks_like_system_crontab(path, text) in (True, False)


def test_left_overs_in_cron_d_are_ignored_as_cron_does() -> None:
    ignored = [".placeholder", "php.dpkg-old", "php~", "php.disabled", "#php#", "a b"]
    assert all(ignored_in_cron_d(f"/etc/cron.d/{name}") for name in ignored)
    assert not any(ignored_in_cron_d(f"/etc/cron.d/{name}") for name in ("php", "e2scrub_all", "0hourly", "raid-check"))
    assert not ignored_in_cron_d("/home/joe/my.crontab")
