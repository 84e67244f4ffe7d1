// Services, submitted ones and users' own: how many replicas they are to have, have, and keep, and why some are missing.

import { ask } from "./api.js";
import { el, gpus, jobLink, reasonOf, row, table } from "./dom.js";

export const load = () => ask("v1/services");

const heads = [["Service"], ["Tenant"], ["Queue"], ["Minimum", "n"], ["Wanted", "n"], ["Maximum", "n"], ["Running", "n"], ["Revision"], ["Guaranteed", "n"], ["GPUs", "n"], ["Why fewer run", "widest"]];

export function show({ items }) {
  return [
    el("h2", {}, "Services"),
    items.length ? table(`${items.length} service${items.length === 1 ? "" : "s"} with their replicas`, heads, items.map(rowOf)) : el("p", {}, "There is no service."),
    el("p", { class: "soft" }, "Guaranteed are the replicas that run and that no plan stops. Users' own objects are listed once they have a minimum; how many replicas they are to have at most, their owners know. A revision counts the rollouts of a service: so many of its replicas run it."),
  ];
}

const rowOf = (item) => row(heads, [item.job_id ? jobLink(item.job_id, item.name) : item.name, item.tenant, item.queue, String(item.min_replicas), String(item.replicas),
  item.max_replicas ? String(item.max_replicas) : "–", String(item.running), revision(item), `${item.guaranteed} of ${item.min_replicas}`, gpus(item.gpu_milli), missing(item)],
  { class: item.running < item.min_replicas ? "short" : "" });

function revision(item) {
  if (!item.rollout) return item.revision ? String(item.revision) : "–";
  const word = item.rollout === "stopped" ? el("strong", { class: "bad" }, "stopped") : "rolling";
  return el("span", {}, `${item.revision}: ${item.renewed || 0} of ${item.replicas}, `, word);
}

function missing(item) {
  if (item.running >= item.replicas && !item.rollout) return "";
  const what = item.running < item.min_replicas ? el("strong", { class: "bad" }, "Below its minimum. ") : null;
  return el("span", {}, what, reasonOf(item.why) || (item.running < item.replicas ? "Its replicas are starting." : ""));
}
