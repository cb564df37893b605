import * as os from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import type { SecureContextOptions } from "node:tls";
import { type Engine, joinEngine, leaveEngine } from "./engine.js";
import {
  type Problem, Invalid, LockLost, Released, StoreUnavailable, Uncertain, errorOf, listOf, lost,
} from "./errors.js";
import {
  type Address, type CallOptions, Broken, NoAnswer, Server, isUnreachable, longestTimer, type Stream, parseAddress, silence,
} from "./http.js";
import {
  type Claim, type LockInfo, type Observation, type RunInfo, type TimedLock, claimOf, lockOf, permitsOf, runOf, timedOf, tokenOf, tokensOf,
} from "./values.js";

// The server rounds to milliseconds. The clock of Linux that goes on while the machine sleeps is read in steps of 10 ms;
// elsewhere the clock of Node itself goes on.
const rounding = process.platform === "linux" ? 12 : 2;
const now = process.platform === "linux" ? (): number => os.uptime() * 1000 : (): number => performance.now();

const leastPause = 50;
const releaseLimit = 30_000;

/** What all locks can be given. */
export interface LockOptions {
  /** For how long a holder that has died keeps the lock, in milliseconds. */
  ttlMs?: number;
  /** How long to wait at most, in milliseconds. 0 is one attempt; without it, there is no limit. */
  waitMs?: number;
  /** Who is shown to others as the holder. */
  owner?: string;
  /** A note that is shown next to the owner. */
  note?: string;
}

export interface MutexOptions extends LockOptions {
  /** Grant the lock in order of arrival among all clients. */
  fair?: boolean;
  /** Of those that wait with this, only the newest gets the lock; the others are Superseded. */
  newestOnly?: boolean;
  /** Keep the lock held for at least so many milliseconds. */
  minHoldMs?: number;
  /** End the lease after so many milliseconds. */
  maxHoldMs?: number;
  /** Names of more mutexes, which are acquired and held with this one, all or none. */
  also?: readonly string[];
}

export interface SemaphoreOptions extends LockOptions {
  /** How much of the limit to take; 1 if it is not given. */
  weight?: number;
}

export interface TimedOptions {
  /** A text of your own for this lock. If the answer is lost, the same call with the same key gets the same lock. */
  idempotencyKey?: string;
  signal?: AbortSignal;
}

export interface LedgerOptions {
  /** For how long a worker that has died keeps the key, in milliseconds. */
  ttlMs?: number;
  owner?: string;
  /** How many runs a key may have. */
  maxAttempts?: number;
  /** The least time between two runs of a key, in milliseconds. */
  pauseMs?: number;
  /** How many runs of a key are kept at least. */
  keepRuns?: number;
  /** For how long the history of a key is kept, in milliseconds. */
  keepMs?: number;
}

export interface BeginOptions {
  /** How long to wait while a run is in progress, in milliseconds. */
  waitMs?: number;
  note?: string;
  /** That of the payload: another one gives Mismatch. */
  fingerprint?: string;
}

export interface ConnectOptions {
  /** The token that a server wants. */
  token?: string;
  /** The authorities and the certificate for a server with TLS. */
  tls?: SecureContextOptions;
}

/** The fields of a request: wait_ms of waitMs, and so on. */
function fieldsOf(options: object): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) continue;
    if (name.endsWith("Ms") && !(typeof value === "number" && value >= 0 && value <= 1e12)) {
      throw new Invalid(`${name} must be 0 or more milliseconds, not ${String(value)}`);
    }
    const field = name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);
    fields[field] = name.endsWith("Ms") ? Math.ceil(value as number) : value;
  }
  return fields;
}

/** A text as a part of a URL. A program in JavaScript may pass what is none. */
function quoted(what: string, text: unknown): string {
  if (typeof text !== "string") throw new Invalid(`${what} must be a string, such as "nightly", not ${String(text)}`);
  try {
    return encodeURIComponent(text);
  } catch {
    throw new Invalid(`${what} must be text in Unicode, not ${JSON.stringify(text)}`);
  }
}

