// Quotes of starts: by when a job starts, with which chance; and how earlier ones held, as a picture and as a table.

import { el, moment, row, shape, span, table } from "./dom.js";

const [ROW, LEFT, RIGHT] = [24, 150, 56];
const [NARROWEST, WIDEST] = [320, 900];
const BOUNDS = [["held_by_50", 500, "by the bound of 50 %"], ["held_by_80", 800, "by that of 80 %"], ["held_by_95", 950, "by that of 95 %"],
  ["held_in_80", 800, "in 80 % intervals"], ["held_in_95", 950, "in 95 % intervals"]];
const ERRORS = [["error_ms", "the quote's"], ["naive_ahead_ms", "work ahead / GPUs"], ["naive_running_ms", "and what runs have left"], ["naive_class_ms", "last such waits"]];
const HEADS = [["Pool"], ["Quotes", "n"], ...BOUNDS.map(([, , name]) => [name, "n"]), ...ERRORS.map(([, name]) => [`error: ${name}`, "n"])];

const percent = (permille) => `${Math.round(permille) / 10} %`;

// In the line and on a job's page.
export function quoted(quote) {
  const chance = quote.evicted_permille ? `; ${percent(quote.evicted_permille)} of such runs are stopped for others` : "";
  return el("div", {}, el("div", {}, quote.words), el("div", { class: "soft" }, "even chance: ", moment(quote.by_50_ts), chance));
}

// For each pool what share of the starts held, with a mark where it was to be, and median errors on one scale.
export function scores(items) {
  const scored = items.filter((each) => each.quotes);
  if (!scored.length) return [];
  return [el("h2", {}, "How quotes of starts held"),
    el("p", { class: "soft" }, "The first quote of each job against its start: the share of starts that held, a mark where it was to be, and the median error beside those of naive predictors."),
    el("div", { class: "columns" }, scored.map((pool) => el("section", {}, picture(pool)))),
    table("Quotes of the last weeks whose jobs have started", HEADS, scored.map((pool) => row(HEADS, [
      pool.pool, String(pool.quotes), ...BOUNDS.map(([name]) => percent(pool[name])), ...ERRORS.map(([name]) => span(pool[name]))])))];
}

function picture(pool) {
  const wide = Math.min(WIDEST, Math.max(NARROWEST, document.documentElement.clientWidth / 2 - 64));
  const size = wide - LEFT - RIGHT;
  const most = Math.max(1, ...ERRORS.map(([name]) => pool[name]));
  const text = (string, x, at, anchor) => shape("text", { x, y: at * ROW + ROW / 2 + 5, "text-anchor": anchor, class: "axis" }, string);
  const bar = (at, share, kind, said) => shape("rect", { x: LEFT, y: at * ROW + 4, width: Math.max(1, size * share), height: ROW - 8, class: `part ${kind}` }, shape("title", {}, said));
  const held = BOUNDS.flatMap(([name, aim, what], at) => [
    text(what, LEFT - 8, at, "end"), bar(at, pool[name] / 1000, "kept", `${percent(pool[name])} held ${what}`), text(percent(pool[name]), LEFT + size + 6, at, "start"),
    shape("rect", { x: LEFT + (size * aim) / 1000 - 1, y: at * ROW + 1, width: 3, height: ROW - 2, class: "saved" }, shape("title", {}, `${percent(aim)} were to`))]);
  const errors = ERRORS.flatMap(([name, what], index) => {
    const at = BOUNDS.length + 0.5 + index;
    return [text(what, LEFT - 8, at, "end"), bar(at, pool[name] / most, index ? "waits" : "runs", `median error: ${span(pool[name])}`), text(span(pool[name]), LEFT + size + 6, at, "start")];
  });
  const said = `Pool ${pool.pool}: of ${pool.quotes} starts ${percent(pool.held_by_80)} held by the bound of 80 %; the table below has all of it.`;
  return el("figure", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Scores of quotes of pool ${pool.pool}` },
    el("figcaption", {}, `Pool ${pool.pool}, ${pool.quotes} starts: how many held, then median errors`),
    shape("svg", { viewBox: `0 0 ${wide} ${(BOUNDS.length + ERRORS.length + 0.5) * ROW}`, role: "img", "aria-label": said, class: "chart drawn" }, ...held, ...errors));
}
