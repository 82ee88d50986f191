"""The embedded PostgreSQL server: first start, later starts, and everything that a kill can leave behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from server.embedded import EmbeddedPostgres, EmbeddedPostgresError, PostgresInstallation, StopMode
from server.embedded.remains import server_processes
from tests.support.postgres import PostgresServer, default_installation, installations
from tests.support.scratch import make_folder
from tests.support.stopping import stop_process
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = {"fsync": "off", "shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap"}

# Starts a server in the folder named by its argument, says where it is, and waits to be killed.
PARENT = """
import sys
from pathlib import Path
from server.embedded import EmbeddedPostgres, PostgresInstallation
server = EmbeddedPostgres(
    Path(sys.argv[1]),
    ephemeral=sys.argv[2] == "ephemeral",
    installation=PostgresInstallation(bin_dir=Path(sys.argv[3])),
    settings={"fsync": "off", "dynamic_shared_memory_type": "mmap"},
)
server.start()
print(server.pid, server.dsn, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account may pass through, unlike pytest's own."""
    path = make_folder("shardwheel-embedded-")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    with make_server(folder) as running:
        yield running


def make_server(folder: Path, **settings: str) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder / "data", installation=default_installation(), settings=SETTINGS | settings)


def add_row(dsn: str) -> int:
    """Commit one row, and return how many there are then."""
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS rows (n int)")
        connection.execute("INSERT INTO rows VALUES (1)")
        row = connection.execute("SELECT count(*) FROM rows").fetchone()
    assert row is not None
    count = row[0]
    assert isinstance(count, int)
    return count


def alive(pid: int) -> bool:
    """Say whether a process runs; one that only waits for its parent to look at its exit code does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_parent(data: Path, kind: str, *prefix: str) -> tuple[subprocess.Popen[str], int, str]:
    """Start a process that runs a server; return it, the postmaster's id and the connection URI."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [*prefix, sys.executable, "-c", PARENT, str(data), kind, str(default_installation().bin_dir)]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pid, dsn = parent.stdout.readline().split()
    return parent, int(pid), dsn


def finish(parent: subprocess.Popen[str]) -> None:
    for stream in (parent.stdin, parent.stdout):
        assert stream is not None
        stream.close()
    parent.wait(10)


def test_makes_role_and_database_and_keeps_them_over_restarts(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn) as connection:
        names = connection.execute("SELECT current_user, current_database()").fetchone()
    assert names == ("shardwheel", "shardwheel")
    assert add_row(server.dsn) == 1
    address = server.dsn

    server.stop()
    assert not server.running
    server.start()

    assert server.dsn == address
    assert add_row(server.dsn) == 2


def test_asks_for_a_password(server: EmbeddedPostgres) -> None:
    wrong = server.dsn.replace(server.dsn.split(":")[2].split("@")[0], "guess")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)
    for name in ("password", "pgdata"):
        assert (server.data_dir / name).stat().st_mode & 0o077 == 0


def test_does_not_run_as_root_and_hears_no_ctrl_c(server: EmbeddedPostgres) -> None:
    process = psutil.Process(server.pid)
    assert process.uids().effective != 0
    assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.parametrize("mode", list(StopMode))
def test_stops_in_every_mode(server: EmbeddedPostgres, mode: StopMode) -> None:
    add_row(server.dsn)
    server.stop(mode)
    assert server_processes(server.data_dir / "pgdata") == []
    server.start()
    assert add_row(server.dsn) == 2


def test_a_smart_stop_that_takes_too_long_becomes_a_fast_one(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn) as connection:
        server.stop(StopMode.SMART, timeout_s=0.2)
        assert not server.running
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_starts_again_after_a_kill_of_the_server(server: EmbeddedPostgres) -> None:
    add_row(server.dsn)
    port = server.port
    server.kill()
    assert server_processes(server.data_dir / "pgdata") == []
    server.start()
    assert server.port == port
    assert add_row(server.dsn) == 2


def test_starts_again_after_the_server_died_by_itself(server: EmbeddedPostgres) -> None:
    add_row(server.dsn)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.running, what="the end of the postmaster")
    server.start()
    assert add_row(server.dsn) == 2


def test_starts_again_after_a_kill_of_everything(folder: Path) -> None:
    parent, pid, dsn = start_parent(folder / "data", "kept")
    assert add_row(dsn) == 1
    # The parent, its watchdog, and the server with all its processes.
    for child in psutil.Process(parent.pid).children(recursive=True):
        child.kill()
    parent.kill()
    finish(parent)
    wait_until(lambda: not alive(pid), what="the end of the postmaster")
    assert (folder / "data" / "pgdata" / "postmaster.pid").exists()

    with make_server(folder) as server:
        assert add_row(server.dsn) == 2


def test_the_server_ends_with_its_parent(folder: Path) -> None:
    parent, pid, _ = start_parent(folder / "data", "kept")
    parent.kill()
    finish(parent)
    wait_until(lambda: not alive(pid), what="the end of the server")
    assert (folder / "data" / "pgdata").exists()


