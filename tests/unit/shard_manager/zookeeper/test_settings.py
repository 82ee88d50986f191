"""What a node is told about the ensemble."""

import pytest

from shard_manager.errors import InvalidSetting
from shard_manager.zookeeper import ZookeeperSettings
from shard_manager.zookeeper.settings import DEFAULT_CHROOT

HOSTS = ("127.0.0.1:2181",)


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("zk:2181", ("zk:2181",), DEFAULT_CHROOT),
        ("zk:2181/", ("zk:2181",), DEFAULT_CHROOT),
        ("a:1, b:2,c:3/jobs/blue/", ("a:1", "b:2", "c:3"), "/jobs/blue"),
        ("[::1]:2181/x", ("[::1]:2181",), "/x"),
    ],
)
def test_servers_and_path_are_split(text: str, hosts: tuple[str, ...], chroot: str) -> None:
    assert ZookeeperSettings.split(text) == (hosts, chroot)
    settings = ZookeeperSettings(hosts=hosts, chroot=chroot)
    assert (settings.hosts, settings.chroot) == (hosts, chroot)


@pytest.mark.parametrize("host", ["zk", "zk:", "zk:0", "zk:65536", ":2181", "zk:http", "http://zk:2181", "a b:1"])
def test_a_server_without_host_or_port_is_refused(host: str) -> None:
    with pytest.raises(InvalidSetting, match="HOST:PORT") as caught:
        ZookeeperSettings(hosts=(host,))
    assert caught.value.field == "zookeeper"


def test_no_server_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="at least one"):
        ZookeeperSettings(hosts=ZookeeperSettings.split("/path")[0])


@pytest.mark.parametrize("chroot", ["", "/", "x", "/a//b", "/a/", "/..", "/a/./b", "/zö", "/a b"])
def test_a_path_that_zookeeper_would_not_take_is_refused(chroot: str) -> None:
    with pytest.raises(InvalidSetting, match="/shardwheel"):
        ZookeeperSettings(hosts=HOSTS, chroot=chroot)


@pytest.mark.parametrize("auth", ["nodes", "nodes:", ":secret"])
def test_incomplete_credentials_are_refused_and_not_shown(auth: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        ZookeeperSettings(hosts=HOSTS, auth=auth)
    assert caught.value.field == "zookeeper_auth"
    assert auth not in str(caught.value)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(ZookeeperSettings(hosts=HOSTS, auth="nodes:secret"))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="together"):
        ZookeeperSettings(hosts=HOSTS, use_ssl=True, certfile="a.pem")
    with pytest.raises(InvalidSetting, match="must be on"):
        ZookeeperSettings(hosts=HOSTS, ca="ca.pem")
    with pytest.raises(InvalidSetting, match="SCHEME:ID"):
        ZookeeperSettings(hosts=HOSTS, acl=("node-a",))
