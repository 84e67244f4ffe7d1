"""A program under any name: it notes how it is called, and ends as `--exit=CODE` among its arguments says."""

import json
import os
import sys
import time

SHOWN = ("SLURM", "CUDA_VISIBLE_DEVICES", "MASTER_", "OMP_", "OWN_")

name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "hostname":
    print(os.environ["SLURMD_NODENAME"])
    sys.exit()
said = {"name": name, "arguments": arguments, "folder": os.getcwd()}
said["environment"] = {key: value for key, value in os.environ.items() if key.startswith(SHOWN)}
with open(os.path.join(os.environ["RECORDS"], f"{time.time_ns()}-{os.getpid()}"), "w") as file:
    json.dump(said, file)
print(name, *arguments)
sys.exit(next((int(each.removeprefix("--exit=")) for each in arguments if each.startswith("--exit=")), 0))
