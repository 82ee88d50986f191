"""The zone of a machine, from what its /etc holds."""

from pathlib import Path

import pytest

from shard_manager.shardctl.machine_zone import machine_zone


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "/usr/share/zoneinfo/Europe/Paris",
        "../usr/share/zoneinfo/Europe/Paris",
        "/usr/share/zoneinfo/posix/Europe/Paris",
        "/var/db/timezone/zoneinfo/Europe/Paris",
    ],
)
def test_the_link_names_the_zone(root: Path, target: str) -> None:
    (root / "etc/localtime").symlink_to(target)
    (root / "etc/timezone").write_text("America/Lima\n")
    assert machine_zone(root) == "Europe/Paris"


def test_the_file_helps_out_where_localtime_is_a_copy_or_names_nothing_known(root: Path) -> None:
    (root / "etc/timezone").write_text("America/Lima\n")
    assert machine_zone(root) == "America/Lima"
    (root / "etc/localtime").write_bytes(b"TZif2")
    assert machine_zone(root) == "America/Lima"
    (root / "etc/localtime").unlink()
    (root / "etc/localtime").symlink_to("/usr/share/zoneinfo/Nowhere/City")
    assert machine_zone(root) == "America/Lima"


def test_no_zone_is_told_where_none_is_known(root: Path) -> None:
    assert machine_zone(root) is None
    (root / "etc/timezone").write_text("/etc/passwd")
    assert machine_zone(root) is None
    (root / "etc/timezone").write_bytes(b"\xff\xfe")
    assert machine_zone(root) is None