/**
 * What is held until its end: a lock, or a run.
 *
 * This process judges by itself for how long that is certain. It asks the server every third of the time that is left,
 * and counts the answer from the start of its question, so that nothing that comes late makes that time longer.
 */
export abstract class Held {
  readonly #lost = new AbortController();
  readonly #stop = new AbortController();
  #until = 0;
  #ended = false;
  /** The server was asked to end it. Other calls can see that end before the answer is here. */
  protected ending = false;

  protected constructor(protected readonly client: Client, readonly name: string, readonly token: number) {}

  /** Is aborted when it is lost, with a LockLost as the reason. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  protected get error(): LockLost | undefined {
    return this.signal.aborted ? (this.signal.reason as LockLost) : undefined;
  }

  /** @internal */
  get ended(): boolean {
    return this.#ended || this.ending;
  }

  /** For how many milliseconds it is certainly held, if nothing is renewed any more. */
  remainingMs(): number {
    return this.#ended || this.signal.aborted ? 0 : Math.max(0, this.#until - now());
  }

  /** Whether it is certainly held. This asks nobody: see check. */
  valid(): boolean {
    return this.remainingMs() > 0;
  }

  /**
   * Asks the server, before an act that cannot be undone, and returns for how many milliseconds it is held for certain.
   * Throws LockLost if it is not held any more.
   */
  async check(): Promise<number> {
    this.refuseIfOver();
    const start = now();
    try {
      this.extend(start, await this.ask(this.remainingMs()));
    } catch (error) {
      if (error instanceof LockLost) this.lose(error);
      else if (error instanceof Released && !this.ended) this.lose(lost("disconnected", error.message)); // not by this process
      else if (!(error instanceof StoreUnavailable) || this.valid()) throw error;
    }
    this.refuseIfOver();
    return this.remainingMs();
  }

  protected abstract ask(limit: number): Promise<number>;

  protected extend(start: number, left: number): void {
    this.#until = Math.max(this.#until, start + left - rounding);
  }

  /** Counts from the start of the request if that is recent. After a wait, nobody can tell how old an answer is. */
  async beginAt(start: number, left: number): Promise<void> {
    this.extend(start, left);
    if (this.remainingMs() >= (left * 2) / 3) return;
    const asked = now();
    this.extend(asked, await this.ask(silence));
  }

