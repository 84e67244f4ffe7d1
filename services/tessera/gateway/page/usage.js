// GPUs, CPUs or memory over time: a stacked chart, the same as a table for whoever does not see it, and sums of hours.

import { el, row, shape, table, words } from "./dom.js";
import { paint } from "./idle.js";

const [WIDE, HIGH] = [1000, 200]; // of the drawing, which is stretched to its place; the words beside it are not
const GROUPS = [
  ["held by jobs", paint("c0")], ["held, and not used", paint("unused")], ["reserved", paint("reserved")],
  ["idle", paint("waiting")], ["not available", paint("fault")],
];
const GROUP_OF = { booked: 2, reserved: 2, earmarked: 2, out: 4, others: 4 };
// Causes of the account, in the order in which they are told.
const CAUSES = {
  others: ["held by pods that Tessera does not manage", "other"],
  out: ["on nodes that are not ready, cordoned, drained or backed off", "fault"],
  booked: ["kept by reservations: in a window, or before one that all that waits would outlast", "reserved"],
  reserved: ["kept for jobs that will start there", "reserved"],
  earmarked: ["kept for jobs by plans, cordons and restarts", "reserved"],
  nothing_waits: ["free, and nothing waits", "free"],
  quota: ["free: all that waits lacks its queue's quota", "quota"],
  budget: ["free: the budgets of all that waits are spent", "quota"],
  queue_stopped: ["free: the queues of all that waits are stopped", "quota"],
  model: ["free: nothing that waits takes this GPU model", "remainder"],
  pods: ["free: their nodes take no more pods", "remainder"],
  gpu: ["free: too few on a node, or parts, for all that waits", "remainder"],
  cpu: ["free: too little CPU is left beside them", "remainder"],
  memory: ["free: too little memory is left beside them", "remainder"],
  work_waits: ["free: jobs wait for more at once, or for their turn", "waiting"],
  free: ["free", "free"], // of CPU and memory, for whatever reason
};
const TENANTS = 7; // with a colour of their own; projects as many
const UNITS = { gpu: "GPUs", cpu: "CPUs", memory: "GiB" };
const HOURS = { gpu: "GPU-hours", cpu: "CPU-hours", memory: "GiB-hours" };
export const unitOf = (usage) => UNITS[usage.resource] ?? UNITS.gpu;
export const hoursOf = (usage) => HOURS[usage.resource] ?? HOURS.gpu;

const sum = (pairs) => pairs.reduce((all, [, value]) => all + value, 0);
const hours = (gpuSeconds) => (gpuSeconds / 3600).toFixed(2);
const tenantOf = (name) => name || "other tenants together";

// The areas, as name and colour, and into which of them an item puts how many seconds of one.
function byUse(usage) {
  const groups = unitOf(usage) === UNITS.gpu ? GROUPS : GROUPS.map(([name, colour], at) => [at === 1 ? "held by runs that use no GPU of theirs" : name, colour]);
  return [groups, (item) => [
    [0, sum(item.held) - item.unused], [1, item.unused], ...item.idle.map(([cause, spent]) => [GROUP_OF[cause] ?? 3, spent])]];
}

function byHolder(usage, split) {
  const names = [...grouped(usage, "held")].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1)).map(([name]) => name);
  const most = names.slice(0, TENANTS);
  const further = names.length > most.length ? [[`further ${split}s`, paint("other")]] : [];
  const groups = [...most.map((name, at) => [tenantOf(name), paint(`c${at}`)]), ...further, ["held by no job", paint("free")]];
  const place = (name) => (most.includes(name) ? most.indexOf(name) : most.length);
  return [groups, (item) => [...item.held.map(([name, spent]) => [place(name), spent]), [groups.length - 1, sum(item.idle)]]];
}

// By time, over all pools: amounts of each group on the average of what was counted.
function levels(usage, groups, parts) {
  const found = new Map();
  for (const item of usage.items) {
    if (!item.counted_ms) continue;
    const at = found.get(item.start_ts) ?? found.set(item.start_ts, groups.map(() => 0)).get(item.start_ts);
    for (const [group, spent] of parts(item)) at[group] += spent / (item.counted_ms / 1000);
    at.counted = Math.max(at.counted ?? 0, item.counted_ms);
  }
  return [...found].sort(([a], [b]) => a - b);
}

