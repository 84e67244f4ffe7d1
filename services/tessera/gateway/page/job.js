// One job: how its attempts went, why it stands where it stands, what may be done about it, its pods, events and log.

import { ask } from "./api.js";
import { actions, submitWith } from "./acting.js";
import * as array from "./array.js";
import { el, gpus, jobLink, moment, row, span, table, waited } from "./dom.js";
import * as log from "./log.js";
import { quoted } from "./quotes.js";
import * as story from "./story.js";
import { attempts, by, timeline } from "./timeline.js";

const NAMED_MAX = 5; // jobs by which it was stopped, whose names are asked for

export function leave() {
  log.close();
  story.close();
}

export async function load(id) {
  const [known, why, told, me] = await Promise.all([ask(`v1/jobs/${id}`), ask(`v1/jobs/${id}/explain`).catch(() => null), story.storyOf(id), ask("v1/me")]);
  const others = [...new Set(told.events.map(by).filter(Boolean))].slice(-NAMED_MAX);
  const named = await Promise.all(others.map((other) => ask(`v1/jobs/${other}`).then((found) => [other, found.job.name]).catch(() => [other, ""])));
  const failed = await array.failedOf(known.job);
  return { job: known.job, quote: known.quote, failed, why, told: told.events, whole: told.whole, names: new Map(named), tenant: me.tenant };
}

export function show({ job, quote, failed, why, told, whole, names, tenant }, again) {
  story.watch(again);
  const phase = array.phaseOf(job);
  const facts = [["Phase", job.held ? `${phase}, on hold` : phase], ["Tenant", job.tenant], ["Queue", job.queue], ["Class", job.priority_class]];
  if (job.project) facts.push(["Project", job.project]);
  if (job.address) facts.push(["Address", el("a", { href: job.address, rel: "noopener noreferrer", target: "_blank" }, job.address)]);
  if (job.array?.max_replicas) facts.push(["Replicas", `${job.array.replicas} wanted, ${job.array.min_replicas} to ${job.array.max_replicas} allowed`], ["Running", String(job.array.running)]);
  else if (job.array) facts.push(["Tasks", `${job.array.tasks} (${job.array.count} in all)`], ["Of these", array.counts(job.array)]);
  else facts.push(["Asks for", `${[`${gpus(job.gpu_milli)} GPUs`, ...(job.device_classes ?? []).map(([name, count]) => `${count} of class ${name}`)].join(", ")} in ${job.pods} pod${job.pods === 1 ? "" : "s"}`], ["Attempt", String(job.attempt)], ["Restarts", String(Math.max(0, job.attempt - 1))], ["Stopped for others", String(job.evictions)]);
  if (job.task_of) facts.push(["Task", [`${job.task} of `, jobLink(job.task_of, job.name)]]);
  if (!job.array) facts.push([job.phase === "queued" ? "Waits" : "Waited", `${span(waited(job, Date.now()))}${job.attempt > 1 ? ", before all its runs together" : ""}`]);
  if (quote) facts.push(["Starts", quoted(quote)]);
  if (job.saved_ts) facts.push(["Saved", [moment(job.saved_ts), job.saved_path ? ` at ${job.saved_path}` : ""]]);
  if (job.gpu_use) facts.push(["GPUs used", used(job.gpu_use)]);
  if (job.currency) facts.push(["Cost", cost(job, Date.now())]);
  const heads = [["What"], ["Value"]];
  const runs = attempts(told, job, Date.now());
  return [
    el("h2", {}, job.name), el("p", { class: "soft" }, job.job_id), ...actions(job, again, tenant),
    ...reasons(why), ...suggestions(job, why),
    table("The job", heads, facts.map((fact) => row(heads, fact))),
    ...array.failures(job, failed),
    ...(job.array ? [] : [el("h2", {}, "Attempts")]), whole ? null : el("p", {}, "More of its events are still being read."),
    ...(job.array ? [] : runs.length ? timeline(runs, names) : whole ? [el("p", {}, "No event of it is kept any more.")] : []),
    ...pods(job),
    job.attempt ? log.logOf(job) : null,
    told.length ? el("h2", {}, "Events") : null,
    told.length
      ? el("ol", { class: "story" }, told.map((event) => el("li", {}, moment(Date.parse(event.time)), story.sentence(event))))
      : null,
  ];
}

