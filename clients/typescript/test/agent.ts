// Does what the cases in clients/cases say: a command per line of stdin, an answer per line of stdout.
//
//     agent.js URL TOKEN
import { once } from "node:events";
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type Lease, type Lock, type Run, type TimedLock, HoldfastError, LockHeld, LockLost, LockTimeout, TooSoon, connect,
} from "@holdfast/client";

type Fields = Record<string, any>;

const [url, token] = process.argv.slice(2);
const locks = connect(url, token ? { token } : {});

/** A block of the program, which lasts until a command ends it. */
interface Block {
  held: Lease | Run;
  end: (error?: Error) => void;
  result: string | undefined;
  done: Promise<void>;
}

const blocks = new Map<string, Block>();
const timed = new Map<string, TimedLock>();
const opening = new Map<string, AbortController>();

class OwnError extends Error {}

class Canceled extends Error {}

type Work = (held: Lease | Run) => Promise<string | undefined>;

/** Starts a block, and returns when its work has begun. */
function open(label: string, run: (work: Work) => Promise<void>): Promise<Lease | Run> {
  return new Promise((resolve, reject) => {
    let block: Block | undefined;
    const done = run((held) => new Promise((end, fail) => {
      block = { held, end: (error) => (error ? fail(error) : end(block?.result)), result: undefined, done };
      blocks.set(label, block);
      resolve(held);
    }));
    done.catch((error: unknown) => block === undefined && reject(error as Error));
  });
}

/** Options in milliseconds of those in seconds. */
function options(a: Fields): Fields {
  const names: Fields = {
    ttl: "ttlMs", wait: "waitMs", pause: "pauseMs", max_attempts: "maxAttempts", newest_only: "newestOnly",
  };
  return Object.fromEntries(Object.entries(a).map(([k, v]) => {
    const name = (names[k] ?? k) as string;
    return [name, name.endsWith("Ms") ? v * 1000 : v];
  }));
}

function lockOf({ kind = "mutex", name, limit, ...rest }: Fields): Lock {
  const o = options(rest);
  switch (kind) {
    case "semaphore": return locks.semaphore(name, limit, o);
    case "election": return locks.election(name).campaign(o);
    case "reader": return locks.reader(name, o);
    case "writer": return locks.writer(name, o);
    default: return locks.mutex(name, o);
  }
}

function blockOf(label: string): Block {
  const block = blocks.get(label);
  if (block === undefined) throw new Error(`there is no block ${label}`);
  return block;
}

