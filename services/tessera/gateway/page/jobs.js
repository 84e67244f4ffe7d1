// The newest jobs, and one job with its story: what happened to it, and why it stands where it stands.

import { Refused, ask, follow, send } from "./api.js";
import { el, gpus, jobLink, moment, row, span, table } from "./dom.js";
import { close, logOf } from "./log.js";

const PHASES = ["queued", "starting", "running", "evicting", "succeeded", "failed", "cancelled"];
let phase = "";

export async function load(id, signal) {
  if (!id) return ask(`v1/jobs?limit=200${phase ? `&phase=${phase}` : ""}`);
  const [known, why] = await Promise.all([ask(`v1/jobs/${id}`), ask(`v1/jobs/${id}/explain`).catch(() => null)]);
  return { job: known.job, why, story: await story(id, signal) };
}

// Events of the job that are kept, as of now: the stream says by its first heartbeat that it has told all.
function story(id, signal) {
  return new Promise((done) => {
    const found = [];
    const end = new AbortController();
    const finish = () => { end.abort(); done(found); };
    signal.addEventListener("abort", finish);
    let quiet = setTimeout(finish, 600);
    const take = (event) => { found.push(event); clearTimeout(quiet); quiet = setTimeout(finish, 200); };
    follow(`job=${id}&after=0`, take, end.signal).catch(finish);
  });
}

export function show(data, id, again) {
  return id ? one(data, again) : list(data, again);
}

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

export const leave = close;

// What may be done to the job as it is now; what cannot be undone is asked twice.
function actions(job, again) {
  const said = el("p", { role: "alert", class: "bad" });
  const order = async (verb, body = {}) => {
    said.textContent = "";
    try {
      await send(`v1/jobs/${job.job_id}/${verb}`, body);
      again();
    } catch (error) {
      said.textContent = error instanceof Refused ? error.message : "The gateway does not answer; nothing was done, or it is not known.";
    }
  };
  const confirm = () => {
    const sure = el("dialog", { "aria-label": `Cancel ${job.name}`, onclose: () => { sure.remove(); document.getElementById("cancel")?.focus(); } },
      el("p", {}, `Cancel ${job.name}? What it has not saved is lost.`),
      el("div", { class: "bar" }, el("button", { type: "button", onclick: () => { sure.close(); order("cancel", { why: "cancelled on the page" }); } }, "Cancel the job"),
        el("button", { type: "button", onclick: () => sure.close() }, "Keep it")));
    document.body.append(sure);
    sure.showModal();
  };
  const button = (id, text, act) => el("button", { id, type: "button", onclick: act }, text);
  if (job.ended_ts) return null;
  const hold = job.phase !== "queued" ? null : job.held ? button("release", "Release", () => order("release")) : button("hold", "Hold", () => order("hold"));
  return [el("div", { class: "bar" }, hold, button("cancel", "Cancel…", confirm)), said];
}

function one({ job, why, story }, again) {
  const facts = [["Phase", job.phase], ["Tenant", job.tenant], ["Queue", job.queue], ["Class", job.priority_class],
    ["Asks for", `${gpus(job.gpu_milli)} GPUs in ${job.pods} pod${job.pods === 1 ? "" : "s"}`], ["Attempt", String(job.attempt)],
    ["Evictions", String(job.evictions)]];
  if (job.started_ts) facts.push(["Waited", span(job.started_ts - job.submitted_ts)]);
  if (job.placements.length) facts.push(["Runs on", [...new Set(job.placements.map((place) => place.node))].join(", ")]);
  const heads = [["What"], ["Value"]];
  return [
    el("h2", {}, job.name), el("p", { class: "soft" }, job.job_id), ...(actions(job, again) ?? []),
    why ? el("p", {}, el("strong", {}, why.sentence)) : null,
    why && why.position ? el("p", {}, `Place ${why.position} of ${why.in_line} in line.`) : null,
    why ? el("ul", {}, why.notes.map((note) => el("li", {}, note))) : null,
    table("The job", heads, facts.map((fact) => row(heads, fact))),
    el("h2", {}, "Story"),
    story.length
      ? el("ol", { class: "story" }, story.map((event) => el("li", {}, moment(Date.parse(event.time)), label(event))))
      : el("p", {}, "No event of it is kept any more."),
    job.attempt ? logOf(job) : null,
  ];
}

function label(event) {
  const kind = event.type.replace(/^io\.tessera\./, "").replace(/\.v\d+$/, "");
  const reason = event.data.reason ? `: ${event.data.reason.sentence || event.data.reason.code}` : "";
  const nodes = [...new Set((event.data.placements ?? []).map((place) => place.node))];
  return `${kind}${nodes.length ? ` on ${nodes.join(", ")}` : ""}${reason}`;
}
