// The nodes and who holds their GPUs, what is free, and the queues with their quotas.

import { allJobs, ask } from "./api.js";
import { el, gpus, jobLink, row, table } from "./dom.js";

const WHOLE = 1000;
const COLOURS = 8;

const colour = (id) => `var(--c${[...id].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 9973, 7) % COLOURS})`;

export async function load() {
  const [nodes, queues, jobs] = await Promise.all([
    ask("v1/nodes"), ask("v1/queues"), allJobs("phase=starting&phase=running&phase=evicting"),
  ]);
  const there = nodes.items.filter((node) => !node.gone);
  return { nodes: there, queues: queues.items, holders: holders(jobs) };
}

// By node: who holds how much of each device slot. Jobs that the caller may not see are missing here.
function holders(jobs) {
  const found = new Map();
  for (const job of jobs)
    for (const place of job.placements) {
      const slots = found.get(place.node) ?? found.set(place.node, []).get(place.node);
      for (const device of place.devices) slots.push({ device, job, milli: place.gpu_milli });
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
    el("h2", {}, "Free slots"), slots(data.nodes.filter(open)),
    el("h2", {}, "Queues"), queues(data.queues),
    el("h2", {}, "Nodes"),
    el("p", { class: "soft" }, "Each bar is a node's GPUs in their order: one colour a job, grey taken by others, light free."),
    mosaic(data),
  ];
}

const total = (values) => values.reduce((sum, value) => sum + value, 0);
const open = (node) => node.ready && !node.drained && !node.trouble;
const tile = (value, what) => el("li", {}, el("strong", {}, String(value)), el("span", {}, what));

function slots(nodes) {
  const whole = nodes.map((node) => node.gpu_free.filter((milli) => milli === WHOLE).length);
  const heads = [["Pods of"], ["would fit now", "n"]];
  const sizes = [1, 2, 4, 8].filter((size) => nodes.some((node) => node.gpus >= size));
  return table("How many pods of whole GPUs would find room, by GPUs alone", heads, sizes.map((size) =>
    row(heads, [`${size} GPU${size > 1 ? "s" : ""}`, String(total(whole.map((count) => Math.floor(count / size))))])));
}

function queues(found) {
  const heads = [["Queue"], ["Waiting", "n"], ["Live", "n"], ["GPUs held", "n"], ["GPU quota"]];
  return table("Queues: what waits, what is live, and how much of the quota is used", heads, found.map((queue) => {
    const quota = queue.quotas.find((one) => one.resource === "gpu_milli" && !one.flavor);
    const said = quota && `${gpus(quota.used)} of ${gpus(quota.nominal)}${quota.borrowed ? `, ${gpus(quota.borrowed)} borrowed` : ""}${quota.lent ? `, ${gpus(quota.lent)} lent` : ""}`;
    const cell = quota ? [el("meter", { min: 0, max: Math.max(quota.nominal, quota.used, 1), value: quota.used, "aria-label": `quota of ${queue.name}` }), ` ${said}`] : "none";
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
    const now = JSON.stringify([node, held.map((one) => [one.device, one.milli, one.job.job_id, one.job.name])]);
    const before = tiles.get(node.name);
    const tile = before?.now === now ? before : { now, item: el("li", {}, tileOf(node, held)) };
    if (before && before !== tile) before.item.replaceWith(tile.item);
    next.set(node.name, tile);
    if (list.children[at] !== tile.item) list.insertBefore(tile.item, list.children[at] ?? null);
  });
  while (list.children.length > data.nodes.length) list.lastChild.remove();
  tiles = next;
  return list;
}

function tileOf(node, held) {
  const free = node.gpu_free.filter((milli) => milli === WHOLE).length;
  const names = [...new Set(held.map((one) => one.job.name))];
  const why = node.trouble ? node.trouble.code : node.drained ? `drained ${node.drain_why}` : node.ready ? "" : "not ready";
  const said = [`${free} of ${node.gpus} GPUs wholly free`, names.length ? `held by ${names.join(", ")}` : "", why];
  return el("button", {
    type: "button", class: open(node) ? "node" : "node closed", "data-node": node.name,
    "aria-label": `Node ${node.name}: ${said.filter(Boolean).join("; ")}`, onclick: () => details(node, held, why),
  }, el("b", {}, node.name), el("i", { style: { background: strip(node, held) } }));
}

// One hard-edged gradient a node: an element for each of thousands of GPUs would make the page slow.
function strip(node, held) {
  const width = 100 / Math.max(1, node.gpus);
  const pieces = [];
  let from = 0;
  const add = (paint, size) => { if (size > 0) pieces.push(`${paint} ${from.toFixed(2)}% ${(from += size).toFixed(2)}%`); };
  node.gpu_free.forEach((free, device) => {
    const here = held.filter((one) => one.device === device);
    const known = total(here.map((one) => one.milli));
    here.forEach((one) => add(colour(one.job.job_id), (width * one.milli) / WHOLE * 0.94));
    add("var(--other)", (width * Math.max(0, WHOLE - free - known)) / WHOLE * 0.94);
    add("var(--free)", (width * free) / WHOLE * 0.94);
    add("var(--ground)", width * 0.06);
  });
  return pieces.length ? `linear-gradient(to right, ${pieces.join(", ")})` : "none";
}

function details(node, held, why) {
  const heads = [["GPU", "n"], ["Free"], ["Held by"]];
  const box = el("dialog", { "aria-label": `Node ${node.name}` },
    el("h2", {}, node.name),
    el("p", {}, `${node.gpus} ${node.gpu_model || "GPU"} in pool ${node.pool}. ${why ? `It takes nothing new: ${why}.` : ""}`),
    table("GPUs", heads, node.gpu_free.map((free, device) => row(heads, [String(device), `${free / 10} %`,
      held.filter((one) => one.device === device).flatMap((one) => [jobLink(one.job.job_id, one.job.name), " "])]))),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => { if (event.target.tagName === "A") box.close(); });
  document.body.append(box);
  box.showModal();
}
