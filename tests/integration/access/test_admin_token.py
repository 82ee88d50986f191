"""`shardwheel migrate --admin-token-file`: the first token."""

import stat
from pathlib import Path

import psycopg
import pytest

from server.access.secret import digest_of, draw
from server.cli.failure import InputRefused
from server.cli.token_file import read_token
from server.domain.errors import InvalidInput
from tests.support.commands import shardwheel


@pytest.fixture
def migrate(empty_database: str, tmp_path: Path) -> "Migrate":
    return Migrate(empty_database, tmp_path)


class Migrate:
    """Runs the command on one database."""

    def __init__(self, database: str, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self.file = folder / "admin-token"

    def __call__(self) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        ran = shardwheel(
            "migrate",
            "--admin-token-file",
            str(self.file),
            folder=self._folder,
            variables={"SHARDWHEEL_DATABASE": self._database},
        )
        return ran.returncode, ran.stdout + ran.stderr

    def rows(self) -> list[tuple[object, ...]]:
        """The tokens in the database: digest, holder, scopes, whether revoked."""
        with psycopg.connect(self._database) as connection:
            found = connection.execute(
                "SELECT digest, name, scopes, revoked_at IS NOT NULL FROM shardwheel_store.tokens ORDER BY id"
            )
            return list(found.fetchall())


def test_a_file_that_is_not_there_is_made_for_its_owner_alone(migrate: Migrate) -> None:
    code, printed = migrate()
    assert code == 0, printed
    token = migrate.file.read_text().strip()
    assert len(token) == 43
    assert token not in printed
    assert stat.S_IMODE(migrate.file.stat().st_mode) == 0o600
    assert migrate.rows() == [(digest_of(token), "admin", ["*:admin"], False)]
    # Again, and nothing changes.
    assert migrate()[0] == 0
    assert (migrate.file.read_text().strip(), len(migrate.rows())) == (token, 1)


def test_a_token_that_is_there_is_taken_as_it_is(migrate: Migrate) -> None:
    token = draw()
    # As a Secret of Kubernetes is mounted: no line end, and nobody may write.
    migrate.file.write_text(token)
    migrate.file.chmod(0o440)
    code, printed = migrate()
    assert code == 0, printed
    assert migrate.file.read_text() == token
    assert [row[0] for row in migrate.rows()] == [digest_of(token)]
    # Another token in its place is another way in; the first one is there until it is revoked.
    migrate.file.chmod(0o600)
    migrate.file.write_text(draw())
    assert migrate()[0] == 0
    assert [row[1:] for row in migrate.rows()] == [("admin", ["*:admin"], False)] * 2


def test_a_file_that_holds_no_token_is_refused_before_anything_is_done(migrate: Migrate) -> None:
    migrate.file.write_text("too short")
    code, printed = migrate()
    assert code == 2
    assert "--admin-token-file: has to hold a token of 32 to 200 printable ASCII characters" in printed
    assert "too short" not in printed
    with pytest.raises(psycopg.errors.UndefinedTable):
        migrate.rows()


@pytest.mark.parametrize("content", ["", "\n", "x" * 300, "with spaces in it with spaces in it"])
def test_what_is_no_token_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(InvalidInput, match="has to hold a token"):
        read_token(tmp_path / "token")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="there is no folder"):
        read_token(tmp_path / "none" / "token")


def test_a_revoked_token_does_not_come_back(migrate: Migrate, empty_database: str) -> None:
    assert migrate()[0] == 0
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("UPDATE shardwheel_store.tokens SET revoked_at = now()")
    code, printed = migrate()
    assert code == 2
    assert "was revoked" in printed
    assert [row[3] for row in migrate.rows()] == [True]
