// The nodes and who holds their GPUs, what is free, and the queues with their quotas.

import { allJobs, ask } from "./api.js";
import { calendar } from "./calendar.js";
import { el, gpus, jobLink, moment, row, table, words } from "./dom.js";
import { causesInOrder, colourOf, heldBack, legend, paint, sentenceOf, whereabouts } from "./idle.js";
import { backgroundOf, giveLooks, lookOf } from "./looks.js";
import { scores } from "./quotes.js";
import { chart } from "./usage.js";

const WHOLE = 1000;
const HOURS = 6;
const OF_CLASS = "class:";
const HOLDING = ["allocated", "binding", "running", "evicting"];
const NOTHING_IDLE = { stranded: [], reserved: [], unclaimed: "nothing_waits" };

export async function load() {
  const [nodes, queues, slots, idle, kept, held, usage, jobs] = await Promise.all([
    ask("v1/nodes"), ask("v1/queues"), ask("v1/slots"), ask("v1/idle"), ask("v1/reservations"), ask("v1/quotes/scores"), ask(`v1/usage?hours=${HOURS}`), allJobs(HOLDING.map((phase) => `phase=${phase}`).join("&")),
  ]);
  const there = nodes.items.filter((node) => !node.gone);
  const unclaimed = new Map(slots.items.map((pool) => [pool.pool, pool.unclaimed]));
  const byNode = new Map(idle.items.map((each) => [each.node, { ...each, unclaimed: unclaimed.get(each.pool) }]));
  return { nodes: there, queues: queues.items, pools: slots.items, kept: kept.items, scores: held.items, usage, idle: byNode, holders: holders(jobs) };
}

// By node: who holds how much of each device slot. Jobs that the caller may not see are missing here.
function holders(jobs) {
  const found = new Map();
  giveLooks(jobs.map((job) => job.job_id));
  for (const job of jobs)
    for (const place of job.placements) {
      const slots = found.get(place.node) ?? found.set(place.node, []).get(place.node);
      for (const device of place.devices) slots.push({ device, job, milli: place.gpu_milli, mig: Boolean(place.mig) });
    }
  return found;
}

export function show(data) {
  const free = data.nodes.filter(open).flatMap((node) => node.gpu_free);
  const all = data.nodes.reduce((sum, node) => sum + node.gpus, 0);
  const taken = data.nodes.reduce((sum, node) => sum + node.gpus * WHOLE - total(node.gpu_free), 0);
  const whole = free.filter((milli) => milli === WHOLE).length;
  const closed = data.nodes.filter((node) => !open(node)).length;
  return [
    el("h2", {}, "GPUs"),
    el("ul", { class: "tiles" },
      tile(`${gpus(taken)} / ${all}`, "GPUs taken"), tile(whole, "whole GPUs free"),
      tile(gpus(total(free) - whole * WHOLE), "free in parts of GPUs"), tile(data.nodes.length, "nodes"),
      tile(closed, "nodes that take nothing new")),
    el("h2", {}, "Where they are"), legend(whereabouts(data.pools)), ...heldBack(data.pools),
    el("div", { class: "columns" },
      el("section", {}, el("h2", {}, "Free slots"), slots(data.pools), el("h2", {}, "Queues"), queues(data.queues)),
      el("section", {}, el("h2", {}, `GPUs over the last ${HOURS} hours`), chart(data.usage, HOURS))),
    ...calendar(data.kept, Date.now()), ...scores(data.scores), ...sick(data.nodes), el("h2", {}, "Nodes"),
    el("p", { class: "soft" }, "Each bar is a node's GPUs in their order: one colour a job, with stripes where colours run out, those that nobody holds by cause as in the list above, and grey what you may not see by name."),
    mosaic(data),
  ];
}

const total = (values) => values.reduce((sum, value) => sum + value, 0);
const open = (node) => node.ready && !node.drained && !node.trouble;
const tile = (value, what) => el("li", {}, el("strong", {}, String(value)), el("span", {}, what));

function slots(pools) {
  const heads = [["Pool"], ["Pods of"], ["could start now", "n"], ["Largest gang of them"]];
  return table("How many pods of whole GPUs could start now, with as little CPU and memory as any job asks for", heads,
    pools.flatMap((pool) => pool.sizes.map(({ gpus: size, slots: count, largest }) =>
      row(heads, [pool.pool, `${size} GPU${size > 1 ? "s" : ""}`, String(count), largest.map(([level, most]) => `${most} in one ${level}`).join(", ")]))));
}

const SICK = [["Node"], ["What is wrong"], ["Since"], ["Said by"], ["Evidence", "widest"], ["What is done"], ["Last test"]];

function sick(nodes) {
  const rows = nodes.flatMap((node) => (node.ailments ?? []).map(({ source, ailment, since_ts: since }) => row(SICK, [
    node.name, el("span", { title: ailment.cause }, words(ailment.cause)), moment(since), source,
    [ailment.device, ailment.evidence].filter(Boolean).join(": "), done(node), tested(node.test)])));
  return rows.length ? [el("h2", {}, "Nodes that are not well"), table("What is wrong with nodes, who says so, and what is done about it", SICK, rows)] : [];
}

