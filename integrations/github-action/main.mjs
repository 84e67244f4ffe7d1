// Submits a job to Tessera's HTTP API, shows the log of one of its pods, and ends as the job ends.

import { createHash, randomUUID } from "node:crypto";
import { appendFileSync, readFileSync } from "node:fs";

const WAIT_SECONDS = 60; // of one request; the gateway answers earlier when the job ends
const AGAIN_MS = 2000;
const CANCEL_MS = 120_000; // for which a cancel is tried, beyond the workflow's own time
const KEY_CHARACTERS = 200;
const FAILED = 1, TIMED_OUT = 7, CANCELLED = 8, GAVE_UP = 10; // as the `tessera` command ends

const SUBMIT = "/v1/jobs";

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] ?? "").trim();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const url = input("url").replace(/\/+$/, "");
const headers = { Authorization: `Bearer ${input("token")}` };
const deadline = Date.now() + Number(input("timeout-minutes") || "360") * 60_000;

class Refused extends Error {}

// A runner carries out lines such as `::set-output` that it finds in what is printed. The log is the job's, not the
// workflow's: while it is shown, no command counts, until the word that only this process knows.
const word = randomUUID();
let logging = false;

function setLogging(now) {
  if (now !== logging) process.stdout.write(now ? `::stop-commands::${word}\n` : `\n::${word}::\n`);
  logging = now;
}

function tellError(text) {
  setLogging(false);
  console.log(`::error::${text.replace(/%/g, "%25").replace(/\r/g, "%0D").replace(/\n/g, "%0A")}`);
}

let stopped = ""; // why the job is not wanted any more

// An answer; what is away or busy is asked again until the time is over. A submit is sent again only while it is wanted,
// or while nobody knows whether it was stored: then it has to be found, to be cancelled.
async function ask(path, options = {}, until = deadline) {
  for (;;) {
    let why, again = AGAIN_MS;
    try {
      const answer = await fetch(`${url}${path}`, { redirect: "error", ...options, headers: { ...headers, ...options.headers } });
      if (answer.ok) return answer;
      const problem = await answer.json().catch(() => ({}));
      why = problem.sentence ?? `the gateway answered ${answer.status}`;
      again = Math.max(again, 1000 * (Number(answer.headers.get("Retry-After")) || 0)); // 0 for a date, which a proxy may send
      if (stopped && path === SUBMIT && answer.status === 429) throw new Refused(`${stopped}; nothing was submitted`);
      if (answer.status !== 429 && answer.status < 500) throw new Refused((problem.reasons ?? []).length > 1 ? problem.reasons.map((one) => `${one.code} ${one.field}`).join("; ") : why);
    } catch (error) {
      if (error instanceof Refused) throw error;
      why ??= error.cause?.message ?? error.message;
    }
    if (Date.now() > until) throw new Refused(`no answer in time: ${why}`);
    console.log(`the gateway cannot answer now (${why}); trying again in ${again / 1000} s`);
    await sleep(Math.min(again, Math.max(AGAIN_MS, until - Date.now())));
  }
}

// As `tessera submit` makes it: a step that is sent again is the same job, a re-run is a new one.
function keyOf(name) {
  if (input("key")) return input("key");
  const { GITHUB_REPOSITORY: repository = "", GITHUB_RUN_ID: run = "", GITHUB_JOB: job = "", GITHUB_RUN_ATTEMPT: attempt = "1" } = process.env;
  const text = ["github", repository, run, job, attempt, name].map((part) => part.replace(/[^\x21-\x7e]/g, "-")).join(":");
  return text.length <= KEY_CHARACTERS ? text : `github:${createHash("sha256").update(text).digest("hex")}`;
}

async function submit() {
  const read = JSON.parse(readFileSync(input("job"), "utf-8"));
  const body = read.spec || read.template ? read : { spec: read };
  if (input("name")) (body.spec ?? body).name = input("name");
  const name = body.spec?.name ?? body.name ?? body.template;
  const key = keyOf(name);
  const sent = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "Idempotency-Key": key } };
  const { job_id: id, state } = await (await ask(SUBMIT, sent)).json();
  console.log(`job ${id} (${name}): ${state}, key ${key}`);
  console.log(`${url}/ui#/jobs/${id}`);
  return { id, key };
}

