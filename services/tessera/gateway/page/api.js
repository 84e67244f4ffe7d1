// What the page asks the gateway. The token stays in the session storage of the tabs that are open, is handed from one to the
// next, and goes out in a header alone: nothing of it is on the disk, and it is gone with the last tab.

import { words } from "./dom.js";

const KEPT = "tessera-token";
const RETRY_MS = 1000;
const RETRY_MS_MAX = 30000;

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.sentence || `the gateway answered ${status}`);
    this.others = (problem.reasons ?? []).slice(1).map((reason) => [words(reason.code), reason.field, reason.detail].filter(Boolean).join(": "));
    this.status = status;
    this.retryAfter = problem.retry_after || 0;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (value) => sessionStorage.setItem(KEPT, value),
  drop: () => sessionStorage.removeItem(KEPT),
};

// Tabs of this origin hear one another here. A tab without a token asks for one, and takes the answer to its own question
// alone; who signs out does so in all tabs that have the same token.
const tabs = new BroadcastChannel(KEPT);

export function shareToken(taken, gone) {
  const question = newKey();
  tabs.onmessage = ({ data }) => {
    const own = token.get();
    if (data.question && own) tabs.postMessage({ answers: data.question, token: own });
    else if (data.answers === question && !own) { token.set(data.token); taken(); }
    else if (data.gone && data.gone === own) gone();
  };
  if (!token.get()) tabs.postMessage({ question });
}

export function leaveAllTabs() {
  tabs.postMessage({ gone: token.get() });
}

const headers = () => ({ Authorization: `Bearer ${token.get()}` });

// An answer that is a success; its body is still to be read.
export async function open(path, signal, more = {}) {
  const answer = await fetch(path, { headers: { ...headers(), ...more }, cache: "no-store", signal });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

export const ask = async (path) => (await open(path)).json();

// One answer's body. Whoever sends again what may have arrived does it under the same key.
export async function send(path, body) {
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body), headers: { ...headers(), "Content-Type": "application/json" } });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer.json();
}

// Names a job that is submitted here; `randomUUID` is there on secure origins alone.
export const newKey = () => `page-${[...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;

export async function allJobs(query) {
  const items = [];
  for (let cursor = ""; cursor !== null; ) {
    const page = await ask(`v1/jobs?limit=500&${query}&cursor=${encodeURIComponent(cursor)}`);
    items.push(...page.items);
    cursor = page.next ?? null;
  }
  return items;
}

// Calls `take` for each event until `signal` aborts, and `whole` once all that was stored at the beginning has come. After a
// break it goes on behind the last place it heard of; what was on its way then may come twice, under the same id.
export async function follow(query, take, signal, whole = null) {
  let [place, stored] = [null, whole !== null];
  for (let wait = RETRY_MS; !signal.aborted; wait = Math.min(2 * wait, RETRY_MS_MAX)) {
    try {
      const since = place === null ? {} : { "Last-Event-ID": place };
      const answer = await open(`v1/events?${query}${stored ? "&follow=false" : ""}`, signal, since);
      wait = RETRY_MS;
      const lines = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let unread = "";
      for (let part = await lines.read(); !part.done; part = await lines.read()) {
        const blocks = (unread + part.value).split("\n\n");
        unread = blocks.pop();
        for (const block of blocks) {
          const fields = heard(block, take);
          place = fields.id ?? place;
          if (fields.event === "complete") { stored = false; wait = 0; whole(); }
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status === 401) throw error;
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = wait || RETRY_MS / 2;
  }
}

function heard(block, take) {
  const fields = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 1).trim();
  }
  if (fields.data && !fields.event) take(JSON.parse(fields.data));
  return fields;
}
