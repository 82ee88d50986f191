"""The browser of the dashboard's tests: a Chromium that is on this machine, installed if that may be.

`python -m tests.support.chromium` installs it, and says so if it cannot be had.
"""

import os
import shutil
import sys
from typing import Final

from server.embedded.debian import InstallFailed, install, install_command, may_install

#: Names a Chromium or Chrome to use instead of the one that is found.
VARIABLE: Final = "SHARDWHEEL_TEST_CHROMIUM"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The fonts are for people who look at pictures of the pages.
_PACKAGES: Final = ("chromium", "fonts-liberation")

HOW_TO_GET: Final = f"run `{' '.join(install_command(_PACKAGES))}` as root, or name one in {VARIABLE}=PATH"


def chromium() -> str | None:
    """Return the program, None if there is none."""
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, _NAMES)), None)


def main() -> None:
    """Install it unless it is there; exit code 1 and one line if it cannot be had."""
    if chromium() is not None:
        return
    if not may_install():
        sys.exit(f"no Chromium here, so the dashboard is tested without a browser: {HOW_TO_GET}")
    try:
        install(_PACKAGES, lambda: chromium() is not None)
    except InstallFailed as error:
        sys.exit(f"the dashboard is tested without a browser: {error}")


if __name__ == "__main__":
    main()
