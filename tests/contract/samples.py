"""One representative value of every registered type, with values that are not the defaults."""

from tessera_schemas import commands, config, events, facts, job, ledger, views
from tessera_schemas.base import Lenient, Strict
from tessera_schemas.cluster import device_facts, fencing
from tessera_schemas.cluster.device_layouts import DeviceCapacity, DeviceLayout, DevicePool, OfferedDevice
from tessera_schemas.cluster.health import Ailment, HealthCause, KnownAilment
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.documents.registry import dataschema, kind_of
from tessera_schemas.facts import owner
from tessera_schemas.reasons import Code, PublicReason, Reason
from tessera_schemas.shard import bookings
from tessera_schemas.shard.orders import Order
from tessera_schemas.shard.records import (
    Attached,
    DatasetNoted,
    DatasetTold,
    Detached,
    GroupPermitted,
    GroupPodsMade,
    GroupRestarted,
    GroupResumed,
    GroupStarted,
    PodsResized,
    ResizeBegun,
    ResizeEnded,
    ResizeRequested,
    RolesRequested,
    RolesShifted,
    RolloutRequested,
    RungTaken,
    RunStalled,
    ScaleRequested,
    SessionUnused,
    SessionWarned,
    Stalled,
)
from tessera_schemas.work import templates
from tessera_schemas.work.adopted import Adopted
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.measured_use import MeasuredUse
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.spec_changes import PodSize, Program, SpecChanges

JOB = "abcdefghij234567abcd"
OTHER = "zyxwvutsrq765432zyxw"
RUN = f"{JOB}-2"
AGAIN = {"group": "pair", "copy_number": 1, "ranks": (2, 3), "count": 1, "not_before": 1_760_000_010_123}
USE = MeasuredUse(
    measured_gpu_milli_ms=480_000_000,
    worked_gpu_milli_ms=120_000_000,
    gpus=8,
    busy_gpus=2,
    memory_mib=11_264,
    gpu_memory_mib=81_920,
)
TS = 1_760_000_000_123
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WHY = Reason(code=Code.NO_FIT, field="roles[0].resources", numbers={"gpus_free": 3, "gpus": 8}, detail="pool a100")
LAYOUT = DeviceLayout(
    pools=(DevicePool(driver="gpu.example.com"), DevicePool(driver="nic.example.com", name="rail-1")),
    counters=(80_000,),
    devices=(
        OfferedDevice(
            pool=0,
            name="gpu-0",
            same={"resource.kubernetes.io/pcieRoot": 1},
            uses=((0, 10_000),),
            capacity={"memory": DeviceCapacity(value=80_000, default=1000, least=1000, most=40_000, step=1000)},
            is_shared=True,
            gpu=0,
            gpu_milli=125,
        ),
        OfferedDevice(pool=1, name="nic-0", capacity={"bandwidth": DeviceCapacity(value=9000, valid=(1000, 9000))}),
    ),
    kinds="ab" * 32,
)
PROGRAM = Program(image="chat:2", command=("python",), args=("serve.py",), env={"A": "b"}, working_dir="/app")
PACE = {"max_surge": 2, "max_unavailable": 1, "min_ready_seconds": 30}
ROLLOUT = {"revision": 1, "programs": {"worker": PROGRAM}, **PACE}
SIZE = {"cpu_milli": 4000, "memory_bytes": 16 * 2**30, "role": "worker"}
STEPS = {"roles": {"trainer": -1, "rollout": 1}, "have": {"trainer": 4}, "key": "r-1"}
REACH = job.RoleReach(role="worker", terms=(job.AffinityTerm(key="rack", operator=job.Operator.IN, values=("r1",)),))
PLACEMENTS = (Placement(0, "leader", "node-a"), Placement(1, "worker", "node-b", (0, 3), 1000))

SPEC = job.JobSpec(
    name="train-llm",
    queue="research",
    priority_class="high",
    preemptible=False,
    roles=(
        job.Role(
            name="leader",
            resources=job.Resources(cpu_milli=500, memory_bytes=2**30),
            template=job.Template(image="registry.example/leader:1"),
        ),
        job.Role(
            name="worker",
            replicas=4,
            resources=job.Resources(
                cpu_milli=8000,
                memory_bytes=64 * 2**30,
                gpus=2,
                gpu_memory_bytes=40 * 2**30,
                devices={"rdma/hca": 1},
            ),
            gpu_models=("h100", "a100"),
            node_selector={"zone": "west-1"},
            tolerations=(
                job.Toleration(key="spot", value="yes", effect="NoSchedule"),
                job.Toleration(key="own", operator="Equal"),
            ),
            affinity=(job.AffinityTerm(key="rack", operator=job.Operator.NOT_IN, values=("r1",)),),
            topology=job.Topology(level="tessera.io/rack", required=False, wider=("tessera.io/zone",), group="near"),
            spread="zone",
            template=job.Template(
                image="registry.example/train@sha256:0123",
                command=("python", "-m", "train"),
                args=("--epochs", "3"),
                env={"LR": "0.1"},
                working_dir="/work",
                volumes=(
                    job.Volume(kind="empty", mount_path="/tmp"),
                    job.Volume(kind="claim", mount_path="/data", name="corpus", read_only=True),
                ),
                annotations={"example.com/team": "nlp"},
            ),
        ),
        job.Role(
            name="slice",
            resources=job.Resources(cpu_milli=100, memory_bytes=2**28, mig_profile="1g.10gb"),
            same_node_as="leader",
            template=job.Template(image="registry.example/slice:1"),
        ),
        job.Role(
            name="elastic",
            replicas=4,
            min_replicas=2,
            max_replicas=8,
            resources=job.Resources(cpu_milli=100, memory_bytes=2**28),
            template=job.Template(image="registry.example/elastic:1"),
        ),
    ),
    time_limit_seconds=7200,
    termination_grace_seconds=60,
    ttl_seconds_after_finished=600,
    retry=job.Retry(
        max_attempts=5, backoff_seconds=20, backoff_max_seconds=900, on_failure=True, give_up_seconds=86_400
    ),
    checkpoint=job.CheckpointPolicy(interval_seconds=600, notice_seconds=30),
    launcher="torchrun",
    datasets=(job.DatasetHint(name="corpus", size_bytes=10**12),),
    labels={"team": "nlp"},
)

