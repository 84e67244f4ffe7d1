// Who is next, in the order of the scheduler, with the reason for which each job still waits and its expected start.

import { ask } from "./api.js";
import { el, gpus, jobLink, moment, row, span, table } from "./dom.js";

const KEPT = "tessera-queue"; // survives the tab: what a person has chosen here, never a token
const ENDS = {
  time_limits: "the time limits of runs",
  learnt_runtimes: "how long such jobs ran before",
  stopping_runs: "runs that are being stopped",
};
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
  return { ...line, tenant: me.tenant };
}

export function show(data) {
  const heads = [["Place", "n"], ["Job"], ["Queue"], ["Tenant"], ["User"], ["GPUs", "n"], ["Waits", "n"], ["Expected start", "wide"], ["Why it waits", "widest"]];
  const first = chosen.first ?? Boolean(data.tenant); // on for a tenant until somebody turns it off
  const body = el("div");
  const fill = () => {
    const wanted = data.items.filter((item) => (!queue || item.queue === queue)
      && `${item.name} ${item.job_id} ${item.queue} ${item.tenant} ${item.user}`.toLowerCase().includes(sought.toLowerCase()));
    const mine = (item) => isMine(item, data.tenant);
    const shown = (chosen.first ?? Boolean(data.tenant)) ? [...wanted.filter(mine), ...wanted.filter((item) => !mine(item))] : wanted;
    body.replaceChildren(table(`${shown.length} of ${data.items.length} jobs in line`, heads, shown.map((item) =>
      row(heads, [String(item.position), item.job_id ? jobLink(item.job_id, item.name) : "another tenant's", item.queue, item.tenant, item.user,
        gpus(item.gpu_milli), span(data.ts - item.submitted_ts), ...(item.job_id ? [start(item.expected_start, data.ts), plain(item.why)] : ["", ""])], { class: mine(item) ? "mine" : "" }))));
  };
  fill();
  return [
    el("h2", {}, "Queue"),
    el("div", { class: "bar" },
      field("search", "Job, queue, tenant or user", el("input", { type: "search", id: "search", value: sought, oninput: (event) => { sought = event.target.value; fill(); } })),
      field("in-queue", "Queue", choice("in-queue", [["", "all"], ...names(data.items, "queue", queue)], queue, (value) => { queue = value; fill(); })),
      field("whose", "I am", choice("whose", [["", data.tenant ? `anybody of ${data.tenant}` : "nobody"], ...names(data.items, "user", chosen.user)], chosen.user, (value) => { keep({ user: value }); fill(); })),
      el("label", { class: "tick" }, el("input", { type: "checkbox", id: "first", checked: first, oninput: (event) => { keep({ first: event.target.checked }); fill(); } }), "Mine first")),
    data.items.length ? null : el("p", {}, "Nobody waits."), body,
    el("p", { class: "soft" }, "A start is expected of jobs for which room is kept, where the ends of the runs before them are known. No other start can be known."),
  ];
}

// As `squeue --me` has it a person's jobs are the tenant's; of one who says a user name, those that name that user.
const isMine = (item, tenant) => Boolean(item.job_id && (chosen.user ? item.user === chosen.user : tenant));

function start(expected, now) {
  if (!expected) return "not known";
  const rests = expected.rests_on.map((basis) => ENDS[basis] ?? basis).join(" and ");
  return el("div", {}, el("div", {}, `in ${span(expected.at_ts - now)}`), el("div", { class: "soft" }, moment(expected.at_ts), ` by ${rests}`));
}

// The sentence behind the word for programs; that word stays at hand for whoever searches the documentation by it.
function plain(why) {
  const found = /^(\w+): (.*)$/s.exec(why);
  return found ? el("span", { title: found[1] }, found[2]) : why || "not looked at yet";
}

const names = (items, key, besides) => [...new Set([...items.map((item) => item[key]), besides])].filter(Boolean).sort().map((name) => [name, name]);
const field = (id, text, input) => el("div", { class: "field" }, el("label", { for: id }, text), input);
const choice = (id, options, now, act) => el("select", { id, oninput: (event) => act(event.target.value) },
  options.map(([value, name]) => el("option", { value, selected: value === now }, name)));
