"""What the dashboard asks of a request before it does anything, and what it tells the browser."""

from tests.support.visitor import Visitor
from worker_sdk import AsyncClient, JobState

ROOT = "/ns/default"


async def test_only_our_own_forms_change_anything(client: AsyncClient, visitor: Visitor) -> None:
    job_id = (await client.submit("nobody", None)).job_id
    path, cancel = f"{ROOT}/jobs/{job_id}", {"action": "cancel"}
    stranger = Visitor(visitor.address)
    assert (await stranger.send(path, cancel)).status == 403
    await visitor.get(path)
    for headers in (
        {"origin": "http://evil.example"},
        {"sec_fetch_site": "cross-site", "origin": f"http://{visitor.address}"},
        {"sec_fetch_site": "same-site"},
        {"origin": "null"},
    ):
        assert (await visitor.send(path, cancel, **headers)).status == 403
    assert (await visitor.send(path, {**cancel, "form_token": "guessed"})).status == 403
    assert (await visitor.send(path, cancel, content_type="text/plain")).status == 415
    assert (await visitor.send(path, {**cancel, "reason": "x" * 70_000})).status == 413
    assert (await visitor.get(f"{path}?action=cancel")).status == 200
    assert (await client.get(job_id)).state is JobState.PENDING
    same = {"origin": f"http://{visitor.address}", "sec_fetch_site": "same-origin"}
    assert (await visitor.send(path, cancel, **same)).status == 303
    assert (await client.get(job_id)).state is JobState.CANCELLED


async def test_no_name_that_anybody_can_point_here_is_served_while_access_is_open(visitor: Visitor) -> None:
    port = visitor.address.rpartition(":")[2]
    for host in (f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        answer = await visitor.get(f"{ROOT}/", host=host)
        assert (answer.status, "Overview" in answer.source.partition("<main")[2]) == (421, False)
    for host in (f"localhost:{port}", f"[::1]:{port}", f"127.0.0.1:{port}"):
        assert (await visitor.get(f"{ROOT}/", host=host)).status == 200


async def test_every_answer_forbids_what_no_page_needs(visitor: Visitor) -> None:
    for path in ("/", f"{ROOT}/jobs", f"{ROOT}/jobs/1", "/static/style.css", "/nothing"):
        answer = await visitor.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert ("immutable" in answer.headers["cache-control"]) == path.startswith("/static/")
        assert " style=" not in answer.source
        assert "http://" not in answer.source


async def test_the_secret_of_the_forms_is_for_our_pages_alone(visitor: Visitor) -> None:
    await visitor.get(f"{ROOT}/handlers")
    [line] = visitor.cookie_lines
    assert line.startswith("shardwheel_form=")
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in line.split(";")}


async def test_nonsense_is_refused_and_breaks_nothing(client: AsyncClient, visitor: Visitor) -> None:
    await client.submit("nobody", None)
    for path in (
        "/ns/%00/jobs",
        "/ns/UPPER/",
        "/ns/%ff%fe/schedules",
        f"{ROOT}/jobs/{10**30}",
        f"{ROOT}/jobs/0",
        f"{ROOT}/jobs?labels=%00%3Dx&handler=%ff&state=%00&from=9999-12-31T23:59&before=0001-01-01T00:00",
        f"{ROOT}/jobs?page={'x' * 3000}",
        f"{ROOT}/schedules?page=%F0%9F%98%80&prefix=%00&handler=%ed%a0%80",
        f"{ROOT}/schedules/",
        f"{ROOT}/schedules/%00",
        "/static/..%2f..%2fapp.py",
        "/static/none",
    ):
        answer = await visitor.get(path)
        assert answer.status < 500
        assert "Traceback" not in answer.source
    await visitor.get(f"{ROOT}/handlers")
    for fields in (
        {},
        {"action": "pause"},
        {"action": "pause", "handler": "\0"},
        {"action": "pause", "note": "x" * 2000},
    ):
        assert (await visitor.send(f"{ROOT}/handlers", fields)).status == 400
    assert (await visitor.send(f"{ROOT}/jobs/{10**30}", {"action": "retry"})).status == 404
