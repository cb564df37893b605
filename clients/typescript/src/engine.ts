/**
 * The engine: a child process, "holdfast serve", for a store that this process uses. There is one per process and store.
 * It ends at the end of its standard input, however this process ends, and releases what this process held.
 */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { accessSync, constants, existsSync } from "node:fs";
import { createRequire } from "node:module";
import type { Socket } from "node:net";
import * as path from "node:path";
import type { Readable, Writable } from "node:stream";
import { EngineMissing, HoldfastError, Invalid, StoreUnavailable } from "./errors.js";

const startLimit = 60_000; // the engine itself gives up sooner if the store does not answer
const endLimit = 5_000;
const exitUsage = 64;

/** The holdfast command: of HOLDFAST_BIN, of the PATH, or of the package for this platform. */
function findCommand(): string {
  const named = process.env.HOLDFAST_BIN;
  if (named) return named;
  for (const dir of (process.env.PATH ?? "").split(path.delimiter)) {
    const file = path.join(dir, "holdfast");
    if (dir && isExecutable(file)) return file;
  }
  const name = `@holdfast/engine-${process.platform}-${process.arch}`;
  let where = `the package ${name} is not installed`;
  try {
    const file = path.join(path.dirname(createRequire(import.meta.url).resolve(`${name}/package.json`)), "bin", "holdfast");
    if (isExecutable(file)) return file;
    where = `${file} ${existsSync(file) ? "cannot be executed: its file system may be mounted noexec" : "was removed"}`;
  } catch {
    // it is not installed
  }
  throw new EngineMissing("there is no holdfast command to start: HOLDFAST_BIN is not set, no directory of PATH has one, " +
    `and ${where}. Set HOLDFAST_BIN to the path of the command, or put the command into a directory of PATH, or connect to ` +
    "the URL of a server (https: or unix:), which needs none. The package has it, too");
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

type Child = ChildProcessByStdio<Writable, Readable, Readable>;

/** A child process that can be called on the unix socket socketPath with token. */
export class Engine {
  users = 0;

  private constructor(readonly socketPath: string, readonly token: string, private readonly child: Child) {}

  get isAlive(): boolean {
    return this.child.exitCode === null && this.child.signalCode === null;
  }

  static async start(store: string | undefined): Promise<Engine> {
    const command = findCommand();
    const env = store === undefined ? process.env : { ...process.env, HOLDFAST_STORE: store }; // arguments can be read by others
    const child = spawn(command, ["serve", "--json", "--exit-with-stdin", "--rate", "0"], { stdio: "pipe", env });
    const token = randomBytes(32).toString("hex");
    const messages: string[] = [];
    let message = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => { // to the end, or the engine would block
      const lines = (message + text).split("\n");
      message = lines.pop() ?? "";
      messages.push(...lines);
      messages.splice(0, messages.length - 20);
    });
    child.stdin.on("error", () => undefined); // it has ended
    child.stdin.write(`${token}\n`);
    const killer = setTimeout(() => child.kill("SIGKILL"), startLimit);
    try {
      const record = await firstLine(child, command, () => store === undefined ? messages // connect has set it
        : messages.map((line) => line.replaceAll("from HOLDFAST_STORE", "from connect")));
      return new Engine(String(record.listen).replace(/^unix:/, ""), token, child);
    } finally {
      clearTimeout(killer);
      // The engine does not keep this process alive: it ends with it.
      child.unref();
      for (const pipe of [child.stdin, child.stdout, child.stderr]) (pipe as unknown as Socket).unref();
    }
  }

  /**
   * Waits until the engine has ended, if it is about to. If its socket was removed, it is killed. What it held stays held for
   * its TTL then, since the holders may be working. An engine that ends by itself would release it.
   */
  async awaitEnd(): Promise<void> {
    if (!this.isAlive) return;
    if (!existsSync(this.socketPath)) this.child.kill("SIGKILL");
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, endLimit);
      this.child.once("exit", () => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  /** Ends the engine. It releases what is still held. */
  async stop(): Promise<void> {
    if (!this.isAlive) return;
    this.child.ref();
    const ended = new Promise<void>((resolve) => this.child.once("exit", () => resolve()));
    const killer = setTimeout(() => this.child.kill("SIGKILL"), endLimit);
    this.child.stdin.end();
    await ended;
    clearTimeout(killer);
  }
}

function firstLine(child: Child, command: string, messages: () => string[]): Promise<Record<string, unknown>> {
  return new Promise((resolve, reject) => {
    let text = "";
    child.once("error", (error) => reject(new EngineMissing(`${command} cannot be started: ${error.message}`)));
    child.stdout.setEncoding("utf8").on("data", (part: string) => {
      text += part;
      if (text.includes("\n")) resolve(JSON.parse(text) as Record<string, unknown>);
    });
    child.once("close", (code) => {
      const said = messages().map((line) => line.replace(/^.*?holdfast: /, "")).join(" ");
      const why = said || `${command} has ended with ${code}`;
      reject(code === exitUsage ? new Invalid(why) : new StoreUnavailable(why));
    });
  });
}

const engines = new Map<string | undefined, Promise<Engine>>();

/** The engine of a store, which is started if it does not run. */
export async function joinEngine(store: string | undefined): Promise<Engine> {
  for (;;) {
    let starting = engines.get(store);
    if (starting === undefined) {
      starting = Engine.start(store);
      engines.set(store, starting);
    }
    try {
      const engine = await starting;
      if (engine.isAlive) {
        engine.users++;
        return engine;
      }
    } catch (error) {
      if (engines.get(store) === starting) engines.delete(store);
      throw error instanceof HoldfastError ? error : new StoreUnavailable(String(error));
    }
    if (engines.get(store) === starting) engines.delete(store);
  }
}

/** Ends the engine when nobody uses it any more. */
export async function leaveEngine(store: string | undefined, engine: Engine): Promise<void> {
  if (--engine.users > 0) return;
  const known = engines.get(store);
  if (known !== undefined && (await known.catch(() => undefined)) === engine && engine.users === 0) {
    if (engines.get(store) === known) engines.delete(store);
  }
  if (engine.users === 0) await engine.stop();
}
