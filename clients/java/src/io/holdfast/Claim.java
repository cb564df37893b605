package io.holdfast;

import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.Optional;

/**
 * One claim on a lock, of a holder or of a waiter. token is 0 if there is none.
 *
 * @param owner who it is
 * @param note what the owner says about it
 * @param weight how much of a semaphore it takes
 * @param ref names the claim for operators
 * @param token the fencing token
 * @param since when it was granted
 * @param ttl for how long it lasts without being renewed
 * @param broken it exists until its holder has noticed
 * @param releaseRequested somebody has asked for the lock
 */
public record Claim(String owner, String note, long weight, String ref, long token, Optional<Instant> since,
        Optional<Duration> ttl, boolean broken, boolean releaseRequested) {

    static Claim of(Map<String, Object> v) {
        return new Claim(Json.text(v, "owner"), Json.text(v, "note"), Json.number(v, "weight", 1), Json.text(v, "ref"),
            Json.number(v, "token", 0), time(v, "since"), duration(v, "ttl_ms"), Json.flag(v, "broken"),
            Json.flag(v, "release_requested"));
    }

    static Optional<Instant> time(Map<String, Object> v, String name) {
        String text = Json.text(v, name);
        return text.isEmpty() ? Optional.empty() : Optional.of(Instant.parse(text));
    }

    static Optional<Duration> duration(Map<String, Object> v, String name) {
        return v.get(name) instanceof Number n ? Optional.of(Duration.ofMillis(n.longValue())) : Optional.empty();
    }
}
