// What may be done to a job: hold, release, cancel, another class, other replicas of a service, and the same job once more, as it was or with a change.

import { Refused, ask, newKey, send } from "./api.js";
import { el, jobLink, row, table } from "./dom.js";

const UNKNOWN = "The gateway does not answer; nothing was done, or it is not known.";
const said = (error) => error instanceof Refused ? [error.message, ...error.others].join(" Also ") : UNKNOWN;
const button = (id, text, act) => el("button", { id, type: "button", onclick: act }, text);

// What cannot be undone, or needs a choice, is asked in a dialog.
export function actions(job, again, tenant) {
  if (job.phase === "refused") return [];
  if (job.ended_ts) return tenant && !job.owner ? [el("div", { class: "bar" }, button("again", "Submit again…", () => once(() => submitAgain(job))))] : [];
  const alert = el("p", { role: "alert", class: "bad" });
  const order = async (verb) => {
    alert.textContent = "";
    try {
      await send(`v1/jobs/${job.job_id}/${verb}`, {});
      again();
    } catch (error) {
      alert.textContent = said(error);
    }
  };
  const hold = job.phase !== "queued" ? null : job.held ? button("release", "Release", () => order("release")) : button("hold", "Hold", () => order("hold"));
  const scales = job.array?.max_replicas ? button("scale", "Scale…", () => once(() => scale(job, again))) : null;
  return [el("div", { class: "bar" }, hold, scales, button("priority", "Priority…", () => once(() => prioritize(job, again))), button("cancel", "Cancel…", () => once(() => cancel(job, again)))), alert];
}

let asking = null; // what a dialog says is on its way: who presses again until it is answered has asked once

function once(open) {
  if (asking || document.querySelector("dialog[open]")) return;
  asking = open().finally(() => { asking = null; });
}

// A dialog with an alert and a button that acts; the focus goes back to the button with the id `from`.
function askIn(title, from, content, verb, act, closing = "Close") {
  const alert = el("p", { role: "alert", class: "bad" });
  const box = el("dialog", { "aria-label": title, onclose: () => { box.remove(); document.getElementById(from)?.focus(); } });
  const go = button("go", verb, async () => {
    go.disabled = true;
    alert.textContent = "";
    try {
      await act(box, alert);
    } catch (error) {
      alert.textContent = said(error);
    }
    go.disabled = false;
    if (box.open && document.activeElement === document.body) go.focus();
  });
  box.append(el("h2", {}, title), ...content, alert, el("div", { class: "bar" }, go, el("button", { type: "button", onclick: () => box.close() }, closing)));
  addEventListener("hashchange", () => box.close(), { once: true });
  document.body.append(box);
  box.showModal();
}

// What an order would do, as the command says it before it asks; nobody is stopped for asking.
async function foretold(order) {
  const found = await send("v1/consequences", { command: { v: 1, ...order } }).catch(() => null);
  const said = found === null ? ["What this would do is not known."] : found.sentences;
  return said.map((sentence) => el("p", {}, sentence.trim()));
}

// A place where it is said what comes of each choice, but of the one that is so already.
function foretelling(choice, is, orderOf) {
  const then = el("div", { role: "status" });
  let asked = 0;
  choice.oninput = async () => {
    const [mine, go] = [++asked, document.getElementById("go")];
    go.disabled = true; // nobody agrees to what is not said yet
    const said = !choice.checkValidity() ? [el("p", { class: "bad" }, choice.validationMessage)] : choice.value === is ? [] : await foretold(orderOf(choice.value));
    if (mine !== asked) return;
    then.replaceChildren(...said);
    go.disabled = !choice.checkValidity();
  };
  return then;
}

async function scale(job, again) {
  const { replicas, min_replicas: least, max_replicas: most } = job.array;
  const choice = el("input", { id: "replicas", type: "number", required: true, min: String(least), max: String(most), step: "1", value: String(replicas) });
  const then = foretelling(choice, String(replicas), (number) => ({ kind: "scale_service", job_id: job.job_id, replicas: Number(number) }));
  const content = [el("p", {}, `It is to have ${replicas} replica${replicas === 1 ? "" : "s"}, and may have ${least} to ${most}.`), el("div", { class: "bar" }, el("label", { for: "replicas" }, "Replicas"), choice), then];
  askIn(`Replicas of ${job.name}`, "scale", content, "Scale the service", async (box) => {
    await send(`v1/jobs/${job.job_id}/scale`, { replicas: Number(choice.value) });
    box.close();
    again();
  });
}