ADOPTED = Adopted(
    api_version="batch/v1",
    owner_kind="Job",
    owner_name="train",
    owner_uid="uid-7",
    group="batch/Job/lab/uid-7",
    priority=1_000_000,
    priority_class="urgent",
    suspended=True,
)

BODY = config.ConfigBody(
    tenants=(
        config.Tenant(
            name="lab",
            limits=config.Limits(jobs=50, gpus=64, gpus_per_job=32, pods_per_job=16),
            priority_classes=("normal", "high"),
            subscribers=(config.Subscriber(name="ci", types=("job.succeeded.v1", "job.failed.v1")),),
            tolerations=(job.Toleration(key="team", value="ml"),),
        ),
    ),
    queues=(
        config.Queue(name="all", pool="a100"),
        config.Queue(
            name="research",
            tenants=("lab",),
            pool="a100",
            parent="all",
            weight=3,
            quotas=(
                config.Quota(
                    resource="gpu_milli", nominal=64_000, flavor="spot", borrowing_limit=8000, lending_limit=4000
                ),
            ),
            queueing_strategy="strict_fifo",
            stop_policy="hold",
        ),
    ),
    flavors=(config.Flavor(name="spot", node_labels={"spot": "yes"}, gpu_models=("a100", "h100")),),
    pools=(config.Pool(name="a100", device_profile="hami", tolerations=(job.Toleration(key="own"),)),),
    topology=(config.Level(name="zone", label="topology.kubernetes.io/zone"),),
    templates=(
        templates.JobTemplate(
            name="tune",
            description="Learning rates",
            parameters=(
                templates.Parameter(name="lr", type="string", description="Step size", default="0.1", length_max=20),
                templates.Parameter(name="gpus", type="int", default=8, min=1, max=16),
                templates.Parameter(name="corpus", type="choice", values=("news", "books")),
            ),
            overrides=("name", "queue", "priority_class"),
            spec={
                "name": "tune",
                "queue": "research",
                "roles": [
                    {
                        "name": "worker",
                        "resources": {"cpu_milli": 1000, "memory_bytes": 2**30, "gpus": "{gpus}"},
                        "template": {"image": "registry.example/tune:1", "args": ["--lr={lr}", "{corpus}"]},
                    }
                ],
            },
        ),
    ),
    priority_classes=(config.PriorityClass(name="normal", value=0), config.PriorityClass(name="high", value=100)),
    policy=config.Policy(
        preset="fair",
        min_runtime_seconds=30,
        evictions_max=3,
        earmark_seconds=120,
        grow_after_seconds=45,
        node_lost_seconds=90,
        idle="requeue",
        idle_warn_seconds=900,
        idle_reclaim_seconds=600,
        start_timeout_seconds=300,
        key_memory_seconds=3600,
    ),
)

RENAMED = BODY.model_copy(
    update={
        "queues": (BODY.queues[0], BODY.queues[1].model_copy(update={"was": "lab"})),
        "priority_classes": (config.PriorityClass(name="normal", value=0, was="middle"), BODY.priority_classes[1]),
    }
)

TOLD_PLACES = {"size_bytes": 500 * 10**9, "nodes": ("node-a",), "gone": ("node-b",)}
AILMENT = Ailment(cause=HealthCause.GPU_LOST, device="GPU-1", evidence="XID 79")
KNOWN_AILMENT = KnownAilment(source="dcgm", ailment=AILMENT, since_ts=TS)
WINDOW = bookings.BookedWindow(start_ts=TS, end_ts=TS + 3_600_000)
RESERVED = {"name": "demo", "pool": "default", "who": ("lab/ana",)}
BOOKING = {"name": "demo", "pool": "default", "windows": (WINDOW,), "nodes": ("node-a",), "who": ("lab/ana",)}
GRANT = {"budget": "tenant/lab", "month": "2026-11", "amount": 20, "granted": 5, "why": "a deadline", "by": "ana"}
SPENT = {
    "budget": "tenant/lab",
    "spent_micros": 80_000_000,
    "limit_micros": 100_000_000,
    "unit": "EUR",
    "when_spent": "hold",
}
CHANGES = SpecChanges(
    time_limit_seconds=7200,
    after=(Dependency(condition="afterok", job=OTHER),),
    begin_ts=TS + 60_000,
    name="train-llm",
)

