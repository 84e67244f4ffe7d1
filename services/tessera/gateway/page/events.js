// The newest events that are stored, then those to come.

import { el, jobLink, moment } from "./dom.js";
import { sentence } from "./story.js";

export const STORED = 200; // that are asked for when the page is opened
const KEPT = 500;
const SHOWN = 200;
const seen = [];
let sought = "";

export function take(event) {
  if (seen.some((each) => each.id === event.id)) return; // after a break one may come twice
  seen.unshift(event);
  seen.length = Math.min(seen.length, KEPT);
}

// What one token may see is not for the next.
export function forget() {
  seen.length = 0;
}

export const load = async () => null;

export function show() {
  const body = el("ol", { class: "story", id: "events" });
  const count = el("p", { class: "soft" });
  const fill = () => {
    const found = seen.filter((event) => textOf(event).includes(sought.toLowerCase()));
    body.replaceChildren(...found.slice(0, SHOWN).map((event) => el("li", {}, moment(Date.parse(event.time)),
      sentence(event), " ", event.data.job_id ? jobLink(event.data.job_id, event.data.name) : "", el("span", { class: "soft" }, ` ${whose(event)}`))));
    count.textContent = `${Math.min(found.length, SHOWN)} of the newest ${seen.length} events, the latest first`;
  };
  fill();
  const search = el("input", { type: "search", id: "search", value: sought, oninput: (event) => { sought = event.target.value; fill(); } });
  return [el("h2", {}, "Events"), el("div", { class: "bar" }, el("label", { for: "search" }, "Text in the event"), search),
    seen.length ? count : el("p", {}, "No event is kept."), body];
}

const whose = (event) => [event.tenant, event.data.queue].filter(Boolean).join(", ");
const textOf = (event) => `${sentence(event)} ${whose(event)} ${JSON.stringify([event.type, event.data])}`.toLowerCase();
