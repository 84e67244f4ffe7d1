// What ran when: GPUs, CPUs and memory over time by holder and by cause of idleness, what restarts cost, and waits by the newest jobs.

import { ask } from "./api.js";
import { el, row, span, table, waited } from "./dom.js";
import { byCause, byTenant, chart, hoursOf, restarts, unitOf } from "./usage.js";

const PAGES_MAX = 10; // of 500 jobs each
const HOUR_MS = 3600000;
const TIMES = [["1", "the last hour"], ["24", "the last day"], ["168", "the last week"], ["744", "the last month"], ["8784", "the last year"]];
const SPLITS = [["use", "by use"], ["tenant", "by tenant"], ["project", "by project"]];
const RESOURCES = [["gpu", "GPUs"], ["cpu", "CPUs"], ["memory", "memory"]];
let [hours, split, resource] = ["1", "use", "gpu"];

export async function load() {
  const [items, usage] = [[], await ask(`v1/usage?hours=${hours}&resource=${resource}${split === "project" ? "&by=project" : ""}`)];
  const since = Date.now() - Number(hours) * HOUR_MS;
  let cursor = "";
  for (let page = 0; page < PAGES_MAX && cursor !== null; page++) {
    const found = await ask(`v1/jobs?limit=500&cursor=${encodeURIComponent(cursor)}`);
    items.push(...found.items);
    cursor = found.next ?? null;
  }
  return { jobs: items.filter((job) => !job.ended_ts || job.ended_ts > since), usage, cut: cursor !== null };
}

export function show(data, id, again) {
  const choice = (name, of, known, set) => el("select", { id: name, oninput: (event) => { set(event.target.value); again({ asked: true }); } },
    of.map(([value, words]) => el("option", { value, selected: value === known }, words)));
  return [
    el("h2", {}, "History"), el("div", { class: "bar" }, el("label", { for: "hours" }, "Show"), choice("hours", TIMES, hours, (value) => { hours = value; }),
      el("label", { for: "split" }, "Areas"), choice("split", SPLITS, split, (value) => { split = value; }),
      el("label", { for: "resource" }, "Of"), choice("resource", RESOURCES, resource, (value) => { resource = value; })),
    el("h2", {}, `${unitOf(data.usage)} over time`), chart(data.usage, Number(hours), split),
    el("h2", {}, `${hoursOf(data.usage)} by ${split === "project" ? "project" : "tenant"}`), byTenant(data.usage, split),
    el("h2", {}, `Idle ${hoursOf(data.usage)} by cause`), byCause(data.usage),
    el("h2", {}, "Preemptions and other restarts"), restarts(data.usage),
    el("h2", {}, "Waits by queue"), waits(data.jobs),
    data.cut ? el("p", { class: "soft" }, `Waits are those of the newest ${PAGES_MAX * 500} jobs alone.`) : null,
  ];
}

function by(items, key) {
  const found = new Map();
  for (const item of items) (found.get(item[key]) ?? found.set(item[key], []).get(item[key])).push(item);
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
}

function waits(jobs) {
  const heads = [["Queue"], ["Started", "n"], ["Half waited up to", "n"], ["95 of 100 waited up to", "n"], ["Stopped for others", "n"]];
  const at = (found, share) => span(found[Math.min(found.length - 1, Math.floor(found.length * share))]);
  return table("Time in which jobs waited for their runs to start, the waits before each run added up", heads, by(jobs.filter((job) => job.started_ts), "queue").map(([queue, found]) => {
    const times = found.map(waited).sort((a, b) => a - b);
    return row(heads, [queue, String(found.length), at(times, 0.5), at(times, 0.95), String(found.reduce((sum, job) => sum + job.evictions, 0))]);
  }));
}
