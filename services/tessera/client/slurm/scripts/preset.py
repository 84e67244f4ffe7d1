"""Options of `sbatch` and `salloc` that variables of the calling shell say, as Slurm reads them. Pure."""

from collections.abc import Mapping

from tessera.client.slurm.scripts.options import KNOWN, Asked

_SAID_BY_VARIABLES = (
    *("account", "acctg-freq", "array", "clusters", "constraint", "container", "core-spec", "cpus-per-gpu"),
    *("delay-boot", "distribution", "error", "exclusive", "export", "get-user-env", "gpu-bind", "gpu-freq", "gpus"),
    *("gpus-per-node", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name", "mem", "mem-bind"),
    *("mem-per-cpu", "mem-per-gpu", "network", "no-kill", "no-requeue", "open-mode", "output", "overcommit"),
    *("partition", "profile", "qos", "requeue", "reservation", "signal", "spread-job", "switches", "thread-spec"),
    *("threads-per-core", "time", "tres-per-task", "use-min-nodes", "wait", "wait-all-nodes", "wckey"),
)
_OTHERWISE = {"array": "ARRAY_INX", "mem": "MEM_PER_NODE", "switches": "REQ_SWITCH", "time": "TIMELIMIT"}
_PREFIXES = {"sbatch": "SBATCH_", "salloc": "SALLOC_"}


def preset(command: str, environment: Mapping[str, str]) -> list[Asked]:
    """
    What the environment asks of the command, before what its line says: `SBATCH_PARTITION` is `--partition`.

    Empty variables say nothing. Those of `srun` are not read: they have the names that a job's own variables have.
    """
    found = list[Asked]()
    for name in _SAID_BY_VARIABLES if command in _PREFIXES else ():
        variable = _PREFIXES[command] + _OTHERWISE.get(name, name.upper().replace("-", "_"))
        if value := environment.get(variable, ""):
            found.append((name, "yes" if KNOWN[name].flag and value in ("1", "exclusive") else value))
    return found
