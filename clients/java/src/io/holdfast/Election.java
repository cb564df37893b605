package io.holdfast;

import io.holdfast.HoldfastException.StoreUnavailable;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;

/** An election: one of its candidates leads. */
public final class Election {
    private final Client client;
    private final String name;

    Election(Client client, String name) {
        this.client = client;
        this.name = name;
    }

    /** Waits to lead: acquire. The lock's note is what the leader publishes. */
    public Lock campaign() {
        return new Lock(client, "/v1/elections/-/campaign", name, Map.of());
    }

    /** Who leads; empty if nobody does. */
    public Optional<Claim> leader() {
        Map<String, Object> answer = client.call("GET", "/v1/elections/-/leader" + Lock.query("name", name), null, true);
        return Optional.ofNullable(Json.object(answer, "leader")).map(Claim::of);
    }

    /** Tells who leads, and after each change, until the listener returns false. */
    public void observe(Predicate<Observation> listener) {
        try (Server.Stream stream = client.use(true, server -> server.stream("GET", "/v1/elections/-/observe" + Lock.query("name", name),
                null, null, Server.SILENCE))) {
            for (Map<String, Object> line = stream.next(Server.SILENCE); line != null; line = stream.next(Server.SILENCE)) {
                String event = Json.text(line, "event");
                if (event.equals("failed")) throw HoldfastException.of(line);
                if (event.equals("heartbeat")) continue;
                Optional<Claim> leader = Optional.ofNullable(Json.object(line, "leader")).map(Claim::of);
                if (!listener.test(new Observation(leader, event.equals("leader")))) return;
            }
        }
        throw new StoreUnavailable("the server has ended the answer", Map.of());
    }
}