def test_an_ephemeral_server_leaves_nothing_when_its_parent_is_killed(folder: Path) -> None:
    parent, pid, _ = start_parent(folder / "data", "ephemeral")
    parent.kill()
    finish(parent)
    wait_until(lambda: not (folder / "data").exists(), what="the removal of the folder")
    assert not alive(pid)


def test_takes_over_from_a_server_whose_parent_and_watchdog_were_killed(folder: Path) -> None:
    parent, pid, dsn = start_parent(folder / "data", "kept")
    add_row(dsn)
    for child in psutil.Process(parent.pid).children():
        if child.pid != pid:
            child.kill()
    parent.kill()
    finish(parent)
    assert alive(pid)

    with make_server(folder) as server:
        assert server.pid != pid
        assert not alive(pid)
        assert add_row(server.dsn) == 2


def test_ends_a_stopped_back_end_that_outlived_its_postmaster(folder: Path) -> None:
    server = make_server(folder)
    server.start()
    add_row(server.dsn)
    connection = psycopg.connect(server.dsn)
    back_end = connection.info.backend_pid
    stop_process(back_end)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.running, what="the end of the postmaster")
    assert alive(back_end)

    with server:
        assert not alive(back_end)
        assert add_row(server.dsn) == 2
    connection.close()


def test_a_pid_file_that_names_some_other_process_is_no_obstacle(folder: Path) -> None:
    server = make_server(folder)
    server.start()
    add_row(server.dsn)
    server.kill()
    pid_file = server.data_dir / "pgdata" / "postmaster.pid"
    with subprocess.Popen(["sleep", "600"]) as bystander:
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
        with server:
            assert add_row(server.dsn) == 2
        assert bystander.poll() is None
        bystander.kill()


def test_an_interrupted_first_start_is_begun_anew(folder: Path) -> None:
    half = folder / "data" / "pgdata.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with make_server(folder) as server:
        assert add_row(server.dsn) == 1


def test_a_folder_in_use_is_refused(server: EmbeddedPostgres) -> None:
    second = EmbeddedPostgres(server.data_dir)
    with pytest.raises(EmbeddedPostgresError, match=f"in use by process {os.getpid()}; stop that process"):
        second.start()
    assert add_row(server.dsn) == 1


def test_a_port_that_was_taken_meanwhile_is_changed_and_remembered(server: EmbeddedPostgres) -> None:
    add_row(server.dsn)
    taken = server.port
    server.stop()
    with socket.create_server(("127.0.0.1", taken)):
        server.start()
        moved = server.port
        assert moved != taken
        assert add_row(server.dsn) == 2
    server.stop()
    server.start()
    assert server.port == moved


def test_data_of_another_major_version_are_refused(folder: Path) -> None:
    server = make_server(folder)
    server.start()
    server.stop()
    (server.data_dir / "pgdata" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedPostgresError, match=r"are of PostgreSQL 9, the programs of \d+"):
        server.start()


def test_a_failed_start_shows_the_log_and_frees_the_folder(folder: Path) -> None:
    broken = make_server(folder, shared_buffers="many")
    with pytest.raises(EmbeddedPostgresError, match="invalid value for parameter"):
        broken.start()
    with make_server(folder) as server:
        assert add_row(server.dsn) == 1


def test_a_folder_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "data").write_text("a file")
    with pytest.raises(EmbeddedPostgresError, match=r"cannot use .*data for data"):
        make_server(folder).start()


def test_missing_programs_are_named(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "data", installation=PostgresInstallation(bin_dir=folder))
    with pytest.raises(EmbeddedPostgresError, match="no program 'postgres'"):
        server.start()


def test_works_below_a_private_folder(folder: Path) -> None:
    # As below root's home: no other account may pass, and PostgreSQL does not run as root.
    private = folder / "private"
    private.mkdir(mode=0o700)
    with make_server(private) as server:
        assert add_row(server.dsn) == 1
    assert private.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all the other tests in this way")
def test_an_ordinary_user_runs_it_as_himself(folder: Path) -> None:
    uid = 65534
    home = folder / "home"
    home.mkdir()
    os.chown(home, uid, uid)
    # The capability lets the interpreter be read wherever it is installed.
    become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    passing = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup", "--")
    parent, pid, dsn = start_parent(home / "data", "kept", *become, *passing)
    assert psutil.Process(pid).uids().effective == uid
    assert add_row(dsn) == 1
    parent.kill()
    finish(parent)
    wait_until(lambda: not alive(pid), what="the end of the server")


def test_databases_of_the_test_server_are_separate_copies(postgres: PostgresServer) -> None:
    template = postgres.create_database()
    add_row(postgres.dsn(template))
    copies = [postgres.create_database(template) for _ in range(2)]
    assert [add_row(postgres.dsn(copy)) for copy in copies] == [2, 2]
    for name in (*copies, template):
        postgres.drop_database(name)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(postgres.dsn(template))


@pytest.mark.parametrize("installation", installations(), ids=lambda found: f"pg{found.major}")
def test_every_postgres_at_hand_can_be_used_and_killed(installation: PostgresInstallation) -> None:
    with PostgresServer(installation=installation) as server:
        assert server.major == installation.major
        assert add_row(server.dsn()) == 1
        server.kill9()
        server.start()
        server.restart()
        assert add_row(server.dsn()) == 2