function done(node) {
  if (node.overruled) return "overruled by an operator";
  if (node.health_held_back) return "held back: too many of its pool are out";
  return node.drained ? `takes nothing new${node.fence ? `; the fencing webhook: ${node.fence}` : ""}` : "noted";
}

// The last test job of a suspect; of one that lives also how those before it ended.
function tested(test) {
  if (!test) return "";
  const { passes = 0, failures = 0 } = test;
  const before = !test.outcome && passes + failures ? `; before: ${passes} passed, ${failures} failed` : "";
  const said = { passed: "passed ", failed: "failed ", nothing: "came to nothing " }[test.outcome] ?? "under test since ";
  return el("span", {}, said, moment(test.ended_ts || test.since_ts), ", ", jobLink(test.job_id, "its job"), before);
}

// A quota that is a part of the pool, with how much that is now.
function part({ nominal, part_percent: percent }) {
  return percent ? `${percent === 100 ? "all" : `${percent}%`} (${gpus(nominal)})` : gpus(nominal);
}

function queues(found) {
  const heads = [["Queue"], ["Waiting", "n"], ["Live", "n"], ["GPUs held", "n"], ["GPU quota"]];
  return table("Queues: what waits, what is live, and how much of the quota is used", heads, found.map((queue) => {
    const quota = queue.quotas.find((one) => one.resource === "gpu_milli" && !one.flavor);
    const said = quota && `${gpus(quota.used)} of ${part(quota)}${quota.borrowed ? `, ${gpus(quota.borrowed)} borrowed` : ""}${quota.lent ? `, ${gpus(quota.lent)} lent` : ""}`;
    const classes = queue.quotas.filter((one) => one.resource.startsWith(OF_CLASS)).map(({ resource, flavor, used, nominal }) =>
      `${resource.slice(OF_CLASS.length)}${flavor ? ` of ${flavor}` : ""} ${used} of ${nominal}`).join(", ");
    const bar = quota ? [el("meter", { min: 0, max: Math.max(quota.nominal, quota.used, 1), value: quota.used, "aria-label": `quota of ${queue.name}` }), ` ${said}`] : ["none"];
    const cell = [...bar, classes ? el("div", { class: "soft" }, classes) : null];
    const stopped = queue.stop_policy === "none" ? "" : " (stopped)";
    return row(heads, [queue.name + stopped, String(queue.queued), String(queue.live), gpus(queue.used_gpu_milli), cell]);
  }));
}

// The list stays in the page from one reading to the next, and with it the tile of every node that is as it was: of a
// thousand nodes few change in a second, and drawing all of them anew took seconds.
const list = el("ul", { class: "mosaic" });
let tiles = new Map();

function mosaic(data) {
  const next = new Map();
  data.nodes.forEach((node, at) => {
    const held = data.holders.get(node.name) ?? [];
    const idle = data.idle.get(node.name) ?? NOTHING_IDLE;
    const now = JSON.stringify([node, idle, held.map((one) => [one.device, one.milli, one.job.job_id, one.job.name, one.job.idle_ts])]);
    const before = tiles.get(node.name);
    const tile = before?.now === now ? before : { now, item: el("li", {}, tileOf(node, held, idle)) };
    if (before && before !== tile) before.item.replaceWith(tile.item);
    next.set(node.name, tile);
    if (list.children[at] !== tile.item) list.insertBefore(tile.item, list.children[at] ?? null);
  });
  while (list.children.length > data.nodes.length) list.lastChild.remove();
  tiles = next;
  return list;
}

function tileOf(node, held, idle) {
  const free = node.gpu_free.filter((milli) => milli === WHOLE).length;
  const jobs = [...new Map(held.map((one) => [one.job.job_id, one.job])).values()];
  const isOnly = (job) => jobs.every((other) => other === job || other.name !== job.name);
  const names = jobs.map((job) => (isOnly(job) ? job.name : `${job.name} (${job.job_id})`));
  const why = node.trouble ? words(node.trouble.code) : node.drained ? `${node.drained_by ? "sick:" : "drained"} ${node.drain_why}` : node.cordoned ? "cordoned" : !node.ready ? "not ready" : node.spare ? "kept as a spare" : "";
  const kinds = [node.mig_instances.length ? "MIG" : "", held.some((one) => one.milli < WHOLE && !one.mig) ? "shares" : ""].filter(Boolean).join(", ");
  const kept = [...new Set(idle.reserved.map(nameOf))];
  const said = [
    `${free} of ${node.gpus} GPUs wholly free`, names.length ? `held by ${names.join(", ")}` : "",
    ...idle.stranded.map(([cause, milli]) => `${gpus(milli)} ${sentenceOf(cause, idle.unclaimed)}`),
    kept.length ? `kept for ${kept.join(", ")}` : "", kinds, why,
  ];
  return el("button", {
    type: "button", class: open(node) ? "node" : "node closed", "data-node": node.name,
    "aria-label": `Node ${node.name}: ${said.filter(Boolean).join("; ")}`, onclick: () => details(node, held, idle, why),
  }, el("b", {}, node.name, kinds ? el("small", {}, ` ${kinds}`) : null), el("i", { style: { background: strip(node, held, idle) } }));
}

