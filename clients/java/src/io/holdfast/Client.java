package io.holdfast;

import io.holdfast.HoldfastException.Invalid;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import javax.net.ssl.SSLContext;

/**
 * Locks of a store, by its URL, or of a server that runs. Any thread may use it.
 *
 * <pre>
 * try (Client locks = Client.connect("redis://cache:6379");
 *         Lease lease = locks.mutex("nightly").within(Duration.ofSeconds(10)).acquire()) {
 *     report(lease.token());
 * }
 * </pre>
 */
public final class Client implements AutoCloseable {
    final Set<Held> held = ConcurrentHashMap.newKeySet();
    private final Set<Future<?>> background = ConcurrentHashMap.newKeySet();
    private final String url;
    private final Server remote;
    private Engine engine;
    private boolean closed;

    private Client(String url, String token, SSLContext tls) {
        this.url = url;
        if (url == null) throw new Invalid("the URL must not be null: connect() uses the store of HOLDFAST_STORE");
        boolean isServer = url.matches("(unix|https?):.*");
        if (!isServer && (token != null || tls != null)) throw new Invalid("a token and TLS are for the URL of a server");
        remote = isServer ? new Server(url, token, tls) : null;
    }

    /**
     * Uses the locks of a store, such as redis://cache:6379, or of a server, such as https://locks:7420. For a store, a
     * holdfast command runs as a child of this program; it is started when it is needed.
     */
    public static Client connect(String url) {
        return connect(url, null, null);
    }

    /** Uses the locks of the store that HOLDFAST_STORE names. */
    public static Client connect() {
        return new Client("", null, null);
    }

    /** Uses a server that wants a token. tls may be null: then the authorities of the system count. */
    public static Client connect(String url, String token, SSLContext tls) {
        if ("".equals(url)) {
            throw new Invalid("the URL is empty: connect to that of a store, such as redis://cache:6379, or of a server, such as "
                + "https://locks:7420, or without a URL to the store of HOLDFAST_STORE");
        }
        return new Client(url, token, tls);
    }

    /** The server to call. It is started, or started again, if it does not run. */
    synchronized Server server() {
        if (closed) throw new Invalid("this client was closed");
        if (remote != null) return remote;
        if (engine == null || !engine.isAlive()) {
            if (engine != null) engine.leave();
            engine = null;
            engine = Engine.join(url);
        }
        return engine.server;
    }

    /** Calls the server. That an engine has just died may be noticed first when it is called: then the next one is. */
    <T> T use(boolean again, Function<Server, T> use) {
        Server server = server();
        try {
            return use.apply(server);
        } catch (HoldfastException.StoreUnavailable e) {
            boolean broken = e.getCause() instanceof IOException && !e.silent;
            Engine dying;
            synchronized (this) {
                dying = engine;
            }
            if (dying == null || !(e instanceof Server.Unreachable || again && broken)) throw e;
            dying.awaitEnd();
            return use.apply(server());
        }
    }

    Map<String, Object> call(String method, String path, Map<String, Object> body, boolean again) {
        return Background.finish(Background.POOL.submit(
            () -> use(again, server -> server.call(method, path, body, Server.CALL_LIMIT, again))));
    }

    /** Work for which close waits. */
    Future<?> later(Runnable work) {
        Future<?> future = Background.POOL.submit(work);
        background.add(future);
        background.removeIf(Future::isDone);
        return future;
    }

    private Lock lock(String name, Map<String, Object> fields) {
        return new Lock(this, "/v1/locks/-/hold", name, fields);
    }

    /** A lock that one holder has at a time. */
    public Lock mutex(String name) {
        return lock(name, Map.of());
    }

    /** The lock of a reader: others can read at the same time. */
    public Lock reader(String name) {
        return lock(name, Map.of("kind", "rw", "shared", true));
    }

    /** The lock of a writer: nobody else reads or writes. */
    public Lock writer(String name) {
        return lock(name, Map.of("kind", "rw"));
    }

    /** A lock that holders share as long as their weights together are not above the limit. */
    public Lock semaphore(String name, long limit) {
        return lock(name, Map.of("kind", "semaphore", "limit", limit));
    }

    /** An election. */
    public Election election(String name) {
        return new Election(this, name);
    }

    /** A ledger, in which each key is run once. */
    public Ledger ledger(String name) {
        return Ledger.named(this, name);
    }

    private static String handlePath(String handle, String verb) {
        return "/v1/handles/" + URLEncoder.encode(handle, StandardCharsets.UTF_8) + verb;
    }

    /**
     * Makes a timed lock last for its TTL from now.
     *
     * @return for how long it is held for certain
     * @throws HoldfastException.LockLost if it is not held any more, or if the answer came too late to tell
     */
    public Duration renew(String handle) {
        long start = Clock.now();
        long left = Json.number(call("POST", handlePath(handle, "/renew"), null, true), "remaining_ms", 0);
        left -= Clock.now() - start + Clock.ROUNDING;
        if (left <= 0) throw HoldfastException.LockLost.because("expired", "the answer came after the end of the lease: renew it earlier");
        return Duration.ofMillis(left);
    }

    /** Releases a timed lock. */
    public void release(String handle) {
        call("POST", handlePath(handle, "/release"), null, false);
    }

    /** The locks whose names begin with the prefix, in the order of their names: 10,000 at most. */
    public List<LockInfo> list(String prefix) {
        return Json.list(call("GET", "/v1/locks" + Lock.query("prefix", prefix) + "&limit=10000", null, true), "locks").stream()
            .map(LockInfo::of).toList();
    }

    /** Who holds a lock, and who waits for it. */
    public LockInfo show(String name) {
        return LockInfo.of(call("GET", "/v1/locks/-" + Lock.query("name", name), null, true));
    }

    /** Asks the holder of a lock to release it. */
    public void requestRelease(String name) {
        call("POST", "/v1/locks/-/request-release" + Lock.query("name", name), null, true);
    }

    /** Releases what is held. Its leases are lost: end them before. */
    @Override
    public void close() {
        Engine last;
        synchronized (this) {
            if (closed) return;
            closed = true;
            last = engine;
            engine = null;
        }
        held.forEach(Held::abandon);
        for (Future<?> work : background) {
            try {
                work.get(5, TimeUnit.SECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                break;
            } catch (java.util.concurrent.ExecutionException | java.util.concurrent.TimeoutException over) {
                // what is left expires
            }
        }
        if (remote != null) remote.close();
        if (last != null) last.leave();
    }
}