COMMANDS: tuple[Strict, ...] = (
    commands.SubmitJob(kind="submit_job", v=1, key="ci-17/1/train", tenant="lab", spec=SPEC, held=True),
    commands.SubmitTemplate(
        kind="submit_template",
        v=1,
        key="ci-17/1/tune",
        tenant="lab",
        template="tune",
        parameters={"lr": "0.1", "gpus": 8},
        name="tune-lr",
        queue="research",
        priority_class="high",
        held=True,
    ),
    commands.ReportCheckpoint(
        kind="report_checkpoint", v=1, job_id=JOB, path="/data/step-100", attempt=2, tenant="lab"
    ),
    commands.AnswerMove(kind="answer_move", v=1, job_id=JOB, accept=True, attempt=2, tenant="lab"),
    commands.AdoptJob(kind="adopt_job", v=1, key="uid-7", spec=SPEC, adopted=ADOPTED),
    commands.CancelJob(kind="cancel_job", v=1, job_id=JOB, tenant="lab", why="not needed"),
    commands.HoldJob(kind="hold_job", v=1, job_id=JOB, tenant="lab"),
    commands.ReleaseJob(kind="release_job", v=1, job_id=JOB, tenant="lab"),
    commands.SetPriority(kind="set_priority", v=1, job_id=JOB, priority_class="high", tenant="lab"),
    commands.MoveJob(kind="move_job", v=1, job_id=JOB, queue="research", tenant="lab"),
    commands.UpdateJob(kind="update_job", v=1, job_id=JOB, tenant="lab", **CHANGES.given),
    commands.RequeueJob(kind="requeue_job", v=1, job_id=JOB, tenant="lab"),
    commands.ScaleService(kind="scale_service", v=1, job_id=JOB, replicas=3, tenant="lab"),
    commands.RollService(kind="roll_service", v=1, job_id=JOB, tenant="lab", **ROLLOUT),
    commands.ShiftRoles(kind="shift_roles", v=1, job_id=JOB, tenant="lab", **STEPS),
    commands.ResizePods(kind="resize_pods", v=1, job_id=JOB, tenant="lab", key="size-1", **SIZE),
    commands.TellDataset(kind="tell_dataset", v=1, dataset="corpus", tenant="lab", **TOLD_PLACES),
    commands.DrainNode(kind="drain_node", v=1, node="node-a", evict=True, undo=True, why="new fans"),
    commands.ReportHealth(kind="report_health", v=1, node="node-a", source="agent", ailments=(AILMENT,), by="ana"),
    commands.GrantBudget(kind="grant_budget", v=1, **GRANT),
    commands.ReserveNodes(kind="reserve_nodes", v=1, why="a demo", by="ana", **BOOKING),
    commands.EndReservation(kind="end_reservation", v=1, name="demo"),
    commands.ApplyConfig(kind="apply_config", v=1, expected_version=6, body=RENAMED, abandon=True),
)

