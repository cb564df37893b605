package io.holdfast;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;

/** Does what the cases in clients/cases say: a command per line of stdin, an answer per line of stdout. Agent URL TOKEN. */
final class Agent {
    private static final Map<String, Block> BLOCKS = new ConcurrentHashMap<>();
    private static final Map<String, TimedLock> TIMED = new ConcurrentHashMap<>();
    private static Client locks;

    private Agent() { }

    /** The work went wrong. */
    private static final class OwnException extends Exception {
        private static final long serialVersionUID = 1;
    }

    /** A block of the program, which lasts until a command ends it. */
    private static final class Block {
        final CompletableFuture<Held> held = new CompletableFuture<>();
        final Semaphore ended = new Semaphore(0);
        final CompletableFuture<Void> done = new CompletableFuture<>();
        volatile String result;
        volatile boolean fails;
        private volatile Thread thread;

        interface Body {
            void run(Block block) throws Exception;
        }

        Held open(Body body) throws Exception {
            thread = new Thread(() -> {
                try {
                    body.run(this);
                    done.complete(null);
                } catch (Exception e) {
                    held.completeExceptionally(e);
                    done.completeExceptionally(e);
                }
            });
            thread.start();
            return get(held);
        }

        String work(Held it) throws Exception {
            held.complete(it);
            ended.acquire();
            if (fails) throw new OwnException();
            return result;
        }
    }

    private static <T> T get(CompletableFuture<T> future) throws Exception {
        try {
            return future.get();
        } catch (ExecutionException e) {
            if (e.getCause() instanceof Exception cause) throw cause;
            throw e;
        }
    }

    private static Duration seconds(Map<String, Object> a, String name) {
        return Duration.ofMillis((long) (((Number) a.get(name)).doubleValue() * 1000));
    }

    private static Lock lockOf(Map<String, Object> a) {
        String name = Json.text(a, "name");
        Lock lock = switch (Json.text(a, "kind")) {
            case "semaphore" -> locks.semaphore(name, Json.number(a, "limit", 0));
            case "election" -> locks.election(name).campaign();
            case "reader" -> locks.reader(name);
            case "writer" -> locks.writer(name);
            default -> locks.mutex(name);
        };
        if (a.containsKey("wait")) lock = lock.within(seconds(a, "wait"));
        if (a.containsKey("ttl")) lock = lock.ttl(seconds(a, "ttl"));
        if (a.containsKey("owner")) lock = lock.owner(Json.text(a, "owner"));
        if (a.containsKey("note")) lock = lock.note(Json.text(a, "note"));
        if (a.containsKey("weight")) lock = lock.weight(Json.number(a, "weight", 1));
        if (Json.flag(a, "fair")) lock = lock.fair();
        if (Json.flag(a, "newest_only")) lock = lock.newestOnly();
        if (a.get("also") instanceof List<?> also) lock = lock.also(also.toArray(String[]::new));
        return lock;
    }

    private static Ledger ledgerOf(Map<String, Object> a) {
        Ledger ledger = locks.ledger(Json.text(a, "ledger"));
        if (a.containsKey("wait")) ledger = ledger.within(seconds(a, "wait"));
        if (a.containsKey("ttl")) ledger = ledger.ttl(seconds(a, "ttl"));
        if (a.containsKey("pause")) ledger = ledger.pause(seconds(a, "pause"));
        if (a.containsKey("max_attempts")) ledger = ledger.maxAttempts((int) Json.number(a, "max_attempts", 0));
        if (a.containsKey("fingerprint")) ledger = ledger.fingerprint(Json.text(a, "fingerprint"));
        return ledger;
    }

