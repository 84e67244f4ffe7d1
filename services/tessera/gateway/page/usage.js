// GPUs over time: a stacked chart, the same as a table for whoever does not see it, and sums of GPU-hours.

import { el, row, shape, table, words } from "./dom.js";
import { causesInOrder, colourOf, paint, sentenceOf } from "./idle.js";

const [WIDE, HIGH] = [1000, 200]; // of the drawing, which is stretched to its place; the words beside it are not
const UNCLAIMED = ["nothing_waits", "quota", "abandoned", "jobs_wait"];
const GROUPS = [
  ["held by jobs", paint("c0")], ["held, and not used", paint("unused")], ["reserved", paint("reserved")],
  ["idle", paint("waiting")], ["not available", paint("fault")],
];
const GROUP_OF = { reserved: 2, fault: 4, others: 4 }; // what pods of others hold is not available either

const sum = (pairs) => pairs.reduce((all, [, value]) => all + value, 0);
const hours = (gpuSeconds) => (gpuSeconds / 3600).toFixed(2);

// By time, over all pools: GPUs of each group on the average of what was counted.
function levels(usage) {
  const found = new Map();
  for (const item of usage.items) {
    if (!item.counted_ms) continue;
    const seconds = item.counted_ms / 1000;
    const at = found.get(item.start_ts) ?? found.set(item.start_ts, GROUPS.map(() => 0)).get(item.start_ts);
    at[0] += (sum(item.held) - item.unused) / seconds;
    at[1] += item.unused / seconds;
    for (const [cause, spent] of item.idle) at[GROUP_OF[cause] ?? 3] += spent / seconds;
    at.counted = Math.max(at.counted ?? 0, item.counted_ms);
  }
  return [...found].sort(([a], [b]) => a - b);
}

export function chart(usage, hoursShown) {
  const found = levels(usage);
  if (!found.length) return el("p", {}, "Nothing is counted yet.");
  const since = usage.ts - hoursShown * 3600000;
  const begin = Math.max(since, Math.min(found[0][0], usage.ts - 60000));
  const most = Math.max(...found.map(([, parts]) => parts.reduce((a, b) => a + b)), 1);
  const x = (ts) => (WIDE * (Math.min(Math.max(ts, begin), usage.ts) - begin)) / (usage.ts - begin);
  const y = (value) => HIGH * (1 - value / most);
  const step = usage.step_seconds * 1000;
  const areas = GROUPS.map(([, colour], group) => {
    const path = found.map(([ts, parts]) => {
      const low = parts.slice(0, group).reduce((a, b) => a + b, 0);
      return parts[group] ? `M${x(ts).toFixed(1)} ${y(low).toFixed(1)}V${y(low + parts[group]).toFixed(1)}H${x(ts + step).toFixed(1)}V${y(low).toFixed(1)}Z` : "";
    }).join("");
    const drawn = shape("path", { d: path || "M0 0" });
    drawn.style.fill = colour;
    return drawn;
  });
  const counted = found.reduce((all, [, parts]) => all + parts.counted, 0);
  const mean = GROUPS.map((_, group) => found.reduce((all, [, parts]) => all + parts[group] * parts.counted, 0) / counted);
  const told = `GPUs over time, on the average: ${GROUPS.map(([name], group) => `${mean[group].toFixed(1)} ${name}`).join(", ")}; of ${Math.round(most)}.`;
  const heads = [["From"], ...GROUPS.map(([name]) => [name, "n"])];
  const every = Math.max(1, Math.ceil(found.length / 24));
  return el("figure", {},
    el("div", { class: "plot" },
      el("p", { "aria-hidden": "true" }, el("span", {}, String(Math.round(most))), el("span", {}, "0")),
      shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": told }, ...areas),
      el("p", { "aria-hidden": "true" }, el("span", {}, new Date(begin).toLocaleString()), el("span", {}, "now"))),
    el("figcaption", {}, el("ul", { class: "legend", "aria-label": "Colours of the chart, with the average" }, GROUPS.map(([name, colour], group) =>
      el("li", {}, el("i", { style: { background: colour }, "aria-hidden": "true" }), el("strong", {}, mean[group].toFixed(1)), ` ${name}`)))),
    el("details", { id: "usage-table", open: opened }, el("summary", { id: "usage-numbers", onclick: () => { opened = !opened; } }, "The chart in numbers"),
      table("GPUs on the average of each time", heads, found.filter((_, at) => at % every === 0).map(([ts, parts]) =>
        row(heads, [new Date(ts).toLocaleString(), ...parts.map((value) => value.toFixed(1))])))));
}
let opened = false; // across readings: each one draws anew

const grouped = (usage, name) => {
  const found = new Map();
  for (const item of usage.items) for (const [key, spent] of item[name]) found.set(key, (found.get(key) ?? 0) + spent);
  return found;
};

export function byTenant(usage) {
  const heads = [["Tenant"], ["GPU-hours", "n"]];
  const found = [...grouped(usage, "held")].sort(([a], [b]) => (a === "") - (b === "") || (a < b ? -1 : 1));
  return table("GPU-hours held within the time shown", heads, found.map(([tenant, spent]) => row(heads, [tenant || "other tenants together", hours(spent)])));
}

export function byCause(usage) {
  const heads = [["Idle GPUs"], ["GPU-hours", "n"]];
  const found = grouped(usage, "idle");
  const order = causesInOrder.flatMap((cause) => (cause === "none" ? UNCLAIMED : [cause]));
  const unused = usage.items.reduce((all, item) => all + item.unused, 0);
  const rows = order.filter((cause) => found.has(cause)).map((cause) => [
    ...(UNCLAIMED.includes(cause) ? [sentenceOf("none", cause), colourOf("none", cause)] : [sentenceOf(cause), colourOf(cause)]), found.get(cause)]);
  if (unused) rows.push(["held, but their runs were warned that they use none", paint("unused"), unused]);
  return table("GPU-hours that were idle within the time shown, by cause", heads, rows.map(([sentence, colour, spent]) =>
    row(heads, [[el("i", { class: "swatch", style: { background: colour }, "aria-hidden": "true" }), sentence], hours(spent)])));
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