FACTS: tuple[facts.AnyFact, ...] = (
    facts.JobAdmitted(
        kind="job_admitted",
        job_id=JOB,
        tenant="lab",
        key="ci-17",
        spec=SPEC,
        adopted=ADOPTED,
        held=True,
        template=templates.FromTemplate(name="tune", config_version=7, asked="cd" * 32),
        trace=TRACE,
    ),
    facts.NodeTestProposed(
        kind="node_test_proposed",
        job_id=JOB,
        tenant="lab",
        key="node-test-1",
        spec=SPEC,
        notes=("tests node node-a, on which jobs failed",),
        node="node-a",
    ),
    facts.JobRefused(
        kind="job_refused", tenant="lab", job_id=OTHER, name="train", reasons=(WHY,), repeats=4, source_seq=77
    ),
    facts.CancelRequested(kind="cancel_requested", job_id=JOB, tenant="lab", why="not needed"),
    facts.HoldRequested(kind="hold_requested", job_id=JOB, tenant="lab", undo=True),
    facts.PriorityRequested(kind="priority_requested", job_id=JOB, priority_class="high", tenant="lab"),
    facts.MoveRequested(kind="move_requested", job_id=JOB, queue="prod", tenant="lab"),
    facts.UpdateRequested(kind="update_requested", job_id=JOB, changes=CHANGES, tenant="lab"),
    facts.RequeueRequested(kind="requeue_requested", job_id=JOB, tenant="lab"),
    DatasetTold(kind="dataset_told", tenant="lab", dataset="corpus", places=ToldPlaces(**TOLD_PLACES)),
    ScaleRequested(kind="scale_requested", job_id=JOB, replicas=3, tenant="lab"),
    RolloutRequested(kind="rollout_requested", job_id=JOB, tenant="lab", **ROLLOUT),
    RolesRequested(kind="roles_requested", job_id=JOB, tenant="lab", **STEPS),
    ResizeRequested(kind="resize_requested", job_id=JOB, tenant="lab", key="size-1", size=PodSize.model_validate(SIZE)),
    PodsResized(kind="pods_resized", run_id=RUN, key="size-1", reason=Reason(code=Code.RESIZE_REFUSED)),
    facts.EvictionBlocked(kind="eviction_blocked", run_id=RUN, reason=WHY),
    facts.RunUntouched(kind="run_untouched", run_id=RUN, revoked_ts=TS, reason=WHY, kept=True),
    facts.WorkRefused(
        kind="work_refused",
        work_id=OTHER,
        tenant="lab",
        group="batch/Job/lab/uid-0",
        owner="Job/train",
        queue="research",
        reasons=(WHY,),
    ),
    facts.PodsBack(kind="pods_back", job_id=JOB, preemptible=False, uids=("uid-0", "uid-1"), budget="budget keep"),
    facts.PodsGone(kind="pods_gone", job_id=JOB),
    facts.OwnerEnded(kind="owner_ended", job_id=JOB, reason=Reason(code=Code.OWNER_FAILED, detail="Job/train")),
    facts.PodsFound(kind="pods_found", job_id=JOB, nodes=("node-a", "node-b"), uids=("uid-0", "uid-1")),
    facts.CheckpointReported(kind="checkpoint_reported", job_id=JOB, tenant="lab", path="/data/step-100", attempt=2),
    facts.MoveReplied(kind="move_replied", job_id=JOB, accept=True, tenant="lab", attempt=2),
    facts.mig_changes.MigChangeProposed(
        kind="mig_change_proposed",
        job_id=JOB,
        node="node-a",
        config="all-1g.10gb",
        basis_n=41,
        ts=TS,
        engine="first-1",
        policy=7,
    ),
    fencing.FenceDue(kind="fence_due", node="node-a", seconds=120, sick=True),
    fencing.FenceAnswered(kind="fence_answered", node="node-a", request=JOB, outcome="off", detail="power: Off"),
    facts.DrainRequested(kind="drain_requested", node="node-a", evict=True, undo=True, why="new fans"),
    facts.HealthSeen(kind="health_seen", node="node-a", source="dcgm", ailments=(AILMENT,)),
    facts.HealthReported(kind="health_reported", node="node-a", source="agent", ailments=(AILMENT,), by="ana"),
    facts.GrantRequested(kind="grant_requested", **GRANT),
    facts.BookingAsked(kind="booking_asked", wish=bookings.BookingWish(**BOOKING), why="a demo", by="ana"),
    facts.BookingEndAsked(kind="booking_end_asked", name="demo"),
    facts.ConfigProposed(kind="config_proposed", expected_version=6, body=RENAMED, abandon=True),
    facts.PodsMade(kind="pods_made", run_id=RUN, uids=("uid-0", "uid-1"), ranks=(3, 4)),
    facts.PodsBound(kind="pods_bound", run_id=RUN),
    facts.BindFailed(kind="bind_failed", run_id=RUN, rank=1, reason=Reason(code=Code.BIND_REFUSED, detail="quota")),
    facts.StartDelayed(
        kind="start_delayed",
        run_id=RUN,
        works=True,
        reason=Reason(code=Code.IMAGE_NOT_FOUND, detail="image train:2"),
        nodes=("node-a",),
    ),
    facts.RunStarted(kind="run_started", run_id=RUN),
    facts.RunEnded(kind="run_ended", run_id=RUN, reason=Reason(code=Code.POD_FAILED), own=True, exit_code=137, rank=1),
    facts.PodsLost(kind="pods_lost", run_id=RUN, ranks=(3, 4), reason=Reason(code=Code.POD_FAILED)),
    facts.NodeSeen(
        kind="node_seen",
        name="node-a.example",
        gone=True,
        ready=False,
        pool="a100",
        cpu_milli=64_000,
        memory_bytes=2**39,
        pods=110,
        gpus=8,
        gpu_model="a100",
        gpu_memory_bytes=80 * 2**30,
        device_profile="mig",
        gpu_uuids=("GPU-5c1b2f0e-0000-0000-0000-000000000001",),
        mig_geometry="80gb",
        mig_instances={"1g.10gb": 7, "3g.40gb": 2},
        trouble=Reason(code=Code.DEVICE_CONFLICT, field="nodes.node-a.devices", detail="the pool says whole"),
        devices={"rdma/hca": 2},
        labels={"zone": "west-1"},
        taints=(facts.Taint(key="spot", value="yes", effect="NoSchedule"),),
        others=facts.Others(cpu_milli=1500, memory_bytes=2**30, pods=4, gpus=1, devices={"rdma/hca": 1}),
        capacity={"nvidia.com/gpu": 9},
    ),
    device_facts.LayoutSeen(kind="layout_seen", layout=LAYOUT),
    device_facts.ClassSeen(
        kind="class_seen",
        name="gpu.example.com",
        gone=True,
        selectors=('device.driver == "gpu.example.com"',),
        extended_resource="example.com/gpu",
    ),
    device_facts.DevicesSelected(
        kind="devices_selected",
        layout=LAYOUT.digest(),
        selectors=('device.driver == "gpu.example.com"',),
        devices="3",
        error="no such attribute: size",
    ),
    facts.RunAbsent(kind="run_absent", run_id=RUN, ranks=(3, 4)),
    facts.RunLost(
        kind="run_lost",
        run_id=RUN,
        reason=Reason(code=Code.NODE_LOST, field="nodes.node-a"),
        nodes=("node-a",),
        ranks=(3, 4),
    ),
    facts.RunIdle(kind="run_idle", run_id=RUN, idle_seconds=1900),
    facts.RunUsed(kind="run_used", run_id=RUN, use=USE),
    SessionUnused(kind="session_unused", run_id=RUN, again=True),
    RunStalled(kind="run_stalled", run_id=RUN, reason=WHY, nodes=("node-a",)),
    GroupPodsMade(kind="group_pods_made", run_id=RUN, restart=2, uids=("uid-2", "uid-3")),
    GroupStarted(kind="group_started", run_id=RUN, restart=2),
    facts.CheckpointSaved(kind="checkpoint_saved", run_id=RUN, path="/data/step-100"),
    facts.PlanProposed(
        kind="plan_proposed",
        cause="defragment",
        job_id=JOB,
        basis_n=41,
        ts=TS - 5,
        engine="first-1",
        policy=7,
        preset="fair",
        victims=(f"{OTHER}-1",),
        placements=PLACEMENTS,
        flavor="spot",
        moves=(facts.Move(run_id=f"{OTHER}-1", placements=PLACEMENTS),),
        net_gpu_seconds=90,
    ),
    facts.PricesLearnt(
        kind="prices_learnt",
        pool="default",
        settled=3,
        basis_n=41,
        gpus=64,
        engine="first-1",
        learnt_by="rehearsed",
        prices=(0, 470_000, 1_250_000),
    ),
)

