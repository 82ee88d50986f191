"""Where a browser is sent on to."""

import pytest

from server.web.session import local_path


@pytest.mark.parametrize("path", ["/", "/ns/a/jobs?state=failed&page=x", "/ns/a/schedules/b/c%3Ad"])
def test_paths_of_ours_are_gone_to(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "target",
    ["", "jobs", "//evil.example", "/\\evil.example", "https://evil.example/", "javascript:x", "/a\r\nb", "\t//evil"],
)
def test_anything_else_leads_to_the_start(target: str) -> None:
    assert local_path(target) == "/"
