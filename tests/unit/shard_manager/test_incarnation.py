"""The locked file that proves a predecessor dead."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shard_manager.errors import DataDirInUse
from shard_manager.incarnation import IncarnationFile

HOLDER = """
import sys, time
from pathlib import Path
from shard_manager.incarnation import IncarnationFile
held = IncarnationFile(Path(sys.argv[1]))
print(held.current, flush=True)
time.sleep(60)
"""
REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_first_start_has_no_predecessor(tmp_path: Path) -> None:
    first = IncarnationFile(tmp_path / "new" / "incarnation")
    assert first.replaces == ()
    assert 1 <= first.current < 2**63
    first.close()
    first.close()


def test_each_start_knows_those_before_it_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    seen: list[int] = []
    for _ in range(70):
        start = IncarnationFile(path)
        assert list(start.replaces) == seen[-64:]
        seen.append(start.current)
        start.close()
    assert len(set(seen)) == 70


def test_two_live_processes_cannot_share_a_data_directory(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    with holder:
        assert holder.stdout is not None
        incarnation = int(holder.stdout.readline())
        with pytest.raises(DataDirInUse, match="incarnation"):
            IncarnationFile(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
    successor = IncarnationFile(path)
    assert successor.replaces == (incarnation,)
    successor.close()


@pytest.mark.parametrize("content", [b"12\n34", b"garbage\n12\n\n-3\n", b"12\n" + b"9" * 400 + b"\n"])
def test_lines_that_prove_nothing_are_passed_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "incarnation"
    path.write_bytes(content)
    start = IncarnationFile(path)
    assert start.replaces == (12,)
    start.close()
