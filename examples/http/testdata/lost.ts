// Holds the lock "lost" until it is lost, and says so: lost.js ADDRESS TTL.
import { once } from "node:events";
import { hold, Problem } from "./holdfast.js";

const [address, ttl] = process.argv.slice(2);
try {
  await using lock = await hold("lost", { ttl_ms: Number(ttl) }, { port: Number(address.split(":")[1]) });
  console.log("acquired");
  await once(lock.signal, "abort");
  console.log("lost");
} catch (error) {
  if (!(error instanceof Problem) || error.code !== "lost") throw error;
  console.log("not released");
}