    private static Map<String, Object> act(String what, Map<String, Object> a) throws Exception {
        String label = Json.text(a, "as"), name = Json.text(a, "name");
        Block block = BLOCKS.get(label);
        switch (what) {
            case "open" -> {
                Block opened = new Block();
                BLOCKS.put(label, opened);
                Lease lease = (Lease) opened.open(b -> {
                    try (Lease it = lockOf(a).acquire()) {
                        b.work(it);
                    }
                });
                return Map.of("token", lease.token(), "owner", lease.owner(), "kind", lease.kind(), "permits", lease.permits(),
                    "locks", lease.tokens().keySet().stream().sorted().toList());
            }
            case "begin" -> {
                Block opened = new Block();
                Run run = (Run) opened.open(b -> ledgerOf(a).run(Json.text(a, "key"), b::work));
                BLOCKS.put(label, opened);
                return Map.of("token", run.token(), "attempt", run.attempt());
            }
            case "close", "raise" -> {
                block.result = a.containsKey("result") ? Json.text(a, "result") : null;
                block.fails = what.equals("raise");
                block.ended.release();
                try {
                    get(block.done);
                } catch (OwnException expected) {
                    return Map.of("notes", expected.getSuppressed().length == 0 ? "" : expected.getSuppressed()[0].getMessage());
                }
                return Map.of();
            }
            case "release" -> ((Lease) get(block.held)).release();
            case "succeed" -> ((Run) get(block.held)).succeed(Json.text(a, "result"));
            case "fail" -> ((Run) get(block.held)).fail(Json.text(a, "text"));
            case "check" -> {
                return Map.of("remaining", get(block.held).check().toMillis() > 0);
            }
            case "valid" -> {
                Held held = get(block.held);
                return Map.of("valid", held.isValid(), "remaining", held.remaining().toMillis() > 0);
            }
            case "await-lost" -> {
                Held held = get(block.held);
                HoldfastException.LockLost lost = held.lost().get();
                return Map.of("valid", held.isValid(), "cause", lost.reason(), "told", List.of(lost.reason()),
                    "lock", lost.lock().orElse(""));
            }
            case "await-request" -> ((Lease) get(block.held)).releaseRequested().get();
            case "request-release" -> locks.requestRelease(name);
            case "leader" -> {
                Map<String, Object> answer = new LinkedHashMap<>();
                answer.put("leader", locks.election(name).leader().map(Claim::note).orElse(null));
                return answer;
            }
            case "observe" -> locks.election(name).observe(seen ->
                !seen.leader().map(Claim::note).orElse("").equals(Json.text(a, "note"))); // until somebody with this note leads
            case "list" -> {
                return Map.of("names", locks.list(Json.text(a, "prefix")).stream().map(LockInfo::name).toList());
            }
            case "show" -> {
                LockInfo lock = locks.show(name);
                return Map.of("kind", lock.kind(), "holders", lock.holders().stream().map(Claim::owner).toList(),
                    "waiters", lock.waiters().size());
            }
            case "history" -> {
                List<RunInfo> runs = locks.ledger(Json.text(a, "ledger")).history(Json.text(a, "key"));
                return Map.of("states", runs.stream().map(RunInfo::state).toList(),
                    "results", runs.stream().map(r -> r.result().orElse("")).toList());
            }
            case "keys" -> {
                return Map.of("keys", locks.ledger(Json.text(a, "ledger")).list("").stream().map(RunInfo::key).toList());
            }
            case "acquire-timed" -> {
                TimedLock lock = lockOf(a).acquireTimed(a.containsKey("key") ? Json.text(a, "key") : null);
                TIMED.put(label, lock);
                return Map.of("token", lock.token(), "locks", lock.tokens().keySet().stream().sorted().toList(),
                    "permits", lock.permits());
            }
            case "detach" -> TIMED.put(label, ((Lease) get(block.held)).detach());
            case "renew" -> {
                return Map.of("remaining", locks.renew(TIMED.get(label).handle()).toMillis() > 0);
            }
            case "release-timed" -> locks.release(TIMED.get(label).handle());
            case "connect" -> { // to another URL
                try (Client other = Client.connect(Json.text(a, "url"), a.containsKey("token") ? Json.text(a, "token") : null, null)) {
                    other.list("");
                }
            }
            case "cancel" -> block.thread.interrupt(); // the wait of an open
            case "close-client" -> locks.close();
            case "cycles" -> cycle(Json.number(a, "callers", 1), Json.number(a, "count", 0));
            case "work" -> work(label, Path.of(Json.text(a, "file")), Json.number(a, "turns", 0), seconds(a, "for"), seconds(a, "ttl"));
            default -> throw new IllegalArgumentException(what);
        }
        return Map.of();
    }

