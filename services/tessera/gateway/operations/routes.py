"""Every operation of the API in one table: the router and `openapi.json` are both made from it."""

from dataclasses import dataclass

from pydantic import BaseModel

from tessera.gateway.operations import account_models, dataset_models, models, queries, slot_models
from tessera.gateway.operations.health_reports import HealthReportBody, NotedHealth
from tessera.gateway.operations.queries import NoQuery
from tessera.gateway.operations.rollouts import RolloutBody
from tessera.gateway.quoting import models as quote_models
from tessera_schemas.shard.status import ShardStatus

PROBLEMS = (401, 403, 429)
# What any operation may answer.


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


def _order(word: str, name: str, summary: str, body: type[BaseModel], keyed: bool = True) -> Route:
    # An order about a job, which admission takes or refuses.
    return Route("POST", f"{JOB}/{word}", name, summary, {202: models.Ordered}, ORDERS, body=body, keyed=keyed)


def _read(
    path: str,
    name: str,
    summary: str,
    answer: type[BaseModel] | str,
    problems: tuple[int, ...] = READS,
    query: type[BaseModel] = NoQuery,
) -> Route:
    # A look at a view, at the state or at what was stored.
    return Route("GET", path, name, summary, {200: answer}, problems, query)


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
    _read("/v1/jobs", "list_jobs", "List jobs", models.JobPage, READS, queries.JobQuery),
    _read(JOB, "get_job", "Show one job", models.OneJob, (404, 410, *READS)),
    _read(
        f"{JOB}/wait",
        "wait_for_job",
        "Show one job once it has ended, or as it is when the time is over",
        models.OneJob,
        (404, *READS),
        queries.WaitQuery,
    ),
    _order("cancel", "cancel_job", "Cancel a job", models.CancelBody),
    Route(
        "POST",
        "/v1/jobs/cancel",
        "cancel_jobs",
        "Cancel many jobs; what is against one keeps no other from its end",
        {202: models.CancelledJobs},
        (400, 413, 422, 503),
        body=models.CancelJobsBody,
    ),
    _order("hold", "hold_job", "Keep a queued job from starting", models.NoBody),
    _order("release", "release_job", "Let a held job start again", models.NoBody),
    _order("priority", "set_priority", "Give a job another priority class", models.PriorityBody),
    _order("queue", "move_job", "Let a waiting job wait in another queue", models.QueueBody),
    _order(
        "update",
        "update_job",
        "Change the time limit, begin, dependencies or name of a waiting job; lower the time limit of one that runs",
        models.UpdateBody,
    ),
    _order("requeue", "requeue_job", "Stop a job's run, and put the job back in line", models.NoBody),
    _order("scale", "scale_service", "Give a service another number of replicas", models.ScaleBody),
    _order("rollout", "roll_service", "Give a service's replicas another program, step by step", RolloutBody),
    _order("resources", "resize_pods", "Give the pods of a running job other CPU and memory in place", models.SizeBody),
    _order("roles", "shift_roles", "Move pods of a running job between its elastic roles", models.RolesBody),
    _read(
        f"{JOB}/priority",
        "job_classes",
        "List the priority classes that a job may get",
        models.JobClasses,
        (404, 409, 422),
    ),
    _read(
        f"{JOB}/spec",
        "job_spec",
        "Show the spec of a job, live or ended, or what it would be with a change that explain tried",
        models.ShownSpec,
        (404, 410, *READS),
        queries.SpecQuery,
    ),
    _order(
        "checkpoint",
        "report_checkpoint",
        "Say that the job's program has saved its work",
        models.CheckpointBody,
        keyed=False,
    ),
    _order("move", "answer_move", "Say whether a job that is asked to move does", models.AnswerBody, keyed=False),
    _read(f"{JOB}/explain", "explain_job", "Say why a job stands where it stands", models.Explained, (404, 422)),
    Route(
        "POST",
        "/v1/consequences",
        "consequences",
        "Say whom an order would stop and what it would promise in excess, without giving it",
        {200: models.ToldConsequences},
        (400, 404, 409, 413, 422),
        body=models.ConsequencesBody,
    ),
    _read(
        f"{JOB}/logs", "job_logs", "Stream what a pod has written", "text/plain", (404, 409, *READS), queries.LogQuery
    ),
    _read("/v1/work", "work", "List live jobs in groups: by tenant, and by why they wait", models.WorkGroups),
    _read("/v1/nodes", "nodes", "List nodes with what is free on them", models.NodeList),
    Route(
        "POST",
        "/v1/nodes/{node}/health",
        "report_health",
        "Say all that is wrong with a node, as an operator or an agent sees it; nothing: it is well",
        {200: NotedHealth, 202: NotedHealth},
        (400, 404, 413, 422, 503),
        body=HealthReportBody,
    ),
    _read("/v1/queues", "queues", "List queues with what they hold", models.QueueList),
    _read(
        "/v1/reservations",
        "reservations",
        "List nodes that are kept in windows of time",
        slot_models.ReservationList,
        (422,),
    ),
    Route(
        "POST",
        "/v1/reservations",
        "reserve",
        "Keep nodes in windows of time, for jobs that name the reservation or for nobody",
        {201: slot_models.OrderedReservation, 202: slot_models.OrderedReservation},
        (400, 409, 413, 422, 503),
        body=slot_models.ReservationBody,
    ),
    Route(
        "DELETE",
        "/v1/reservations/{reservation}",
        "end_reservation",
        "End a reservation; what runs on its nodes goes on",
        {200: slot_models.OrderedReservation, 202: slot_models.OrderedReservation},
        (404, 422, 503),
    ),
    _read("/v1/budgets", "budgets", "List monthly budgets with what is spent of each", models.BudgetList, (422,)),
    _read("/v1/services", "services", "List services with their replicas", models.ServiceList, (422,)),
    _read(
        "/v1/datasets", "datasets", "List data sets with the nodes that have them", dataset_models.DatasetList, (422,)
    ),
    Route(
        "PUT",
        "/v1/datasets/{dataset}/places",
        "tell_places",
        "Say which nodes have a data set of the token's tenant, and which have it no more",
        {200: dataset_models.NotedPlaces, 202: dataset_models.NotedPlaces},
        (400, 413, 422, 503),
        body=dataset_models.PlacesBody,
    ),
    _read(
        "/v1/slots",
        "slots",
        "List how many pods of each size could start now, or at a time ahead",
        slot_models.SlotList,
        (422,),
        queries.SlotQuery,
    ),
    Route(
        "POST",
        "/v1/slots",
        "pod_slots",
        "Count how many pods of a role could start now, in each pool; quota is not looked at, and nothing is submitted",
        {200: slot_models.PodSlotList},
        (400, 413, 422),
        body=slot_models.PodSlotsBody,
    ),
    _read("/v1/idle", "idle", "List what keeps each node's idle GPUs from use", slot_models.IdleList, (422,)),
    _read(
        "/v1/usage",
        "usage",
        "List what was held by whom, idle by what cause, and lost by restarts",
        account_models.UsageList,
        READS,
        queries.UsageQuery,
    ),
    _read(
        "/v1/account",
        "account",
        "Sum up who had the GPUs, CPU or memory, and why nobody did",
        account_models.AccountSums,
        READS,
        queries.AccountQuery,
    ),
    _read("/v1/line", "line", "List the jobs in line, the next one first", models.QueueLine, (422,)),
    _read(
        "/v1/quotes",
        "quotes",
        "List when waiting jobs start with which chance, the soonest first",
        quote_models.QuoteList,
        (422,),
        queries.PageQuery,
    ),
    Route(
        "POST",
        "/v1/quotes",
        "quote",
        "Say when a job would start if it were submitted now, and what would start it earlier; nothing is stored",
        {200: quote_models.SpecQuote},
        (400, 413, 422, 503),
        body=quote_models.QuoteBody,
    ),
    _read("/v1/quotes/scores", "quote_scores", "Say how the last weeks' quotes held", quote_models.ScoreList, (422,)),
    _read("/v1/shares", "shares", "List who holds and has used how much for its weight", models.ShareList, (422,)),
    _read("/v1/status", "status", "Say who leads, what waits and what is wrong", ShardStatus, (422,)),
    _read("/v1/me", "me", "Say whom the token speaks for", models.Me, (422,)),
    _read("/v1/templates", "templates", "List the templates that a submit may name", models.TemplateList, (422,)),
    _read("/v1/config", "config", "Show the configuration in force, to operators", models.ShownConfig),
    _read(
        "/v1/events",
        "events",
        "Stream events as they come, from any place on",
        "text/event-stream",
        (409, 422, 503),
        queries.EventQuery,
    ),
    Route("GET", "/openapi.json", "openapi", "This description", {200: "application/json"}),
)