// What was measured of its GPUs; `tessera get` has the advice, too.
const used = ({ gpus = 0, busy_gpus: busy = 0, measured_gpu_milli_ms: measured = 0, worked_gpu_milli_ms: worked = 0, memory_mib: memory = 0, gpu_memory_mib: there = 0 }) =>
  `${busy} of ${gpus}, ${Math.floor((100 * worked) / Math.max(1, measured))} % of ${span(measured / 1000 / Math.max(1, gpus))} measured${there ? `; ${Math.ceil(memory / 1024)} of ${Math.ceil(there / 1024)} GiB of memory at most` : ""}`;

// Until now, by the rates that its run has from each time on; to the cent, which `tessera get` says to the millionth.
const cost = ({ cost_micros: counted = 0, cost_rates: rates = [], gpu_counted_ts: since = 0, currency }, now) => {
  const more = since ? rates.map(([at, rate], i) => rate * Math.max(0, Math.min(rates[i + 1]?.[0] ?? now, now) - Math.max(at, since))) : [];
  return `${((counted + more.reduce((a, b) => a + b, 0) / 3.6e9) / 1e6).toFixed(2)} ${currency}`;
};

function reasons(why) {
  if (!why) return [];
  const notes = why.notes.slice(0, why.notes.length - why.changes.length); // the changes come last, and have a list of their own
  return [
    el("p", {}, el("strong", {}, why.sentence)),
    why.position ? el("p", {}, `Place ${why.position} of ${why.in_line} in line.`) : null,
    notes.length ? el("ul", {}, notes.map((note) => el("li", {}, note))) : null,
  ];
}

function suggestions(job, why) {
  if (!why || job.phase !== "queued" || !why.tried) return [];
  const tried = `${why.tried} change${why.tried === 1 ? " was" : "s were"} tried on the state as it is`;
  if (!why.changes.length) return [el("p", {}, `${tried}; none lets it start now.`)];
  return [
    el("h2", {}, "It would start now with"), el("p", { class: "soft" }, `${tried}.`),
    el("ul", { class: "changes" }, why.changes.map((change, at) => el("li", {}, el("span", {}, change.text),
      change.submittable ? el("button", { id: `change-${at}`, type: "button", "aria-label": `Submit with this change: ${change.text}`,
        onclick: () => submitWith(job, change, `change-${at}`) }, "Submit with this change") : null))),
  ];
}

function pods(job) {
  if (!job.placements.length) return [];
  const heads = [["Rank", "n"], ["Role"], ["Node"], ["Devices"], ["Pod"]];
  const device = (place) => `${place.devices.join(", ")}${place.mig ? " (MIG)" : place.gpu_milli < 1000 ? ` (${place.gpu_milli / 10} %)` : ""}`;
  const classes = new Map((job.claimed ?? []).map(([role, claim, request, name]) => [[role, claim, request].join(" "), name]));
  const drawn = (place) => (place.drawn ?? []).map((each) =>
    `${classes.get([place.role, each.claim, each.request].join(" ")) ?? each.request}: ${each.driver}/${each.pool}/${each.device}${each.admin ? " (admin)" : ""}`);
  const shown = (place) => [...place.devices.length ? [device(place)] : [], ...drawn(place)].join(", ") || "none";
  return [el("h2", {}, "Pods"), table(`Pods of attempt ${job.attempt}, their GPUs by number, and devices by class`, heads, job.placements.map((place) =>
    row(heads, [String(place.rank), place.role, place.node, shown(place),
      job.owner ? `made by ${job.owner}` : `${job.job_id}-${job.attempt}-${place.rank}`])))];
}
