import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path

import pytest

from server.domain.errors import InvalidInput
from server.domain.zones import load_zone, tzdata_version, zone_names


def test_the_default_is_utc() -> None:
    assert load_zone().key == "UTC"
    assert datetime(2026, 7, 1, tzinfo=load_zone()).utcoffset() == timedelta()


def test_every_known_name_loads() -> None:
    assert len(zone_names()) > 500
    for name in zone_names():
        zone = load_zone(name)
        assert zone.key == name
        assert datetime(2026, 7, 1, tzinfo=zone).utcoffset() is not None


def test_zones_do_not_come_from_the_operating_system(tmp_path: Path) -> None:
    (tmp_path / "Europe").mkdir()
    tokyo = resources.files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes()
    (tmp_path / "Europe" / "Paris").write_bytes(tokyo)
    moment = datetime(2026, 7, 1, 12, tzinfo=UTC)
    zoneinfo.reset_tzpath(to=[tmp_path])
    try:
        load_zone.cache_clear()
        assert moment.astimezone(zoneinfo.ZoneInfo.no_cache("Europe/Paris")).hour == 21
        assert moment.astimezone(load_zone("Europe/Paris")).hour == 14
    finally:
        zoneinfo.reset_tzpath()


def test_a_zone_is_loaded_once() -> None:
    assert load_zone("Europe/Paris") is load_zone("Europe/Paris")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "give a name such as"),
        ("Mars/Olympus", "give a name such as"),
        ("localtime", "give a name such as"),
        ("posixrules", "give a name such as"),
        ("Factory", "give a name such as"),
        ("/etc/localtime", "give a name such as"),
        ("../zones", "give a name such as"),
        ("Europe/../Europe/Paris", "give a name such as"),
        ("Europe", "give a name such as"),
        ("tzdata.zi", "give a name such as"),
        ("UTC+2", "give a name such as"),
        ("Europe/Paris\x00", "give a name such as"),
        ("europe/paris", "do you mean Europe/Paris?"),
        ("America/New York", "do you mean America/New_York?"),
        ("Europe/" + "P" * 10_000, "more than 64 characters"),
    ],
)
def test_unknown_names_are_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_zone(name)
    assert refused.value.field == "time_zone"
    assert reason in refused.value.reason


def test_the_version_of_the_zone_data_is_known() -> None:
    assert tzdata_version()[:2] == "20"