// The logs of all runs as they are written, the next one's after the last one's. Never fails the job.
async function showLog(id, rank, ended) {
  for (let shown = 0, bytes = 0; ; ) {
    try {
      const { job } = await (await fetch(`${url}/v1/jobs/${id}`, { headers, signal: ended.signal })).json();
      if (job.attempt > shown) {
        const path = `/v1/jobs/${id}/logs?follow=true&rank=${rank}&attempt=${job.attempt}`;
        const answer = await fetch(`${url}${path}`, { headers, signal: ended.signal });
        if (answer.ok) {
          let skip = bytes; // of a stream that broke off: what was shown already
          for await (const part of answer.body) {
            const rest = part.subarray(Math.min(skip, part.length));
            skip -= part.length - rest.length;
            bytes += rest.length;
            setLogging(true);
            process.stdout.write(rest);
          }
          [shown, bytes] = [job.attempt, 0];
          continue;
        }
        await answer.body?.cancel();
      } else if (job.ended_ts) return;
    } catch {
      // the gateway is away: it is asked again
    }
    if (ended.signal.aborted) return;
    await sleep(AGAIN_MS);
  }
}

async function waitFor(id) {
  let told = "";
  while (Date.now() < deadline) {
    const seconds = Math.max(1, Math.min(WAIT_SECONDS, Math.round((deadline - Date.now()) / 1000)));
    let answer;
    try {
      answer = await ask(`/v1/jobs/${id}/wait?timeout=${seconds}`);
    } catch (error) {
      if (!(error instanceof Refused) || !error.message.startsWith("NoSuchJob")) throw error;
      await sleep(AGAIN_MS); // stored, and not in the ledger yet
      continue;
    }
    const { job } = await answer.json();
    if (job.ended_ts) return job;
    const now = `${job.phase}${job.reason ? `: ${job.reason.code}` : ""}`;
    if (now !== told) console.log(now);
    told = now;
  }
  return null;
}

// A job that is stored, and not in the ledger yet, is known by its key.
async function cancel({ id, key }, why) {
  if (input("cancel") === "false") return console.log(`job ${id} goes on`);
  const sent = { method: "POST", body: JSON.stringify({ why }), headers: { "Content-Type": "application/json", "Idempotency-Key": key } };
  try {
    await ask(`/v1/jobs/${id}/cancel`, sent, Date.now() + CANCEL_MS);
  } catch (error) {
    return tellError(`job ${id} is not cancelled, and may go on: ${error.message}`);
  }
  console.log(`job ${id} is cancelled: ${why}`);
}

function exitOf(job) {
  if (job.phase === "succeeded") return 0;
  if (job.phase === "cancelled") return CANCELLED;
  return job.reason && job.reason.code === "TimeLimit" ? TIMED_OUT : FAILED;
}

async function main() {
  const submitted = submit();
  for (const signal of ["SIGINT", "SIGTERM"]) {
    process.on(signal, () => {
      if (stopped) return; // GitHub sends a second one while the first is being heeded
      stopped = "the workflow was cancelled";
      submitted.then((sent) => cancel(sent, stopped)).catch((error) => tellError(error.message)).finally(() => process.exit(1));
    });
  }
  const sent = await submitted;
  const { id } = sent;
  if (stopped) return new Promise(() => {}); // the signal's handler ends the process
  if (process.env.GITHUB_OUTPUT) appendFileSync(process.env.GITHUB_OUTPUT, `job-id=${id}\n`);
  const ended = new AbortController();
  const log = input("logs") === "" ? null : showLog(id, input("logs"), ended);
  const job = await waitFor(id);
  if (job === null) {
    await cancel(sent, "the workflow's time is over");
    return GAVE_UP;
  }
  await Promise.race([log, sleep(AGAIN_MS)]);
  ended.abort();
  setLogging(false);
  if (process.env.GITHUB_OUTPUT) appendFileSync(process.env.GITHUB_OUTPUT, `phase=${job.phase}\n`);
  const code = job.exit_code === undefined ? "" : `, exit code ${job.exit_code}`;
  console.log(`job ${id} ${job.phase}${code}${job.reason ? ` (${job.reason.code})` : ""}`);
  return exitOf(job);
}

main().then((code) => process.exit(code), (error) => {
  tellError(error.message);
  process.exit(1);
});
