// Events as they come, from when the page was opened on.

import { el, jobLink, moment } from "./dom.js";

const KEPT = 500;
const seen = [];
let sought = "";

export function take(event) {
  seen.unshift(event);
  seen.length = Math.min(seen.length, KEPT);
}

export const load = async () => null;

export function show() {
  const body = el("ol", { class: "story", id: "events" });
  const fill = () => {
    const found = seen.filter((event) => JSON.stringify([event.type, event.data]).includes(sought)).slice(0, 200);
    body.replaceChildren(...found.map((event) => el("li", {}, moment(Date.parse(event.time)),
      event.type.replace(/^io\.tessera\./, ""), " ", event.data.job_id ? jobLink(event.data.job_id, event.data.name) : "")));
  };
  fill();
  const search = el("input", { type: "search", id: "search", value: sought, oninput: (event) => { sought = event.target.value; fill(); } });
  return [el("h2", {}, "Events"), el("div", { class: "bar" }, el("label", { for: "search" }, "Text in the event"), search),
    seen.length ? null : el("p", {}, "Nothing has happened since this page was opened."), body];
}