const nameOf = (reservation) => reservation.name || "another tenant's job";

// One hard-edged gradient a node: an element for each of thousands of GPUs would make the page slow.
function strip(node, held, idle) {
  const width = 100 / Math.max(1, node.gpus);
  const pieces = [];
  let from = 0;
  const add = (colour, milli) => {
    const size = (width * milli) / WHOLE * 0.94;
    if (size > 0) pieces.push(`${colour} ${from.toFixed(2)}% ${(from += size).toFixed(2)}%`);
  };
  for (const device of devices(node, held, idle)) {
    for (const one of device.held)
      if (one.job.idle_ts) add(paint("unused"), one.milli);
      else lookOf(one.job.job_id).forEach(([colour, share]) => add(colour, one.milli * share));
    add(paint("other"), device.hidden);
    add(paint("reserved"), device.kept);
    device.free.forEach(([cause, milli]) => add(colourOf(cause, idle.unclaimed), milli));
    pieces.push(`var(--ground) ${from.toFixed(2)}% ${(from += width * 0.06).toFixed(2)}%`);
  }
  return pieces.length ? `linear-gradient(to right, ${pieces.join(", ")})` : "none";
}

// Each device slot: who holds it, what is kept, and its free part by cause. Causes are counted for the whole node:
// parts of a GPU are the first to be of a shape that nobody asks for, and whole ones the first that can be had.
function devices(node, held, idle) {
  const left = new Map(idle.stranded);
  let unkept = left.get("reserved") ?? left.get("fault") ?? 0;
  return node.gpu_free.map((free, device) => {
    const here = held.filter((one) => one.device === device);
    const taken = Math.max(0, WHOLE - free - total(here.map((one) => one.milli)));
    const meant = total(idle.reserved.filter((one) => one.devices.includes(device)).map((one) => one.gpu_milli));
    const kept = Math.min(taken, meant, unkept);
    unkept -= kept;
    return { free: byCause(free, left, node.spare), held: here, kept, hidden: taken - kept };
  });
}

function byCause(free, left, isSpare) {
  const found = [];
  const order = causesInOrder.filter((cause) => cause !== "others" && (isSpare || cause !== "reserved"));
  if (free < WHOLE) order.sort((a, b) => (b === "shape") - (a === "shape"));
  for (const cause of order) {
    const part = Math.min(free, left.get(cause) ?? 0);
    if (part <= 0) continue;
    found.push([cause, part]);
    left.set(cause, left.get(cause) - part);
    free -= part;
  }
  if (free > 0) found.push(["none", free]); // counted a moment ago, or of a pool that no queue uses
  return found;
}

function details(node, held, idle, why) {
  const heads = [["GPU", "n"], ["Free"], ["Held by"], ["Kept for"]];
  const share = (one) => (one.milli === WHOLE ? "" : ` ${one.milli / 10} %${one.mig ? " (MIG)" : ""}`);
  const items = [
    ...idle.stranded.map(([cause, milli]) => `${gpus(milli)} ${sentenceOf(cause, idle.unclaimed)}`),
    ...node.mig_instances.map(([profile, count]) => `${count} MIG instances ${profile}`),
    ...(node.device_classes ?? []).map(([name, count, taken, tainted]) =>
      `${count} devices of class ${name}, ${taken} taken${tainted ? `, ${tainted} tainted` : ""}`),
  ];
  const box = el("dialog", { "aria-label": `Node ${node.name}` },
    el("h2", {}, node.name),
    el("p", {}, `${node.gpus} ${node.gpu_model || "GPU"} in pool ${node.pool}. ${why ? `It takes nothing new: ${why}.` : ""}`),
    items.length ? el("ul", {}, items.map((item) => el("li", {}, item))) : null,
    table("GPUs", heads, devices(node, held, idle).map((device, at) => row(heads, [String(at), `${node.gpu_free[at] / 10} %`,
      device.held.flatMap((one) => [
        el("i", { class: "swatch", style: { background: one.job.idle_ts ? paint("unused") : backgroundOf(one.job.job_id) }, "aria-hidden": "true" }), jobLink(one.job.job_id, one.job.name), `${share(one)}${one.job.idle_ts ? ", which uses none of it" : ""} `]),
      idle.reserved.filter((one) => one.devices.includes(at)).flatMap((one) => [one.job_id ? jobLink(one.job_id, one.name) : nameOf(one), ` (${one.cause}) `])]))),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => { if (event.target.tagName === "A") box.close(); });
  document.body.append(box);
  box.showModal();
}
