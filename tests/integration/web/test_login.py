"""The dashboard of a node that asks for tokens."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.app import Node
from server.domain.policies import NO_POLICIES
from tests.support.access import Site, granted
from tests.support.nodes import running_node
from tests.support.visitor import Answer, Visitor
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, JobState

ROOT = "/ns/default"
PAGES = ("/", "/jobs", "/jobs/1", "/schedules", "/schedules/x", "/handlers", "/workers", "/shards")


@pytest.fixture
async def root_token(database: str) -> str:
    """The token of somebody who may do everything."""
    return await granted(database, "*:admin", holder="root")


@pytest.fixture
async def node(database: str, tmp_path: Path, root_token: str) -> AsyncIterator[Node]:
    """A node whose database knows a token."""
    async with running_node(database, tmp_path, http_listen="127.0.0.1:0") as running:
        yield running


@pytest.fixture
async def client(node: Node, root_token: str) -> AsyncIterator[AsyncClient]:
    """A client that may do everything."""
    async with AsyncClient(node.address, token=root_token) as connected:
        yield connected


async def sign_in(visitor: Visitor, token: str, path: str = "/") -> Answer:
    """Send the login form that a page leads to; return the answer to the form."""
    form = await visitor.get(path)
    assert "Sign in" in form.text
    [target] = re.findall(r'name="next" value="([^"]*)"', form.source)
    return await visitor.send("/login", {"token": token, "next": target.replace("&amp;", "&")})


async def test_without_a_token_there_is_nothing_but_the_login_page(client: AsyncClient, visitor: Visitor) -> None:
    job_id = (await client.submit("secret.handler", {"a": "secret"}, name="secret")).job_id
    for path in (*PAGES, f"/jobs/{job_id}"):
        answer = await visitor.request("GET", ROOT + path, headers={})
        assert (answer.status, answer.location.partition("?")[0]) == (303, "/login")
        assert "secret" not in answer.source
    await visitor.get("/")
    for path, action in ((f"/jobs/{job_id}", "cancel"), ("/schedules/x", "trigger"), ("/handlers", "pause")):
        sent = await visitor.send(ROOT + path, {"action": action, "handler": "secret.handler"})
        assert (sent.status, sent.location.partition("?")[0]) == (303, "/login")
    assert (await client.get(job_id)).state is JobState.PENDING
    assert (await visitor.get("/static/style.css")).status == 200


async def test_a_token_opens_the_page_that_was_asked_for(
    client: AsyncClient, visitor: Visitor, root_token: str
) -> None:
    assert (await sign_in(visitor, "wrong")).status == 401
    assert (await sign_in(visitor, "b\u00e4d")).status == 400
    assert "shardwheel_token" not in visitor.cookies
    page = f"{ROOT}/jobs?state=failed&labels=a%3Db"
    sent = await sign_in(visitor, root_token, page)
    assert (sent.status, sent.location) == (303, page)
    [line] = [line for line in visitor.cookie_lines if line.startswith("shardwheel_token=")]
    parts = {part.strip().lower() for part in line.split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= parts
    assert not any(part.startswith(("max-age", "expires")) for part in parts)
    answer = await visitor.get(sent.location)
    assert "No job matches." in answer.text
    assert root_token not in answer.source
    assert (await visitor.send("/logout")).location == "/login"
    assert "Sign in" in (await visitor.get(page)).text


async def test_a_login_leads_to_no_other_site(client: AsyncClient, visitor: Visitor, root_token: str) -> None:
    for target in ("https://evil.example/", "//evil.example", "/\\evil.example"):
        await visitor.get(f"/login?next={target}")
        sent = await visitor.send("/login", {"token": root_token, "next": target})
        assert (sent.status, sent.location) == (303, "/")


async def test_a_reader_of_one_namespace_sees_that_alone(
    node: Node, database: str, client: AsyncClient, visitor: Visitor
) -> None:
    await node.catalog.create_namespace("billing", NO_POLICIES)
    async with AsyncClient(node.address, token=await granted(database, "billing:admin"), namespace="billing") as own:
        job_id = (await own.submit("h", None)).job_id
    sent = await sign_in(visitor, await granted(database, "billing:read", holder="reader"))
    assert sent.location == "/"
    overview = await visitor.get("/")
    assert "in billing" in overview.text
    assert "token:reader has no right to read in the whole cluster" in overview.text
    assert str(job_id) in (await visitor.get("/ns/billing/jobs")).text
    job = f"/ns/billing/jobs/{job_id}"
    await visitor.get(job)
    refused = await visitor.send(job, {"action": "cancel"})
    assert refused.status == 403
    assert "token:reader has no right to submit in namespace 'billing'" in refused.text
    foreign = await visitor.get(f"{ROOT}/handlers")
    assert foreign.status == 403
    assert "has no right to read in namespace 'default'" in foreign.text


async def test_with_tls_the_cookies_travel_in_no_other_way(database: str, tmp_path: Path, root_token: str) -> None:
    site = Site.new(tmp_path / "site")
    settings = {"http_listen": "127.0.0.1:0", **site.node_settings()}
    async with running_node(database, tmp_path, **settings) as node:
        visitor = Visitor(node.http.address, site.ca)
        sent = await sign_in(visitor, root_token)
        assert sent.headers["strict-transport-security"] == "max-age=31536000"
        assert {line.partition("=")[0] for line in visitor.cookie_lines} == {"shardwheel_form", "shardwheel_token"}
        assert all("Secure" in line for line in visitor.cookie_lines)
        assert "Overview" in (await visitor.get(sent.location)).text


async def test_a_session_ends_with_its_token(database: str, node: Node, visitor: Visitor) -> None:
    await sign_in(visitor, await granted(database, "*:read", holder="leaver"))
    assert "Overview" in (await visitor.get("/")).text
    await node.database.run("UPDATE tokens SET revoked_at = now(), changed_at = now() WHERE name = 'leaver'")

    async def over() -> bool:
        return "Sign in" in (await visitor.get(f"{ROOT}/jobs")).text

    await eventually(over, timeout_s=20, what="the end of the session")
