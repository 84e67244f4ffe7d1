"""Every operation of the API in one table: the router and `openapi.json` are both made from it."""

from dataclasses import dataclass

from pydantic import BaseModel

from tessera.gateway.operations import models, queries
from tessera.gateway.operations.queries import NoQuery
from tessera_schemas.shard.status import ShardStatus

PROBLEMS = (401, 403, 429)
"""What any operation may answer."""


@dataclass(frozen=True, slots=True)
class Route:
    """`name` is the handler's. `answers` are the successes; `problems` the refusals beside those of every operation."""

    method: str
    path: str
    name: str
    summary: str
    answers: dict[int, type[BaseModel] | str]
    problems: tuple[int, ...] = ()
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    keyed: bool = False

    @property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def refusals(self) -> list[int]:
        """Statuses that a refusal of this operation may have, ascending."""
        return sorted({*PROBLEMS, *self.problems})


READS = (422, 503)
ORDERS = (400, 404, 409, 413, 422, 503)
JOB = "/v1/jobs/{job_id}"

ROUTES = (
    Route(
        "POST",
        "/v1/jobs",
        "submit",
        "Submit a job, or a template with its parameters, once, however often it is sent with this key",
        {200: models.StoredSubmit, 201: models.StoredSubmit, 202: models.StoredSubmit},
        (400, 409, 413, 422, 503),
        body=models.SubmitBody,
        keyed=True,
    ),
    Route("GET", "/v1/jobs", "list_jobs", "List jobs", {200: models.JobPage}, READS, queries.JobQuery),
    Route("GET", JOB, "get_job", "Show one job", {200: models.OneJob}, (404, 410, *READS)),
    Route(
        "GET",
        f"{JOB}/wait",
        "wait_for_job",
        "Show one job once it has ended, or as it is when the time is over",
        {200: models.OneJob},
        (404, *READS),
        queries.WaitQuery,
    ),
    Route(
        "POST",
        f"{JOB}/cancel",
        "cancel_job",
        "Cancel a job",
        {202: models.Ordered},
        ORDERS,
        body=models.CancelBody,
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/jobs/cancel",
        "cancel_jobs",
        "Cancel many jobs; what is against one keeps no other from its end",
        {202: models.CancelledJobs},
        (400, 413, 422, 503),
        body=models.CancelJobsBody,
    ),
    Route(
        "POST",
        f"{JOB}/hold",
        "hold_job",
        "Keep a queued job from starting",
        {202: models.Ordered},
        ORDERS,
        body=models.NoBody,
        keyed=True,
    ),
    Route(
        "POST",
        f"{JOB}/release",
        "release_job",
        "Let a held job start again",
        {202: models.Ordered},
        ORDERS,
        body=models.NoBody,
        keyed=True,
    ),
    Route(
        "POST",
        f"{JOB}/priority",
        "set_priority",
        "Give a job another priority class",
        {202: models.Ordered},
        ORDERS,
        body=models.PriorityBody,
        keyed=True,
    ),
    Route(
        "POST",
        f"{JOB}/queue",
        "move_job",
        "Let a waiting job wait in another queue",
        {202: models.Ordered},
        ORDERS,
        body=models.QueueBody,
        keyed=True,
    ),
    Route(
        "POST",
        f"{JOB}/update",
        "update_job",
        "Change the time limit, begin, dependencies or name of a waiting job; lower the time limit of one that runs",
        {202: models.Ordered},
        ORDERS,
        body=models.UpdateBody,
        keyed=True,
    ),
    Route(
        "POST",
        f"{JOB}/requeue",
        "requeue_job",
        "Stop a job's run, and put the job back in line",
        {202: models.Ordered},
        ORDERS,
        body=models.NoBody,
        keyed=True,
    ),
    Route(
        "GET",
        f"{JOB}/priority",
        "job_classes",
        "List the priority classes that a job may get",
        {200: models.JobClasses},
        (404, 409, 422),
    ),
    Route(
        "GET",
        f"{JOB}/spec",
        "job_spec",
        "Show the spec of a job, live or ended, or what it would be with a change that explain tried",
        {200: models.ShownSpec},
        (404, 410, *READS),
        queries.SpecQuery,
    ),
    Route(
        "POST",
        f"{JOB}/checkpoint",
        "report_checkpoint",
        "Say that the job's program has saved its work",
        {202: models.Ordered},
        ORDERS,
        body=models.CheckpointBody,
    ),
    Route(
        "GET",
        f"{JOB}/explain",
        "explain_job",
        "Say why a job stands where it stands",
        {200: models.Explained},
        (404, 422),
    ),
    Route(
        "POST",
        "/v1/consequences",
        "consequences",
        "Say whom an order would stop and what it would promise in excess, without giving it",
        {200: models.ToldConsequences},
        (400, 404, 409, 413, 422),
        body=models.ConsequencesBody,
    ),
    Route(
        "GET",
        f"{JOB}/logs",
        "job_logs",
        "Stream what a pod of a job has written",
        {200: "text/plain"},
        (404, 409, *READS),
        queries.LogQuery,
    ),
    Route(
        "GET",
        "/v1/work",
        "work",
        "List live jobs in groups: by tenant, and by why they wait",
        {200: models.WorkGroups},
        READS,
    ),
    Route("GET", "/v1/nodes", "nodes", "List nodes with what is free on them", {200: models.NodeList}, READS),
    Route("GET", "/v1/queues", "queues", "List queues with what they hold", {200: models.QueueList}, READS),
    Route(
        "GET", "/v1/slots", "slots", "List how many pods of each size could start now", {200: models.SlotList}, (422,)
    ),
    Route("GET", "/v1/idle", "idle", "List what keeps each node's idle GPUs from use", {200: models.IdleList}, (422,)),
    Route(
        "GET",
        "/v1/usage",
        "usage",
        "List what GPUs were held by whom, idle by what cause, and lost by restarts",
        {200: models.UsageList},
        READS,
        queries.UsageQuery,
    ),
    Route("GET", "/v1/line", "line", "List the jobs in line, the next one first", {200: models.QueueLine}, (422,)),
    Route("GET", "/v1/status", "status", "Say who leads, what waits and what is wrong", {200: ShardStatus}, (422,)),
    Route("GET", "/v1/me", "me", "Say whom the token speaks for", {200: models.Me}, (422,)),
    Route(
        "GET",
        "/v1/templates",
        "templates",
        "List the templates that a submit may name",
        {200: models.TemplateList},
        (422,),
    ),
    Route(
        "GET", "/v1/config", "config", "Show the configuration in force, to operators", {200: models.ShownConfig}, READS
    ),
    Route(
        "GET",
        "/v1/events",
        "events",
        "Stream events as they come, from any place on",
        {200: "text/event-stream"},
        (409, 422, 503),
        queries.EventQuery,
    ),
    Route("GET", "/openapi.json", "openapi", "This description", {200: "application/json"}),
)
