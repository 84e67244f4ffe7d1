"""The job that a batch script asks for. Pure: the environment and the time are arguments."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter

from tessera.client.slurm import values
from tessera.client.slurm.scripts import nodes, pods
from tessera.client.slurm.scripts.against import Against, Lost, Tasks
from tessera.client.slurm.scripts.in_scripts import found_in, lost_to_steps
from tessera.client.slurm.scripts.in_variables import EXPORTED_MAX, kept_here, variables_lost, variables_read
from tessera.client.slurm.scripts.layout import NodeSize, PodLayout
from tessera.client.slurm.scripts.pods import ScriptCommand
from tessera.client.slurm.scripts.script import WAYS_TO_COUNT, Script, ScriptOptions
from tessera.client.slurm.values import Said
from tessera_schemas.base import Json
from tessera_schemas.work.pod_template import literally

_TASKS = frozenset({"nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu"})
_STARTS = re.compile(r"\b(?:srun|scontrol|scancel|squeue|mpirun|mpiexec|orterun|ssh|pdsh)\b")
HOSTNAME = "kubernetes.io/hostname"
BROKEN_BY_OTHERS = [
    "NodeLost",
    "NodeShrunk",
    "NodeRestarted",
    "NodeShutDown",
    "NodePressure",
    "PodEvicted",
    "PodDeleted",
]
TRIED_ONCE: Json = {"max_attempts": 1, "rules": [{"causes": BROKEN_BY_OTHERS, "action": "fail"}]}
"""The retry of `--no-requeue`: whatever broke a run, its program is not started a second time."""


def needs_steps(script: Script) -> bool:
    """Whether a script has several tasks or nodes, or speaks of what starts them."""
    return not _TASKS.isdisjoint(script.options) or _STARTS.search(script.text) is not None


def job_of(
    script: Script,
    image: str | None,
    environment: Mapping[str, str],
    now: datetime,
    against: Against,
    rooms: Sequence[NodeSize] | None = None,
) -> Json:
    """
    The job as a file of ours would say it, its dependencies left out.

    With the `rooms` of the pool's nodes (empty: not known) its pods are Slurm's nodes, and the script runs once; with
    None a pod is a task and runs the whole script.

    What cannot be meant is noted in `against`, and has a plain value in the job, so that the rest can be judged.
    """
    options = ScriptOptions(script)
    _check_each(options, environment, now, against)
    tried, asked = against.tried, script.options
    image = tried("container-image", lambda: _image(options, image), "image")
    if not image:
        against.add(
            "container-image",
            f"{script.where}: no container image; add `#SBATCH --container-image=IMAGE`, or say --container-image, or "
            "set TESSERA_CONTAINER_IMAGE",
        )
    if values.is_unbounded(asked.get("time", "1")):
        against.notes.append(f"{script.where}: --time={asked['time']}: no limit but the configuration's default")
    name = asked.get("job-name") or script.where.rpartition("/")[2]
    array = tried("array", lambda: _array(options), dict[str, str | int]())
    warning = tried("signal", lambda: _warning(options), None)
    shape = (
        _by_task(options, name, warning, against)
        if rooms is None
        else _on_nodes(options, name, rooms, warning, against)
    )
    role: Json = {"name": "worker", "replicas": shape.pods, **_resources(options, shape, against)}
    if asked.get("exclusive") == "yes":
        role["exclusive"] = True
        if shape.sharers > 1:
            why = f"{shape.sharers} tasks of a node are pods here, and each would have a node to itself"
            against.add("exclusive", f"{script.where}: --exclusive: {why}; leave out --spread-tasks")
    role |= {"affinity": terms} if (terms := tried("", lambda: _affinity(options), list[Json]())) else {}
    slurms = dict(shape.variables) | pods.describe_array(str(array.get("tasks", "")), asked.get("array", ""))
    own = tried("export", lambda: _exported(options, environment), dict[str, str]())
    if values.exports_all(asked.get("export", "ALL")) and not script.in_each_pod:
        own = _read_here(script, environment, slurms, against) | own
    env = {name: literally(value) for name, value in own.items()} | slurms
    command = shape.command
    for mistake in command.mistakes:
        against.add("", mistake)
    if not script.in_each_pod and not command.mistakes:
        _judge_commands(script, shape.lost, against)
        of_tasks = nodes.OF_TASKS if shape.launcher == "steps" else ()
        for lost in variables_lost(script.text, {*env, *of_tasks}):
            against.notes.append(f"{script.where}:{lost.line}: {lost.said}")
    role["template"] = {
        "image": image or "image",
        "command": command.words,
        "env": env,
        **({"working_dir": asked["chdir"]} if "chdir" in options else {}),
        **(
            {"volumes": mounts} if (mounts := tried("container-mounts", lambda: _mounts(options), list[Json]())) else {}
        ),
    }
    job: Json = {"name": name, "roles": [role]}
    job |= {"launcher": shape.launcher} if shape.launcher else {}
    job |= {"array": array} if array else {}
    return job | _read_job_options(options, now, against)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The pods of a script: how many, what each asks for, how it begins in them, and what of it is lost there."""

    pods: int
    gpus: int
    model: str
    cpus: str
    memory: int
    variables: Mapping[str, str]
    command: ScriptCommand
    lost: Sequence[Lost]
    launcher: str
    sharers: int = 1


