/** Calls of holdfast serve. */
import * as http from "node:http";
import * as https from "node:https";
import type { SecureContextOptions } from "node:tls";
import { type Problem, HoldfastError, Invalid, NotAllowed, StoreUnavailable, errorOf } from "./errors.js";

const callLimit = 30_000; // the server gives its store 10 s

/** A waiting stream has a line every 10 s at least. If none comes for so many milliseconds, the server is gone. */
export const silence = 30_000;

/** A timer of Node that is set to more milliseconds fires at once. */
export const longestTimer = 2 ** 31 - 1;

/** Where a server is, and how to call it. */
export interface Address {
  readonly secure: boolean;
  readonly options: https.RequestOptions;
  readonly token: string | undefined;
}

export function parseAddress(url: string, sent: string | undefined, tls: SecureContextOptions | undefined): Address {
  if (/[\r\n\0]/.test(sent ?? "")) throw new Invalid("the token has a line end: strip what was read from a file");
  const token = sent === "" ? undefined : sent;
  if (url.startsWith("unix:")) {
    return { secure: false, options: { socketPath: url.replace(/^unix:(\/\/)?/, ""), host: "localhost" }, token };
  }
  const wrong = new Invalid("the URL of a server is https://HOST:PORT, http://HOST:PORT or unix:PATH");
  if (!URL.canParse(url)) throw wrong;
  const parts = new URL(url);
  if (parts.username || parts.pathname !== "/" || parts.search) throw wrong;
  const secure = parts.protocol === "https:";
  const host = parts.hostname.replace(/^\[|\]$/g, "");
  return { secure, options: { host, port: parts.port || (secure ? 443 : 80), ...tls }, token };
}

export interface CallOptions {
  /** In milliseconds. */
  limit?: number;
  /** That of a request which is sent again. */
  key?: string;
  /** It does no harm if the call arrives twice. */
  again?: boolean;
}

/** A call that was not answered in time. */
export class NoAnswer extends StoreUnavailable {
  override name = "StoreUnavailable";
}

/** The connection has ended before the answer. fresh: it was made for this call. */
export class Broken extends StoreUnavailable {
  override name = "StoreUnavailable";
  fresh = true;
}

/** Whether there was no connection to the server, so that nothing was sent. */
export function isUnreachable(error: Broken): boolean {
  const { code } = (error.cause ?? {}) as NodeJS.ErrnoException;
  return code === "ECONNREFUSED" || code === "ENOENT";
}

export class Server {
  readonly #address: Address;
  readonly #agent: http.Agent;

  constructor(address: Address) {
    this.#address = address;
    const kept = { keepAlive: true, maxFreeSockets: 8, timeout: 60_000 };
    this.#agent = address.secure ? new https.Agent(kept) : new http.Agent(kept);
  }

  /** Calls, and returns the answer. */
  async call(method: string, path: string, body?: object, { limit = callLimit, again = true }: CallOptions = {}): Promise<Problem> {
    try {
      return await this.#callOnce(method, path, body, limit, this.#agent);
    } catch (error) {
      if (!again || !(error instanceof Broken) || error.fresh) throw error;
      return this.#callOnce(method, path, body, limit, false); // the server had closed the connection meanwhile
    }
  }

