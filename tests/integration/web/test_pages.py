"""The pages of the dashboard over HTTP: what they show of real work, and what their forms do."""

import re
from datetime import timedelta

from server.app import Node
from tests.support.clinic import clinic
from tests.support.visitor import Visitor
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, JobState, NewJob, NewSchedule

ROOT = "/ns/default"
HOUR = timedelta(hours=1)


async def test_a_page_without_content_says_what_to_do(visitor: Visitor) -> None:
    for path, advice in {
        "/": "No job has failed for good.",
        "/?again": "Nothing has run yet. Start a worker with python -m worker_sdk",
        "/jobs": "There is no job in default yet. Submit one: shardctl jobs submit",
        "/schedules": "There is no schedule in default yet. Create one: shardctl schedules create",
        "/handlers": "No handler is known in default.",
        "/workers": "No worker of default is connected, so none of its jobs starts.",
        "/shards": "Nothing moves: every shard is served by the node that the plan gives it to.",
    }.items():
        answer = await visitor.get(ROOT + path)
        assert answer.status == 200
        assert advice in answer.text


async def test_a_failed_job_is_found_looked_at_and_retried(node: Node, client: AsyncClient, visitor: Visitor) -> None:
    async with clinic(node.address) as patients:
        submitted = await client.submit("heal", {"who": "<i>Ada</i>"}, name="<script>x</script>", labels={"team": "a"})
        await client.wait(submitted.job_id, timeout=20)
        await client.submit("greet", None)

        found = await visitor.get(f"{ROOT}/jobs?state=failed&labels=team%3Da&handler=heal")
        [link] = re.findall(rf'href="({ROOT}/jobs/\d+)"', found.source)
        assert link == f"{ROOT}/jobs/{submitted.job_id}"
        job = await visitor.get(link)
        assert "NonRetryable no cure yet <b>for this</b>" in job.text
        assert "1 failed clinic-1" in job.text
        assert '"who": "<i>Ada</i>"' in job.text
        for raw in ("<script>x", "<i>Ada", "<b>for"):
            assert raw not in job.source

        patients.healed = True
        sent = await visitor.send(link, {"action": "retry"})
        assert (sent.status, sent.location) == (303, f"{link}?done=retry")
        assert (await client.wait(submitted.job_id, timeout=20)).state is JobState.COMPLETED
        job = await visitor.get(sent.location)
        assert "The job is pending again." in job.text
        assert "completed" in job.text
        assert "cured" in job.text
        refused = await visitor.send(link, {"action": "retry"})
        assert refused.status == 409
        assert "has completed; submit a new job instead" in refused.text


async def test_a_waiting_job_says_why_and_is_cancelled(client: AsyncClient, visitor: Visitor) -> None:
    later = f"{ROOT}/jobs/{(await client.submit('nobody', None, delay=HOUR)).job_id}"
    due = f"{ROOT}/jobs/{(await client.submit('nobody', None)).job_id}"
    assert "It waits for its due time, in " in (await visitor.get(later)).text
    assert "No connected worker knows the handler nobody." in (await visitor.get(due)).text
    await visitor.send(f"{ROOT}/handlers", {"handler": "nobody", "action": "pause", "note": "not today"})
    assert "The handler nobody is paused." in (await visitor.get(due)).text
    handlers = await visitor.get(f"{ROOT}/handlers")
    assert re.search(r"nobody paused not today 1 .* Resume", handlers.text)
    sent = await visitor.send(f"{ROOT}/handlers", {"handler": "nobody", "action": "resume"})
    assert "paused not today" not in (await visitor.get(sent.location)).text

    sent = await visitor.send(later, {"action": "cancel", "reason": "a mistake"})
    assert "cancelled" in (await visitor.get(sent.location)).text
    assert "a mistake" in (await visitor.get(later)).text


