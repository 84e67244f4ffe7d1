// Who is next, in the order of the scheduler, with the reason for which each job still waits.

import { ask } from "./api.js";
import { el, gpus, jobLink, row, span, table } from "./dom.js";

let sought = "";

export const load = () => ask("v1/line");

export function show(data) {
  const heads = [["Place", "n"], ["Job"], ["Queue"], ["Tenant"], ["GPUs", "n"], ["Waits", "n"], ["Why it waits"]];
  const body = el("div");
  const fill = () => {
    const found = data.items.filter((item) => `${item.name} ${item.job_id} ${item.queue} ${item.tenant}`.includes(sought));
    body.replaceChildren(table(`${found.length} of ${data.items.length} jobs in line`, heads, found.map((item) =>
      row(heads, [String(item.position), item.job_id ? jobLink(item.job_id, item.name) : "another tenant's", item.queue, item.tenant,
        gpus(item.gpu_milli), span(data.ts - item.submitted_ts), item.why], { class: item.job_id ? "mine" : "" }))));
  };
  fill();
  const search = el("input", { type: "search", id: "search", value: sought, oninput: (event) => { sought = event.target.value; fill(); } });
  const none = data.items.length ? null : el("p", {}, "Nobody waits.");
  return [el("h2", {}, "Queue"), el("div", { class: "bar" }, el("label", { for: "search" }, "Job, queue or tenant"), search), none, body];
}
