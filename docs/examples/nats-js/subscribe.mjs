// Reads a durable subscriber's events, each at least once, with nothing of Tessera's but a tenant's credential file.
//
//   npm ci && node subscribe.mjs CREDENTIAL.json nats://127.0.0.1:4222 NAME [COUNT]
import { readFileSync } from "node:fs";
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const [file, servers, name, count = "0"] = process.argv.slice(2);
const { identity, nats } = JSON.parse(readFileSync(file, "utf8"));
const tenant = identity.name;
const [, shard = "main"] = nats.user.split("@");
const connection = await connect({ servers, user: nats.user, pass: nats.password, inboxPrefix: `_INBOX.${tenant}` });

// The consumer is there already: the configuration declares it, `tessera apply` makes it.
const consumer = await jetstream(connection).consumers.get(`EVENTS_${shard}`, `${tenant}_${name}`);
let left = Number(count) || Infinity;
for await (const message of await consumer.consume()) {
  const event = message.json();
  console.log(`${event.id} ${event.type.replace("io.tessera.", "")} ${event.data.job_id}`);
  message.ack(); // what is not acknowledged comes again
  if (--left === 0) break;
}
await connection.close();
