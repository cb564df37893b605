package io.holdfast;

import io.holdfast.HoldfastException.LockLost;
import io.holdfast.HoldfastException.Released;
import io.holdfast.HoldfastException.StoreUnavailable;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;

/**
 * What is held until its end: a lock, or a run. Any thread may use it.
 *
 * <p>This program judges by itself for how long that is certain. It asks the server every third of the time that is left,
 * and counts the answer from the start of its question, so that nothing that comes late makes that time longer.
 */
public abstract sealed class Held implements AutoCloseable permits Lease, Run {
    private static final long LEAST_PAUSE = 50;

    final Client client;
    private final String name;
    private final long token;
    private final CompletableFuture<LockLost> lost = new CompletableFuture<>();
    private long until;
    private LockLost error;
    private boolean ending, ended;

    Held(Client client, String name, long token) {
        this.client = client;
        this.name = name;
        this.token = token;
    }

    /** The name of the lock, or the ledger and the key of the run. */
    public final String name() {
        return name;
    }

    /** The fencing token, for what is written to. */
    public final long token() {
        return token;
    }

    /** Completes when it is lost. What is to be done then runs in a thread of this package, in which it must not wait. */
    public final CompletableFuture<LockLost> lost() {
        return lost.copy();
    }

    /** Ends it. */
    @Override
    public abstract void close();

    /** For how long it is certainly held, if nothing is renewed any more. */
    public final Duration remaining() {
        return Duration.ofMillis(left());
    }

    final synchronized long left() {
        return ended || error != null ? 0 : Math.max(0, until - Clock.now());
    }

    /** Whether it is certainly held. This asks nobody: see check. */
    public final boolean isValid() {
        return left() > 0;
    }

    /**
     * Asks the server, before an act that cannot be undone.
     *
     * @return for how long it is held for certain
     * @throws LockLost if it is not held any more
     */
    public final Duration check() {
        return Background.finish(Background.POOL.submit(this::checkHere));
    }

    private Duration checkHere() {
        refuseIfOver();
        long start = Clock.now();
        try {
            extend(start, askHeld(Math.max(1, left())));
        } catch (LockLost e) {
            lose(e);
        } catch (StoreUnavailable e) {
            if (isValid()) throw e;
        }
        refuseIfOver();
        return remaining();
    }

    abstract long ask(long limit);

    /** Asks. That it was released, although this program has not ended it, is a loss. */
    private long askHeld(long limit) {
        try {
            return ask(limit);
        } catch (Released e) {
            if (isEnding()) throw e;
            throw LockLost.because(this instanceof Run ? "expired" : "disconnected", e.getMessage());
        }
    }

    final synchronized void extend(long start, long left) {
        until = Math.max(until, start + left - Clock.ROUNDING);
    }

    /** Counts from the start of the request if that is recent. After a wait, nobody can tell how old an answer is. */
    final void beginAt(long start, long left) {
        extend(start, left);
        if (left() >= left * 2 / 3) return;
        long asked = Clock.now();
        extend(asked, askHeld(Server.SILENCE));
    }

    final void refuseIfOver() {
        if (isOver()) lose(expired());
        synchronized (this) {
            if (error != null) throw new LockLost(error.getMessage(), error.problem());
            if (ended) throw new Released(name + " was released before", java.util.Map.of());
        }
    }

    private synchronized boolean isOver() {
        return error == null && !ended && left() <= 0;
    }

    private static LockLost expired() {
        return LockLost.because("expired", "the lease has ended: this program, the server or the network was stopped");
    }

    final void lose(LockLost why) {
        synchronized (this) {
            if (error != null || ended) return;
            error = why;
        }
        lost.complete(why);
    }

    final synchronized boolean isLost() {
        return error != null;
    }

    final synchronized boolean isEnded() {
        return ended;
    }

    /** This program asks the server to end it. Returns false if it has asked before. */
    final synchronized boolean beginEnd() {
        if (ending || ended) return false;
        ending = true;
        return true;
    }

    /** The server has not ended it: it goes on. */
    final synchronized void goOn() {
        ending = false;
    }

    final synchronized boolean isEnding() {
        return ending || ended;
    }

    /** From here on it is not lost any more. Returns false if it had ended before. */
    final boolean end() {
        synchronized (this) {
            if (ended) return false;
            ended = true;
        }
        client.held.remove(this);
        return true;
    }

    /** The release itself has found that it was lost before. */
    final void loseAtEnd(LockLost why) {
        synchronized (this) {
            if (error != null) return;
            error = why;
        }
        lost.complete(why);
    }

    /** The client was closed. */
    void abandon() {
        lose(LockLost.because("closed", "the client was closed"));
    }

    final void start() {
        client.held.add(this);
        keep();
    }

    /** Asks again and again, until it is lost. */
    private void keep() {
        long left = left();
        Background.after(Math.max(left / 3, Math.min(LEAST_PAUSE, left)), () -> Background.POOL.execute(() -> {
            if (isEnded() || isLost()) return;
            try {
                checkHere();
            } catch (LockLost | Released over) {
                return;
            } catch (HoldfastException unavailable) {
                // until the time is over
            }
            keep();
        }));
    }
}