RECORDS: tuple[ledger.AnyRecord, ...] = (
    ledger.FormatRaised(kind="format_raised", format=1),
    ledger.EpochOpened(kind="epoch_opened", epoch=3, holder="scheduler-1"),
    ledger.Checkpoint(kind="checkpoint", state_hash="ab" * 32),
    ledger.ConfigSet(kind="config_set", fact=3, version=7),
    ledger.ConfigRefused(kind="config_refused", fact=3, reason=Reason(code=Code.CONFIG_CONFLICT), others=(WHY,)),
    ledger.NodeChanged(kind="node_changed", fact=9),
    ledger.JobQueued(kind="job_queued", fact=1, job_id=JOB),
    ledger.TaskQueued(kind="task_queued", job_id=OTHER, array=JOB, task=7),
    ledger.ServiceScaled(kind="service_scaled", job_id=JOB, replicas=3, by="lab"),
    ledger.ServiceRollout(kind="service_rollout", job_id=JOB, state="begun", revision=2, fact=1, reason=WHY, by="lab"),
    ledger.ArrayClosed(kind="array_closed", job_id=JOB, reason=Reason(code=Code.CANCELLED, detail="enough")),
    Attached(kind="attached", job_id=JOB, near=(REACH,)),
    Detached(kind="detached", job_id=JOB),
    ledger.DependencyMet(kind="dependency_met", job_id=JOB, left=(Dependency(condition="afterok", job=OTHER),)),
    ledger.JobTurnedAway(kind="job_turned_away", fact=1, reasons=(Reason(code=Code.LIMIT_EXCEEDED),)),
    ledger.Waiting(kind="waiting", job_id=JOB, reason=WHY),
    ledger.PodsTakenOver(kind="pods_taken_over", fact=1, job_id=JOB),
    ledger.Allocated(
        kind="allocated", job_id=JOB, attempt=2, deadline=TS + 600_000, placements=PLACEMENTS, flavor="spot"
    ),
    ledger.Permitted(kind="permitted", run_id=RUN, uids=("uid-0", "uid-1"), ranks=(3, 4)),
    ledger.Bound(kind="bound", run_id=RUN),
    ledger.Delayed(
        kind="delayed",
        run_id=RUN,
        deadline=1_760_000_600_123,
        reason=Reason(code=Code.IMAGE_NOT_FOUND, detail="image train:2"),
        nodes=("node-a",),
    ),
    ledger.Started(kind="started", run_id=RUN),
    ledger.Spared(kind="spared", run_id=RUN, reason=WHY, kept=True),
    ledger.Revoked(
        kind="revoked",
        run_id=RUN,
        reason=Reason(code=Code.PREEMPTED, detail="preset fair"),
        then="requeue",
        by=OTHER,
        avoid=("node-a",),
    ),
    ledger.StopHeldBack(kind="stop_held_back", run_id=RUN, reason=WHY),
    ledger.Warned(kind="warned", run_id=RUN, idle_seconds=1900),
    ledger.UseNoted(kind="use_noted", fact=1, run_id=RUN),
    SessionWarned(kind="session_warned", run_id=RUN, stops_ts=TS + 600_000),
    Stalled(kind="stalled", run_id=RUN, reason=WHY, nodes=("node-a",), held_back=True),
    ledger.MoveOffered(
        kind="move_offered", run_id=RUN, by=OTHER, deadline=TS + 60_000, net_gpu_seconds=7200, lost_gpu_seconds=900
    ),
    ledger.MoveAnswered(kind="move_answered", run_id=RUN, how="checkpoint", moves=True),
    ledger.MoveScored(
        kind="move_scored",
        job_id=JOB,
        predicted_gain_gpu_seconds=8100,
        predicted_lost_gpu_seconds=900,
        gained_gpu_seconds=7300,
        lost_gpu_seconds=400,
    ),
    ledger.MoveWithdrawn(kind="move_withdrawn", run_id=RUN, reason=Reason(code=Code.MOVE_NOT_NEEDED)),
    RungTaken(kind="rung_taken", job_id=JOB, rung="domain", count=2, nodes=("node-a",), domain="rack=r1"),
    ledger.Saved(kind="saved", run_id=RUN, path="/data/step-100"),
    ledger.Held(kind="held", job_id=JOB, by="lab", undo=True),
    ledger.BackInLine(
        kind="back_in_line", job_id=JOB, preemptible=False, uids=("uid-0", "uid-1"), budget="budget keep"
    ),
    ledger.OutOfLine(kind="out_of_line", job_id=JOB),
    ledger.PrioritySet(kind="priority_set", job_id=JOB, priority_class="high"),
    ledger.JobMoved(kind="job_moved", job_id=JOB, queue="prod", by="lab"),
    ledger.JobUpdated(kind="job_updated", job_id=JOB, changes=CHANGES, by="lab"),
    ledger.NodeDrained(kind="node_drained", node="node-a", undo=True, why="new fans", by="health", pool="default"),
    ledger.HealthNoted(
        kind="health_noted",
        node="node-a",
        ailments=(KNOWN_AILMENT,),
        overruled=True,
        held_back=True,
        pool="default",
    ),
    ledger.FenceAsked(
        kind="fence_asked",
        node="node-a",
        request=JOB,
        why="silent for 120 s",
        by="ana",
        pool="default",
        cause="gpu_lost",
    ),
    ledger.FenceEnded(
        kind="fence_ended",
        node="node-a",
        request=JOB,
        outcome="off",
        detail="power: Off",
        by="ana",
        pool="default",
    ),
    ledger.MigChangeBegun(
        kind="mig_change_begun", job_id=JOB, node="node-a", config="all-1g.10gb", before="all-3g.40gb", gpus=8
    ),
    ledger.MigChangeEnded(kind="mig_change_ended", node="node-a", outcome="failed", until_ts=TS, times=2, undo=True),
    ledger.BudgetReached(kind="budget_reached", percent=100, tenant="lab", **SPENT),
    ledger.BudgetReopened(kind="budget_reopened", budget="tenant/lab", percent=80),
    ledger.Booked(kind="booked", why="a demo", by="ana", **BOOKING),
    bookings.Rebooked(kind="rebooked", lost=("node-a",), found=("node-b",), **RESERVED),
    bookings.BookingShort(kind="booking_short", missing=("node-b",), **RESERVED),
    ledger.BookingRefused(kind="booking_refused", name="demo", reason=Reason(code=Code.NOT_FREE_THEN, field="nodes")),
    ledger.BookingEnded(kind="booking_ended", name="demo", why="over"),
    ledger.BudgetGranted(kind="budget_granted", budget="tenant/lab", amount=20, why="a deadline", by="ana"),
    ledger.Grown(kind="grown", run_id=RUN, deadline=TS + 600_000, placements=PLACEMENTS),
    ResizeBegun(kind="resize_begun", run_id=RUN, request="size-1", by="lab", **SIZE),
    ResizeEnded(kind="resize_ended", run_id=RUN, request="size-1", reason=Reason(code=Code.RESIZE_REFUSED), **SIZE),
    RolesShifted(
        kind="roles_shifted",
        run_id=RUN,
        ranks=(3,),
        reason=Reason(code=Code.ROLES_SHIFTED, detail="trainer -1"),
        request="r-1",
        gains={"rollout": 1},
        sizes={"trainer": 3},
        by="lab",
    ),
    GroupRestarted(
        kind="group_restarted",
        run_id=RUN,
        reason=Reason(code=Code.POD_FAILED, numbers={"rank": 3}),
        restart=2,
        deadline=TS + 600_000,
        **AGAIN,
    ),
    GroupPermitted(kind="group_permitted", run_id=RUN, restart=2, uids=("uid-2", "uid-3")),
    GroupResumed(kind="group_resumed", run_id=RUN, restart=2),
    ledger.Shrunk(kind="shrunk", run_id=RUN, ranks=(3, 4), reason=Reason(code=Code.SHRUNK), by=OTHER),
    ledger.Released(kind="released", run_id=RUN, ranks=(3, 4)),
    ledger.Requeued(
        kind="requeued",
        job_id=JOB,
        not_before=TS + 20_000,
        reason=Reason(code=Code.POD_DELETED),
        strike=False,
        trouble=True,
        fresh=True,
    ),
    ledger.NodeBackedOff(
        kind="node_backed_off",
        node="node-a",
        until_ts=TS + 5_000,
        reason=Reason(code=Code.POD_REFUSED_BY_NODE),
        times=2,
        failed=(JOB,),
    ),
    ledger.Finished(
        kind="finished",
        job_id=JOB,
        phase="failed",
        reason=Reason(code=Code.ATTEMPTS_EXHAUSTED),
        exit_code=137,
        quick=True,
    ),
    ledger.OwnerEndNoted(kind="owner_end_noted", fact=1, job_id=JOB),
    ledger.PlanRefused(kind="plan_refused", fact=4, job_id=JOB, reason=Reason(code=Code.VICTIM_GONE, detail=RUN)),
    ledger.EarmarkSet(
        kind="earmark_set",
        owner=JOB,
        cause="preemption",
        deadline=TS + 60_000,
        placements=PLACEMENTS,
        flavor="spot",
        victims=(f"{OTHER}-1",),
        preset="fair",
    ),
    ledger.EarmarkEnded(kind="earmark_ended", owner=JOB, why="deadline"),
    ledger.LeftChanged(
        kind="left_changed",
        pool="default",
        gpus=16,
        idle_gpu_milli=9000,
        free=(9, 4, 2, 1),
        sizes=(ledger.SlotsLeft(gpus=8, slots=1, largest={"node": 1}),),
        stranded={"none": 8000, "cpu": 1000},
    ),
    ledger.MixPriced(kind="mix_priced", fact=2, pool="default"),
    ledger.PricesRefused(
        kind="prices_refused",
        fact=3,
        pool="default",
        reason=Reason(code=Code.PRICES_OUTDATED, numbers={"settled": 3, "settled_now": 4}),
    ),
    ledger.RefusalNoted(kind="refusal_noted", fact=4),
    ledger.DevicesNoted(kind="devices_noted", fact=5),
    DatasetNoted(kind="dataset_noted", fact=6),
)

