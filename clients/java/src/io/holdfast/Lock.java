package io.holdfast;

import io.holdfast.HoldfastException.Invalid;
import io.holdfast.HoldfastException.StoreUnavailable;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A lock as a program wants to hold it. Each option returns another Lock, so a Lock can be shared.
 *
 * <pre>
 * try (Lease lease = locks.mutex("nightly").within(Duration.ofSeconds(10)).acquire()) {
 *     report(lease.token());
 * }
 * </pre>
 */
public final class Lock {
    private final Client client;
    private final String path, name;
    private final Map<String, Object> body;

    Lock(Client client, String path, String name, Map<String, Object> body) {
        this.client = client;
        this.path = path;
        this.name = name;
        this.body = body;
    }

    private Lock with(String field, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(body);
        more.put(field, value);
        return new Lock(client, path, name, more);
    }

    static long millis(String what, Duration d) {
        if (d.isNegative() || d.toDays() > 10_000) throw new Invalid(what + " must be 0 or more, not " + d);
        return d.isZero() ? 0 : Math.max(1, d.toMillis());
    }

    /** For how long to wait at most. Zero is one attempt; without this, there is no limit. */
    public Lock within(Duration wait) {
        return with("wait_ms", millis("the wait", wait));
    }

    /** For how long a holder that has died keeps the lock. */
    public Lock ttl(Duration ttl) {
        return with("ttl_ms", millis("the TTL", ttl));
    }

    /** Grants a mutex in order of arrival among all clients. */
    public Lock fair() {
        return with("fair", true);
    }

    /** Of those that wait for a mutex with this, only the newest gets the lock; the others get Superseded. */
    public Lock newestOnly() {
        return with("newest_only", true);
    }

    /** Names of more mutexes, which are acquired and held with this one, all or none. */
    public Lock also(String... names) {
        return with("also", List.of(names));
    }

    /** Who is shown to others as the holder. */
    public Lock owner(String owner) {
        return with("owner", owner);
    }

    /** A note that is shown next to the owner. */
    public Lock note(String note) {
        return with("note", note);
    }

    /** How much of a semaphore to take; 1 if it is not said. */
    public Lock weight(long weight) {
        return with("weight", weight);
    }

    /** Keeps the lock held for at least so long. */
    public Lock minHold(Duration d) {
        return with("min_hold_ms", millis("the shortest hold", d));
    }

    /** Ends the lease after so long. */
    public Lock maxHold(Duration d) {
        return with("max_hold_ms", millis("the longest hold", d));
    }

    /** Waits for the lock. */
    public Lease acquire() throws InterruptedException {
        return await(acquireAsync());
    }

    /** The future is completed when the lock is granted. To cancel it ends the wait, and releases a lock granted meanwhile. */
    public CompletableFuture<Lease> acquireAsync() {
        return start(waiting -> acquireHere(waiting), Lease::release);
    }

    /** Acquires the lock for its TTL, without a connection: nobody renews it, unless Client.renew does. */
    public TimedLock acquireTimed() throws InterruptedException {
        return acquireTimed(null);
    }

    /**
     * Acquires the lock for its TTL, as acquireTimed without a key.
     *
     * @param idempotencyKey a text of your own for this lock. If the answer is lost, the same call with the same key gets the
     *     lock that the first one was granted
     */
    public TimedLock acquireTimed(String idempotencyKey) throws InterruptedException {
        if (idempotencyKey != null && !idempotencyKey.matches("[ -~]*")) {
            throw new Invalid("an idempotency key must be printable ASCII characters");
        }
        return await(start(waiting -> acquireTimedHere(waiting, idempotencyKey), lock -> client.release(lock.handle())));
    }

    /** What a wait tells whoever may cancel it. */
    private interface Waiting {
        void on(Server.Stream stream);

        boolean isCancelled();
    }

    private record Opened(Server server, Server.Stream stream) { }

    private interface Work<T> {
        T run(Waiting waiting);
    }

    private interface Undo<T> {
        void run(T granted);
    }

    private static <T> CompletableFuture<T> start(Work<T> work, Undo<T> undo) {
        CompletableFuture<T> granted = new CompletableFuture<>();
        AtomicReference<Server.Stream> open = new AtomicReference<>();
        granted.whenComplete((value, error) -> {
            Server.Stream stream = open.get();
            if (granted.isCancelled() && stream != null) stream.close();
        });
        Background.POOL.execute(() -> {
            try {
                T value = work.run(new Waiting() {
                    @Override
                    public void on(Server.Stream stream) {
                        open.set(stream);
                        if (granted.isCancelled()) stream.close();
                    }

                    @Override
                    public boolean isCancelled() {
                        return granted.isCancelled();
                    }
                });
                if (!granted.complete(value)) undo.run(value);
            } catch (HoldfastException | Error e) {
                granted.completeExceptionally(e);
            }
        });
        return granted;
    }

    private static <T> T await(CompletableFuture<T> granted) throws InterruptedException {
        try {
            return granted.get();
        } catch (InterruptedException e) {
            if (granted.cancel(true)) throw e;
            Thread.currentThread().interrupt(); // it has ended already: what was granted must not be left behind
            return Background.finish(granted);
        } catch (ExecutionException e) {
            throw Background.unwrap(e);
        }
    }

    static String query(String field, String value) {
        if (value == null) throw new Invalid("the " + field + " must not be null");
        return "?" + field + "=" + URLEncoder.encode(value, StandardCharsets.UTF_8);
    }

    private Lease acquireHere(Waiting waiting) {
        long start = Clock.now();
        Opened opened = client.use(true, server -> {
            if (waiting.isCancelled()) throw new StoreUnavailable("the wait was cancelled", Map.of());
            return new Opened(server, server.stream("POST", path + query("name", name), body, null, Server.SILENCE));
        });
        return acquireAt(opened.server(), opened.stream(), start, waiting);
    }

    private Lease acquireAt(Server server, Server.Stream stream, long start, Waiting waiting) {
        boolean done = false;
        try {
            waiting.on(stream);
            while (true) {
                Map<String, Object> line = stream.next(Server.SILENCE);
                if (line == null) throw new StoreUnavailable("the server has ended the wait", Map.of());
                switch (Json.text(line, "event")) {
                    case "waiting", "heartbeat" -> { }
                    case "acquired" -> {
                        Lease lease = new Lease(client, server, stream, line);
                        lease.beginAt(start, Json.number(line, "remaining_ms", 0));
                        Background.POOL.execute(lease::read);
                        lease.start();
                        done = true;
                        return lease;
                    }
                    default -> throw HoldfastException.of(line);
                }
            }
        } finally {
            if (!done) stream.close();
        }
    }

    private TimedLock acquireTimedHere(Waiting waiting, String key) {
        Map<String, Object> fields = new LinkedHashMap<>(body);
        if (!fields.containsKey("ttl_ms")) throw new Invalid("a timed lock needs a TTL");
        long wait = Json.number(fields, "wait_ms", -1);
        if (wait == 0) fields.remove("wait_ms");
        String verb = wait == 0 ? "try" : "acquire";
        return TimedLock.of(client.use(true, server -> {
            if (waiting.isCancelled()) throw new StoreUnavailable("the wait was cancelled", Map.of());
            return server.only("POST", "/v1/locks/-/" + verb + query("name", name), fields, key,
                wait < 0 ? 0 : wait + Server.SILENCE, waiting::on);
        }));
    }
}
