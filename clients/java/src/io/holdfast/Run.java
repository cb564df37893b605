package io.holdfast;

import io.holdfast.HoldfastException.Invalid;
import io.holdfast.HoldfastException.LockLost;
import io.holdfast.HoldfastException.Released;
import io.holdfast.HoldfastException.StoreUnavailable;
import io.holdfast.HoldfastException.Uncertain;
import java.util.Map;

/** A run of a key. Its close without a report is a failure. */
public final class Run extends Held {
    private final Server server;
    private final String run, key;
    private final long attempt;

    Run(Client client, Server server, Map<String, Object> begun) {
        super(client, Json.text(begun, "ledger") + "/" + Json.text(begun, "key"), Json.number(begun, "token", 0));
        this.server = server;
        run = "/v1/runs/" + Json.text(begun, "run");
        key = Json.text(begun, "key");
        attempt = Json.number(begun, "attempt", 0);
    }

    /** The key. */
    public String key() {
        return key;
    }

    /** The number of the run: 1 for the first one of the key. */
    public long attempt() {
        return attempt;
    }

    @Override
    long ask(long limit) {
        return Json.number(server.call("POST", run + "/beat", null, limit, true), "remaining_ms", 0);
    }

    /** Reports success, so that the key is never run again. That works after a loss, too, unless another run began. */
    public void succeed(String result) {
        report("/succeed", Map.of("result", result));
    }

    /** Reports success without a result. */
    public void succeed() {
        report("/succeed", Map.of());
    }

    /** Reports a failure, so that the key can be run again. */
    public void fail(String error) {
        report("/fail", error.isEmpty() ? Map.of() : Map.of("error", error));
    }

    private void report(String verb, Map<String, Object> body) {
        if (!beginEnd()) throw new Released("the run of " + name() + " has ended before", Map.of());
        Background.finish(client.later(() -> {
            try {
                server.call("POST", run + verb, body, Server.CALL_LIMIT, false);
            } catch (Invalid wrong) {
                goOn();
                throw wrong;
            } catch (Released e) { // by the server, because there were no beats
                LockLost end = LockLost.because("expired", e.getMessage());
                lose(end);
                end();
                throw end;
            } catch (StoreUnavailable e) {
                end();
                throw new Uncertain("the end of the run of " + name() + " was not confirmed: " + e.getMessage(), e);
            } catch (HoldfastException e) {
                if (e instanceof LockLost l) lose(l);
                end();
                throw e;
            }
            end();
        }));
    }

    /** Reports a failure, if nothing was reported. */
    @Override
    public void close() {
        if (!isEnding()) fail("the worker has reported nothing");
    }
}