JOB_FIELDS = {"job_id": JOB, "name": "train-llm", "queue": "research"}
RUN_FIELDS = {**JOB_FIELDS, "attempt": 2}
NODE_FIELDS = {"node": "node-a", "pool": "default"}
EVENTS: tuple[events.PublicEvent, ...] = (
    events.JobAdmittedV1(job_id=JOB, name="train-llm", queue="research", key="ci-17", gpu_milli=8000, pods=5),
    events.JobRefusedV1(job_id=OTHER, name="train", reasons=(WHY,), repeats=4),
    events.JobWaitingV1(job_id=JOB, name="train-llm", queue="research", reason=WHY),
    events.JobAllocatedV1(**RUN_FIELDS, placements=PLACEMENTS),
    events.JobBindingV1(**RUN_FIELDS, ranks=(3, 4)),
    events.JobBoundV1(**RUN_FIELDS),
    events.JobRunningV1(**RUN_FIELDS),
    events.JobSparedV1(**RUN_FIELDS, reason=WHY),
    events.JobStopHeldBackV1(**RUN_FIELDS, reason=WHY),
    events.JobEvictingV1(**RUN_FIELDS, reason=Reason(code=Code.PREEMPTED, detail="preset fair"), by=OTHER),
    events.JobGrownV1(**RUN_FIELDS, placements=PLACEMENTS),
    events.JobShrunkV1(**RUN_FIELDS, ranks=(3, 4), reason=Reason(code=Code.SHRUNK), by=OTHER),
    events.JobGroupRestartedV1(**RUN_FIELDS, **AGAIN, reason=Reason(code=Code.POD_FAILED, numbers={"rank": 3})),
    events.JobResizingV1(**RUN_FIELDS, **SIZE, request="size-1", by="lab"),
    events.JobResizedV1(**RUN_FIELDS, **SIZE, request="size-1", reason=Reason(code=Code.RESIZE_REFUSED)),
    events.JobReleasedV1(**RUN_FIELDS, ranks=(3, 4)),
    events.JobRequeuedV1(
        **RUN_FIELDS, not_before=TS + 20_000, reason=Reason(code=Code.PREEMPTED, detail="preset fair"), strike=False
    ),
    events.JobHeldV1(**JOB_FIELDS, by="lab"),
    events.JobUnheldV1(**JOB_FIELDS, by="operator"),
    events.JobReprioritizedV1(**JOB_FIELDS, priority_class="high"),
    events.JobMovedV1(**JOB_FIELDS, from_queue="prod", by="lab"),
    events.JobUpdatedV1(**JOB_FIELDS, from_name="train", by="lab", **CHANGES.model_dump(exclude={"name"})),
    events.JobWarnedV1(**RUN_FIELDS, idle_seconds=1900),
    events.JobRolloutV1(
        **JOB_FIELDS, state="stopped", revision=2, reason=PublicReason.model_validate(WHY.model_dump())
    ),
    events.JobSessionWarnedV1(**RUN_FIELDS, user="ana", action="pause", stops_ts=TS + 600_000),
    events.JobStalledV1(
        **RUN_FIELDS, reason=PublicReason.model_validate(WHY.model_dump()), nodes=("node-a",), held_back=True
    ),
    events.JobMoveOfferedV1(**RUN_FIELDS, by=OTHER, deadline=TS + 60_000, net_gpu_seconds=7200, lost_gpu_seconds=900),
    events.JobMoveAnsweredV1(**RUN_FIELDS, how="checkpoint", moves=True),
    events.JobMoveScoredV1(
        **JOB_FIELDS,
        predicted_gain_gpu_seconds=8100,
        predicted_lost_gpu_seconds=900,
        gained_gpu_seconds=7300,
        lost_gpu_seconds=400,
    ),
    events.JobMoveWithdrawnV1(**RUN_FIELDS, reason=PublicReason.model_validate(WHY.model_dump())),
    events.JobSavedV1(**RUN_FIELDS, path="/data/step-100"),
    events.JobEarmarkedV1(
        **JOB_FIELDS, cause="preemption", deadline=TS + 60_000, placements=PLACEMENTS, runs_stopping=1, preset="fair"
    ),
    events.JobUnearmarkedV1(**JOB_FIELDS, why="used"),
    events.JobSucceededV1(**RUN_FIELDS),
    events.JobFailedV1(**RUN_FIELDS, reason=Reason(code=Code.POD_FAILED), exit_code=137),
    events.JobCancelledV1(**RUN_FIELDS, reason=Reason(code=Code.CANCELLED, detail="not needed")),
    events.BudgetWarnedV1(month="2026-11", percent=80, **SPENT),
    events.BudgetSpentV1(month="2026-11", percent=100, until_ts=TS, **SPENT),
    events.NodeHealthChangedV1(
        **NODE_FIELDS,
        ailments=(KNOWN_AILMENT.model_dump(mode="json"),),
        overruled=True,
        held_back=True,
    ),
    events.NodeDrainedV1(**NODE_FIELDS, why="new fans", by="health"),
    events.NodeUndrainedV1(**NODE_FIELDS, why="new fans", by="health"),
    events.NodeFenceAskedV1(**NODE_FIELDS, request=JOB, why="silent for 120 s", by="ana", cause="gpu_lost"),
    events.NodeFenceEndedV1(**NODE_FIELDS, request=JOB, outcome="off", detail="power: Off", by="ana"),
    events.ReservationMadeV1(
        **RESERVED, windows=({"start_ts": TS, "end_ts": TS + 3_600_000},), nodes=("node-a",), why="a demo"
    ),
    events.ReservationRefusedV1(**RESERVED, reason=WHY),
    events.ReservationChangedV1(**RESERVED, lost=("node-a",), found=("node-b",)),
    events.ReservationUnservedV1(**RESERVED, missing=("node-b",)),
    events.ReservationEndedV1(**RESERVED, why="over"),
    events.ClusterFragmentationV1(
        pool="default",
        gpus=16,
        idle_gpu_milli=9000,
        sizes=(events.SizeLeft(gpus=8, slots=1, largest={"node": 1}),),
        stranded={"none": 8000, "cpu": 1000},
    ),
)