  protected refuseIfOver(): void {
    if (this.error === undefined && !this.#ended && this.remainingMs() <= 0) this.lose(expired());
    if (this.error !== undefined) throw new LockLost(this.error.message, this.error.problem);
    if (this.#ended) throw new Released(`${this.name} was released before`);
  }

  /** The client was closed. */
  abandon(): void {
    this.lose(lost("closed", "the client was closed"));
    this.#stop.abort();
  }

  protected lose(error: LockLost, atEnd = false): void {
    if (!this.signal.aborted && (!this.#ended || atEnd)) this.#lost.abort(error);
  }

  protected end(): void {
    this.#ended = true;
    this.#stop.abort();
    this.client.held.delete(this);
  }

  /** Asks again and again, until it is lost. */
  async keep(): Promise<void> {
    this.client.held.add(this);
    while (this.valid()) {
      const pause = Math.max(this.remainingMs() / 3, Math.min(leastPause, this.remainingMs()));
      try {
        await sleep(Math.min(pause, longestTimer), undefined, { ref: false, signal: this.#stop.signal });
        await this.check();
      } catch (error) {
        if (this.#stop.signal.aborted || error instanceof LockLost) return;
        // until the time is over
      }
    }
    this.lose(expired());
  }
}

function expired(): LockLost {
  return lost("expired", "the lease has ended: this process, the server or the network was stopped");
}

/** A lock that is held. Its end throws LockLost if it was lost before. */
export class Lease extends Held implements AsyncDisposable {
  readonly kind: string;
  readonly owner: string;
  readonly ttlMs: number;
  /** Which permits of a semaphore this is: numbers below the limit that no other holder has. Empty if they have none. */
  readonly permits: readonly number[];
  /** The token of each lock by its name, if there are several. */
  readonly tokens: ReadonlyMap<string, number>;
  readonly #server: Server;
  readonly #stream: Stream;
  readonly #hold: string;
  readonly #requested = new AbortController();

  /** @internal */
  constructor(client: Client, server: Server, stream: Stream, acquired: Problem) {
    super(client, String(acquired.lock), tokenOf(acquired.token));
    this.kind = String(acquired.kind);
    this.owner = String(acquired.owner);
    this.ttlMs = Number(acquired.ttl_ms);
    this.permits = permitsOf(acquired);
    this.tokens = tokensOf(acquired);
    this.#server = server;
    this.#stream = stream;
    this.#hold = `/v1/holds/${String(acquired.hold)}`;
  }

  /** Is aborted when somebody asks for the lock. It stays held. */
  get releaseRequested(): AbortSignal {
    return this.#requested.signal;
  }

  protected override async ask(limit: number): Promise<number> {
    const answer = await this.#server.call("POST", `${this.#hold}/check`, undefined, { limit });
    if (answer.release_requested === true) this.#requested.abort();
    return Number(answer.remaining_ms);
  }

  /** Reads lines. They may be old: so they can end the lease, and never make it longer. */
  async read(): Promise<void> {
    try {
      for (let line; (line = await this.#stream.next()) !== undefined;) {
        if (line.event === "release_requested") this.#requested.abort();
        if ((line.event === "released" || line.event === "detached") && this.ended) return; // as this process has asked for
        if (line.event === "lost") this.lose(lost(String(line.cause), String(line.message), line.lock));
        if (line.event === "failed") this.lose(lost("gone", errorOf(line).message));
      }
      this.lose(lost("disconnected", "the server has ended the hold"));
    } catch (error) {
      this.lose(lost("disconnected", (error as Error).message));
    }
  }

  override abandon(): void {
    super.abandon();
    this.#stream.close();
  }

  /** Releases the lock. Throws LockLost if it was lost before, and Released if it was released before. */
  async release(): Promise<void> {
    try {
      this.refuseIfOver();
    } catch (error) {
      if (error instanceof LockLost && !this.ended) {
        this.end();
        void this.client.finishLater(this.#releaseLost());
      }
      throw error;
    }
    await this.client.finishLater(this.#release());
  }

  async #releaseLost(): Promise<void> {
    try {
      await this.#server.call("POST", `${this.#hold}/release`, undefined, { limit: 5_000 });
    } catch {
      // the server can find out by itself
    } finally {
      this.#stream.close();
    }
  }

  async #release(): Promise<void> {
    const release = (): Promise<Problem> =>
      this.#server.call("POST", `${this.#hold}/release`, undefined, { limit: releaseLimit, again: false });
    const uncertain = (error: Error): Uncertain =>
      new Uncertain(`the release of ${this.name} was not confirmed: ${error.message}`, {}, { cause: error });
    let failed: Error | undefined;
    this.end();
    try {
      for (;;) {
        try {
          await release();
          return;
        } catch (error) {
          if (error instanceof Released) {
            if (failed !== undefined) return; // by the request whose answer was lost
            const end = lost("disconnected", error.message); // the server has seen another end
            this.lose(end, true);
            throw end;
          }
          if (error instanceof LockLost) this.lose(error, true);
          if (!(error instanceof StoreUnavailable)) throw error;
          if (failed !== undefined || error instanceof NoAnswer) throw uncertain(error);
          failed = error;
        }
      }
    } finally {
      this.#stream.close();
    }
  }

  /** Leaves the lock held for its TTL without this process. Whoever has the handle can renew and release it. */
  async detach(): Promise<TimedLock> {
    this.refuseIfOver();
    this.ending = true;
    try {
      const answer = await this.#server.call("POST", `${this.#hold}/detach`, undefined, { again: false });
      this.end();
      this.#stream.close();
      return timedOf(answer);
    } finally {
      this.ending = false;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.ended || this.error !== undefined) await this.release();
  }
}

/** A lock as a program wants to hold it. */
export class Lock {
  readonly #client: Client;
  readonly #path: string;
  readonly #query: string;
  readonly #body: Record<string, unknown>;

  /** @internal */
  constructor(client: Client, path: string, name: string, body: Record<string, unknown>) {
    this.#client = client;
    this.#path = path;
    this.#query = `?name=${quoted("a name", name)}`;
    this.#body = body;
  }

  /** Waits for the lock. `await using lease = await lock.acquire()` releases it at the end of the block. */
  async acquire({ signal }: { signal?: AbortSignal } = {}): Promise<Lease> {
    const start = now();
    const { server, stream } = await this.#client.stream("POST", this.#path + this.#query, this.#body, { limit: silence }, signal);
    const abort = (): void => stream.close();
    signal?.addEventListener("abort", abort);
    try {
      signal?.throwIfAborted(); // before there was a listener
      for (;;) {
        const line = await stream.next(silence);
        if (line === undefined) throw new StoreUnavailable("the server has ended the wait");
        if (line.event === "waiting" || line.event === "heartbeat") continue;
        if (line.event !== "acquired") throw errorOf(line);
        const lease = new Lease(this.#client, server, stream, line);
        await lease.beginAt(start, Number(line.remaining_ms));
        signal?.throwIfAborted();
        void lease.read();
        void lease.keep();
        return lease;
      }
    } catch (error) {
      stream.close();
      signal?.throwIfAborted();
      throw error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  /**
   * Does the work under the lock, and releases it. The signal is aborted when the lock is lost. An error of the work goes
   * on; otherwise a loss is an error.
   */
  async using<T>(work: (lease: Lease, signal: AbortSignal) => T | Promise<T>, options: { signal?: AbortSignal } = {}): Promise<T> {
    const lease = await this.acquire(options);
    let result: T;
    try {
      result = await work(lease, lease.signal);
    } catch (error) {
      await lease[Symbol.asyncDispose]().catch(() => undefined);
      throw error;
    }
    await lease[Symbol.asyncDispose]();
    return result;
  }

  /** Acquires the lock for its ttlMs, without a connection: nobody renews it, unless Client.renew does. */
  async acquireTimed({ signal, idempotencyKey: key }: TimedOptions = {}): Promise<TimedLock> {
    const { wait_ms: wait, ...body } = this.#body;
    if (key !== undefined && !/^[ -~]*$/.test(key)) throw new Invalid("an idempotencyKey must be printable ASCII characters");
    if (body.ttl_ms === undefined) throw new Invalid("a timed lock needs a ttlMs");
    const verb = wait === 0 ? "try" : "acquire";
    if (wait !== undefined && wait !== 0) body.wait_ms = wait;
    const options = { ...(wait !== undefined && { limit: Number(wait) + silence }), ...(key !== undefined && { key }) };
    const { stream } = await this.#client.stream("POST", `/v1/locks/-/${verb}${this.#query}`, body, options, signal);
    return timedOf(await only(stream));
  }
}

/** The one object of an answer that was awaited as a stream. */
async function only(stream: Stream): Promise<Problem> {
  try {
    const answer = await stream.next(silence);
    if (answer === undefined) throw new StoreUnavailable("the server has not answered");
    return answer;
  } finally {
    stream.close();
  }
}

/** An election: one of its candidates leads. */
export class Election {
  readonly #client: Client;
  readonly #name: string;
  readonly #options: object;

  /** @internal */
  constructor(client: Client, name: string, options: object) {
    this.#client = client;
    this.#name = name;
    this.#options = options;
  }

  /** Waits to lead. The note is what the leader publishes. */
  campaign(options: { note?: string; waitMs?: number } = {}): Lock {
    return new Lock(this.#client, "/v1/elections/-/campaign", this.#name, fieldsOf({ ...this.#options, ...options }));
  }

  #path(verb: string): string {
    return `/v1/elections/-/${verb}?name=${quoted("a name", this.#name)}`;
  }

  /** Who leads; undefined if nobody does. */
  async leader(): Promise<Claim | undefined> {
    const { leader } = await this.#client.call("GET", this.#path("leader"));
    return leader === undefined ? undefined : claimOf(leader as Problem);
  }

  /** Who leads, and after each change. */
  async *observe({ signal }: { signal?: AbortSignal } = {}): AsyncGenerator<Observation, void, void> {
    const { stream } = await this.#client.stream("GET", this.#path("observe"), undefined, { limit: silence }, signal);
    const abort = (): void => stream.close();
    signal?.addEventListener("abort", abort);
    try {
      signal?.throwIfAborted(); // before there was a listener
      for (let line; (line = await stream.next(silence)) !== undefined;) {
        if (line.event === "failed") throw errorOf(line);
        if (line.event === "heartbeat") continue;
        const leader = line.leader === undefined ? undefined : claimOf(line.leader as Problem);
        yield { leader, known: line.event === "leader" };
      }
      throw new StoreUnavailable("the server has ended the answer");
    } catch (error) {
      signal?.throwIfAborted();
      throw error;
    } finally {
      stream.close();
      signal?.removeEventListener("abort", abort);
    }
  }
}

/** A run of a key. Its end without a report is a failure. */
export class Run extends Held implements AsyncDisposable {
  readonly key: string;
  readonly attempt: number;
  readonly #server: Server;
  readonly #run: string;

  /** @internal */
  constructor(client: Client, server: Server, begun: Problem) {
    super(client, `${String(begun.ledger)}/${String(begun.key)}`, tokenOf(begun.token));
    this.key = String(begun.key);
    this.attempt = Number(begun.attempt);
    this.#server = server;
    this.#run = `/v1/runs/${String(begun.run)}`;
  }

  protected override async ask(limit: number): Promise<number> {
    return Number((await this.#server.call("POST", `${this.#run}/beat`, undefined, { limit })).remaining_ms);
  }

  /** Reports success, so that the key is never run again. That works after a loss, too, unless another run began. */
  async succeed(result?: string): Promise<void> {
    await this.#report("succeed", result === undefined ? {} : { result });
  }

  /** Reports a failure, so that the key can be run again. */
  async fail(error?: string): Promise<void> {
    await this.#report("fail", error === undefined ? {} : { error });
  }

  async #report(verb: string, body: object): Promise<void> {
    if (this.ended) throw new Released(`the run of ${this.name} has ended before`);
    const options = { limit: releaseLimit, again: false };
    this.ending = true; // so a second report at once is refused
    try {
      await this.client.finishLater(this.#server.call("POST", `${this.#run}/${verb}`, body, options));
    } catch (error) {
      if (error instanceof Invalid) throw error; // the run goes on
      // The server itself has ended a run of which it has heard nothing.
      const end = error instanceof Released ? lost("expired", error.message) : error;
      if (end instanceof LockLost) this.lose(end);
      this.end();
      if (!(error instanceof StoreUnavailable)) throw end;
      throw new Uncertain(`the end of the run of ${this.name} was not confirmed: ${error.message}`, {}, { cause: error });
    } finally {
      this.ending = false;
    }
    this.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.ended) await this.fail("the worker has reported nothing");
  }
}

/** Runs each key once. */
export class Ledger {
  readonly #client: Client;
  readonly #path: string;
  readonly #options: object;

  /** @internal */
  constructor(client: Client, name: string, options: object) {
    if ([".", "..", "/"].includes(name)) throw new Invalid(`a ledger cannot have the name ${name}`);
    this.#client = client;
    this.#path = `/v1/ledgers/${quoted("a name", name)}/keys`;
    this.#options = options;
  }

  /** Begins the run of a key. However many callers begin, one gets it; the others get a RunRefused. */
  async begin(key: string, options: BeginOptions = {}): Promise<Run> {
    const body = fieldsOf({ ...this.#options, ...options });
    const start = now();
    const limit = Number(body.wait_ms ?? 0) + silence;
    const { server, stream } = await this.#client.stream("POST", `${this.#path}/-/begin?key=${quoted("a key", key)}`, body, { limit });
    const begun = await only(stream);
    const run = new Run(this.#client, server, begun);
    await run.beginAt(start, Number(begun.remaining_ms));
    void run.keep();
    return run;
  }

  /** Does the work of a key once. What the work returns is stored as the result; an error is a failure, and goes on. */
  async do(
    key: string, work: (run: Run, signal: AbortSignal) => string | void | Promise<string | void>, options: BeginOptions = {},
  ): Promise<void> {
    const run = await this.begin(key, options);
    let result: string | void;
    try {
      result = await work(run, run.signal);
    } catch (error) {
      if (!run.ended) await run.fail(String(error)).catch(() => undefined);
      throw error;
    }
    if (!run.ended) await run.succeed(result ?? undefined);
  }

  /** The runs of a key in the order in which they began, with their results: the last 10,000 at most. */
  async history(key: string): Promise<RunInfo[]> {
    return listOf((await this.#client.call("GET", `${this.#path}/-?limit=10000&key=${quoted("a key", key)}`)).runs).map(runOf);
  }

  /** The last run of each key, in the order of the keys: 10,000 at most. */
  async list(prefix = ""): Promise<RunInfo[]> {
    return listOf((await this.#client.call("GET", `${this.#path}?limit=10000&prefix=${quoted("a prefix", prefix)}`)).runs).map(runOf);
  }
}

/** Waits for the work until the signal is aborted. The work goes on for others. */
async function unlessAborted<T>(work: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return work();
  signal.throwIfAborted();
  return new Promise<T>((resolve, reject) => {
    const abort = (): void => reject(signal.reason as Error);
    signal.addEventListener("abort", abort);
    void work().then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/** Locks of a store, by its URL, or of a server that runs. */
export class Client implements AsyncDisposable {
  /** @internal */
  readonly held = new Set<Held>();
  readonly #url: string | undefined;
  readonly #remote: Address | undefined;
  readonly #background = new Set<Promise<unknown>>();
  #server: Server | undefined;
  #engine: Engine | undefined;
  #starting: Promise<Server> | undefined;
  #closed = false;

  /** @internal */
  constructor(url: string | undefined, { token, tls }: ConnectOptions) {
    if (url !== undefined && (typeof url !== "string" || url === "")) {
      throw new Invalid(`the URL is ${JSON.stringify(url)}: connect to that of a store, such as redis://cache:6379, or of a server, ` +
        "such as https://locks:7420, or leave it out for the store of HOLDFAST_STORE");
    }
    this.#url = url;
    if (url !== undefined && /^(unix|https?):/.test(url)) {
      this.#remote = parseAddress(url, token, tls);
    } else if (token !== undefined || tls !== undefined) {
      throw new Invalid("token and tls are for the URL of a server");
    }
  }

  /**
   * The server to call. It is started, or started again, if it does not run.
   * @internal
   */
  async server(): Promise<Server> {
    if (this.#closed) throw new Invalid("this client was closed");
    if (this.#remote !== undefined) return (this.#server ??= new Server(this.#remote));
    if (this.#server !== undefined && this.#engine?.isAlive === true) return this.#server;
    this.#starting ??= this.#start().finally(() => (this.#starting = undefined));
    return this.#starting;
  }

  async #start(): Promise<Server> {
    const old = this.#engine;
    this.#engine = undefined;
    if (old !== undefined) await leaveEngine(this.#url, old);
    const engine = await joinEngine(this.#url);
    if (this.#closed) {
      await leaveEngine(this.#url, engine);
      throw new Invalid("this client was closed");
    }
    this.#engine = engine;
    this.#server = new Server({ secure: false, options: { socketPath: engine.socketPath, host: "localhost" }, token: engine.token });
    return this.#server;
  }

  /**
   * Calls the server. That an engine has just died may be noticed first when it is called: then the next one is.
   * @internal
   */
  async use<T>(use: (server: Server) => Promise<T>, again = true, signal?: AbortSignal): Promise<T> {
    const server = await unlessAborted(() => this.server(), signal);
    try {
      return await use(server);
    } catch (error) {
      const engine = this.#engine;
      if (!(error instanceof Broken && (again || isUnreachable(error))) || engine === undefined) throw error;
      return use(await unlessAborted(() => engine.awaitEnd().then(() => this.server()), signal));
    }
  }

  /** @internal */
  async call(method: string, path: string, again = true): Promise<Problem> {
    return this.use((server) => server.call(method, path, undefined, { again }), again);
  }

  /** @internal */
  async stream(
    method: string, path: string, body: object | undefined, options: CallOptions, signal?: AbortSignal,
  ): Promise<{ server: Server; stream: Stream }> {
    return this.use(async (server) => ({ server, stream: await server.stream(method, path, body, options, signal) }), true, signal);
  }

  /**
   * Lets close wait for the work.
   * @internal
   */
  async finishLater<T>(work: Promise<T>): Promise<T> {
    const quiet = work.catch(() => undefined);
    this.#background.add(quiet);
    void quiet.finally(() => this.#background.delete(quiet));
    return work;
  }

  #lock(name: string, body: object): Lock {
    return new Lock(this, "/v1/locks/-/hold", name, fieldsOf(body));
  }

  /** A lock that one holder has at a time. */
  mutex(name: string, options: MutexOptions = {}): Lock {
    return this.#lock(name, options);
  }

  /** The lock of a reader: others can read at the same time. */
  reader(name: string, options: LockOptions = {}): Lock {
    return this.#lock(name, { ...options, kind: "rw", shared: true });
  }

  /** The lock of a writer: nobody else reads or writes. */
  writer(name: string, options: LockOptions = {}): Lock {
    return this.#lock(name, { ...options, kind: "rw" });
  }

  /** A lock that holders share as long as their weights together are not above limit. */
  semaphore(name: string, limit: number, options: SemaphoreOptions = {}): Lock {
    return this.#lock(name, { ...options, kind: "semaphore", limit });
  }

  /** An election. */
  election(name: string, options: { ttlMs?: number; owner?: string } = {}): Election {
    return new Election(this, name, options);
  }

  /** A ledger, in which each key is run once. */
  ledger(name: string, options: LedgerOptions = {}): Ledger {
    return new Ledger(this, name, options);
  }

  /** Makes a timed lock last for its TTL from now; returns for how many milliseconds it is held for certain. */
  async renew(handle: string): Promise<number> {
    const [start, answer] = await this.use(async (server): Promise<[number, Problem]> =>
      [now(), await server.call("POST", `/v1/handles/${quoted("a handle", handle)}/renew`)]);
    const left = start + Number(answer.remaining_ms) - rounding - now();
    if (left <= 0) throw expired();
    return left;
  }

  /** Releases a timed lock. */
  async release(handle: string): Promise<void> {
    await this.call("POST", `/v1/handles/${quoted("a handle", handle)}/release`, false);
  }

  /** The locks that are held or waited for, in the order of their names: 10,000 at most. */
  async list(prefix = ""): Promise<LockInfo[]> {
    return listOf((await this.call("GET", `/v1/locks?limit=10000&prefix=${quoted("a prefix", prefix)}`)).locks).map(lockOf);
  }

  /** Who holds a lock, and who waits for it. */
  async show(name: string): Promise<LockInfo> {
    return lockOf(await this.call("GET", `/v1/locks/-?name=${quoted("a name", name)}`));
  }

  /** Asks the holder of a lock to release it. Its lease.releaseRequested is aborted then. */
  async requestRelease(name: string): Promise<void> {
    await this.call("POST", `/v1/locks/-/request-release?name=${quoted("a name", name)}`);
  }

  /** Releases what is held. Its leases are lost: end them before. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    for (const held of this.held) held.abandon();
    const patience = new AbortController();
    await Promise.race([Promise.all(this.#background),
      sleep(5_000, undefined, { signal: patience.signal }).catch(() => undefined)]);
    patience.abort();
    this.#server?.close();
    if (this.#engine !== undefined) await leaveEngine(this.#url, this.#engine);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/**
 * Uses the locks of a store, such as redis://cache:6379, or of a server, such as https://locks:7420. For a store, a
 * holdfast command runs as a child of this process; it is started when it is needed. Without a URL, the store is that of
 * HOLDFAST_STORE.
 */
export function connect(url?: string, options: ConnectOptions = {}): Client {
  return new Client(url, options);
}
