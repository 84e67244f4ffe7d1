// Who is next, in the order of the scheduler, with the reason for which each job still waits and its expected start.

import { ask } from "./api.js";
import { choice, el, field, gpus, jobLink, moment, reasonOf, row, span, table, waited } from "./dom.js";
import { quoted } from "./quotes.js";

const KEPT = "tessera-queue"; // survives the tab: what a person has chosen here, never a token
const chosen = { first: null, user: "", ...kept() };
let [sought, queue] = ["", ""];

function kept() {
  try { return JSON.parse(localStorage.getItem(KEPT)) ?? {}; } catch { return {}; }
}

function keep(change) {
  Object.assign(chosen, change);
  try { localStorage.setItem(KEPT, JSON.stringify(chosen)); } catch { /* a browser that keeps nothing */ }
}

export async function load() {
  const [me, line] = await Promise.all([ask("v1/me"), ask("v1/line")]);
  return { ...line, tenant: me.tenant, user: me.user };
}

const heads = [["Place", "n"], ["Job"], ["Queue"], ["Tenant"], ["User"], ["GPUs", "n"], ["Waits", "n"], ["Expected start", "wide"], ["Why it waits", "widest"]];
const WAITS = 6;

// The table stays in the page from one reading to the next, and with it the row of every job that is as it was.
const list = table("", heads, []);
const body = list.querySelector("tbody");
let rows = new Map();

function put(items, data) {
  const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const next = new Map();
  for (const item of items) {
    const key = item.job_id || `${item.pool} ${item.position}`;
    const mine = isMine(item, data);
    const now = JSON.stringify([item, mine]);
    const before = rows.get(key);
    next.set(key, before?.now === now ? before : { now, tr: rowOf(item, mine) });
    const cell = next.get(key).tr.cells[WAITS];
    const waits = span(waited(item, data.ts)).replace(/m\d+s$/, "m");
    if (cell.textContent !== waits) cell.textContent = waits;
  }
  for (const [key, { tr }] of rows) if (next.get(key)?.tr !== tr) tr.remove();
  [...next.values()].forEach(({ tr }, at) => { if (body.children[at] !== tr) body.insertBefore(tr, body.children[at] ?? null); });
  rows = next;
  if (focused && !body.contains(document.activeElement)) body.querySelector(`a[href="${focused}"]`)?.focus({ preventScroll: true });
  const caption = `${items.length} of ${data.items.length} jobs in line`;
  list.querySelector("caption").textContent = caption;
  list.setAttribute("aria-label", caption);
}

const rowOf = (item, mine) => row(heads, [String(item.position), item.job_id ? jobLink(item.job_id, item.name) : "another tenant's", item.queue, item.tenant,
  item.user, gpus(item.gpu_milli), "", ...(item.job_id ? [start(item), reasonOf(item.why) || "not looked at yet"] : ["", ""])], { class: mine ? "mine" : "" });

export function show(data) {
  const first = chosen.first ?? Boolean(data.tenant); // on for a tenant until somebody turns it off
  const fill = () => {
    const wanted = data.items.filter((item) => (!queue || item.queue === queue)
      && `${item.name} ${item.job_id} ${item.queue} ${item.tenant} ${item.user}`.toLowerCase().includes(sought.toLowerCase()));
    const mine = (item) => isMine(item, data);
    put((chosen.first ?? Boolean(data.tenant)) ? [...wanted.filter(mine), ...wanted.filter((item) => !mine(item))] : wanted, data);
  };
  fill();
  return [
    el("h2", {}, "Queue"),
    el("div", { class: "bar" },
      field("search", "Job, queue, tenant or user", el("input", { type: "search", id: "search", value: sought, oninput: (event) => { sought = event.target.value; fill(); } })),
      field("in-queue", "Queue", choice("in-queue", [["", "all"], ...names(data.items, "queue", queue)], queue, (value) => { queue = value; fill(); })),
      field("whose", "I am", choice("whose", [["", data.user || (data.tenant ? `anybody of ${data.tenant}` : "nobody")], ...names(data.items, "user", chosen.user)], chosen.user, (value) => { keep({ user: value }); fill(); })),
      el("label", { class: "tick" }, el("input", { type: "checkbox", id: "first", checked: first, oninput: (event) => { keep({ first: event.target.checked }); fill(); } }), "Mine first")),
    data.items.length ? null : el("p", {}, "Nobody waits."), list,
    el("p", { class: "soft" }, "A start is expected of jobs for which room is kept, where the ends of the runs before them are known. All who wait for GPUs have a quote: times by which they start with a chance of 50, 80 and 95 %. The line names 512 jobs of a pool at most; tessera ls lists all that wait."),
  ];
}

// As `squeue --me` has it a person's jobs are the tenant's; of one who says a user name, or whose token is bound to one,
// those that name that user.
const isMine = (item, { tenant, user }) => Boolean(item.job_id && (chosen.user || user ? item.user === (chosen.user || user) : tenant));

function start({ expected_start: expected, quote }) {
  if (!expected && !quote) return "not known";
  return el("div", {}, expected ? el("div", {}, expected.words) : null, expected ? el("div", { class: "soft" }, moment(expected.at_ts)) : null, quote ? quoted(quote) : null);
}

const names = (items, key, besides) => [...new Set([...items.map((item) => item[key]), besides])].filter(Boolean).sort().map((name) => [name, name]);
