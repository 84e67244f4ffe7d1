// A job's attempts from its events: what came after what, as a picture and, for everybody, in words.

import { el, jobLink, moment, shape, span, words } from "./dom.js";

const SHOWN_MAX = 24; // attempts, the newest
const [ROW, LEFT, BELOW] = [30, 30, 24];
const [NARROWEST, WIDEST, DAY_MS] = [280, 2368, 86400000];
const PARTS = { waits: "waits", held: "on hold", starts: "starts", runs: "runs", stops: "is being stopped" };
const PAST = { waits: "waited", held: "was on hold", starts: "started in", runs: "ran", stops: "took to stop" };
const NOW = { waits: "waits", held: "is on hold", starts: "is starting", runs: "runs", stops: "is being stopped" };
const ENDS = { "job.succeeded": "succeeded", "job.failed": "failed", "job.cancelled": "was cancelled" };
const JOB = /^[a-z2-7]{20}$/;

const kindOf = (event) => event.type.replace(/^io\.tessera\./, "").replace(/\.v\d+$/, "");

// The job for which it was stopped, of the same tenant; "" where it is another tenant's, or a person asked.
export const by = (event) => JOB.test(event.data.by ?? "") ? event.data.by : "";

// Each attempt with its parts in time, what was saved when, and how it ended. The wait before a run belongs to the run.
export function attempts(story, job, now) {
  const found = [];
  let one = null, part = null;
  const begin = (at) => { one = { number: found.length + 1, parts: [], saves: [], nodes: [], end: null, stop: null, from: at }; found.push(one); part = null; };
  const enter = (kind, at) => { leave(at); part = { kind, from: at, to: null }; one.parts.push(part); };
  const leave = (at) => { if (part) part.to = at; part = null; };
  for (const event of story) {
    const [kind, data, at] = [kindOf(event), event.data, Date.parse(event.time)];
    if (!one) begin(at);
    if (data.attempt) one.number = data.attempt;
    if (kind === "job.admitted") enter("waits", at);
    else if (kind === "job.held" && part?.kind === "waits") enter("held", at);
    else if (kind === "job.unheld" && part?.kind === "held") enter("waits", at);
    else if (kind === "job.allocated") { one.nodes = [...new Set(data.placements.map((place) => place.node))]; enter("starts", at); }
    else if (kind === "job.running" || kind === "job.spared") { one.stop = null; enter("runs", at); }
    else if (kind === "job.evicting") { one.stop = event; enter("stops", at); }
    else if (kind === "job.saved") one.saves.push({ at, path: data.path ?? "" });
    else if (kind === "job.requeued") { leave(at); one.end = { at, what: "went back to its queue", reason: one.stop ? null : data.reason }; begin(at); enter("waits", at); one.number = data.attempt + 1; }
    else if (ENDS[kind]) { leave(at); one.end = { at, what: ENDS[kind], reason: one.stop ? null : data.reason }; }
  }
  if (part) { part.to = job.ended_ts || now; part.goesOn = !job.ended_ts; }
  return found.filter((each) => each.parts.length);
}

const because = (reason) => !reason ? "" : `: ${words(reason.code)}${reason.detail ? ` (${reason.detail})` : ""}`;

// Pieces of the sentence that tells one attempt; `link` makes what stands for another job.
function tell(each, names, link) {
  const pieces = each.parts.map((part) => {
    const where = part.kind === "starts" && each.nodes.length ? ` on ${each.nodes.join(", ")}` : "";
    return part.goesOn ? `${NOW[part.kind]}${where} for ${span(part.to - part.from)} so far` : `${PAST[part.kind]} ${span(part.to - part.from)}${where}`;
  });
  const sentence = [pieces.join(", ")];
  if (each.saves.length) {
    const last = each.saves.at(-1);
    sentence.push(`; saved ${each.saves.length === 1 ? "once" : `${each.saves.length} times`}${last.path ? `, last at ${last.path}` : ""}`);
  }
  if (each.stop) {
    sentence.push(`; stopped${because(each.stop.data.reason)}`);
    const other = by(each.stop);
    if (other) sentence.push(", by job ", link(other, names.get(other) || other));
    else if (each.stop.data.by) sentence.push(`, by ${each.stop.data.by}`);
    else if (["Preempted", "Reclaimed"].includes(each.stop.data.reason.code)) sentence.push(", by a job of another tenant");
  }
  if (each.end) sentence.push(`; it ${each.end.what}${because(each.end.reason)}`);
  return [...sentence, "."];
}

export function timeline(all, names) {
  const runs = all.slice(-SHOWN_MAX);
  const [from, to] = [runs[0].parts[0].from, Math.max(...runs.flatMap((each) => each.parts.map((part) => part.to)), runs[0].parts[0].from + 1000)];
  const wide = Math.min(WIDEST, Math.max(NARROWEST, document.documentElement.clientWidth - 32)); // drawn in pixels of the screen: text is as large everywhere
  const time = (at) => to - from < DAY_MS ? new Date(at).toLocaleTimeString() : new Date(at).toLocaleDateString();
  const high = runs.length * ROW + BELOW;
  const x = (at) => LEFT + ((wide - LEFT - 4) * (at - from)) / (to - from);
  const text = (string, at, height, anchor) => shape("text", { x: at, y: height, "text-anchor": anchor, class: "axis" }, string);
  const drawn = runs.flatMap((each, row) => {
    const top = row * ROW + 4;
    const bars = each.parts.map((part) => shape("rect", { x: x(part.from), y: top, width: Math.max(2, x(part.to) - x(part.from)), height: ROW - 8, class: `part ${part.kind}` },
      shape("title", {}, `attempt ${each.number} ${PARTS[part.kind]}: ${span(part.to - part.from)}`)));
    const saves = each.saves.map((save) => shape("path", { d: `M${x(save.at)} ${top - 2}l5 9h-10z`, class: "saved" }, shape("title", {}, `saved ${new Date(save.at).toLocaleString()}`)));
    return [text(String(each.number), LEFT - 8, top + ROW / 2 + 1, "end"), ...bars, ...saves];
  });
  const told = `Attempts over ${span(to - from)}, one row each. ${runs.map((each) => `Attempt ${each.number} ${tell(each, names, (id, name) => name).join("")}`).join(" ")}`;
  const kinds = [...new Set(runs.flatMap((each) => each.parts.map((part) => part.kind)))];
  return [
    all.length > runs.length ? el("p", {}, `The newest ${runs.length} of ${all.length} attempts.`) : null,
    el("figure", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline of the attempts" },
      shape("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": told, class: "chart drawn" }, ...drawn,
        text(time(from), LEFT, high - 4, "start"), text(time(to), wide - 4, high - 4, "end"))),
    el("ul", { class: "legend" }, kinds.map((kind) => el("li", {}, el("i", { class: kind }), PARTS[kind])),
      runs.some((each) => each.saves.length) ? el("li", {}, el("i", { class: "saved" }), "saved") : null),
    el("ul", { class: "attempts" }, runs.map((each) => el("li", {}, el("strong", {}, `Attempt ${each.number} `), el("span", { class: "soft" }, moment(each.parts[0].from), " "), ...tell(each, names, jobLink)))),
  ];
}
