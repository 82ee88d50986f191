"""What `shardwheel dev` shows when it is ready: addresses, and commands to copy."""

import shlex
import shutil
import sys
from pathlib import Path

from server.cli.version import installed_version
from server.embedded import EmbeddedPostgres

_DEFAULT_ADDRESS = "127.0.0.1:7400"


def next_steps(address: str, http_address: str, server: EmbeddedPostgres) -> str:
    """Return the text; `http_address` is empty if there is no HTTP port."""
    before = "" if address == _DEFAULT_ADDRESS else f"SHARDWHEEL_ADDRESS={address} "
    folder = shlex.quote(str(server.data_dir))
    shardctl = before + _program("shardctl")
    dashboard = f"http://{http_address}/" if http_address else "off"
    return f"""
shardwheel {installed_version()} is ready; Ctrl-C stops it, the data stay

  gRPC         {address}
  Dashboard    {dashboard}
  PostgreSQL   PGPASSWORD="$(cat {folder}/password)" psql -h 127.0.0.1 -p {server.port} -U shardwheel shardwheel

Next, in other terminals: a worker, a job for it, and a look at the cluster

  {before}{_program("python")} -m worker_sdk server.demo.hello:worker
  {shardctl} jobs submit hello '{{"name": "you"}}' --wait
  {shardctl} status
"""


def _program(name: str) -> str:
    """Return how a program of this installation is called from a shell: by its name if that finds it."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    return name if found is not None and Path(found) == here else shlex.quote(str(here))
