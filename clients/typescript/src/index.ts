/**
 * Locks, elections and runs that several processes share, on a store that you have.
 *
 *     await using locks = connect("redis://cache:6379");
 *     await using lease = await locks.mutex("nightly", { waitMs: 10_000 }).acquire();
 *     await report(lease.token, lease.signal);
 */
export {
  type BeginOptions, type ConnectOptions, type LedgerOptions, type LockOptions, type MutexOptions, type SemaphoreOptions,
  type TimedOptions,
  Client, Election, Lease, Ledger, Lock, Run, connect,
} from "./client.js";
export {
  type Problem, AlreadySucceeded, AttemptsUsed, Corrupt, Denied, EngineMissing, HoldfastError, InProgress, Invalid, LockHeld,
  LockLost, LockTimeout, Mismatch, NotAllowed, QueueFull, Released, RunRefused, StoreUnavailable, Superseded, TooSoon, Uncertain,
  Unsupported,
} from "./errors.js";
export type { Claim, LockInfo, Observation, RunInfo, TimedLock } from "./values.js";
