"""
A batch script on pods that are Slurm's nodes: what a pod has, and the variables with which the script begins. Pure.

The script runs once, in the first pod, and starts its tasks with `srun`, which the step runner brings.
"""

from collections.abc import Sequence

from tessera.client.slurm import values
from tessera.client.slurm.scripts.layout import NodeSize, PodLayout, Wanted, folded, layout_of
from tessera.client.slurm.scripts.script import WAYS_TO_COUNT, WAYS_TO_REMEMBER, ScriptOptions
from tessera_schemas.work.pod_template import literally

NODE = "$(TESSERA_JOB_ID)-$(TESSERA_ATTEMPT)-"
CORE, MIB = 1000, 1 << 20
_OF_TASKS = "GTIDS LAUNCH_NODE_IPADDR SRUN_COMM_HOST STEPID TASK_PID STEP_GPUS STEP_ID STEP_NODELIST STEP_NUM_NODES"
_OF_TASKS += " STEP_NUM_TASKS STEP_TASKS_PER_NODE"
OF_TASKS = tuple(f"SLURM_{name}" for name in _OF_TASKS.split())
"""Variables that the step runner gives each task of a step, beside those of the script."""


def layout(options: ScriptOptions, rooms: Sequence[NodeSize]) -> PodLayout:
    """The script's tasks on pods; no pod is larger than a node where it says no number of nodes. Raises Failure."""
    most, gpus, of_task = _optional(options, "ntasks-per-node"), _gpus(options, "gpus"), _gpus(options, "gpus-per-task")
    of_node = _gpus(options, "gpus-per-node") or _gpus(options, "gres")
    tasks = _optional(options, "ntasks")
    if "ntasks-per-gpu" in options:
        of_gpu = options.count("ntasks-per-gpu")
        tasks, most = tasks or gpus * of_gpu or None, most or of_node * of_gpu or None
        if tasks is None and most is None:
            options.value("ntasks-per-gpu").fail("it says no number of GPUs; say --gpus or --gpus-per-node")
    elif tasks is None and most is None and gpus and of_task:
        tasks = max(1, gpus // of_task)
    cpus = options.count("cpus-per-task") if "cpus-per-task" in options else 0
    memory = values.memory_of(options.value("mem-per-cpu")) * max(cpus, 1) if "mem-per-cpu" in options else 0
    of_cpu = cpus * CORE or (0 if gpus or of_task or of_node else CORE)
    wanted = Wanted(_optional(options, "nodes"), tasks, most, gpus, _model(options), of_task, of_cpu, memory)
    try:
        return layout_of(wanted, rooms)
    except ValueError as error:
        raise options.fail(str(error)) from None


def gpus_of_pod(options: ScriptOptions, on: PodLayout) -> tuple[int, str]:
    """GPUs of one pod and their model. Raises Failure."""
    ways: dict[str, int] = {}
    for name in filter(options.__contains__, WAYS_TO_COUNT):
        gpus, _ = values.gpus_of(options.value(name))
        if name == "gpus" and gpus % len(on.tasks):
            options.value(name).fail(f"{gpus} GPUs do not lie evenly on {len(on.tasks)} nodes; say --gpus-per-node")
        ways[name] = gpus // len(on.tasks) if name == "gpus" else gpus * on.most if name == "gpus-per-task" else gpus
    if len(set(ways.values())) > 1:
        raise options.fail(f"--{' and --'.join(ways)} do not say the same number of GPUs of a node; say one of them")
    return next(iter(ways.values()), 0), _model(options)


def cpus_of_pod(options: ScriptOptions, tasks: int, gpus: int) -> str:
    """CPUs of a pod with so many tasks and GPUs, "" where nothing says how many."""
    name = options.one_of(("cpus-per-task", "cpus-per-gpu"))
    if name == "cpus-per-gpu" and not gpus:
        options.value(name).fail("it has no GPU; say --cpus-per-task or --gpus")
    return str(options.count(name) * (gpus if name == "cpus-per-gpu" else tasks)) if name else ""


def is_share_enough(tasks: int, gpus: int, rooms: Sequence[NodeSize]) -> bool:
    """Whether the CPUs that come with so many GPUs of a node, as its part, are one at least for each task."""
    return gpus > 0 and all(room.cpu_milli * gpus >= tasks * CORE * room.gpus for room in rooms if room.gpus)


def memory_of_pod(options: ScriptOptions, sharers: int, cpus: int, gpus: int) -> int:
    """
    Bytes of memory of a pod: its part of a node that so many pods share, or what comes with its CPUs or GPUs; 0 where
    nothing says how much.
    """
    name = options.one_of(WAYS_TO_REMEMBER)
    if not name:
        return 0
    said = options.value(name)
    if name == "mem-per-gpu" and not gpus:
        said.fail("it has no GPU; say --mem or --gpus")
    amount = values.memory_of(said)
    return {"mem": amount // sharers, "mem-per-cpu": amount * cpus, "mem-per-gpu": amount * gpus}[name]


def variables(options: ScriptOptions, name: str, on: PodLayout, cpus: str, gpus: int) -> dict[str, str]:
    """Slurm's variables with which the script begins, those that Slurm sets only if they are said too; no array's."""
    pods = len(on.tasks)
    hosts = f"{NODE}[0-{pods - 1}]" if pods > 1 else f"{NODE}0"
    found = {
        "SLURM_JOB_ID": "$(TESSERA_JOB_NUMBER)",
        "SLURM_JOBID": "$(TESSERA_JOB_NUMBER)",
        "SLURM_JOB_NAME": literally(name),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "$(TESSERA_RANK)",
        "SLURM_NNODES": str(pods),
        "SLURM_JOB_NUM_NODES": str(pods),
        "SLURM_TASKS_PER_NODE": on.folded,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        "SLURMD_NODENAME": f"{NODE}$(TESSERA_RANK)",
    }
    if on.total is not None:
        found |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(on.total))
    if cpus:
        found |= {"SLURM_CPUS_ON_NODE": cpus, "SLURM_JOB_CPUS_PER_NODE": folded((int(cpus),) * pods)}
    if gpus:
        seen = ",".join(map(str, range(gpus)))  # a container counts its GPUs from 0 on
        found |= {"SLURM_GPUS_ON_NODE": str(gpus), **dict.fromkeys(("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"), seen)}
    said = {
        "SLURM_CPUS_PER_TASK": "cpus-per-task",
        "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
        "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
        "SLURM_GPUS": "gpus",
        "SLURM_GPUS_PER_NODE": "gpus-per-node",
        "SLURM_GPUS_PER_TASK": "gpus-per-task",
        "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
        "SLURM_GPU_BIND": "gpu-bind",
    }
    found |= {variable: literally(options.value(option).text) for variable, option in said.items() if option in options}
    for option, variable in zip(WAYS_TO_REMEMBER, ("NODE", "CPU", "GPU"), strict=True):
        if option in options and (memory := values.memory_of(options.value(option))):
            found[f"SLURM_MEM_PER_{variable}"] = str(memory // MIB)
    return found


def _optional(options: ScriptOptions, name: str) -> int | None:
    return options.count(name) if name in options else None


def _gpus(options: ScriptOptions, name: str) -> int:
    return values.gpus_of(options.value(name))[0] if name in options else 0


def _model(options: ScriptOptions) -> str:
    models = {values.gpus_of(options.value(name))[1] for name in WAYS_TO_COUNT if name in options} - {""}
    if len(models) > 1:
        raise options.fail(f"{' and '.join(sorted(models))}: a node has GPUs of one model; say one of them")
    return next(iter(models), "")
