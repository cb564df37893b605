package io.holdfast;

import java.time.Duration;
import java.util.Map;

/**
 * A lock that is held for its TTL without a connection.
 *
 * @param handle whoever has it can renew and release the lock
 * @param name the name of the lock
 * @param token the fencing token
 * @param ttl for how long the lock is held
 */
public record TimedLock(String handle, String name, long token, Duration ttl) {
    static TimedLock of(Map<String, Object> v) {
        return new TimedLock(Json.text(v, "handle"), Json.text(v, "lock"), Json.number(v, "token", 0),
            Duration.ofMillis(Json.number(v, "ttl_ms", 0)));
    }
}
