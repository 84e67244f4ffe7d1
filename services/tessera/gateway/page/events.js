// Events as they come, from when the page was opened on.

import { el, jobLink, moment } from "./dom.js";
import { sentence } from "./story.js";

const KEPT = 500;
const SHOWN = 200;
const seen = [];
let sought = "";

export function take(event) {
  seen.unshift(event);
  seen.length = Math.min(seen.length, KEPT);
}

export const load = async () => null;

export function show() {
  const body = el("ol", { class: "story", id: "events" });
  const count = el("p", { class: "soft" });
  const fill = () => {
    const found = seen.filter((event) => textOf(event).includes(sought.toLowerCase()));
    body.replaceChildren(...found.slice(0, SHOWN).map((event) => el("li", {}, moment(Date.parse(event.time)),
      sentence(event), " ", event.data.job_id ? jobLink(event.data.job_id, event.data.name) : "", el("span", { class: "soft" }, ` ${whose(event)}`))));
    count.textContent = `${Math.min(found.length, SHOWN)} of ${seen.length} events since this page was opened, the newest first`;
  };
  fill();
  const search = el("input", { type: "search", id: "search", value: sought, oninput: (event) => { sought = event.target.value; fill(); } });
  return [el("h2", {}, "Events"), el("div", { class: "bar" }, el("label", { for: "search" }, "Text in the event"), search),
    seen.length ? count : el("p", {}, "Nothing has happened since this page was opened."), body];
}

const whose = (event) => [event.tenant, event.data.queue].filter(Boolean).join(", ");
const textOf = (event) => `${sentence(event)} ${whose(event)} ${JSON.stringify([event.type, event.data])}`.toLowerCase();
