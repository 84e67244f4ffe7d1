// The events of the job that is shown: read once from the first one kept, then followed as they come.

import { follow } from "./api.js";
import { words } from "./dom.js";

const FIRST_MS = 1000; // after which what has come is shown, while the rest is read
const NODES_MAX = 8; // named in one line
let read = null;

// What is known so far; `whole` once all events that are kept are there. Waits a moment for them.
export async function storyOf(id) {
  if (read?.id !== id) {
    close();
    read = begun(id);
  }
  const of = read;
  await Promise.race([of.ready, new Promise((done) => setTimeout(done, FIRST_MS))]);
  return { events: [...of.events.values()], whole: of.whole };
}

// Calls `again` when there is more of what is shown.
export function watch(again) {
  if (read) read.again = again;
}

export function close() {
  read?.end.abort();
  read = null;
}

function begun(id) {
  const made = { id, events: new Map(), whole: false, again: () => {}, end: new AbortController() };
  made.ready = new Promise((done) => {
    const take = (event) => {
      if (event.data.job_id !== id) return;
      made.events.set(event.id, event);
      if (made.whole) made.again();
    };
    follow(`job=${id}&after=0`, take, made.end.signal, () => { made.whole = true; done(); made.again(); }).catch(done);
  });
  return made;
}

// What happened, where, and why.
export function sentence(event) {
  const kind = event.type.replace(/^io\.tessera\./, "").replace(/\.v\d+$/, "");
  const reason = event.data.reason ? `: ${words(event.data.reason.code)}${event.data.reason.detail ? ` (${event.data.reason.detail})` : ""}` : "";
  const nodes = event.data.node ? [event.data.node] : [...new Set((event.data.placements ?? []).map((place) => place.node))];
  return `${kind}${nodes.length ? ` on ${nodes.slice(0, NODES_MAX).join(", ")}${nodes.length > NODES_MAX ? ` and ${nodes.length - NODES_MAX} more` : ""}` : ""}${reason}${health(event.data)}${steps(event.data.steps)}`;
}

// What is wrong with a node, or what is done about it.
function health({ node, ailments, outcome, why }) {
  const told = ailments?.map((known) => [known.ailment.cause, known.ailment.evidence].filter(Boolean).join(", ")).join("; ") || outcome || why;
  return node && told ? `: ${told}` : "";
}

// How many steps the run had, and which failed first.
function steps(told) {
  if (told?.unread) return `; its steps cannot be read: ${told.unread}`;
  const failed = told?.steps?.find(([, , , , , code]) => code);
  return told?.count ? `; ${told.count} ${told.count === 1 ? "step" : "steps"}${failed ? `, step ${failed[0]} (${failed[1]}) ended with ${failed[5]}` : ""}` : "";
}
