"""A red run begins with the promise that is broken, as a sentence."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEST = """
import pytest

@pytest.mark.parametrize("who", ["a tenant", "an operator"])
def test_nobody_is_given_a_device_twice(who):
    assert who != "a tenant"
"""


def test_a_red_run_says_first_what_does_not_hold_any_more(tmp_path: Path) -> None:
    (tmp_path / "test_devices.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n2",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "test_devices.py",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    after_dots = done.stdout.partition("[100%]\n")[2]
    assert after_dots.splitlines()[0] == "broken promise: nobody is given a device twice[a tenant] (test_devices.py)"