export function chart(usage, hoursShown, split = "use") {
  const [groups, parts] = split === "use" ? byUse(usage) : byHolder(usage, split);
  const found = levels(usage, groups, parts);
  if (!found.length) return el("p", {}, "Nothing is counted yet.");
  const since = usage.ts - hoursShown * 3600000;
  const begin = Math.max(since, Math.min(found[0][0], usage.ts - 60000));
  const most = Math.max(...found.map(([, parts]) => parts.reduce((a, b) => a + b)), 1);
  const x = (ts) => (WIDE * (Math.min(Math.max(ts, begin), usage.ts) - begin)) / (usage.ts - begin);
  const y = (value) => HIGH * (1 - value / most);
  const step = usage.step_seconds * 1000;
  const areas = groups.map(([, colour], group) => {
    const path = found.map(([ts, parts]) => {
      const low = parts.slice(0, group).reduce((a, b) => a + b, 0);
      return parts[group] ? `M${x(ts).toFixed(1)} ${y(low).toFixed(1)}V${y(low + parts[group]).toFixed(1)}H${x(ts + step).toFixed(1)}V${y(low).toFixed(1)}Z` : "";
    }).join("");
    const drawn = shape("path", { d: path || "M0 0" });
    drawn.style.fill = colour;
    return drawn;
  });
  const counted = found.reduce((all, [, parts]) => all + parts.counted, 0);
  const mean = groups.map((_, group) => found.reduce((all, [, parts]) => all + parts[group] * parts.counted, 0) / counted);
  const told = `${unitOf(usage)} over time, on the average: ${groups.map(([name], group) => `${mean[group].toFixed(1)} ${name}`).join(", ")}; of ${Math.round(most)}.`;
  const heads = [["From"], ...groups.map(([name]) => [name, "n"])];
  const every = Math.max(1, Math.ceil(found.length / 24));
  return el("figure", {},
    el("div", { class: "plot" },
      el("p", { "aria-hidden": "true" }, el("span", {}, String(Math.round(most))), el("span", {}, "0")),
      shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": told }, ...areas),
      el("p", { "aria-hidden": "true" }, el("span", {}, new Date(begin).toLocaleString()), el("span", {}, "now"))),
    el("figcaption", {}, el("ul", { class: "legend", "aria-label": "Colours of the chart, with the average" }, groups.map(([name, colour], group) =>
      el("li", {}, el("i", { style: { background: colour }, "aria-hidden": "true" }), el("strong", {}, mean[group].toFixed(1)), ` ${name}`)))),
    el("details", { id: "usage-table", open: opened }, el("summary", { id: "usage-numbers", onclick: () => { opened = !opened; } }, "The chart in numbers"),
      table(`${unitOf(usage)} on the average of each time`, heads, found.filter((_, at) => at % every === 0).map(([ts, parts]) =>
        row(heads, [new Date(ts).toLocaleString(), ...parts.map((value) => value.toFixed(1))])))));
}
let opened = false; // across readings: each one draws anew

const grouped = (usage, name) => {
  const found = new Map();
  for (const item of usage.items) for (const [key, spent] of item[name]) found.set(key, (found.get(key) ?? 0) + spent);
  return found;
};

export function byTenant(usage, split = "tenant") {
  const heads = [[split === "project" ? "Project" : "Tenant"], [hoursOf(usage), "n"]];
  const found = [...grouped(usage, "held")].sort(([a], [b]) => (a === "") - (b === "") || (a < b ? -1 : 1));
  return table(`${hoursOf(usage)} held within the time shown`, heads, found.map(([tenant, spent]) => row(heads, [tenantOf(tenant), hours(spent)])));
}

export function byCause(usage) {
  const heads = [[`Idle ${unitOf(usage)}`], [hoursOf(usage), "n"]];
  const found = grouped(usage, "idle");
  const unused = usage.items.reduce((all, item) => all + item.unused, 0);
  const rows = Object.entries(CAUSES).filter(([cause]) => found.has(cause)).map(([cause, [sentence, colour]]) => [sentence, colour, found.get(cause)]);
  if (unused) rows.push(["held, but their runs were warned that they use none of their GPUs", "unused", unused]);
  return table(`${hoursOf(usage)} that were idle within the time shown, by cause`, heads, rows.map(([sentence, colour, spent]) =>
    row(heads, [[el("i", { class: "swatch", style: { background: paint(colour) }, "aria-hidden": "true" }), sentence], hours(spent)])));
}

export function restarts(usage) {
  const heads = [["Stopped for"], ["Tenant"], ["Restarts", "n"], ["GPU-hours lost", "n"]];
  const found = new Map();
  for (const item of usage.items)
    for (const each of item.restarts) {
      const key = `${each.reason} ${each.tenant}`;
      const known = found.get(key) ?? found.set(key, { ...each, restarts: 0, lost: 0 }).get(key);
      known.restarts += each.restarts;
      known.lost += each.lost;
    }
  if (!found.size) return el("p", {}, "No run was stopped to begin again within the time shown.");
  return table("Runs that begin again, and their GPU time since the last checkpoint or else the start", heads, [...found].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, each]) =>
    row(heads, [words(each.reason), each.tenant, String(each.restarts), hours(each.lost)])));
}
