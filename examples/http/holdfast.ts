/**
 * Locks of holdfast serve, for Node 18 and later, without packages.
 *
 *     await using lock = await hold("nightly", { ttl_ms: 30000 });
 *     for (const part of parts) {
 *       lock.signal.throwIfAborted();
 *       await write(part, lock.token);
 *     }
 *
 * The end of the block releases the lock. It throws a Problem with the code "lost" if the lock had been lost before.
 */
import * as http from "node:http";
import { createInterface } from "node:readline";

/** The server's answer: code says what is wrong, for programs. */
export class Problem extends Error {
  constructor(readonly body: any) {
    super(body.detail ?? body.message ?? body.title ?? "the connection ended");
  }
  get code(): string { return this.body.code ?? this.body.event; }
}

/** The server sends a line at least every 10 s. If none comes for so many milliseconds, it is gone. */
const silence = 30_000;

/** A lock that is held. signal is aborted when it is lost. */
export class Lock implements AsyncDisposable {
  readonly token: number;
  private readonly lost = new AbortController();
  private timer?: NodeJS.Timeout;
  private closing = false;

  constructor(acquired: any, private readonly stream: http.IncomingMessage, private readonly server: Server) {
    this.token = acquired.token;
    this.hold = acquired.hold;
    this.expect(acquired);
  }
  private readonly hold: string;

  get signal(): AbortSignal { return this.lost.signal; }

  /** Asks the server whether the lock is held, before an act that cannot be undone. Throws a Problem if it is not. */
  async check(): Promise<number> { return (await this.server.call(`/v1/holds/${this.hold}/check`)).remaining_ms; }

  async [Symbol.asyncDispose](): Promise<void> {
    this.closing = true;
    clearTimeout(this.timer);
    try {
      await this.server.call(`/v1/holds/${this.hold}/release`);
    } catch (error) {
      throw this.signal.aborted ? this.signal.reason : error; // its server may be gone
    } finally {
      this.stream.destroy();
    }
  }

  /** Takes a line. The lock counts as lost if none comes within its remaining_ms. */
  expect(line: any): void {
    clearTimeout(this.timer);
    if (line.remaining_ms === undefined) {
      this.end(line);
    } else {
      this.timer = setTimeout(() => this.end({ detail: "the server sends nothing" }), line.remaining_ms);
    }
  }

  end(problem: any): void {
    clearTimeout(this.timer);
    if (!this.closing) this.lost.abort(new Problem({ code: "lost", ...problem }));
  }
}

/** Where a server is: a host and port, or the path of its unix socket; and the token that it wants, if it wants one. */
export interface Address { host?: string; port?: number; socketPath?: string; bearer?: string }

class Server {
  constructor(private readonly address: Address) {}

  send(path: string, body: object): Promise<http.IncomingMessage> {
    const { bearer, ...at } = { ...(this.address.socketPath ? {} : { host: "127.0.0.1", port: 7420 }), ...this.address };
    const headers: Record<string, string> = { "Content-Type": "application/json" };
    if (bearer) headers.Authorization = `Bearer ${bearer}`;
    return new Promise((resolve, reject) => {
      const request = http.request({ ...at, path, method: "POST", headers, agent: false, timeout: silence }, resolve);
      request.on("timeout", () => request.destroy(new Error("the server sends nothing")));
      request.on("error", reject).end(JSON.stringify(body));
    });
  }

  async call(path: string): Promise<any> {
    const answer = await this.send(path, {});
    let text = "";
    for await (const part of answer) text += part;
    if (answer.statusCode !== 200) throw new Problem(JSON.parse(text));
    return JSON.parse(text);
  }
}

/** Waits for a lock. The options are those of the API: ttl_ms, wait_ms, fair, note ... */
export async function hold(name: string, options: object = {}, address: Address = {}): Promise<Lock> {
  const server = new Server(address);
  const stream = await server.send(`/v1/locks/-/hold?name=${encodeURIComponent(name)}`, options);
  return new Promise((resolve, reject) => {
    let lock: Lock | undefined;
    const lines = createInterface({ input: stream });
    const end = () => (lock ? lock.end({ detail: "the connection ended" }) : reject(new Problem({ code: "ended" })));
    stream.on("error", end);
    lines.on("error", () => {}).on("close", end).on("line", (text) => {
      const line = JSON.parse(text);
      if (lock) {
        lock.expect(line);
      } else if (line.event === "acquired") {
        stream.setTimeout(0); // from now on, the lines say how long to wait
        resolve((lock = new Lock(line, stream, server)));
      } else if (line.event !== "waiting" && line.event !== "heartbeat") {
        reject(new Problem(line));
        stream.destroy();
      }
    });
  });
}
