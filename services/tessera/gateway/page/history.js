// What ran when: GPUs in use over time, and what each tenant and queue had, by the newest jobs and their last runs.

import { ask } from "./api.js";
import { el, gpus, row, shape, span, table } from "./dom.js";

const PAGES_MAX = 10; // of 500 jobs each
const STEPS = 240;
const HOUR_MS = 3600000;
const [WIDE, HIGH, LEFT, BELOW] = [960, 240, 44, 22];
let hours = "1";

export async function load() {
  const [items, nodes] = [[], await ask("v1/nodes")];
  const since = Date.now() - Number(hours) * HOUR_MS;
  let cursor = "";
  for (let page = 0; page < PAGES_MAX && cursor !== null; page++) {
    const found = await ask(`v1/jobs?limit=500&cursor=${encodeURIComponent(cursor)}`);
    items.push(...found.items);
    cursor = found.next ?? null;
  }
  const size = nodes.items.filter((node) => !node.gone).reduce((sum, node) => sum + node.gpus, 0);
  return { jobs: items.filter((job) => !job.ended_ts || job.ended_ts > since), size, since, until: Date.now(), cut: cursor !== null };
}

export function show(data, id, again) {
  const choice = el("select", { id: "hours", oninput: (event) => { hours = event.target.value; again(); } },
    [["1", "the last hour"], ["24", "the last day"], ["168", "the last week"]].map(([value, name]) => el("option", { value, selected: value === hours }, name)));
  const runs = data.jobs.filter((job) => job.started_ts && job.gpu_milli).map((job) => ({
    tenant: job.tenant, queue: job.queue, milli: job.held_gpu_milli || job.gpu_milli,
    from: Math.max(job.started_ts, data.since), to: job.ended_ts || data.until,
  })).filter((run) => run.to > run.from);
  return [
    el("h2", {}, "History"), el("div", { class: "bar" }, el("label", { for: "hours" }, "Show"), choice),
    data.cut ? el("p", {}, `Of the newest ${PAGES_MAX * 500} jobs alone.`) : null,
    el("h2", {}, "GPUs in use"), chart(runs, data), el("p", { class: "soft" }, "Of each job its last run; earlier attempts are not drawn."),
    el("h2", {}, "GPU-hours by tenant"), hoursOf(runs),
    el("h2", {}, "Waits by queue"), waits(data.jobs),
  ];
}

function chart(runs, data) {
  const used = Array.from({ length: STEPS + 1 }, (_, step) => {
    const at = data.since + ((data.until - data.since) * step) / STEPS;
    return runs.reduce((sum, run) => sum + (run.from <= at && at < run.to ? run.milli : 0), 0) / 1000;
  });
  const most = Math.max(data.size, ...used, 1);
  const x = (step) => LEFT + ((WIDE - LEFT) * step) / STEPS;
  const y = (value) => (HIGH - BELOW) * (1 - value / most) + 2;
  const line = used.map((value, step) => `${step ? "H" : "M"}${x(step)}${step ? "V" : " "}${y(value)}`).join("");
  const peak = Math.max(...used), mean = used.reduce((sum, value) => sum + value, 0) / used.length;
  const told = `GPUs in use: mean ${mean.toFixed(1)}, most ${gpus(peak * 1000)}, of ${data.size}.`;
  const label = (text, at, height, anchor) => shape("text", { x: at, y: height, "text-anchor": anchor, class: "axis" }, text);
  return el("figure", { class: "scroll", tabindex: "0", role: "region", "aria-label": "GPUs in use over time" },
    shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": told, class: "chart" },
      shape("path", { d: `${line}V${y(0)}H${x(0)}Z`, class: "area" }),
      shape("path", { d: `M${LEFT} ${y(data.size)}H${WIDE}`, class: "limit" }),
      label(String(data.size), LEFT - 6, y(data.size) + 13, "end"), label("0", LEFT - 6, y(0) - 2, "end"),
      label(new Date(data.since).toLocaleString(), LEFT, HIGH - 4, "start"), label("now", WIDE - 2, HIGH - 4, "end")),
    el("figcaption", {}, told));
}

function by(items, key) {
  const found = new Map();
  for (const item of items) (found.get(item[key]) ?? found.set(item[key], []).get(item[key])).push(item);
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
}

function hoursOf(runs) {
  const heads = [["Tenant"], ["Jobs", "n"], ["GPU-hours", "n"]];
  const spent = (found) => found.reduce((sum, run) => sum + (run.milli / 1000) * (run.to - run.from), 0) / HOUR_MS;
  return table("Within the time shown", heads, by(runs, "tenant").map(([tenant, found]) =>
    row(heads, [tenant, String(found.length), spent(found).toFixed(2)])));
}

function waits(jobs) {
  const heads = [["Queue"], ["Started", "n"], ["Half waited up to", "n"], ["95 of 100 waited up to", "n"], ["Stopped for others", "n"]];
  const at = (found, share) => span(found[Math.min(found.length - 1, Math.floor(found.length * share))]);
  return table("From submit to the start of the last run", heads, by(jobs.filter((job) => job.started_ts), "queue").map(([queue, found]) => {
    const waited = found.map((job) => job.started_ts - job.submitted_ts).sort((a, b) => a - b);
    return row(heads, [queue, String(found.length), at(waited, 0.5), at(waited, 0.95), String(found.reduce((sum, job) => sum + job.evictions, 0))]);
  }));
}
