// A job array: how far it is, and which of its tasks failed and why.

import { ask } from "./api.js";
import { el, jobLink, row, table, words } from "./dom.js";

const SHOWN_MAX = 50; // failed tasks, the first by their indexes

// Tasks that are not queued yet wait as well.
export function counts(array) {
  const waiting = array.count - array.running - array.succeeded - array.failed - array.cancelled;
  const found = { running: array.running, waiting, succeeded: array.succeeded, failed: array.failed, cancelled: array.cancelled };
  return Object.entries(found).filter(([, count]) => count).map(([name, count]) => `${count} ${name}`).join(", ");
}

// An array itself never runs; it does while any of its tasks does.
export const phaseOf = (job) => job.array?.running && !job.ended_ts ? "running" : job.phase;

export const failedOf = async (job) => job.array?.failed ? (await ask(`v1/jobs?array=${job.job_id}&phase=failed&limit=${SHOWN_MAX}`)).items : [];

export function failures(job, failed) {
  if (!job.array?.failed) return [];
  const heads = [["Task", "n"], ["Job"], ["Reason"]];
  const code = (task) => Number.isInteger(task.exit_code) ? `exit code ${task.exit_code}` : "";
  const why = (task) => [code(task), task.reason && words(task.reason.code), task.reason?.detail].filter(Boolean).join(": ");
  const caption = `${failed.length === job.array.failed ? "" : `${failed.length} of `}${job.array.failed} failed tasks of ${job.array.count}`;
  return [el("h2", {}, "Failed tasks"), table(caption, heads, failed.map((task) => row(heads, [String(task.task), jobLink(task.job_id, `${task.name}_${task.task}`), why(task)])))];
}
