// Where GPUs are: held, kept, idle by cause. The causes are the gateway's own words; here are their sentences and colours.

import { el, gpus } from "./dom.js";

// In the order of the legend. What fits nobody is one colour: the sentence says what is short.
const CAUSES = {
  others: ["held by pods that Tessera does not manage", "other"],
  booked: ["kept within the window of a reservation", "reserved"],
  reserved: ["kept for jobs that will start there, or as spares", "reserved"],
  none: ["free", "free"],
  nobody: ["fit nobody: no job may use them, by GPU model, labels or taints", "remainder"],
  shape: ["fit nobody: parts of GPUs that no job asks for", "remainder"],
  pods: ["fit nobody: their nodes take no more pods", "remainder"],
  cpu: ["fit nobody: no CPU is left beside them", "remainder"],
  memory: ["fit nobody: no memory is left beside them", "remainder"],
  fault: ["on nodes that are not ready, or drained", "fault"],
};
const WHY_FREE = {
  nothing_waits: "free, and nothing waits",
  quota: "free: all that waits lacks its queue's quota",
  abandoned: "free: all that waits has lost its queue or tenant",
  jobs_wait: "free: jobs wait for more at once, or for their turn",
};
const FREE_COLOUR = { nothing_waits: "free", quota: "quota", abandoned: "waiting", jobs_wait: "waiting" };

export const paint = (name) => `var(--${name})`;
export const colourOf = (cause, unclaimed) => paint(cause === "none" ? FREE_COLOUR[unclaimed] ?? "free" : CAUSES[cause]?.[1] ?? "free");
export const sentenceOf = (cause, unclaimed) => (cause === "none" ? WHY_FREE[unclaimed] : CAUSES[cause]?.[0]) ?? cause;
export const causesInOrder = Object.keys(CAUSES);

// Sums over pools: [sentence, thousandths of GPUs, colour], those of nothing left out. Runs that use none of their GPUs
// hold them all the same, so that they are apart from what other runs hold.
export function whereabouts(pools) {
  const sums = new Map();
  const add = (sentence, milli, colour) => {
    if (milli > 0) sums.set(sentence, [sentence, (sums.get(sentence)?.[1] ?? 0) + milli, colour]);
  };
  for (const pool of pools) add("held by jobs", pool.gpus * 1000 - pool.idle_gpu_milli - pool.unused.gpu_milli, paint("c0"));
  for (const pool of pools) add("held by jobs that were warned: they use none of theirs", pool.unused.gpu_milli, paint("unused"));
  for (const cause of causesInOrder)
    for (const pool of pools)
      for (const [name, milli] of pool.stranded) if (name === cause) add(sentenceOf(name, pool.unclaimed), milli, colourOf(name, pool.unclaimed));
  return [...sums.values()];
}

// What keeps GPUs that can be had from jobs that wait, in the gateway's words, with what would change it.
export function heldBack(pools) {
  const told = pools.flatMap((pool) => pool.held_back.filter((each) => each.rule !== "nothing_waits").map((each) => el("li", {}, el("strong", {}, gpus(each.gpu_milli)), ` in pool ${pool.pool}: ${each.text}`)));
  return told.length ? [el("h2", {}, "Idle while jobs wait"), el("ul", {}, told)] : [];
}

// A bar for the eye and the same as a list for everybody.
export function legend(found) {
  const all = found.reduce((sum, [, milli]) => sum + milli, 0);
  let from = 0;
  const pieces = found.map(([, milli, colour]) => `${colour} ${from.toFixed(2)}% ${(from += (100 * milli) / all).toFixed(2)}%`);
  return el("div", {},
    all ? el("div", { class: "whole", "aria-hidden": "true", style: { background: `linear-gradient(to right, ${pieces.join(", ")})` } }) : null,
    el("ul", { class: "legend", "aria-label": "Where the GPUs are" }, found.map(([sentence, milli, colour]) =>
      el("li", {}, el("i", { style: { background: colour }, "aria-hidden": "true" }), el("strong", {}, gpus(milli)), ` ${sentence}`))));
}
