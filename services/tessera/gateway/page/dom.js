// Elements from values. Text is always text: nothing that a job is called becomes markup.

import { SENTENCES } from "./sentences.js";

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick" || key === "onsubmit" || key === "oninput" || key === "onclose") made[key] = value;
    else if (key === "style") Object.assign(made.style, value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// The same of a drawing; the markup has an empty one, which knows the name of its language.
export function shape(name, attributes, ...children) {
  const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function table(caption, heads, rows) {
  const head = el("tr", {}, heads.map(([text, kind]) => el("th", { scope: "col", class: kind }, text)));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "soft" }, caption), el("thead", {}, head), el("tbody", {}, rows)));
}

export const row = (heads, cells, attributes = {}) =>
  el("tr", attributes, cells.map((cell, at) => el("td", { class: heads[at][1] }, cell)));

export const gpus = (milli) => String(Math.round(milli / 10) / 100);

// In the units of the command line, rounded down.
export function bytes(amount) {
  const at = Math.max(0, Math.min(5, Math.floor(Math.log2(Math.max(1, amount)) / 10)));
  return `${Math.floor((10 * amount) / 1024 ** at) / 10}${["", "Ki", "Mi", "Gi", "Ti", "Pi"][at]}`;
}

export function span(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  for (const [size, unit, below, lower] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]])
    if (seconds >= size) return `${Math.floor(seconds / size)}${unit}${Math.floor((seconds % size) / below)}${lower}`;
  return `${seconds}s`;
}

// The waits of a job together, in milliseconds: one ends when a run starts.
export const waited = (job, now) => Math.max(0, (job.started_ts || job.ended_ts || now) - job.submitted_ts - (job.earlier_ms || 0));

// In the browser's zone, by its name.
export const moment = (ts) => el("time", { datetime: new Date(ts).toISOString() }, new Date(ts).toLocaleString(undefined, { timeZoneName: "short" }));

// What a code says to people; the word for programs, of one that the page does not know.
export const words = (code) => SENTENCES[code] ?? code;

// The sentence behind the word for programs; that word stays at hand for whoever searches the documentation by it.
export function reasonOf(why) {
  const found = /^(\w+): (.*)$/s.exec(why);
  return found ? el("span", { title: found[1] }, found[2]) : why;
}

export const jobLink = (id, name) => el("a", { href: `#/jobs/${id}` }, name || id);

export const field = (id, text, input) => el("div", { class: "field" }, el("label", { for: id }, text), input);

export const choice = (id, options, now, act) => el("select", { id, oninput: (event) => act(event.target.value) },
  options.map(([value, name]) => el("option", { value, selected: value === now }, name)));
