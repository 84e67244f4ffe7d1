// The frame: signing in, which page is shown, and when it is read again.

import { Refused, ask, follow, leaveAllTabs, shareToken, token } from "./api.js";
import * as datasets from "./data.js";
import { el } from "./dom.js";
import * as events from "./events.js";
import * as history from "./history.js";
import * as jobs from "./jobs.js";
import * as now from "./now.js";
import * as queue from "./queue.js";
import * as services from "./services.js";

const PAGES = { now, queue, jobs, services, data: datasets, history, events };
const REST_MS = 1000; // between two readings, and at least four times as long as the last one took
const LOOK_MS = 10000; // without any event: nodes change without one, and so do jobs that the caller may not see
const main = document.getElementById("main");
const status = document.getElementById("status");
const banner = document.getElementById("banner");
const nav = document.querySelector("nav");
const leave = document.getElementById("leave");

let ended = new AbortController();
let stale = false;
let reading = false;
let resting = 0; // the timer of the pause between two readings
let hurried = false;
let failures = 0;
let shown = "";

const place = () => location.hash.replace(/^#\//, "").split("/");
const say = (text) => { if (status.textContent !== text) status.textContent = text; };

// By the ledger's time, never by the clock of this machine: a platform that stands still shows when it came to a stand.
function asOf(shard) {
  if (!shard?.ledger_ts) return "";
  const at = new Date(shard.ledger_ts);
  const when = at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString();
  return `As of ${when} (times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}), record ${shard.views_n || shard.ledger_n}`;
}

function warn(why) {
  const text = why && `The scheduler stands still: ${why}.`;
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
}

// What a person asked for is not kept waiting by the pause: it is read at once, or as soon as the reading under way has ended.
async function read({ asked = false } = {}) {
  hurried ||= asked;
  if (reading || (resting && !asked) || !token.get()) { stale = true; return; }
  clearTimeout(resting);
  reading = true;
  stale = hurried = false;
  const [name, id] = place();
  const page = PAGES[name] ?? now;
  const began = performance.now();
  const session = ended.signal;
  try {
    const [data, shard] = await Promise.all([page.load(id, session), ask("v1/status").catch(() => null)]);
    if (session.aborted) return; // signed out while it was under way: nothing of it is shown
    if (isStill(name, id)) put(page.show(data, id, read), keyOf(name, id));
    say(asOf(shard));
    warn(shard?.standstill ?? "");
    failures = 0;
  } catch (error) {
    if (session.aborted) return;
    const why = error instanceof Refused ? error.message : "The gateway does not answer; trying again.";
    if (error instanceof Refused && error.status === 401) signIn("This token is not valid any more.");
    else {
      say(why);
      if (isStill(name, id) && shown !== keyOf(name, id)) put([el("h2", {}, id ?? name), el("p", {}, why)], keyOf(name, id)); // nobody acts on the page before
    }
    stale = true;
    failures++;
  }
  reading = false;
  if (hurried) read({ asked: true });
  else resting = setTimeout(() => { resting = 0; if (stale) read(); }, Math.max(Math.min(REST_MS * 2 ** failures, LOOK_MS), 4 * (performance.now() - began)));
}

const keyOf = (name, id) => `${name}/${id ?? ""}`;
const isStill = (name, id) => keyOf(...place()) === keyOf(name, id);

// By what an element that can have the focus is known again after a new reading.
const nameOf = (element) => main.contains(element) && element !== main
  ? [element.tagName, element.id || element.dataset.node || element.getAttribute("href") || element.getAttribute("aria-label") || element.textContent].join(" ") : "";

// What has the focus keeps it across a new reading, so that keyboard and screen reader stay where they are.
function put(children, key) {
  const focused = document.activeElement;
  const name = nameOf(focused);
  const [from, to] = [focused?.selectionStart, focused?.selectionEnd];
  const next = children.filter(Boolean);
  next.forEach((child, at) => { if (main.childNodes[at] !== child) main.childNodes[at] ? main.childNodes[at].replaceWith(child) : main.append(child); });
  while (main.childNodes.length > next.length) main.lastChild.remove();
  for (const link of nav.querySelectorAll("a")) {
    if (link.hash === `#/${place()[0] || "now"}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = main.querySelector("h2")?.textContent ?? "";
  document.title = `${title} · Tessera`;
  if (name && key === shown && !main.contains(focused)) {
    const back = [...main.querySelectorAll("a, button, input, select, [tabindex]")].find((element) => nameOf(element) === name);
    back?.focus({ preventScroll: true });
    if (typeof from === "number") back?.setSelectionRange?.(from, to);
  }
  shown = key;
}

function signIn(why = "") {
  ended.abort();
  clearTimeout(resting);
  reading = hurried = false;
  resting = 0;
  events.forget();
  jobs.leave();
  for (const box of document.querySelectorAll("dialog")) box.close();
  token.drop();
  nav.hidden = leave.hidden = true;
  say("");
  warn("");
  const field = el("input", { id: "token", type: "password", autocomplete: "off", required: true, "aria-describedby": "how" });
  const said = el("p", { class: "bad", role: "alert" }, why);
  const enter = async (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    try {
      await ask("v1/queues");
      begin();
    } catch (error) {
      token.drop();
      said.textContent = error instanceof Refused ? error.message : "The gateway does not answer.";
    }
  };
  main.replaceChildren(el("form", { class: "login", onsubmit: enter },
    el("h2", {}, "Sign in"), el("label", { for: "token" }, "Token"), field,
    el("p", { id: "how", class: "soft" }, "An operator makes one with tessera token new. It stays in the open tabs of this page and goes with the last one."),
    said, el("button", {}, "Sign in")));
  document.title = "Sign in · Tessera";
}

function begin() {
  nav.hidden = leave.hidden = false;
  ended = new AbortController();
  if (!location.hash) location.hash = "#/now";
  const take = (event) => { events.take(event); read(); };
  follow(`last=${events.STORED}`, take, ended.signal).catch(() => signIn("This token is not valid any more."));
  read();
}

setInterval(() => { if (!document.hidden && token.get()) read(); }, LOOK_MS);
leave.onclick = () => { leaveAllTabs(); signIn(); };
addEventListener("hashchange", () => {
  jobs.leave();
  if (token.get()) { reading = false; failures = 0; main.focus({ preventScroll: true }); read({ asked: true }); }
});
if (token.get()) begin();
else signIn();
shareToken(begin, () => signIn("You have signed out in another tab."));
