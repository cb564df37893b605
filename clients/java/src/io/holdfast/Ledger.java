package io.holdfast;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Runs each key once. Each option returns another Ledger, so a Ledger can be shared. */
public final class Ledger {
    /** The work of a run. */
    @FunctionalInterface
    public interface Work {
        /**
         * Does the work.
         *
         * @param run what is run
         * @return the result, which is stored; or null
         * @throws Exception if the run has failed
         */
        String run(Run run) throws Exception;
    }

    private final Client client;
    private final String path;
    private final Map<String, Object> options;

    Ledger(Client client, String path, Map<String, Object> options) {
        this.client = client;
        this.path = path;
        this.options = options;
    }

    static Ledger named(Client client, String name) {
        if (List.of(".", "..", "/").contains(name)) throw new HoldfastException.Invalid("a ledger cannot have the name " + name);
        return new Ledger(client, "/v1/ledgers/" + URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20") + "/keys",
            Map.of());
    }

    private Ledger with(String field, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(options);
        more.put(field, value);
        return new Ledger(client, path, more);
    }

    /** For how long a worker that has died keeps the key. */
    public Ledger ttl(Duration ttl) {
        return with("ttl_ms", Lock.millis("the TTL", ttl));
    }

    /** For how long to wait while a run is in progress. */
    public Ledger within(Duration wait) {
        return with("wait_ms", Lock.millis("the wait", wait));
    }

    /** Who is shown to others as the worker. */
    public Ledger owner(String owner) {
        return with("owner", owner);
    }

    /** A note that is shown next to the owner. */
    public Ledger note(String note) {
        return with("note", note);
    }

    /** That of the payload: another one gives Mismatch. */
    public Ledger fingerprint(String fingerprint) {
        return with("fingerprint", fingerprint);
    }

    /** How many runs a key may have. */
    public Ledger maxAttempts(int runs) {
        return with("max_attempts", runs);
    }

    /** The least time between two runs of a key. */
    public Ledger pause(Duration pause) {
        return with("pause_ms", Lock.millis("the pause", pause));
    }

    /** How many runs of a key are kept at least. */
    public Ledger keepRuns(int runs) {
        return with("keep_runs", runs);
    }

    /** For how long the history of a key is kept. */
    public Ledger keep(Duration time) {
        return with("keep_ms", Lock.millis("the time", time));
    }

    /** Begins the run of a key. However many callers begin, one gets it; the others get a RunRefused. */
    public Run begin(String key) {
        return Background.finish(Background.POOL.submit(() -> client.use(true, server -> {
            long start = Clock.now();
            Map<String, Object> begun = server.only("POST", path + "/-/begin" + Lock.query("key", key), options, null,
                Json.number(options, "wait_ms", 0) + Server.SILENCE, stream -> { });
            Run run = new Run(client, server, begun);
            run.beginAt(start, Json.number(begun, "remaining_ms", 0));
            run.start();
            return run;
        })));
    }

    /** Does the work of a key once. What the work returns is stored as the result; an exception is a failure, and goes on. */
    public void run(String key, Work work) throws Exception {
        Run run = begin(key);
        String result;
        try {
            result = work.run(run);
        } catch (Throwable e) {
            try {
                if (!run.isEnding()) run.fail(e.toString());
            } catch (HoldfastException unreported) {
                e.addSuppressed(unreported);
            }
            throw e;
        }
        if (run.isEnding()) return;
        if (result == null) run.succeed();
        else run.succeed(result);
    }

    /** The runs of a key in the order in which they began, with their results: the last 10,000 at most. */
    public List<RunInfo> history(String key) {
        return Json.list(client.call("GET", path + "/-" + Lock.query("key", key) + "&limit=10000", null, true), "runs").stream()
            .map(RunInfo::of).toList();
    }

    /** The last run of each key that begins with the prefix, in the order of the keys: 10,000 at most. */
    public List<RunInfo> list(String prefix) {
        return Json.list(client.call("GET", path + Lock.query("prefix", prefix) + "&limit=10000", null, true), "runs").stream()
            .map(RunInfo::of).toList();
    }
}
