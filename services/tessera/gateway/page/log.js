// What a pod of a job writes, as it writes it. The panel outlives a new reading of the page, so that nothing jumps.

import { Refused, open } from "./api.js";
import { el } from "./dom.js";

const LINES_KEPT = 2000;
const CHARACTERS_KEPT = 1000000; // a bar of progress writes one line without an end
const AGAIN_MS = 2000;
const AGAIN_MS_MAX = 30000;
let panel = null;

export function logOf(job) {
  const key = `${job.job_id}/${job.attempt}`;
  if (panel?.key !== key) {
    panel?.ended.abort();
    panel = made(key, job);
    watch(panel, job);
  }
  offer(panel.element.querySelector("#rank"), job);
  return panel.element;
}

// The pods of the gang, and those by which a run has grown meanwhile.
function offer(select, job) {
  for (let rank = select.options.length; rank < Math.max(1, job.pods); rank++) select.append(optionOf(rank));
  const known = new Set([...select.options].map((option) => option.value));
  for (const { rank } of job.placements) if (!known.has(String(rank))) select.append(optionOf(rank));
}

const optionOf = (value) => el("option", { value: String(value) }, String(value));

export function close() {
  panel?.ended.abort();
  panel = null;
}

function made(key, job) {
  const text = el("pre", { id: "log", class: "log", tabindex: "0", role: "region", "aria-label": "Log" });
  const said = el("p", { class: "soft", id: "log-state" });
  const begun = { key, rank: "0", attempt: String(job.attempt), ended: new AbortController(), text, said };
  const choice = (what, label, values) => [el("label", { for: what }, label), el("select", { id: what, oninput: (event) => {
    begun.ended.abort();
    begun[what] = event.target.value;
    begun.ended = new AbortController();
    watch(begun, job);
  } }, values.map(optionOf))];
  const attempts = Array.from({ length: job.attempt }, (_, before) => job.attempt - before);
  begun.element = el("div", {}, el("h2", {}, "Log"),
    el("div", { class: "bar" }, choice("rank", "Pod", []), attempts.length > 1 ? choice("attempt", "Attempt", attempts) : []), said, text);
  return begun;
}

// Until the pod has ended or `signal` aborts; a pod that is not there yet is asked for again.
async function watch(shown, job) {
  const signal = shown.ended.signal;
  shown.text.textContent = "";
  for (let wait = AGAIN_MS; !signal.aborted; wait = Math.min(2 * wait, AGAIN_MS_MAX)) {
    try {
      const answer = await open(`v1/jobs/${job.job_id}/logs?follow=true&tail=${LINES_KEPT}&rank=${shown.rank}&attempt=${shown.attempt}`, signal);
      shown.said.textContent = "As it is written.";
      shown.text.textContent = "";
      const parts = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await parts.read(); !part.done; part = await parts.read()) add(shown.text, part.value);
      shown.said.textContent = "The pod has ended.";
      return;
    } catch (error) {
      if (signal.aborted) return;
      shown.said.textContent = error instanceof Refused ? error.message : "The log broke off; trying again.";
      if (error instanceof Refused && error.status === 401) return;
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

function add(element, text) {
  const atEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - 4;
  const lines = (element.textContent + text).split("\n");
  element.textContent = lines.slice(-LINES_KEPT - 1).join("\n").slice(-CHARACTERS_KEPT);
  if (atEnd) element.scrollTop = element.scrollHeight;
}
