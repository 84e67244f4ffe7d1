"""`tessera demo` as somebody who has never seen it runs it: real servers, real services, one of them killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 300
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
DEMO = [sys.executable, "-m", "tessera", "demo", "--jobs", "30", "--nodes", "8"]


def left_running(home: Path) -> list[str]:
    """Command lines of processes that were started for this directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in line:
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_it_ends_well_though_the_scheduler_is_killed_and_says_so(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    ran = subprocess.run(
        [*DEMO, "--keep", str(home)], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    titles = {line[:17].strip() for line in lines}
    assert {"jobs", "allocations", "waits", "GPUs", "failover", "checker", "replay --verify"} <= titles
    assert any("34 submitted" in line and "0 lost" in line for line in lines)
    story = [line[9:] for line in lines if line[9:13] == "test"]
    urgent = next(index for index, line in enumerate(story) if "is submitted while test2 runs" in line)
    assert any(line.startswith("test2    is stopped (Preempted)") for line in story[urgent:])
    ends = [line.split()[0] for line in story if line.endswith("succeeded")]
    assert ends == ["test1", "test-p1", "test2", "test3"]
    assert any("kill -9 scheduler" in line for line in lines)
    assert "All is well." in lines
    rules = [index for index, line in enumerate(lines) if line.startswith("──")]
    assert len(rules) == 2
    assert all(len(line) <= 80 for line in lines[rules[0] : rules[1]])
    assert not (home / "platform.json").exists()
    assert left_running(home) == []


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    process = subprocess.Popen(
        [*DEMO, "--keep", str(home)], env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    deadline = time.monotonic() + SECONDS
    while "All are answered" not in (line := process.stdout.readline()):
        assert line, "it ended before any job was answered"
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "interrupted; everything is stopped" in rest
    assert left_running(home) == []


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    ran = subprocess.run(
        [*DEMO, "--keep", str(tmp_path)], env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.returncode == 2
    assert "is not empty" in ran.stderr
