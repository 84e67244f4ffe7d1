"""`python -m tests.clients`: make the environment of libraries and Jupyter, and run them; as `make test-clients`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    sys.exit(subprocess.run(["make", "test-clients"], cwd=ROOT, check=False).returncode)
