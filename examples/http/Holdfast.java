import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandler;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Locks of holdfast serve, for Java 17 and later, without libraries.
 *
 * <pre>
 * try (var lock = Holdfast.hold("http://127.0.0.1:7420", "nightly", "{\"ttl_ms\": 30000}")) {
 *     for (var part : parts) {
 *         if (lock.isLost()) break;
 *         write(part, lock.token);
 *     }
 * }
 * </pre>
 *
 * The end of the block releases the lock. It throws an IOException if the lock had been lost before.
 */
public final class Holdfast implements AutoCloseable {
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final ScheduledThreadPoolExecutor TIMER = new ScheduledThreadPoolExecutor(1, task -> {
        Thread thread = new Thread(task, "holdfast-timer");
        thread.setDaemon(true);
        return thread;
    });

    /** The server sends a line at least every 10 s. If none comes for so many seconds, it is gone. */
    private static final int SILENCE = 30;

    /** The fencing token, to be sent with each write. */
    public final long token;
    private final String server, id;
    private final BufferedReader lines;
    private volatile boolean lost;
    private ScheduledFuture<?> silence;

    private Holdfast(String server, BufferedReader lines, String acquired) {
        this.server = server;
        this.lines = lines;
        token = Long.parseLong(field(acquired, "token"));
        id = field(acquired, "hold");
        expectLineAfter(acquired);
        Thread reader = new Thread(this::readLines, "holdfast-lock");
        reader.setDaemon(true);
        reader.start();
    }

    /** Waits for a lock. The options are the JSON object of the API, such as {"ttl_ms": 30000, "fair": true}. */
    public static Holdfast hold(String server, String name, String options) throws IOException, InterruptedException {
        String path = "/v1/locks/-/hold?name=" + URLEncoder.encode(name, StandardCharsets.UTF_8);
        var body = send(server + path, options, BodyHandlers.ofInputStream()).body();
        var lines = new BufferedReader(new InputStreamReader(body, StandardCharsets.UTF_8));
        String line = waitForLine(lines, body);
        while (line != null && (field(line, "event").equals("waiting") || field(line, "event").equals("heartbeat"))) {
            line = waitForLine(lines, body);
        }
        if (line == null || !field(line, "event").equals("acquired")) {
            lines.close();
            throw new IOException("not acquired: " + line);
        }
        return new Holdfast(server, lines, line);
    }

    /** Reads a line, or ends the connection if none comes. */
    private static String waitForLine(BufferedReader lines, InputStream body) throws IOException {
        var silence = TIMER.schedule(() -> { body.close(); return null; }, SILENCE, TimeUnit.SECONDS);
        try {
            return lines.readLine();
        } finally {
            silence.cancel(false);
        }
    }

    /** Reports whether the lock is lost. */
    public boolean isLost() { return lost; }

    /** Asks the server whether the lock is held, before an act that cannot be undone. Throws if it is not. */
    public void check() throws IOException { call("check"); }

    @Override
    public void close() throws IOException {
        try {
            call("release");
        } finally {
            lines.close();
        }
    }

    private void readLines() {
        try {
            String line = lines.readLine();
            while (line != null && !field(line, "remaining_ms").isEmpty()) {
                expectLineAfter(line);
                line = lines.readLine();
            }
        } catch (IOException ended) {
            // the connection, and with it the lock
        }
        lost = true;
    }

    /** Counts the lock as lost if no line comes within the remaining_ms of the last one. */
    private synchronized void expectLineAfter(String line) {
        if (silence != null) silence.cancel(false);
        silence = TIMER.schedule(() -> lost = true, Long.parseLong(field(line, "remaining_ms")), TimeUnit.MILLISECONDS);
    }

    private void call(String verb) throws IOException {
        try {
            var answer = send(server + "/v1/holds/" + id + "/" + verb, "{}", BodyHandlers.ofString());
            if (answer.statusCode() != 200) throw new IOException(answer.body());
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new IOException(interrupted);
        }
    }

    private static <T> HttpResponse<T> send(String url, String body, BodyHandler<T> handler)
            throws IOException, InterruptedException {
        var answer = CLIENT.sendAsync(HttpRequest.newBuilder(URI.create(url)).header("Content-Type", "application/json")
            .POST(BodyPublishers.ofString(body)).build(), handler);
        try {
            return answer.get(SILENCE, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            throw new IOException(failed.getCause());
        } catch (TimeoutException silent) {
            if (!answer.cancel(true)) return answer.join(); // it has come meanwhile
            throw new IOException("the server sends nothing", silent);
        } catch (InterruptedException interrupted) {
            answer.cancel(true);
            throw interrupted;
        }
    }

    /** The value of a field of a flat JSON object, as text; empty if it is absent. */
    private static String field(String json, String name) {
        Matcher m = Pattern.compile("\"" + name + "\":(?:\"([^\"]*)\"|([^,}\\]]*))").matcher(json);
        return !m.find() ? "" : m.group(1) != null ? m.group(1) : m.group(2);
    }
}
