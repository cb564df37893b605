// Acquires and releases locks as node-redlock does, for the benchmark: redlock.cjs URL TOKEN
const { createInterface } = require("node:readline");
const { Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const server = new Redis(process.argv[2]);
const redlock = new Redlock([server]);

async function cycles(callers, count) {
  let left = count;
  await Promise.all(Array.from({ length: callers }, async (_, i) => {
    while (left-- > 0) {
      const lock = await redlock.acquire([`redlock-${i}`], 30_000);
      await lock.release();
    }
  }));
}

const input = createInterface({ input: process.stdin });
input.on("line", async (line) => {
  const { id, callers, count } = JSON.parse(line);
  const reply = await cycles(callers, count).then(() => ({ id }), (error) => ({ id, error: String(error) }));
  console.log(JSON.stringify(reply));
});
input.on("close", () => server.disconnect());