const commands: Record<string, (a: Fields) => Promise<Fields>> = {
  async "open"({ as, ...a }) {
    const controller = new AbortController();
    opening.set(as, controller);
    const { signal } = controller;
    const lease = await open(as, async (work) => void await lockOf(a).using(work, { signal })) as Lease;
    return { token: lease.token, owner: lease.owner, kind: lease.kind, permits: lease.permits, locks: [...lease.tokens.keys()].sort() };
  },
  async "begin"({ as, ledger, key, wait, note, fingerprint, ...a }) {
    const how = options({ ...(wait !== undefined && { wait }), ...(note && { note }), ...(fingerprint && { fingerprint }) });
    const run = await open(as, async (work) => locks.ledger(ledger, options(a)).do(key, work, how)) as Run;
    return { token: run.token, attempt: run.attempt };
  },
  async "close"({ as, result }) {
    const block = blockOf(as);
    block.result = result;
    block.end();
    await block.done;
    return {};
  },
  async "raise"({ as }) {
    const block = blockOf(as);
    block.end(new OwnError("the work went wrong"));
    await block.done.catch((error: unknown) => {
      if (!(error instanceof OwnError)) throw error;
    });
    return { notes: "" };
  },
  async "release"({ as }) { await (blockOf(as).held as Lease).release(); return {}; },
  async "succeed"({ as, result }) { await (blockOf(as).held as Run).succeed(result); return {}; },
  async "fail"({ as, text }) { await (blockOf(as).held as Run).fail(text); return {}; },
  async "check"({ as }) { return { remaining: await blockOf(as).held.check() > 0 }; },
  async "valid"({ as }) { const { held } = blockOf(as); return { valid: held.valid(), remaining: held.remainingMs() > 0 }; },
  async "await-lost"({ as }) {
    const { held } = blockOf(as);
    if (!held.signal.aborted) await once(held.signal, "abort");
    const { reason, lock } = held.signal.reason as LockLost;
    return { valid: held.valid(), cause: reason, told: [reason], lock };
  },
  async "await-request"({ as }) {
    const { releaseRequested } = blockOf(as).held as Lease;
    if (!releaseRequested.aborted) await once(releaseRequested, "abort");
    return {};
  },
  async "request-release"({ name }) { await locks.requestRelease(name); return {}; },
  async "leader"({ name }) { return { leader: (await locks.election(name).leader())?.note ?? null }; },
  async "observe"({ name, note }) { // until somebody with this note leads
    for await (const { leader } of locks.election(name).observe()) if (leader?.note === note) break;
    return {};
  },
  async "list"({ prefix }) { return { names: (await locks.list(prefix)).map((lock) => lock.name) }; },
  async "show"({ name }) {
    const lock = await locks.show(name);
    return { kind: lock.kind, holders: lock.holders.map((c) => c.owner), waiters: lock.waiters.length };
  },
  async "history"({ ledger, key }) {
    const runs = await locks.ledger(ledger).history(key);
    return { states: runs.map((r) => r.state), results: runs.map((r) => r.result ?? null), errors: runs.map((r) => r.error) };
  },
  async "keys"({ ledger }) { return { keys: (await locks.ledger(ledger).list()).map((r) => r.key) }; },
  async "acquire-timed"({ as, key, ...a }) {
    const lock = await lockOf(a).acquireTimed(key && { idempotencyKey: key });
    timed.set(as, lock);
    return { token: lock.token, locks: [...lock.tokens.keys()].sort(), permits: lock.permits };
  },
  async "detach"({ as }) { timed.set(as, await (blockOf(as).held as Lease).detach()); return {}; },
  async "renew"({ as }) { return { remaining: await locks.renew(timed.get(as)!.handle) > 0 }; },
  async "release-timed"({ as }) { await locks.release(timed.get(as)!.handle); return {}; },
  async "work"({ as, file, turns, for: seconds, ttl }) { // holds the lock, and writes into a log from when to when that was certain
    const end = performance.now() + seconds * 1000;
    for (let done = 0; done < turns || performance.now() < end;) {
      try {
        await locks.mutex("counter", { ttlMs: ttl * 1000, fair: true }).using(async (lease) => {
          await lease.check();
          const from = process.hrtime.bigint();
          await sleep(1);
          const to = process.hrtime.bigint();
          if (!lease.valid()) return;
          appendFileSync(file, `${as} ${lease.token} ${from} ${to}\n`);
          done++;
        });
      } catch (error) {
        if (!(error instanceof HoldfastError)) throw error;
        await sleep(50);
      }
    }
    return {};
  },
  async "cycles"({ callers, count }) { // for the benchmark: locks are acquired and released, count times in all
    let left = count as number;
    await Promise.all(Array.from({ length: callers }, async (_, i) => {
      while (left-- > 0) await (await locks.mutex(String(i)).acquire()).release();
    }));
    return {};
  },
  async "connect"({ url, token }) { // to another URL
    await using other = connect(url, token === undefined ? {} : { token });
    await other.list();
    return {};
  },
  async "cancel"({ as }) { opening.get(as)!.abort(new Canceled()); return {}; }, // the wait of an open
  async "close-client"() { await locks.close(); return {}; },
};

async function answer({ id, do: what, ...a }: Fields): Promise<Fields> {
  try {
    const command = commands[what];
    if (command === undefined) throw new Error(`nobody can do ${what}`);
    return { id, ...await command(a) };
  } catch (error) {
    if (error instanceof Canceled) return { id, error: "Canceled" };
    if (!(error instanceof HoldfastError)) return { id, error: String(error) };
    return {
      id, error: error.name, message: error.message,
      ...(error instanceof LockLost && { cause: error.reason, lock: error.lock }),
      ...((error instanceof LockHeld || error instanceof LockTimeout) && { holders: error.holders.map((c) => c.owner) }),
      ...(error instanceof TooSoon && { later: error.retryAfterMs > 0 }),
    };
  }
}

const input = createInterface({ input: process.stdin });
input.on("line", (line) => void answer(JSON.parse(line)).then((reply) => console.log(JSON.stringify(reply))));
await once(input, "close");
await locks.close();
process.exit();