def _by_task(options: ScriptOptions, name: str, warning: values.SlurmWarning | None, against: Against) -> _Shape:
    """A pod for each task, which runs the whole script."""
    script, tried = options.script, against.tried
    if "gpu-bind" in options and not script.in_each_pod:
        against.notes.append(f"{script.where}: --gpu-bind is passed over: a task is a pod, and sees its own GPUs alone")
    if "ntasks-per-gpu" in options:
        why = "a task is a pod here, and two do not share a GPU; say --ntasks-per-node and --gpus-per-task"
        against.add("ntasks-per-gpu", str(options.fail(f"--ntasks-per-gpu: {why}")))
    tasks, replicas = _tasks(options, against)
    gpus, model = tried("gpus", lambda: _gpus(options, tasks, replicas), (1, ""))
    cpu = tried("cpus-per-task", lambda: nodes.cpus_of_pod(options, 1, gpus), "")
    memory = tried("mem", lambda: nodes.memory_of_pod(options, tasks, int(cpu or 1), gpus), 0)
    of_a_node = tasks if "nodes" in options or "ntasks-per-node" in options else 1
    passes_over = "srun" in script.ignored
    command = pods.command_of(script.text, script.where, script.arguments, of_a_node, passes_over, warning)
    slurms = pods.variables(name, replicas, gpus, cpu)
    if not (script.in_each_pod or needs_steps(script) or "spread-tasks" in options):
        slurms = tried("mem", lambda: nodes.variables(options, name, PodLayout((1,)), cpu, gpus), slurms)
    lost = [] if script.in_each_pod else found_in(script.text, Tasks(replicas, of_a_node, gpus))
    launcher = "torchrun" if replicas > 1 else ""
    return _Shape(replicas, gpus, model, cpu or ("" if gpus else "1"), memory, slurms, command, lost, launcher, tasks)


def _on_nodes(
    options: ScriptOptions, name: str, rooms: Sequence[NodeSize], warning: values.SlurmWarning | None, against: Against
) -> _Shape:
    """A pod for each node of Slurm's; the script runs once, and starts its tasks by steps."""
    script, tried = options.script, against.tried
    on = tried("ntasks", lambda: nodes.layout(options, rooms), PodLayout((1,)))
    gpus, model = tried("gpus", lambda: nodes.gpus_of_pod(options, on), (1, ""))
    said = tried("cpus-per-task", lambda: nodes.cpus_of_pod(options, on.most, gpus), "")
    needed = 1 if "overcommit" in options else on.most
    cpus = said or ("" if nodes.is_share_enough(needed, gpus, rooms) else str(needed))
    memory = tried("mem", lambda: nodes.memory_of_pod(options, 1, int(cpus or on.most), gpus), 0)
    slurms = tried("mem", lambda: nodes.variables(options, name, on, cpus, gpus), dict[str, str]())
    slurms |= (
        {} if warning is None else {"TESSERA_STEPS_WARNING": f"{'B:' if warning.to_script else ''}{warning.signal}"}
    )
    command = pods.command_with_steps(script.text, script.where, script.arguments)
    if len(on.tasks) > 1 or on.most > 1:
        each = f"{on.folded} tasks" if on.total is not None else "one task each"
        against.notes.append(f"{script.where}: {len(on.tasks)} {'pods' if len(on.tasks) > 1 else 'pod'} with {each}")
    return _Shape(len(on.tasks), gpus, model, cpus, memory, slurms, command, lost_to_steps(script.text), "steps")


