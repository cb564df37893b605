package io.holdfast;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/** A clock that goes on while the machine sleeps, and that never goes back. */
final class Clock {
    /** It is opened once: a program without free descriptors can still read it. Another source would have another zero. */
    private static final RandomAccessFile UPTIME = open();
    private static final Elapsed ELAPSED = new Elapsed(System.nanoTime(), System.currentTimeMillis());

    /** The server rounds to milliseconds, and Linux shows this clock in steps of 10 ms. */
    static final long ROUNDING = 12;

    private Clock() { }

    private static RandomAccessFile open() {
        try {
            return new RandomAccessFile("/proc/uptime", "r");
        } catch (IOException otherSystem) {
            return null;
        }
    }

    /** In milliseconds. */
    static synchronized long now() {
        if (UPTIME == null) return ELAPSED.at(System.nanoTime(), System.currentTimeMillis());
        try {
            byte[] data = new byte[64];
            UPTIME.seek(0);
            String text = new String(data, 0, Math.max(0, UPTIME.read(data)), StandardCharsets.US_ASCII);
            return (long) (Double.parseDouble(text.split(" ")[0]) * 1000);
        } catch (IOException unreadable) {
            throw new UncheckedIOException("the clock cannot be read, so nothing is held for certain", unreadable);
        }
    }

    /**
     * Counts where the system shows no such clock. The wall clock shows for how long the machine has slept, but it can be set:
     * so each of its steps forward counts, and a step back takes nothing away.
     */
    static final class Elapsed {
        /** The two clocks may differ by so much without a step. */
        private static final long BAND = 10;

        private final long nanos, millis;
        private long ahead, stepped;

        Elapsed(long nanos, long millis) {
            this.nanos = nanos;
            this.millis = millis;
        }

        /** The milliseconds that have passed, by what both clocks show now. */
        long at(long nanosNow, long millisNow) {
            long passed = (nanosNow - nanos) / 1_000_000;
            long aheadNow = millisNow - millis - passed;
            if (aheadNow > ahead + BAND) stepped += aheadNow - ahead;
            if (Math.abs(aheadNow - ahead) > BAND) ahead = aheadNow;
            return passed + stepped;
        }
    }
}