async function cancel(job, again) {
  const text = [el("p", {}, `Cancel ${job.name}? What it has not saved is lost.`), ...await foretold({ kind: "cancel_job", job_id: job.job_id })];
  askIn(`Cancel ${job.name}`, "cancel", text, "Cancel the job", async (box) => {
    await send(`v1/jobs/${job.job_id}/cancel`, { why: "cancelled on the page" });
    box.close();
    again();
  }, "Keep it");
}

async function prioritize(job, again) {
  const known = await ask(`v1/jobs/${job.job_id}/priority`).catch((error) => error);
  if (known instanceof Error) return refusal(`Priority of ${job.name}`, "priority", known);
  const choice = el("select", { id: "class" }, known.classes.map((one) =>
    el("option", { value: one.name, selected: one.name === known.priority_class }, `${one.name} (${one.value})`)));
  const then = foretelling(choice, known.priority_class, (name) => ({ kind: "set_priority", job_id: job.job_id, priority_class: name }));
  const content = known.classes.length
    ? [el("p", {}, `It has class ${known.priority_class}. Higher goes first; these are granted to its tenant.`), el("div", { class: "bar" }, el("label", { for: "class" }, "Priority class"), choice), then]
    : [el("p", {}, `${job.owner || "Its owner"} has its priority from Kubernetes; change it there.`)];
  askIn(`Priority of ${job.name}`, "priority", content, "Set", async (box) => {
    if (known.classes.length) await send(`v1/jobs/${job.job_id}/priority`, { priority_class: choice.value });
    box.close();
    again();
  });
}

const refusal = (title, from, error) => askIn(title, from, [el("p", { class: "bad" }, said(error))], "Back", (box) => box.close());

export const submitWith = (job, change, from) => once(() => submitChanged(job, change, from));

async function submitChanged(job, change, from) {
  const title = `Submit ${job.name} with a change`;
  const query = new URLSearchParams({ kind: change.kind, role: change.role, value: change.value });
  const known = await ask(`v1/jobs/${job.job_id}/spec?${query}`).catch((error) => error);
  if (known instanceof Error) return refusal(title, from, known);
  const heads = [["Field"], ["Now"], ["Then"]];
  const shown = (value) => typeof value === "string" ? value : value === null || (Array.isArray(value) && !value.length) ? "none" : JSON.stringify(value);
  const tick = el("input", { type: "checkbox", id: "replace" });
  const content = [
    el("p", {}, `${change.text[0].toUpperCase()}${change.text.slice(1)}, as of now.`),
    table("What is changed", heads, known.differences.map((each) => row(heads, [each.field, shown(each.before), shown(each.after)]))),
    el("p", {}, "It is submitted as a new job, which waits from now on. The old one stays in line, and may be served first."),
    el("label", { class: "tick" }, tick, "Cancel the old one once the new one is in line"),
  ];
  submit(job, known.spec, title, from, content, tick);
}

// A task of an array becomes an array of that task alone: its program finds the same index.
async function submitAgain(job) {
  const title = `Submit ${job.name} again`;
  const known = await ask(`v1/jobs/${job.task_of || job.job_id}/spec`).catch((error) => error);
  if (known instanceof Error) return refusal(title, "again", known);
  const what = job.task_of ? `Task ${job.task} of its array is submitted` : "Its spec is submitted as it was,";
  submit(job, job.task_of ? { ...known.spec, array: { tasks: String(job.task) } } : known.spec, title, "again", [el("p", {}, `${what} as a new job.`)]);
}

function submit(job, spec, title, from, content, tick = null) {
  const key = newKey(); // of this dialog: whoever presses twice, or after a break, submits once
  askIn(title, from, content, "Submit as a new job", async (box, alert) => {
    const { user } = await ask("v1/me"); // who submits, where the token is bound to a user
    const made = await send("v1/jobs", { key, spec: user ? { ...spec, user } : spec });
    const link = jobLink(made.job_id, spec.name);
    if (made.state !== "queued" && made.state !== "existing") {
      alert.replaceChildren("It is stored, and nobody has judged it yet; the old one is as it was. See ", link, ".");
      return;
    }
    if (tick?.checked) {
      try {
        await send(`v1/jobs/${job.job_id}/cancel`, { why: `submitted again as ${made.job_id}` });
      } catch (error) {
        alert.replaceChildren("The new one is in line: ", link, `. The old one was not cancelled: ${said(error)}`);
        return;
      }
    }
    box.close();
    location.hash = `#/jobs/${made.job_id}`;
  });
}
