// Adds 1 to the number in a file, several times, each time under the lock "counter": worker.js PORT FILE TURNS.
import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { hold } from "./holdfast.js";

const [address, file, turns] = process.argv.slice(2);
const at = address.startsWith("unix:") ? { socketPath: address.slice("unix:".length) } : { port: Number(address.split(":")[1]) };
for (let turn = 0; turn < Number(turns); turn++) {
  await using lock = await hold("counter", { ttl_ms: 20000, fair: true }, at);
  await lock.check();
  const number = Number(readFileSync(file, "utf8"));
  await setTimeout(1);
  writeFileSync(file, String(number + 1));
  appendFileSync(`${file}.tokens`, `${lock.token}\n`);
}
