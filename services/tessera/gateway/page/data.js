// Data sets: how large they are, which nodes and domains have them, and which jobs wait that read them.

import { ask } from "./api.js";
import { bytes, el, jobLink, moment, row, table } from "./dom.js";

export const load = () => ask("v1/datasets");

const NAMED = 8; // nodes that a row names
const heads = [["Data set"], ["Tenant"], ["Size", "n"], ["Last used", "wide"], ["Nodes", "wide"], ["Domains", "wide"], ["Jobs that wait", "widest"]];

export function show({ items }) {
  return [
    el("h2", {}, "Data"),
    items.length ? table(`${items.length} data set${items.length === 1 ? "" : "s"} with the nodes that have them`, heads, items.map(rowOf))
      : el("p", {}, "No node is known to have a data set, and no job waits to read one."),
    el("p", { class: "soft" }, "A node has what its runs have read lately, what its tenant tells, and what it says itself. * is a data set that all tenants may read."),
  ];
}

const rowOf = (item) => row(heads, [item.dataset, item.tenant, item.size_bytes ? bytes(item.size_bytes) : "not known", item.used_ts ? moment(item.used_ts) : "never",
  nodes([...new Set([...item.nodes, ...item.told_nodes])].sort()), item.domains.map((each) => `${item.level} ${each.domain}: ${each.has} of ${each.nodes}`).join(", ") || "–", waits(item)]);

const nodes = (names) => names.length ? `${names.slice(0, NAMED).join(", ")}${names.length > NAMED ? ` and ${names.length - NAMED} more` : ""}` : "none";

function waits({ waiting, readers }) {
  if (!waiting) return "none";
  const more = waiting > readers.length ? el("li", {}, `and ${waiting - readers.length} more`) : null;
  return el("ul", { class: "plain" }, readers.map((each) => el("li", {}, jobLink(each.job_id, each.name), `: ${each.why.replace(/^\w+: /, "") || "not looked at yet"}`)), more);
}
