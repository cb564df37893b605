/** What the server tells of locks and runs. */
import { type Problem, Unsupported } from "./errors.js";

/** One claim on a lock, of a holder or of a waiter. */
export interface Claim {
  readonly owner: string;
  readonly note: string;
  readonly weight: number;
  readonly ref: string;
  readonly token: number | undefined;
  readonly since: Date | undefined;
  readonly ttlMs: number | undefined;
  readonly remainingMs: number | undefined;
  readonly broken: boolean;
  readonly detached: boolean;
  readonly foreign: boolean;
  readonly releaseRequested: boolean;
}

/** A lock as it is now. kind is empty if nobody uses it. */
export interface LockInfo {
  readonly name: string;
  readonly kind: string;
  readonly limit: number | undefined;
  readonly token: number | undefined;
  readonly holders: readonly Claim[];
  readonly waiters: readonly Claim[];
}

/** One run of a key. */
export interface RunInfo {
  readonly key: string;
  readonly attempt: number;
  readonly state: "started" | "succeeded" | "failed" | "abandoned";
  readonly owner: string;
  readonly note: string;
  readonly token: number;
  readonly started: Date;
  readonly ended: Date | undefined;
  readonly error: string;
  readonly fingerprint: string;
  readonly result: string | undefined;
}

/** Who leads. leader is undefined if nobody does. While known is false, the store cannot be asked. */
export interface Observation {
  readonly leader: Claim | undefined;
  readonly known: boolean;
}

/** A lock that is held for its TTL without a connection. Whoever has the handle can renew and release it. */
export interface TimedLock {
  readonly handle: string;
  readonly name: string;
  readonly token: number;
  readonly ttlMs: number;
  /** Which permits of a semaphore this is. */
  readonly permits: readonly number[];
  /** The token of each lock by its name, if there are several. */
  readonly tokens: ReadonlyMap<string, number>;
}

function numberOf(value: unknown): number | undefined {
  return value === undefined ? undefined : Number(value);
}

/** A token is compared with others: one that was rounded could be that of another holder. */
export function tokenOf(value: unknown): number {
  const token = Number(value);
  if (!Number.isSafeInteger(token)) {
    throw new Unsupported(`a JavaScript number cannot hold the token ${token} exactly: use a client for another language`);
  }
  return token;
}

function timeOf(value: unknown): Date | undefined {
  return value === undefined ? undefined : new Date(String(value));
}

export function claimOf(c: Problem): Claim {
  return {
    owner: String(c.owner ?? ""),
    note: String(c.note ?? ""),
    weight: Number(c.weight ?? 1),
    ref: String(c.ref ?? ""),
    token: c.token === undefined ? undefined : tokenOf(c.token),
    since: timeOf(c.since),
    ttlMs: numberOf(c.ttl_ms),
    remainingMs: numberOf(c.remaining_ms),
    broken: Boolean(c.broken),
    detached: Boolean(c.detached),
    foreign: Boolean(c.foreign),
    releaseRequested: Boolean(c.release_requested),
  };
}

export function lockOf(v: Problem): LockInfo {
  const claims = (list: unknown): Claim[] => (Array.isArray(list) ? (list as Problem[]).map(claimOf) : []);
  return {
    name: String(v.lock),
    kind: String(v.kind ?? ""),
    limit: numberOf(v.limit),
    token: v.token === undefined ? undefined : tokenOf(v.token),
    holders: claims(v.holders),
    waiters: claims(v.waiters),
  };
}

export function runOf(v: Problem): RunInfo {
  return {
    key: String(v.key),
    attempt: Number(v.attempt),
    state: String(v.state) as RunInfo["state"],
    owner: String(v.owner ?? ""),
    note: String(v.note ?? ""),
    token: tokenOf(v.token ?? 0),
    started: new Date(String(v.started)),
    ended: timeOf(v.ended),
    error: String(v.error ?? ""),
    fingerprint: String(v.fingerprint ?? ""),
    result: v.result === undefined ? undefined : String(v.result),
  };
}

export function timedOf(v: Problem): TimedLock {
  return {
    handle: String(v.handle),
    name: String(v.lock),
    token: tokenOf(v.token),
    ttlMs: Number(v.ttl_ms),
    permits: permitsOf(v),
    tokens: tokensOf(v),
  };
}

export function tokensOf(v: Problem): Map<string, number> {
  const all = [v, ...(Array.isArray(v.also) ? (v.also as Problem[]) : [])];
  return new Map(all.map((lock) => [String(lock.lock), tokenOf(lock.token)]));
}

export function permitsOf(v: Problem): number[] {
  return Array.isArray(v.permits) ? v.permits.map(Number) : [];
}