ORDER = Order(v=1, pool="a100", basis_n=40, ts=TS, engine="first-1", policy=7, jobs=(JOB, OTHER))


def taken() -> tuple[ledger.TakenFact, ...]:
    """A cancel first, so that the fact that a record names is not number 0, which is the default of nothing."""
    ordered = (FACTS[2], FACTS[0], FACTS[1], *FACTS[3:])
    return tuple(ledger.TakenFact(seq=50 + i, service=owner(f), fact=f) for i, f in enumerate(ordered))


def message(*records: ledger.AnyRecord, whole: bool = False) -> ledger.LedgerMessage:
    """A ledger message with these records; `whole` also takes in every kind of fact and an order."""
    return ledger.LedgerMessage(
        v=1,
        n=42,
        prev="cd" * 32,
        epoch=3,
        tx="tx-0000000042",
        ts=TS,
        engine="first-1",
        policy=7,
        holder="scheduler-1",
        facts_upto=99,
        facts=taken() if whole else (),
        orders=(ORDER,) if whole else (),
        records=records,
    )


def envelope(event: events.PublicEvent) -> events.CloudEvent:
    return events.CloudEvent(
        specversion="1.0",
        id="42.1",
        source="urn:tessera:main",
        type=event.type,
        subject=JOB,
        time="2025-10-09T08:53:20.123Z",
        dataschema=dataschema(type(event)),
        tenant="lab",
        sequence="0000000000000042",
        causationid="tx-0000000042",
        traceparent=TRACE,
        data=event.to_data(),
    )