def _resources(options: ScriptOptions, shape: _Shape, against: Against) -> Json:
    """Amounts that one pod asks for, and the GPU model; what nobody says, as `--mem=0`, is its share of a node."""
    asked: Json = {"cpu": shape.cpus} if shape.cpus else {}
    asked |= {"memory": shape.memory} if shape.memory else {}
    instance, model = values.MIG.fullmatch(shape.model) if shape.gpus else None, shape.model
    if instance is not None:
        asked, model = asked | {"mig_profile": instance["profile"]}, instance["model"]
        asked |= {"gpu_parts": shape.gpus} if shape.gpus > 1 else {}
    elif shape.gpus:
        asked |= {"gpus": shape.gpus}
    gres = against.tried("gres", lambda: _gres(options, shape), dict[str, int]())
    asked |= {"gres": gres} if gres else {}
    return {"resources": asked} | ({"gpu_models": [model]} if model else {})


def _gres(options: ScriptOptions, shape: _Shape) -> dict[str, int]:
    """Generic resources of one pod: those of a node, in equal parts for its tasks where a pod is a task."""
    found = {f"gpu:{shape.model}".rstrip(":"): shape.gpus} if shape.gpus else {}
    if "gres" not in options:
        return found
    said = options.value("gres")
    for name, count in values.gres_of(said).items():
        if values.is_gpu(name):
            continue
        if count % shape.sharers:
            said.fail(f"{count} of {name} do not divide by {shape.sharers} tasks of a node, and a task is a pod here")
        found[name] = count // shape.sharers
    return found


def _judge_commands(script: Script, lost: Sequence[Lost], against: Against) -> None:
    """Notes what commands in the script mean and no pod does."""
    for found in lost:
        said = f"{script.where}:{found.line}: {found.said}"
        if found.refused and found.about not in script.ignored:
            against.add("", f"{said}; or say --ignore {found.about}")
        else:
            against.notes.append(said)


def _read_here(
    script: Script, environment: Mapping[str, str], in_pods: Collection[str], against: Against
) -> dict[str, str]:
    """Variables that the script reads and does not set, as they are here; each is noted, also one that stays here."""
    found = dict[str, str]()
    for line, name in variables_read(script.text, in_pods):
        if name not in environment:
            continue
        value, said = environment[name], f"{script.where}:{line}: ${name}"
        if (why := kept_here(name, value)) or len(found) == EXPORTED_MAX:
            way_out = f"say --export=ALL,{name}"
            against.notes.append(f"{said}: is not handed on: {why or 'too many others are'}; {way_out} for it")
        else:
            found[name] = value
            against.notes.append(f"{said}: goes along as it is here, as with Slurm; --export=NONE leaves it out")
    return found


def _check_each(options: ScriptOptions, environment: Mapping[str, str], now: datetime, against: Against) -> None:
    """Notes all values that cannot be meant by themselves, in the order of the options."""
    readers: dict[str, Callable[[Said], object]] = {
        **values.READERS,
        "begin": partial(values.begin_ms, now=now),
        "deadline": partial(values.begin_ms, now=now),
        "export": partial(values.exported, environment=environment),
    }
    for name in filter(readers.__contains__, options.script.options):
        against.tried(name, partial(readers[name], options.value(name)), None)


def _image(options: ScriptOptions, otherwise: str | None) -> str:
    name, where = "container-image", options.script.where
    return values.image_of(options.value(name) if name in options else Said(where, name, otherwise or ""))


def _warning(options: ScriptOptions) -> values.SlurmWarning | None:
    """The signal before the end; the words of `srun` alone are the script itself."""
    if "signal" not in options:
        return None
    warning = values.warning_of(options.value("signal"))
    return replace(warning, to_script=warning.to_script or options.script.in_each_pod)


def _array(options: ScriptOptions) -> dict[str, str | int]:
    return values.array_of(options.value("array")) if "array" in options else {}


def _mounts(options: ScriptOptions) -> list[Json]:
    return values.mounts_of(options.value("container-mounts")) if "container-mounts" in options else []


def _exported(options: ScriptOptions, environment: Mapping[str, str]) -> dict[str, str]:
    return values.exported(options.value("export"), environment) if "export" in options else {}


