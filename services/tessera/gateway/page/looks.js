// How a job looks on the nodes: no two jobs that hold GPUs alike, as long as there are not more of them than looks.
// Where colours run out stripes tell jobs apart, which also help whoever does not see all colours.

const COLOURS = 8;
const PLACES = 5; // within a piece, at each of which there is a stripe or none
const bits = (number) => [...number.toString(2)].filter((digit) => digit === "1").length;
const STRIPES = [...Array(2 ** PLACES).keys()].sort((a, b) => bits(a) - bits(b) || a - b); // few stripes first
const LOOKS = COLOURS * STRIPES.length;

const given = new Map();

// Gives each job the first look that no other has; one that holds GPUs keeps its look until it holds none.
export function giveLooks(jobs) {
  const held = new Set(jobs);
  for (const job of given.keys()) if (!held.has(job)) given.delete(job);
  const taken = new Set(given.values());
  let next = 0;
  for (const job of [...held].sort()) {
    if (given.has(job)) continue;
    while (taken.has(next)) next++;
    given.set(job, next);
    taken.add(next);
  }
}

// Parts of a piece of this job, from left to right: colour and share of the piece.
export function lookOf(job) {
  const look = (given.get(job) ?? 0) % LOOKS;
  const [colour, stripes] = [`var(--c${look % COLOURS})`, STRIPES[Math.floor(look / COLOURS)]];
  if (!stripes) return [[colour, 1]];
  const share = 1 / (2 * PLACES + 1); // places and what is between and beside them are equally wide
  return [...Array(2 * PLACES + 1).keys()].map((at) => [at % 2 && stripes & (1 << (at >> 1)) ? "var(--stripe)" : colour, share]);
}

// The same as the background of an element.
export function backgroundOf(job) {
  let from = 0;
  return `linear-gradient(to right, ${lookOf(job).map(([colour, share]) => `${colour} ${(100 * from).toFixed(2)}% ${(100 * (from += share)).toFixed(2)}%`).join(", ")})`;
}
