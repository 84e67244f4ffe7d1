// All jobs, newest first, searched and filtered by the gateway; one of them is `job.js`.

import { ask } from "./api.js";
import * as array from "./array.js";
import { choice, el, field, gpus, jobLink, moment, row, table, words } from "./dom.js";
import * as job from "./job.js";

const PHASES = ["queued", "allocated", "binding", "running", "evicting", "succeeded", "failed", "cancelled", "refused"];
const PAGE = 200;
const LOOKS = 5; // requests for one more page of a rare search: each looks at 20,000 jobs
const wanted = { search: "", queue: "", phase: "", tasks: "false" };
let pages = 1;

export const leave = job.leave;

export const load = (id) => id ? job.load(id) : found();

export const show = (data, id, again) => id ? job.show(data, again) : list(data, again);

async function found() {
  const query = new URLSearchParams([["limit", PAGE], ...Object.entries(wanted).map(([name, value]) => [name, value.trim()]).filter(([, value]) => value)]);
  const queues = ask("v1/queues");
  const [items, many] = [[], pages * PAGE];
  let next = "";
  for (let looks = 0; next !== null && items.length < many && looks < pages * LOOKS; looks++) {
    query.set("cursor", next);
    const page = await ask(`v1/jobs?${query}`);
    items.push(...page.items);
    next = page.next ?? null;
  }
  return { items, more: next !== null, queues: (await queues).items.filter((queue) => !queue.inner && !queue.removed).map((queue) => queue.name) };
}

function list(data, again) {
  const heads = [["Job"], ["Tenant"], ["Queue"], ["Phase"], ["GPUs", "n"], ["Submitted"], ["Reason"]];
  const want = (name) => (value) => { wanted[name] = value; pages = 1; again({ asked: true }); };
  const options = (names, besides) => [["", "all"], ...[...new Set([...names, besides])].filter(Boolean).map((name) => [name, name])];
  const sought = wanted.search || wanted.queue || wanted.phase;
  const caption = `${data.more ? "The newest " : ""}${data.items.length} jobs${sought ? " of those searched for" : ""}`;
  const tasks = el("input", { type: "checkbox", id: "tasks", checked: wanted.tasks === "true", oninput: (event) => want("tasks")(String(event.target.checked)) });
  return [
    el("h2", {}, "Jobs"),
    el("div", { class: "bar" },
      field("search", "Job, queue, tenant or user", el("input", { type: "search", id: "search", maxlength: "100", value: wanted.search, oninput: (event) => want("search")(event.target.value) })),
      field("in-queue", "Queue", choice("in-queue", options(data.queues, wanted.queue), wanted.queue, want("queue"))),
      field("phase", "Phase", choice("phase", options(PHASES, ""), wanted.phase, want("phase"))),
      el("label", { class: "tick" }, tasks, "Tasks of arrays")),
    table(caption, heads, data.items.map((job) => row(heads, [
      jobLink(job.job_id, job.task_of ? `${job.name}_${job.task}` : job.name), job.tenant, job.queue, array.phaseOf(job), job.array ? "–" : gpus(job.gpu_milli),
      moment(job.submitted_ts), [job.array ? array.counts(job.array) : "", job.reason ? words(job.reason.code) : ""].filter(Boolean).join("; ")]))),
    data.more ? el("button", { type: "button", id: "older", onclick: () => { pages++; again({ asked: true }); } }, "Show older jobs") : null,
    el("p", { class: "soft" }, "By user those jobs are found that have not ended."),
  ];
}
