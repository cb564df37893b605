package io.holdfast;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A lock that is held for its TTL without a connection.
 *
 * @param handle whoever has it can renew and release the lock
 * @param name the name of the lock
 * @param token the fencing token
 * @param ttl for how long the lock is held
 * @param permits which permits of a semaphore this is
 * @param tokens the token of each lock by its name, if there are several
 */
public record TimedLock(String handle, String name, long token, Duration ttl, List<Long> permits, Map<String, Long> tokens) {
    static TimedLock of(Map<String, Object> v) {
        return new TimedLock(Json.text(v, "handle"), Json.text(v, "lock"), Json.number(v, "token", 0),
            Duration.ofMillis(Json.number(v, "ttl_ms", 0)), Json.numbers(v, "permits"), tokensOf(v));
    }

    static Map<String, Long> tokensOf(Map<String, Object> v) {
        Map<String, Long> tokens = new LinkedHashMap<>();
        tokens.put(Json.text(v, "lock"), Json.number(v, "token", 0));
        for (Map<String, Object> lock : Json.list(v, "also")) tokens.put(Json.text(lock, "lock"), Json.number(lock, "token", 0));
        return Map.copyOf(tokens);
    }
}