  async #callOnce(
    method: string, path: string, body: object | undefined, limit: number, agent: http.Agent | false,
  ): Promise<Problem> {
    const request = this.#request(method, path, body, agent);
    const timer = setTimeout(() => request.destroy(new NoAnswer("the server does not answer")), Math.min(limit, longestTimer));
    try {
      const response = await answered(request);
      const answer = await readObject(response);
      if (response.statusCode !== 200) throw this.#refusal(answer);
      return answer;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Opens a stream. limit is for its first line; undefined is no limit. */
  async stream(
    method: string, path: string, body: object | undefined, { limit, key }: CallOptions, signal?: AbortSignal,
  ): Promise<Stream> {
    signal?.throwIfAborted();
    const request = this.#request(method, path, body, false, key);
    const abort = (): void => void request.destroy(new Broken("the call was aborted"));
    signal?.addEventListener("abort", abort);
    const timer = limit === undefined ? undefined
      : setTimeout(() => request.destroy(new NoAnswer("the server does not answer")), Math.min(limit, longestTimer));
    try {
      const response = await answered(request);
      if (response.statusCode !== 200) throw this.#refusal(await readObject(response));
      return new Stream(request, response);
    } catch (error) {
      request.destroy();
      signal?.throwIfAborted();
      throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }

  #request(
    method: string, path: string, body: object | undefined, agent: http.Agent | false, key?: string,
  ): http.ClientRequest {
    const headers: http.OutgoingHttpHeaders = {};
    const data = body === undefined ? "" : JSON.stringify(body);
    headers["Content-Length"] = Buffer.byteLength(data);
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (key !== undefined) headers["Idempotency-Key"] = key;
    if (this.#address.token !== undefined) headers.Authorization = `Bearer ${this.#address.token}`;
    const make = this.#address.secure ? https.request : http.request;
    const request = make({ ...this.#address.options, method, path, headers, agent });
    request.end(data);
    return request;
  }

  #refusal(answer: Problem): HoldfastError {
    const error = errorOf(answer);
    if (error.code !== "unauthorized" || this.#address.token !== undefined) return error;
    return new NotAllowed(`${error.message} (here: pass token to connect)`, answer);
  }

  close(): void {
    this.#agent.destroy();
  }
}

function answered(request: http.ClientRequest): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    request.once("response", resolve);
    request.on("error", (error) => {
      if (error instanceof HoldfastError) {
        reject(error);
        return;
      }
      const why = /wrong version number/i.test(error.message)
        ? "it does not speak TLS: use http:// in its URL, if that is meant" : error.message;
      const broken = new Broken(`the connection to the server has ended: ${why}`, {}, { cause: error });
      broken.fresh = !request.reusedSocket;
      reject(broken);
    });
  });
}

async function readObject(response: http.IncomingMessage): Promise<Problem> {
  const parts: Buffer[] = [];
  try {
    for await (const part of response) parts.push(part as Buffer);
  } catch (error) {
    if (error instanceof HoldfastError) throw error;
    throw new Broken(`the answer of the server cannot be read: ${(error as Error).message}`, {}, { cause: error });
  }
  const text = Buffer.concat(parts).toString();
  try {
    return JSON.parse(text) as Problem;
  } catch (error) {
    throw new Broken(describeForeign(response.statusCode ?? 0, text), {}, { cause: error });
  }
}

/** What is said of an answer that is not of holdfast serve. */
function describeForeign(status: number, text: string): string {
  if (status === 400 && text.includes("HTTPS")) return "the server speaks TLS: use https:// in its URL"; // so do the servers of Go and others
  return `this is not holdfast serve: it answers "${text.trim().replace(/\s+/g, " ").slice(0, 100)}", with the status ${status}`;
}

/** An answer that is a stream of lines. It has a connection of its own. */
export class Stream {
  readonly #request: http.ClientRequest;
  readonly #parts: AsyncIterator<Buffer>;
  #text = "";
  readonly #lines: string[] = [];
  readonly #decoder = new TextDecoder();

  constructor(request: http.ClientRequest, response: http.IncomingMessage) {
    this.#request = request;
    this.#parts = response[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  }

  /** The next line, or undefined at the end. No line within the limit is an error. */
  async next(limit?: number): Promise<Problem | undefined> {
    const timer = limit === undefined ? undefined
      : setTimeout(() => this.#request.destroy(new NoAnswer("the server sends nothing")), limit);
    try {
      while (this.#lines.length === 0) {
        const part = await this.#parts.next();
        if (part.done === true) return undefined;
        const lines = (this.#text + this.#decoder.decode(part.value, { stream: true })).split("\n");
        this.#text = lines.pop() ?? "";
        this.#lines.push(...lines);
      }
      return JSON.parse(this.#lines.shift() ?? "") as Problem;
    } catch (error) {
      if (error instanceof HoldfastError) throw error;
      throw new Broken(`the connection to the server has ended: ${(error as Error).message}`, {}, { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }

  close(): void {
    this.#request.destroy();
  }
}
