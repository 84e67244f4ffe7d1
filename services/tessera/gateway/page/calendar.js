// Reservations of nodes as a calendar: the windows of the next days, a row each; and the same as a table.

import { el, moment, row, shape, table } from "./dom.js";

const DAY_MS = 86400000;
const DAYS = 28; // shown at most
const [ROW, LEFT, BELOW] = [26, 140, 24];
const [NARROWEST, WIDEST, NAME_MAX] = [320, 1200, 15];
const KINDS = { kept: "for jobs that name it", maintenance: "for maintenance", unserved: "nodes are missing" };
const HEADS = [["Reservation"], ["From"], ["To"], ["Windows", "n"], ["Pool"], ["Nodes", "n"], ["GPUs", "n"], ["For"], ["Missing"], ["Why", "widest"]];

const kindOf = (each) => (each.is_maintenance ? "maintenance" : each.missing?.length ? "unserved" : "kept");
const whose = (each) => (each.is_maintenance ? "maintenance" : (each.who ?? []).join(", ") || "others");

export function calendar(items, now) {
  if (!items.length) return [];
  const last = Math.max(...items.flatMap((each) => each.windows.map((window) => window.end_ts)));
  const to = Math.max(now + DAY_MS, Math.min(last, now + DAYS * DAY_MS));
  const wide = Math.min(WIDEST, Math.max(NARROWEST, document.documentElement.clientWidth - 32)); // in pixels of the screen, as the timeline is
  const x = (at) => LEFT + ((wide - LEFT - 4) * (Math.min(to, Math.max(now, at)) - now)) / (to - now);
  const high = items.length * ROW + BELOW;
  const text = (string, at, height, anchor) => shape("text", { x: at, y: height, "text-anchor": anchor, class: "axis" }, string);
  const shown = (window) => window.end_ts > now && window.start_ts < to;
  const bars = items.flatMap((each, at) => [
    text(each.name.length > NAME_MAX ? `${each.name.slice(0, NAME_MAX - 1)}…` : each.name, LEFT - 8, at * ROW + ROW / 2 + 5, "end"),
    ...each.windows.filter(shown).map((window) => shape("rect",
      { x: x(window.start_ts), y: at * ROW + 4, width: Math.max(2, x(window.end_ts) - x(window.start_ts)), height: ROW - 8, class: `part ${kindOf(each)}` },
      shape("title", {}, `${each.name}: ${new Date(window.start_ts).toLocaleString()} to ${new Date(window.end_ts).toLocaleString()}`))),
  ]);
  const day = (at) => new Date(at).toLocaleDateString();
  const kinds = [...new Set(items.map(kindOf))];
  return [
    el("h2", {}, "Reservations"),
    el("figure", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Calendar of reservations" },
      shape("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `Windows until ${day(to)}, a row each; the table below has them in words.`, class: "chart drawn" },
        ...bars, text(day(now), LEFT, high - 4, "start"), text(day(to), wide - 4, high - 4, "end"))),
    el("ul", { class: "legend" }, kinds.map((kind) => el("li", {}, el("i", { class: kind }), KINDS[kind]))),
    table("Reservations of nodes, the next to begin first", HEADS, items.map((each) => row(HEADS, [
      each.name + (each.is_now ? " (now)" : ""), moment(each.windows[0].start_ts), moment(each.windows[0].end_ts), String(each.windows.length), each.pool,
      String(each.nodes.length), String(each.gpus), whose(each), (each.missing ?? []).join(", "), each.why ?? ""]))),
  ];
}
