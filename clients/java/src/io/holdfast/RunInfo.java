package io.holdfast;

import java.time.Instant;
import java.util.Map;
import java.util.Optional;

/**
 * One run of a key.
 *
 * @param key the key
 * @param attempt the number of the run: 1 for the first one
 * @param state started, succeeded, failed or abandoned
 * @param owner who runs it
 * @param note what the owner says about it
 * @param token the fencing token
 * @param started when it began
 * @param ended when it ended
 * @param error why it failed
 * @param result what it has reported, if that is text
 */
public record RunInfo(String key, long attempt, String state, String owner, String note, long token, Instant started,
        Optional<Instant> ended, String error, Optional<String> result) {

    static RunInfo of(Map<String, Object> v) {
        return new RunInfo(Json.text(v, "key"), Json.number(v, "attempt", 0), Json.text(v, "state"), Json.text(v, "owner"),
            Json.text(v, "note"), Json.number(v, "token", 0), Instant.parse(Json.text(v, "started")), Claim.time(v, "ended"),
            Json.text(v, "error"), Optional.ofNullable(v.get("result")).map(String::valueOf));
    }
}
