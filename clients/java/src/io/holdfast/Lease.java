package io.holdfast;

import io.holdfast.HoldfastException.LockLost;
import io.holdfast.HoldfastException.Released;
import io.holdfast.HoldfastException.StoreUnavailable;
import io.holdfast.HoldfastException.Uncertain;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** A lock that is held. Its close releases it, and throws LockLost if it was lost before. */
public final class Lease extends Held {
    private static final long RELEASE_LIMIT = 30_000;

    private final Server server;
    private final Server.Stream stream;
    private final String hold, kind, owner;
    private final Duration ttl;
    private final List<Long> permits;
    private final Map<String, Long> tokens;
    private final CompletableFuture<Void> requested = new CompletableFuture<>();

    Lease(Client client, Server server, Server.Stream stream, Map<String, Object> acquired) {
        super(client, Json.text(acquired, "lock"), Json.number(acquired, "token", 0));
        this.server = server;
        this.stream = stream;
        hold = "/v1/holds/" + Json.text(acquired, "hold");
        kind = Json.text(acquired, "kind");
        owner = Json.text(acquired, "owner");
        ttl = Duration.ofMillis(Json.number(acquired, "ttl_ms", 0));
        permits = Json.numbers(acquired, "permits");
        tokens = TimedLock.tokensOf(acquired);
    }

    /** What the lock is used as: mutex, rw or semaphore. */
    public String kind() {
        return kind;
    }

    /** Who is shown to others as the holder. */
    public String owner() {
        return owner;
    }

    /** For how long others wait if this program is cut off. */
    public Duration ttl() {
        return ttl;
    }

    /** Which permits of a semaphore this is: numbers below the limit that no other holder has. Empty if they have none. */
    public List<Long> permits() {
        return permits;
    }

    /** The token of each lock by its name, if there are several. */
    public Map<String, Long> tokens() {
        return tokens;
    }

    /** Completes when somebody asks for the lock. It stays held. */
    public CompletableFuture<Void> releaseRequested() {
        return requested.copy();
    }

    @Override
    long ask(long limit) {
        Map<String, Object> answer = server.call("POST", hold + "/check", null, limit, true);
        if (Json.flag(answer, "release_requested")) requested.complete(null);
        return Json.number(answer, "remaining_ms", 0);
    }

    /** Reads lines. They may be old: so they can end the lease, and never make it longer. */
    void read() {
        try {
            for (Map<String, Object> line = stream.next(0); line != null; line = stream.next(0)) {
                switch (Json.text(line, "event")) {
                    case "release_requested" -> requested.complete(null);
                    case "lost" -> lose(LockLost.of(line));
                    case "released", "detached" -> { // as this program has asked for
                        return;
                    }
                    case "failed" -> lose(LockLost.because("gone", HoldfastException.of(line).getMessage()));
                    default -> { }
                }
            }
            lose(LockLost.because("disconnected", "the server has ended the hold"));
        } catch (StoreUnavailable ended) {
            lose(LockLost.because("disconnected", ended.getMessage()));
        }
    }

    @Override
    void abandon() {
        super.abandon();
        stream.close();
    }

    /**
     * Releases the lock.
     *
     * @throws LockLost if it was lost before
     * @throws Released if it was released before
     */
    public void release() {
        try {
            refuseIfOver();
        } catch (LockLost e) {
            if (end()) client.later(this::releaseLost);
            throw e;
        }
        if (!end()) throw new Released(name() + " was released before", Map.of());
        Background.finish(client.later(this::releaseHeld));
    }

    private void releaseLost() {
        try {
            server.call("POST", hold + "/release", null, 5_000, false);
        } catch (HoldfastException unreachable) {
            // the server can find out by itself
        } finally {
            stream.close();
        }
    }

    private void releaseHeld() {
        boolean tried = false;
        try {
            while (true) {
                try {
                    server.call("POST", hold + "/release", null, RELEASE_LIMIT, false);
                    return;
                } catch (Released e) {
                    if (tried) return; // by the request whose answer was lost
                    LockLost end = LockLost.because("disconnected", e.getMessage()); // the server has seen another end
                    loseAtEnd(end);
                    throw end;
                } catch (LockLost e) {
                    loseAtEnd(e);
                    throw e;
                } catch (StoreUnavailable e) {
                    if (tried || e.silent) {
                        throw new Uncertain("the release of " + name() + " was not confirmed: " + e.getMessage(), e);
                    }
                    tried = true;
                }
            }
        } finally {
            stream.close();
        }
    }

    /** Leaves the lock held for its TTL without this program. Whoever has the handle can renew and release it. */
    public TimedLock detach() {
        refuseIfOver();
        if (!beginEnd()) throw new Released(name() + " was released before", Map.of());
        Map<String, Object> answer;
        try {
            answer = Background.finish(Background.POOL.submit(
                () -> server.call("POST", hold + "/detach", null, Server.CALL_LIMIT, false)));
        } catch (Released e) {
            if (isEnded()) throw e;
            LockLost end = LockLost.because("disconnected", e.getMessage()); // the server has seen another end
            lose(end);
            throw end;
        } finally {
            goOn();
        }
        end();
        stream.close();
        return TimedLock.of(answer);
    }

    /** Releases the lock, if it was not released before. */
    @Override
    public void close() {
        if (!isEnded() || isLost()) release();
    }
}
