// The newest jobs; one of them is `job.js`.

import { ask } from "./api.js";
import { el, gpus, jobLink, moment, row, table } from "./dom.js";
import * as job from "./job.js";

const PHASES = ["queued", "starting", "running", "evicting", "succeeded", "failed", "cancelled"];
let phase = "";

export const leave = job.leave;

export const load = (id) => id ? job.load(id) : ask(`v1/jobs?limit=200${phase ? `&phase=${phase}` : ""}`);

export const show = (data, id, again) => id ? job.show(data, again) : list(data, again);

function list(data, again) {
  const heads = [["Job"], ["Tenant"], ["Queue"], ["Phase"], ["GPUs", "n"], ["Submitted"], ["Reason"]];
  const choice = el("select", { id: "phase", oninput: (event) => { phase = event.target.value; again(); } },
    ["", ...PHASES].map((name) => el("option", { value: name, selected: name === phase }, name || "all")));
  return [
    el("h2", {}, "Jobs"), el("div", { class: "bar" }, el("label", { for: "phase" }, "Phase"), choice),
    table(`The newest ${data.items.length} jobs`, heads, data.items.map((job) => row(heads, [
      jobLink(job.job_id, job.name), job.tenant, job.queue, job.phase, gpus(job.gpu_milli), moment(job.submitted_ts),
      job.reason ? job.reason.code : ""]))),
  ];
}
