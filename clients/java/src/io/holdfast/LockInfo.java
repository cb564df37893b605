package io.holdfast;

import java.util.List;
import java.util.Map;

/**
 * A lock as it is now.
 *
 * @param name the name of the lock
 * @param kind mutex, rw or semaphore; empty if nobody uses it
 * @param limit that of a semaphore
 * @param holders who holds it
 * @param waiters who waits for it, the next one first
 */
public record LockInfo(String name, String kind, long limit, List<Claim> holders, List<Claim> waiters) {
    static LockInfo of(Map<String, Object> v) {
        return new LockInfo(Json.text(v, "lock"), Json.text(v, "kind"), Json.number(v, "limit", 0),
            Json.list(v, "holders").stream().map(Claim::of).toList(), Json.list(v, "waiters").stream().map(Claim::of).toList());
    }
}