def _read_job_options(options: ScriptOptions, now: datetime, against: Against) -> Json:
    asked = options.script.options
    priority = asked.get("qos") or asked.get("priority")
    job: Json = {}
    if "partition" in asked:
        queues = against.tried("partition", partial(values.queues_of, options.value("partition")), [""])
        job |= {"queue": queues[0]} if queues[0] else {}
    job |= {"priority_class": priority} if priority else {}
    job |= {"project": asked["wckey"]} if "wckey" in asked else {}
    readers: dict[str, tuple[str, Callable[[Said], int | None]]] = {
        "time": ("time_limit_seconds", lambda said: values.seconds_of(said) or None),
        "signal": ("termination_grace_seconds", values.grace_of),
        "begin": ("begin_ts", partial(values.begin_ms, now=now)),
        "deadline": ("deadline_ts", partial(values.begin_ms, now=now)),
        "reservation": ("reservation", attrgetter("text")),
    }
    for name in filter(options.__contains__, readers):
        field, read = readers[name]
        value = against.tried(name, partial(read, options.value(name)), None)
        job |= {} if value is None else {field: value}
    return job | ({"retry": TRIED_ONCE} if "no-requeue" in options else {})


def _affinity(options: ScriptOptions) -> list[Json]:
    terms: list[Json] = [*values.constraint_of(options.value("constraint"))] if "constraint" in options else []
    for name, operator in (("nodelist", "In"), ("exclude", "NotIn")):
        if name in options:
            terms.append({"key": HOSTNAME, "operator": operator, "values": values.hosts_of(options.value(name))})
    return terms


def _tasks(options: ScriptOptions, against: Against) -> tuple[int, int]:
    """Tasks of a node, and of the whole job."""
    names = ("nodes", "ntasks-per-node", "ntasks")
    nodes, tasks, total = (against.tried(name, partial(options.count, name), 0) for name in names)
    if "ntasks" not in options or not (nodes and tasks and total):
        return max(1, tasks), max(1, total, nodes * tasks)
    if "nodes" not in options and "ntasks-per-node" in options:
        tasks = min(tasks, total)  # with a number of tasks it is the most of a node
        nodes = -(-total // tasks)
    if total % nodes or ("ntasks-per-node" in options and total != nodes * tasks):
        against.add(
            "ntasks", str(options.fail(f"--ntasks={total} do not lie evenly on {nodes} nodes; mend one of them"))
        )
    return max(1, total // nodes), total


def _gpus(options: ScriptOptions, tasks: int, replicas: int) -> tuple[int, str]:
    """GPUs of one pod and their model: counted by node, by task, or for the whole job."""
    ways = {name: _gpus_by(options, name, tasks, replicas) for name in WAYS_TO_COUNT if name in options}
    counts, models = {count for count, _ in ways.values()}, {model for _, model in ways.values() if model}
    if len(counts) > 1 or len(models) > 1:
        raise options.fail(
            f"--{' and --'.join(ways)} do not say the same: a pod has one number of GPUs; say one of them"
        )
    return next(iter(counts), 0), next(iter(models), "")


def _gpus_by(options: ScriptOptions, name: str, tasks: int, replicas: int) -> tuple[int, str]:
    said = options.value(name)
    total, model = values.gpus_of(said)
    sharers = {"gpus": replicas, "gpus-per-task": 1}.get(name, tasks)
    if total % sharers:
        of = "pods" if name == "gpus" else "tasks of a node"
        said.fail(
            f"{total} GPUs do not divide by {sharers} {of}, and a task is a pod with GPUs of its own: say "
            "--gpus-per-task, or fewer tasks that have more CPUs (--cpus-per-task)"
        )
    return total // sharers, model


def file_of(pattern: str, job_id: str, name: str, user: str, task: int | None = None, rank: int = 0) -> str:
    """
    The name of a log file: `%A` is the job or its array, `%a` the task, `%j` both, `%x` the name, `%u` the user,
    `%t` the rank; `%4a` has zeros in front.
    """
    shown = {
        "A": job_id,
        "j": job_id if task is None else f"{job_id}_{task}",
        "J": job_id,
        "a": "4294967294" if task is None else str(task),
        "x": name,
        "u": user,
        "t": str(rank),
        "n": str(rank),
        "N": str(rank),
        "%": "%",
    }

    def put(match: re.Match[str]) -> str:
        return shown[match[2]].rjust(int(match[1] or 0), "0")

    return re.sub(r"%([0-9]{0,2})([AajJxutnN%])", put, pattern)