async def test_filters_that_cannot_be_are_refused_in_place(client: AsyncClient, visitor: Visitor) -> None:
    await client.submit("nobody", None)
    for query, error in {
        "labels=team": "takes labels as in: team=billing tier=gold",
        "from=yesterday": "takes a date and a time, as in 2026-03-01T12:00",
        "state=lost": "there is no state 'lost'",
        "schedule=none": "namespace 'default' has no schedule 'none'",
        "handler=a+b": "takes letters, digits and '._-/', 1 to 200 characters",
        "id=abc": "takes the number of a job",
        "page=xyz": "is not the next_page_token of a list with these filters",
    }.items():
        answer = await visitor.get(f"{ROOT}/jobs?{query}")
        assert answer.status == 200
        assert error in answer.text
        assert "No job matches" not in answer.text
    straight = await visitor.request("GET", f"{ROOT}/jobs?id=4096&handler=x", headers={})
    assert (straight.status, straight.location) == (303, f"{ROOT}/jobs/4096")
    nothing = await visitor.get(f"{ROOT}/jobs?before=2026-01-01T00:00")
    assert "No job matches." in nothing.text
    for path in (f"{ROOT}/jobs/4096", f"{ROOT}/schedules/none", "/ns/nowhere/jobs/1", "/ns/nowhere/"):
        answer = await visitor.get(path)
        assert (answer.status, "Not found." in answer.text) == (200 if path.endswith("/") else 404, True)


async def test_lists_have_pages(client: AsyncClient, visitor: Visitor) -> None:
    await client.submit_many(NewJob(handler="h", delay=HOUR) for _ in range(60))
    first = await visitor.get(f"{ROOT}/jobs?handler=h&state=pending")
    [older] = re.findall(r'href="([^"]+)" rel="next"', first.source)
    second = await visitor.get(older.replace("&amp;", "&"))
    ids = [re.findall(r'class="id" href="[^"]+">(\d+)', page.source) for page in (first, second)]
    assert [len(page) for page in ids] == [50, 10]
    assert len({*ids[0], *ids[1]}) == 60
    assert 'rel="next"' not in second.source


async def test_a_schedule_is_paused_resumed_and_triggered(client: AsyncClient, visitor: Visitor) -> None:
    await client.create_schedule(NewSchedule(name="a/b:c", handler="h", payload=b"\x00\xff", cron="30 4 * * 1-5"))
    place = f"{ROOT}/schedules/a/b%3Ac"
    page = await visitor.get(place)
    assert "At 04:30, Monday through Friday (UTC)" in page.text
    assert len(re.findall(r"04:30:00 UTC", page.text)) >= 6
    assert "00 ff" in page.text
    sent = await visitor.send(place, {"action": "pause", "note": "holidays"})
    assert "It does not fire until it is resumed. Note: holidays" in (await visitor.get(sent.location)).text
    assert "paused holidays" in (await visitor.get(f"{ROOT}/schedules?prefix=a/")).text
    sent = await visitor.send(place, {"action": "resume"})
    assert (await client.get_schedule("a/b:c")).paused is False
    sent = await visitor.send(place, {"action": "trigger"})
    job = await visitor.get(sent.location)
    assert "Triggered: this is the job that was made." in job.text
    assert "Made by a schedule" in job.text
    assert "All jobs of this schedule" in (await visitor.get(place)).text
    assert (await visitor.send(place, {"action": "explode"})).status == 400


async def test_the_overview_shows_what_the_cluster_did(node: Node, client: AsyncClient, visitor: Visitor) -> None:
    async with clinic(node.address):
        for _ in range(5):
            await client.submit("greet", None)
        failed = await client.submit("heal", None, name="patient zero")
        await client.wait(failed.job_id, timeout=20)

        async def counted() -> bool:
            text = (await visitor.get(f"{ROOT}/")).text
            return "5 in 15 min" in text and "1 in 15 min" in text

        await eventually(counted, timeout_s=30, what="the end of the step")
        page = await visitor.get(f"{ROOT}/")
        assert "Added up over node-a" in page.text
        assert "patient zero" in page.text
        assert "clinic-1" in (await visitor.get(f"{ROOT}/workers")).text
        assert re.search(r"greet 0 . 0 1 4", (await visitor.get(f"{ROOT}/handlers")).text)
        shards = await visitor.get(f"{ROOT}/shards")
        assert "node-a up 64 0–63" in shards.text


async def test_large_payloads_are_shown_in_part(client: AsyncClient, visitor: Visitor) -> None:
    large = (await client.submit("nobody", b"a" * 100_000)).job_id
    page = await visitor.get(f"{ROOT}/jobs/{large}")
    assert "100,000 bytes, the beginning" in page.text
    assert len(page.source) < 20_000
