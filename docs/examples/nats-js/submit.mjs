// Submits a job by NATS and waits for its end, with nothing of Tessera's but a tenant's credential file.
//
//   npm ci && node submit.mjs CREDENTIAL.json nats://127.0.0.1:4222 KEY
import { readFileSync } from "node:fs";
import { connect, headers } from "@nats-io/transport-node";

const [file, servers, key] = process.argv.slice(2);
const { identity, nats } = JSON.parse(readFileSync(file, "utf8"));
const tenant = identity.name;
const [, shard = "main"] = nats.user.split("@");

// A tenant may listen below `_INBOX.TENANT.` and nowhere else: the client's own inboxes have to be there, too.
const inbox = `_INBOX.${tenant}`;
const connection = await connect({ servers, user: nats.user, pass: nats.password, inboxPrefix: inbox });

// Listen before the submit, so that no event is missed. A durable subscriber would keep them while we are away.
const events = connection.subscribe(`live.events.${shard}.${tenant}.>`);
const answers = connection.subscribe(`${inbox}.answers`, { max: 1, timeout: 10_000 });
await connection.flush(); // the server has taken note of both

const command = {
  kind: "submit_job",
  v: 1,
  key, // the same key again is the same job
  spec: {
    name: "from-node",
    queue: "default",
    roles: [
      {
        name: "worker",
        replicas: 1,
        resources: { cpu_milli: 1000, memory_bytes: 1 << 30, gpus: 1 },
        template: { image: "busybox:1", command: ["true"] },
      },
    ],
  },
};
const about = headers();
about.set("Tessera-Reply", `${inbox}.answers`); // where admission answers

// A request: the first answer is JetStream's, and says that the command is stored.
const stored = await connection.request(`submit.${shard}.${tenant}`, JSON.stringify(command), { headers: about });
if (stored.json().error) throw new Error(`not stored: ${stored.json().error.description}`);

let jobId;
for await (const message of answers) {
  const answer = message.json();
  if (!answer.accepted) throw new Error(`refused: ${JSON.stringify(answer.reasons)}`);
  jobId = answer.job_id;
}
console.log(`${jobId} admitted`);

for await (const message of events) {
  const event = message.json();
  if (event.data.job_id !== jobId) continue;
  const type = event.type.replace("io.tessera.", "");
  console.log(`${jobId} ${type}`);
  if (["job.succeeded.v1", "job.failed.v1", "job.cancelled.v1"].includes(type)) break;
}
await connection.close();
