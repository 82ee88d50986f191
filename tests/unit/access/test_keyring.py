"""What a node knows of credentials, and when."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from server.access.gate import Gate, Unknown
from server.access.keyring import MISS_PAUSE_S, Changes, Keyring
from server.access.secret import check, digest_of, draw
from server.domain.access import NODE_KEY_LIFE, Credential, CredentialKind, NodeKey, parse_scopes
from server.domain.errors import InvalidInput

START = datetime(2026, 1, 1, tzinfo=UTC)


class Table:
    """Credentials of a database whose clock the test moves."""

    def __init__(self) -> None:
        self.now = START
        self.rows: dict[int, Credential] = {}
        self.keys: list[NodeKey] = []
        self.reads = 0
        self.away = False

    async def __call__(self, since: datetime | None) -> Changes:
        self.reads += 1
        if self.away:
            raise ConnectionError("away")
        return Changes(
            now=self.now,
            ever=bool(self.rows),
            credentials=[
                one
                for one in self.rows.values()
                if (one.revoked_at is None if since is None else one.changed_at >= since)
            ],
            node_keys=[one for one in self.keys if since is None or one.changed_at >= since],
        )

    def put(self, number: int, token: str | None = None, **fields: object) -> Credential:
        """Write a row."""
        values = {
            "credential_id": number,
            "name": f"holder-{number}",
            "kind": CredentialKind.CERTIFICATE if token is None else CredentialKind.TOKEN,
            "digest": None if token is None else digest_of(token),
            "scopes": parse_scopes(["default:read"]),
            "created_at": self.now,
            "changed_at": self.now,
        }
        self.rows[number] = Credential(**(values | fields))  # type: ignore[arg-type]
        return self.rows[number]


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def keyring(table: Table) -> Keyring:
    return Keyring(table)


async def test_a_token_that_the_database_has_is_found_at_once(table: Table, keyring: Keyring) -> None:
    await keyring.refresh()
    table.put(1, "a" * 43)
    found = await keyring.token("a" * 43)
    assert found is not None
    assert found.credential_id == 1
    assert await keyring.token("b" * 43) is None
    assert await keyring.node("a" * 43) is None


async def test_known_tokens_ask_nobody_and_unknown_ones_seldom(table: Table, keyring: Keyring) -> None:
    table.put(1, "a" * 43)
    await keyring.refresh()
    assert await keyring.token("a" * 43) is not None
    assert table.reads == 1
    began = asyncio.get_running_loop().time()
    guesses = [draw() for _ in range(500)]
    assert set(await asyncio.gather(*(keyring.token(guess) for guess in guesses))) == {None}
    assert table.reads <= 2 + (asyncio.get_running_loop().time() - began) / MISS_PAUSE_S


async def test_a_revoked_credential_is_lost_and_whoever_uses_it_is_told(table: Table, keyring: Keyring) -> None:
    lost: list[int] = []
    keyring.on_lost = lost.append
    table.put(1, "a" * 43)
    table.put(2, subject="crew.example.org")
    await keyring.refresh()
    assert (await keyring.certificate(["x", "crew.example.org"])) is table.rows[2]
    table.now += timedelta(seconds=5)
    for number in (1, 2):
        old = table.rows[number]
        table.put(number, None, digest=old.digest, subject=old.subject, kind=old.kind, revoked_at=table.now)
    await keyring.refresh()
    assert sorted(lost) == [1, 2]
    assert await keyring.token("a" * 43) is None
    assert await keyring.certificate(["crew.example.org"]) is None


async def test_a_credential_that_expires_is_lost_by_the_clock_of_the_database(table: Table, keyring: Keyring) -> None:
    lost: list[int] = []
    keyring.on_lost = lost.append
    table.put(1, "a" * 43, expires_at=START + timedelta(hours=1))
    await keyring.refresh()
    assert await keyring.token("a" * 43) is not None
    table.now += timedelta(hours=1)
    await keyring.refresh()
    assert lost == [1]
    assert await keyring.token("a" * 43) is None


async def test_a_database_that_is_away_changes_nothing(table: Table, keyring: Keyring) -> None:
    table.put(1, "a" * 43)
    await keyring.refresh()
    table.away = True
    with pytest.raises(ConnectionError):
        await keyring.refresh()
    assert await keyring.token("a" * 43) is not None
    # Who is not known cannot be called unknown.
    with pytest.raises(ConnectionError):
        await keyring.token("b" * 43)


async def test_a_change_that_becomes_visible_late_is_seen(table: Table, keyring: Keyring) -> None:
    await keyring.refresh()
    table.now += timedelta(seconds=10)
    await keyring.refresh()
    table.put(1, "a" * 43, changed_at=table.now - timedelta(seconds=10))
    assert await keyring.token("a" * 43) is not None


async def test_keys_of_nodes_are_theirs_and_forgotten_in_time(table: Table, keyring: Keyring) -> None:
    table.keys.append(NodeKey("node-a", digest_of("k" * 43), table.now))
    await keyring.refresh()
    assert await keyring.node("k" * 43) == "node-a"
    assert await keyring.token("k" * 43) is None
    table.now += NODE_KEY_LIFE + timedelta(seconds=1)
    table.keys.clear()
    await keyring.refresh()
    assert await keyring.node("k" * 43) is None


async def test_access_is_open_until_the_first_credential_and_never_again(table: Table, keyring: Keyring) -> None:
    gate = Gate(keyring, closed=False)
    # Before the database has been read, nobody knows.
    assert not gate.open
    await keyring.refresh()
    assert gate.open
    assert (await gate.principal(None)).node
    table.put(1, "a" * 43)
    await keyring.refresh()
    table.now += timedelta(seconds=1)
    table.put(1, "a" * 43, revoked_at=table.now)
    await keyring.refresh()
    assert not gate.open
    for header in (None, "", "Bearer", f"Bearer {'a' * 43}", "Node x", "Basic x"):
        with pytest.raises(Unknown):
            await gate.principal(header)
    assert not Gate(Keyring(Table()), closed=True).open


async def test_who_calls_is_called_by_kind_and_holder(table: Table, keyring: Keyring) -> None:
    gate = Gate(keyring, closed=True)
    table.put(1, "a" * 43, name="ci")
    table.put(2, subject="crew.example.org", name="crew")
    table.keys.append(NodeKey("node-a", digest_of("k" * 43), table.now))
    assert (await gate.principal(f"bearer {'a' * 43}")).name == "token:ci"
    assert (await gate.principal(None, ["crew.example.org"])).name == "certificate:crew"
    # A token goes before a certificate.
    assert (await gate.principal(f"Bearer {'a' * 43}", ["crew.example.org"])).name == "token:ci"
    node = await gate.principal(f"Node {'k' * 43}")
    assert (node.name, node.node) == ("node:node-a", True)
    with pytest.raises(Unknown, match="no rights are granted to a certificate of 'x'"):
        await gate.principal(None, ["x"])


def test_secrets_have_256_bits_and_are_not_shown() -> None:
    assert len({draw() for _ in range(100)}) == 100
    assert len(draw()) == 43
    assert check(draw(), "token") != ""
    for bad in ("", "short", "x" * 31, "x" * 201, "x" * 40 + " x", "x" * 40 + "\n", "ä" * 40):
        with pytest.raises(InvalidInput) as refused:
            check(bad, "admin_token_file")
        assert refused.value.value == "***"
