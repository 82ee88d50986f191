"""The dashboard in a real browser."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from server.app import Node
from tests.integration.web.contrast import faint_texts
from tests.support.chromium import HOW_TO_GET, chromium
from tests.support.clinic import clinic
from worker_sdk import AsyncClient, NewSchedule

pytestmark = pytest.mark.skipif(chromium() is None, reason=f"no Chromium here: {HOW_TO_GET}")

PAGES = ("/", "/jobs", "/schedules", "/schedules/nightly", "/handlers", "/workers", "/shards")
# A busy machine may take long for what takes half a second.
PATIENCE_MS = 30_000.0


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium."""
    async with async_playwright() as playwright:
        # The sandbox of Chromium refuses to be run by root, as which tests run in containers.
        running = await playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=2 * PATIENCE_MS
        )
        yield running
        await running.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained of: scripts or styles that were refused, errors, answers that failed."""
    return []


@pytest.fixture
async def page(node: Node, browser: Browser, complaints: list[str]) -> AsyncIterator[Page]:
    """A tab of it; paths are those of the namespace."""
    context = await browser.new_context(
        base_url=f"http://{node.http.address}/", color_scheme="light", reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_MS)
    tab = await context.new_page()

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    tab.on("console", hear)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    yield tab
    await context.close()


async def test_a_failed_job_is_found_and_retried(
    node: Node, client: AsyncClient, page: Page, complaints: list[str]
) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    async with clinic(node.address) as patients:
        submitted = await client.submit("heal", {"who": "Ada"}, name="patient zero")
        await client.wait(submitted.job_id, timeout=20)
        await page.goto("ns/default/")
        await page.get_by_role("link", name="Jobs", exact=True).click()
        await page.get_by_label("failed").check()
        await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_role("row")).to_have_count(2)
        await page.get_by_role("link", name=str(submitted.job_id)).click()
        await expect(page.get_by_role("heading", name="patient zero")).to_be_visible()
        await expect(page.get_by_text("no cure yet").first).to_be_visible()
        patients.healed = True
        await page.get_by_role("button", name="Retry now").click()
        await expect(page.get_by_role("status").first).to_contain_text("The job is pending again.")
        # The page refreshes itself until the job has ended.
        await expect(page.locator(".title .badge")).to_have_text("completed")
        await expect(page.get_by_label("Result")).to_have_text('"cured"')
    assert complaints == []


async def test_a_schedule_is_paused(client: AsyncClient, page: Page, complaints: list[str]) -> None:
    await client.create_schedule(NewSchedule(name="nightly", handler="h", cron="0 3 * * *"))
    await client.create_schedule(NewSchedule(name="hourly", handler="h", cron="0 * * * *"))
    await page.goto("ns/default/schedules")
    row = page.get_by_role("row", name="nightly")
    await row.get_by_label("Pause nightly").click()
    await row.get_by_label("Note for others").fill("the disk is full")
    await row.get_by_role("button", name="Pause nightly").click()
    await expect(page.get_by_text("It does not fire until it is resumed. Note: the disk is full")).to_be_visible()
    assert (await client.get_schedule("nightly")).paused
    assert not (await client.get_schedule("hourly")).paused
    assert complaints == []


async def test_every_page_fits_a_small_screen_and_can_be_read_in_both_colours(
    node: Node, client: AsyncClient, page: Page, complaints: list[str]
) -> None:
    async with clinic(node.address):
        failed = await client.submit("heal", {"a": "x" * 300}, name="n" * 150, labels={"team": "t" * 150})
        await client.wait(failed.job_id, timeout=20)
        await client.submit("nobody." + "y" * 150, None)
        await client.create_schedule(NewSchedule(name="nightly", handler="z" * 190, every=timedelta(hours=1)))
        await page.set_viewport_size({"width": 360, "height": 740})
        grounds = set()
        for path in (*PAGES, f"/jobs/{failed.job_id}"):
            await page.goto(f"ns/default{path}")
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert (path, width) == (path, 360)
            unnamed = "input:not([type=hidden]), button, a, summary"
            for control in await page.locator(unnamed).all():
                assert await control.evaluate(
                    "one => Boolean(one.labels?.length || one.textContent.trim() || one.ariaLabel)"
                )
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
                assert (path, scheme, await faint_texts(page)) == (path, scheme, [])
                grounds.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2
    assert complaints == []


async def test_the_first_key_leads_past_the_menu(page: Page) -> None:
    await page.goto("ns/default/")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
