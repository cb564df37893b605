// Adds 1 to the number in a file, several times, each time under the lock "counter": worker.js ADDRESSES FILE TURNS TTL.
import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { hold } from "./holdfast.js";

const [addresses, file, turns, ttl] = process.argv.slice(2);
const servers = addresses.split(",").map((address) =>
  address.startsWith("unix:") ? { socketPath: address.slice("unix:".length) } : { port: Number(address.split(":")[1]) });
for (let done = 0, tries = 0; done < Number(turns); ) {
  try {
    await using lock = await hold("counter", { ttl_ms: Number(ttl), fair: true }, servers[tries % servers.length]);
    await lock.check();
    const number = Number(readFileSync(file, "utf8"));
    await setTimeout(1);
    writeFileSync(file, String(number + 1));
    appendFileSync(`${file}.tokens`, `${lock.token}\n`);
    done++;
  } catch { // ask another server
    tries++;
    await setTimeout(50);
  }
}
