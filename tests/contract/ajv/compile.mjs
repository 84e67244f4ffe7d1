// Compiles every JSON Schema of a folder in ajv's strict mode, and has it accept the value that is stored for it.
//
//   npm ci && node compile.mjs SCHEMAS VALUES.json
import { readFileSync, readdirSync } from "node:fs";
import Ajv from "ajv/dist/2020.js";

const [folder, values] = process.argv.slice(2);
const accepted = JSON.parse(readFileSync(values, "utf8"));
let refused = 0;
const say = (name, why) => console.log(`${name}: ${why}`, ++refused);
for (const name of readdirSync(folder).filter((name) => name.endsWith(".json"))) {
  const ajv = new Ajv({ strict: true, allErrors: true });
  try {
    const validate = ajv.compile(JSON.parse(readFileSync(`${folder}/${name}`, "utf8")));
    const value = accepted[name.replace(/\.json$/, "")];
    if (value !== undefined && !validate(value)) say(name, ajv.errorsText(validate.errors));
  } catch (error) {
    say(name, error.message);
  }
}
process.exit(refused ? 1 : 0);
