package io.holdfast;

import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/** The threads of this package. They end with the program. */
final class Background {
    private static final ThreadFactory DAEMONS = work -> {
        Thread thread = new Thread(work, "holdfast");
        thread.setDaemon(true);
        return thread;
    };
    static final ExecutorService POOL = Executors.newCachedThreadPool(DAEMONS);
    private static final ScheduledThreadPoolExecutor TIMER = new ScheduledThreadPoolExecutor(1, DAEMONS);

    static {
        TIMER.setRemoveOnCancelPolicy(true);
    }

    private Background() { }

    static ScheduledFuture<?> after(long millis, Runnable work) {
        return TIMER.schedule(work, millis, TimeUnit.MILLISECONDS);
    }

    /** Waits for work of the pool, also in a thread that is interrupted: what was begun is finished. */
    static <T> T finish(Future<T> work) {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return work.get();
                } catch (InterruptedException again) {
                    interrupted = true;
                } catch (ExecutionException failed) {
                    throw unwrap(failed);
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    /** The exception of the work, as if this thread had done it. */
    static RuntimeException unwrap(ExecutionException failed) {
        if (failed.getCause() instanceof RuntimeException e) {
            if (e instanceof HoldfastException) e.addSuppressed(new Exception("called from here"));
            return e;
        }
        if (failed.getCause() instanceof Error e) throw e;
        return new IllegalStateException(failed.getCause());
    }
}
