package io.holdfast;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A clock that goes on while the machine sleeps. */
final class Clock {
    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final long NANOS = System.nanoTime(), MILLIS = System.currentTimeMillis();

    /** The server rounds to milliseconds, and Linux shows this clock in steps of 10 ms. */
    static final long ROUNDING = 12;

    private Clock() { }

    /** In milliseconds. Where the system shows no such clock, it is the one that has gone on further. */
    static long now() {
        try {
            if (Files.exists(UPTIME)) {
                String text = Files.readString(UPTIME);
                return (long) (Double.parseDouble(text.substring(0, text.indexOf(' '))) * 1000);
            }
        } catch (IOException | NumberFormatException unreadable) {
            // as on other systems
        }
        return Math.max((System.nanoTime() - NANOS) / 1_000_000, System.currentTimeMillis() - MILLIS);
    }
}
