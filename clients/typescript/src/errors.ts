/** What can go wrong. Each code of the API is one class; programs decide by class. */
import { type Claim, type RunInfo, claimOf, runOf } from "./values.js";

/** The fields of a problem of the API: see docs/serve.md. */
export type Problem = Readonly<Record<string, unknown>>;

/** Base of all errors of this package. */
export class HoldfastError extends Error {
  /** The code of docs/serve.md; empty if this package has found the error itself. */
  readonly code: string;

  constructor(message: string, readonly problem: Problem = {}, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = String(problem.code ?? "");
  }
}

/** The lock is held, and the caller does not wait. */
export class LockHeld extends HoldfastError {
  /** Who holds it, as far as that is known. */
  get holders(): Claim[] {
    return listOf(this.problem.holders).map(claimOf);
  }

  /** How many claims wait. */
  get waiting(): number {
    return Number(this.problem.waiting ?? 0);
  }
}

/** The lock was not granted within waitMs. */
export class LockTimeout extends HoldfastError {
  /** Who held it at the end, as far as that is known. */
  get holders(): Claim[] {
    return listOf(this.problem.holders).map(claimOf);
  }
}

/** The lock or the run has ended before its holder has ended it: somebody else may have it. */
export class LockLost extends HoldfastError {
  /** Why, as a word. */
  get reason(): string {
    return String(this.problem.cause ?? "gone");
  }

  /** Which of several locks it is about, if it is about one. */
  get lock(): string | undefined {
    return this.problem.lock === undefined ? undefined : String(this.problem.lock);
  }
}

/** The holder has released the lock, or ended the run, before. */
export class Released extends HoldfastError {}

/** The name is in use with another kind or limit, or the key with another fingerprint or other options. */
export class Mismatch extends HoldfastError {}

/** An argument is wrong; the text says which one. */
export class Invalid extends HoldfastError {}

/** The store cannot do this. */
export class Unsupported extends HoldfastError {}

/** The server does not know the token, or the caller does not have the right. */
export class NotAllowed extends HoldfastError {}

/** The store refuses the server. */
export class Denied extends HoldfastError {}

/** The store holds what cannot be understood. */
export class Corrupt extends HoldfastError {}

/** The lock has as many claims as its store allows. */
export class QueueFull extends HoldfastError {}

/** A newer claim with newestOnly waits, so this one has given up. */
export class Superseded extends HoldfastError {}

/** The outcome is not known. What may be left is cleaned up in the background, or expires with its TTL. */
export class Uncertain extends HoldfastError {}

/** The store, or the server, cannot be reached or does not answer. */
export class StoreUnavailable extends HoldfastError {}

/** There is no holdfast command that could be started. */
export class EngineMissing extends HoldfastError {}

/** No run of the key began. */
export class RunRefused extends HoldfastError {
  /** The last run of the key, if the caller may see it. */
  get run(): RunInfo | undefined {
    return this.problem.run === undefined ? undefined : runOf(this.problem.run as Problem);
  }
}

/** The key has succeeded before, so it is never run again. */
export class AlreadySucceeded extends RunRefused {}

/** A run of the key is in progress. */
export class InProgress extends RunRefused {}

/** The pause since the last run has not passed. */
export class TooSoon extends RunRefused {
  /** After how many milliseconds to try again. */
  get retryAfterMs(): number {
    return Number(this.problem.retry_after_ms ?? 0);
  }
}

/** The key has had as many runs as it may have. */
export class AttemptsUsed extends RunRefused {}

const byCode: Record<string, typeof HoldfastError> = {
  "held": LockHeld,
  "timeout": LockTimeout,
  "lost": LockLost,
  "not-found": LockLost,
  "released": Released,
  "mismatch": Mismatch,
  "key-reused": Mismatch,
  "invalid": Invalid,
  "not-acquired": Invalid,
  "unsupported": Unsupported,
  "unauthorized": NotAllowed,
  "forbidden": NotAllowed,
  "break-not-allowed": NotAllowed,
  "host-refused": NotAllowed,
  "origin-refused": NotAllowed,
  "denied": Denied,
  "corrupt": Corrupt,
  "queue-full": QueueFull,
  "superseded": Superseded,
  "uncertain": Uncertain,
  "store-error": StoreUnavailable,
  "rate-limited": StoreUnavailable,
  "too-many-streams": StoreUnavailable,
  "shutting-down": StoreUnavailable,
  "succeeded": AlreadySucceeded,
  "in-progress": InProgress,
  "too-soon": TooSoon,
  "attempts-used": AttemptsUsed,
};

/** The error of a problem that the server has answered with, or of the last line of a stream. */
export function errorOf(problem: Problem): HoldfastError {
  const text = problem.detail ?? problem.message ?? problem.title ?? "the server has refused";
  return new (byCode[String(problem.code)] ?? HoldfastError)(String(text), problem);
}

export function lost(cause: string, message: string, lock?: unknown): LockLost {
  return new LockLost(message, { code: "lost", cause, lock });
}

export function listOf(value: unknown): Problem[] {
  return Array.isArray(value) ? (value as Problem[]) : [];
}
