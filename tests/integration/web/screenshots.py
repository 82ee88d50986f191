"""Takes the pictures of docs/dashboard.md: `python -m tests.integration.web.screenshots [SECONDS]`.

So long the cluster works before the pictures are taken; 150 if it is left out.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Browser, async_playwright

from server.store.migrate import apply_role_settings, migrate
from tests.integration.web.scene import shop
from tests.support.chromium import HOW_TO_GET, chromium
from tests.support.postgres import PostgresServer

FOLDER: Final = Path(__file__).resolve().parents[3] / "docs" / "images"
FAILED: Final = "/jobs?state=failed"


async def main(seconds: float) -> None:
    """Start a cluster, let it work, and look at it."""
    if chromium() is None:
        sys.exit(f"no Chromium here: {HOW_TO_GET}")
    with PostgresServer() as server, tempfile.TemporaryDirectory() as folder:
        dsn = server.dsn(server.create_database())
        await migrate(dsn)
        await apply_role_settings(dsn)
        async with shop(dsn, Path(folder)) as cluster, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            await asyncio.sleep(seconds)
            root = f"http://{cluster.nodes[0].http.address}/ns/default"
            await take(browser, "overview", root + "/", width=1080, height=760)
            await take(browser, "job", root + FAILED, width=1080, height=860, scheme="dark", follow=True)
            await take(browser, "shards", root + "/shards", width=1080, height=560, scheme="dark")
            await take(browser, "phone", root + FAILED, width=360, height=760)
            await browser.close()


async def take(
    browser: Browser,
    name: str,
    url: str,
    *,
    width: int,
    height: int,
    scheme: Literal["light", "dark"] = "light",
    follow: bool = False,
) -> None:
    """Take one picture; with `follow`, of the first job that the page lists."""
    page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    await page.goto(url)
    if follow:
        await page.locator("a.id").first.click()
        await page.wait_for_load_state()
    await page.screenshot(path=FOLDER / f"dashboard-{name}.png")
    await page.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 150.0))