WHOLE: dict[str, Strict | Lenient] = {
    "answer.v1": commands.Answer(accepted=False, job_id=JOB, reasons=(WHY,)),
    "cloud_event.v1": envelope(EVENTS[0]).model_copy(update={"datacontenttype": "application/x-test"}),
    "config.v1": config.Config(version=7, body=BODY),
    "fact_message.v1": facts.FactMessage(v=1, fact=FACTS[4], cause="42.0"),
    "job_spec.v1": SPEC,
    "ledger_message.v1": message(*RECORDS, whole=True),
    "order.v1": ORDER,
    "view.job.v1": views.JobView(
        job_id=JOB,
        tenant="lab",
        queue="research",
        name="train-llm",
        key="ci-17",
        phase="failed",
        priority=100,
        attempt=2,
        pods=5,
        gpu_milli=8000,
        submitted_ts=TS,
        started_ts=TS + 1,
        ended_ts=TS + 2,
        not_before=TS + 3,
        reason=WHY,
        exit_code=137,
        placements=PLACEMENTS,
        priority_class="high",
        held=True,
        evictions=2,
        flavor="spot",
        earmarked_until=TS + 4,
        saved_ts=TS + 5,
        saved_path="/data/step-100",
        idle_ts=TS + 6,
        avoid=("node-c",),
        owner="Job/train",
    ),
    "view.node.v1": views.NodeView(
        name="node-a",
        pool="a100",
        ready=True,
        gone=True,
        drained_by="health",
        ailments=(KNOWN_AILMENT,),
        overruled=True,
        health_held_back=True,
        spare=True,
        gpu_model="a100",
        gpus=2,
        cpu_milli=64_000,
        memory_bytes=2**39,
        pods=110,
        cpu_free_milli=60_000,
        memory_free_bytes=2**38,
        pods_free=109,
        gpu_free=(1000, 250),
        device_profile="mig",
        labels={"zone": "west-1"},
        taints=(("spot", "yes", "NoSchedule"),),
        gpu_memory_bytes=80 * 2**30,
        mig_geometry="80gb",
        devices=(("rdma/hca", 2),),
        devices_free=(("rdma/hca", 1),),
        drained=True,
        drain_why="new fans",
        flavor="spot",
        others=views.OthersView(pods=4, cpu_milli=1500, memory_bytes=2**30, gpus=1, devices=(("rdma/hca", 1),)),
        mig_instances=(("1g.10gb", 7),),
        gpu_uuids=("GPU-5c1b2f0e-0000-0000-0000-000000000001",),
        trouble=PublicReason(code="DeviceConflict", field="nodes.node-a.devices", detail="the pool says whole"),
        tolerated=(("own", "", ""),),
        capacity=(("nvidia.com/gpu", 3),),
        lost_ts=TS + 7,
    ),
    "view.queue.v1": views.QueueView(
        name="research",
        pool="a100",
        queued=3,
        live=2,
        used_cpu_milli=4000,
        used_memory_bytes=2**32,
        used_gpu_milli=8000,
        parent="all",
        inner=True,
        weight=3,
        stop_policy="hold",
        removed=True,
        quotas=(
            views.QuotaUse(
                resource="gpu_milli",
                flavor="spot",
                nominal=64_000,
                borrowing_limit=8000,
                lending_limit=4000,
                used=65_000,
                borrowed=1000,
                lent=500,
                available=7000,
            ),
        ),
    ),
}


def samples() -> dict[str, Strict | Lenient]:
    """Registered id to the value whose bytes are stored: for a fact, record or event the message around it."""
    return {
        **{f"command.{kind_of(type(command))}.v1": command for command in COMMANDS},
        **{f"fact.{fact.kind}.v1": facts.FactMessage(v=1, fact=fact, cause="42.0") for fact in FACTS},
        **{f"record.{record.kind}.v1": message(record) for record in RECORDS},
        **{event.type: envelope(event) for event in EVENTS},
        **WHOLE,
    }