    /** Holds the lock several times, and writes into a log from when to when that was certain. */
    private static void work(String as, Path log, long turns, Duration least, Duration ttl) throws IOException, InterruptedException {
        long start = System.nanoTime();
        for (int done = 0; done < turns || System.nanoTime() - start < least.toNanos();) {
            try (Lease lease = locks.mutex("counter").ttl(ttl).fair().acquire()) {
                lease.check();
                long from = System.nanoTime(); // which is CLOCK_MONOTONIC, as the others read it
                Thread.sleep(1);
                long to = System.nanoTime();
                if (!lease.isValid()) continue;
                Files.writeString(log, as + " " + lease.token() + " " + from + " " + to + "\n", StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
                done++;
            } catch (HoldfastException e) {
                Thread.sleep(50);
            }
        }
    }

    /** For the benchmark: locks are acquired and released, count times in all. */
    private static void cycle(long callers, long count) throws Exception {
        AtomicLong left = new AtomicLong(count);
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (long i = 0; i < callers; i++) {
            Lock lock = locks.mutex(Long.toString(i));
            CompletableFuture<Void> done = new CompletableFuture<>();
            all.add(done);
            new Thread(() -> {
                try {
                    while (left.getAndDecrement() > 0) lock.acquire().release();
                    done.complete(null);
                } catch (InterruptedException | HoldfastException e) {
                    done.completeExceptionally(e);
                }
            }).start();
        }
        for (CompletableFuture<Void> done : all) get(done);
    }

    private static void answer(Map<String, Object> command) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("id", command.get("id"));
        try {
            reply.putAll(act(Json.text(command, "do"), command));
        } catch (HoldfastException e) {
            Class<?> type = e.getClass();
            while (type.getEnclosingClass() != null && type.getEnclosingClass() != HoldfastException.class) type = type.getSuperclass();
            reply.put("error", type.getSimpleName());
            reply.put("message", e.getMessage());
            if (e instanceof HoldfastException.LockLost lost) {
                reply.put("cause", lost.reason());
                reply.put("lock", lost.lock().orElse(""));
            }
            if (e instanceof HoldfastException.TooSoon soon) reply.put("later", soon.retryAfter().toMillis() > 0);
            if (e instanceof HoldfastException.LockTimeout held) reply.put("holders", held.holders().stream().map(Claim::owner).toList());
            if (e instanceof HoldfastException.LockHeld held) reply.put("holders", held.holders().stream().map(Claim::owner).toList());
        } catch (InterruptedException e) {
            reply.put("error", "Canceled");
        } catch (Exception e) {
            reply.put("error", e.toString());
        }
        synchronized (System.out) {
            System.out.println(Json.write(reply));
        }
    }

    private static void expect(Object want, Object got) {
        if (!want.equals(got)) throw new AssertionError("want " + want + ", got " + got);
    }

    /** What can be seen without a server. */
    private static void checkParts() throws IOException {
        Clock.Elapsed clock = new Clock.Elapsed(0, 1_000);
        expect(100L, clock.at(100_000_000, 1_100));
        expect(5_100L, clock.at(100_000_000, 6_100)); // the machine slept, or the wall clock was set
        expect(5_200L, clock.at(200_000_000, 1_200)); // it was set back: the time goes on
        expect(5_300L, clock.at(300_000_000, 1_300));
        for (long ms = 301; ms <= 400; ms++) clock.at(ms * 1_000_000, 1_000 + ms / 4 * 4); // a wall clock with coarse steps
        expect(5_401L, clock.at(401_000_000, 1_401));
        long before = Clock.now();
        expect(true, Clock.now() >= before);
        expect(Long.MAX_VALUE - 2, Json.number(Json.parse("{\"token\":9223372036854775805}"), "token", 0));
        Path shared = Files.createTempDirectory("holdfast-agent"), own = shared.resolve("own"), link = shared.resolve("link");
        try {
            EngineFile.makeOwn(own);
            EngineFile.makeOwn(own); // it is there
            Files.createSymbolicLink(link, own);
            for (Path refused : List.of(link, own)) {
                Files.setPosixFilePermissions(own, PosixFilePermissions.fromString(refused == link ? "rwx------" : "rwxrwx---"));
                try {
                    EngineFile.makeOwn(refused);
                    throw new AssertionError(refused + " was not refused");
                } catch (IOException expected) {
                    // others can write to it, or have made it
                }
            }
        } finally {
            for (Path made : List.of(link, own, shared)) Files.deleteIfExists(made);
        }
    }

    public static void main(String[] args) throws IOException {
        checkParts();
        locks = Client.connect(args[0], args.length < 2 || args[1].isEmpty() ? null : args[1], null);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> command = Json.parse(line);
            Thread thread = new Thread(() -> answer(command));
            thread.setDaemon(true);
            thread.start();
        }
        locks.close();
        System.exit(0);
    }
}
