package io.holdfast;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * The engine: a child process, "holdfast serve", for a store that this program uses. There is one per program and store. It
 * ends at the end of its standard input, however this program ends, and releases what this program held.
 */
final class Engine {
    private static final long START_LIMIT = 60_000, END_LIMIT = 5_000;
    private static final int EXIT_USAGE = 64;
    private static final Map<String, Engine> ENGINES = new HashMap<>(); // those that can be called
    private static final Map<String, Object> STARTS = new ConcurrentHashMap<>(); // one per store is started at a time

    final Server server;
    private final Process process;
    private final String store;
    private final Path socket;
    private int users;

    private Engine(String store) {
        this.store = store;
        String command = findCommand();
        byte[] random = new byte[32];
        new SecureRandom().nextBytes(random);
        String token = HexFormat.of().formatHex(random);
        ProcessBuilder builder = new ProcessBuilder(command, "serve", "--json", "--exit-with-stdin", "--rate", "0");
        if (!store.isEmpty()) builder.environment().put("HOLDFAST_STORE", store); // arguments can be read by other users
        try {
            process = builder.start();
        } catch (IOException failed) {
            throw new HoldfastException.EngineMissing(command + " cannot be started: " + failed.getMessage(), failed);
        }
        Deque<String> messages = new ArrayDeque<>();
        Thread reader = new Thread(() -> readMessages(messages), "holdfast-messages");
        reader.setDaemon(true);
        reader.start();
        ScheduledFuture<?> killer = Background.after(START_LIMIT, process::destroyForcibly);
        String record = null;
        try {
            process.getOutputStream().write((token + "\n").getBytes(StandardCharsets.UTF_8));
            process.getOutputStream().flush();
            record = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
        } catch (IOException ended) {
            // its messages say why
        } finally {
            killer.cancel(false);
        }
        if (record == null) throw startError(command, reader, messages);
        String listen = Json.text(Json.parse(record), "listen");
        socket = Path.of(listen.replaceFirst("^unix:", ""));
        server = new Server(listen, token, null);
    }

    private void readMessages(Deque<String> messages) {
        try (BufferedReader in = process.errorReader(StandardCharsets.UTF_8)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) { // to the end, or the engine would block
                synchronized (messages) {
                    messages.add(line.replaceFirst("^.*?holdfast: ", ""));
                    if (messages.size() > 20) messages.remove();
                }
            }
        } catch (IOException ended) {
            // with the engine
        }
    }

    private HoldfastException startError(String command, Thread reader, Deque<String> messages) {
        process.destroy();
        int code = -1;
        try {
            code = process.waitFor();
            reader.join(END_LIMIT);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        String said;
        synchronized (messages) {
            said = String.join(" ", messages);
        }
        if (!store.isEmpty()) said = said.replace("from HOLDFAST_STORE", "from connect"); // which has set it
        if (said.isEmpty()) said = command + " has ended with " + code;
        return code == EXIT_USAGE ? new HoldfastException.Invalid(said) : new HoldfastException.StoreUnavailable(said, Map.of());
    }

    boolean isAlive() {
        return process.isAlive();
    }

    /**
     * Waits until the engine has ended, if it is about to. If its socket was removed, it is killed. What it held stays held for
     * its TTL then, since the holders may be working. An engine that ends by itself would release it.
     */
    void awaitEnd() {
        if (!Files.exists(socket)) process.destroyForcibly();
        try {
            process.waitFor(END_LIMIT, TimeUnit.MILLISECONDS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** The engine of a store, which is started if it does not run. While it starts, only calls for its store wait. */
    static Engine join(String store) {
        synchronized (STARTS.computeIfAbsent(store, of -> new Object())) {
            synchronized (ENGINES) {
                Engine engine = ENGINES.get(store);
                if (engine != null && engine.isAlive()) {
                    engine.users++;
                    return engine;
                }
            }
            Engine engine = new Engine(store);
            synchronized (ENGINES) {
                ENGINES.put(store, engine);
                engine.users++;
            }
            return engine;
        }
    }

    /** Ends the engine when nobody uses it any more. It releases what is still held. */
    void leave() {
        synchronized (ENGINES) {
            if (--users > 0) return;
            ENGINES.remove(store, this);
        }
        server.close();
        try {
            process.getOutputStream().close();
        } catch (IOException ended) {
            // it has ended before
        }
        try {
            if (!process.waitFor(END_LIMIT, TimeUnit.MILLISECONDS)) process.destroyForcibly().waitFor();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** The holdfast command: of HOLDFAST_BIN, of the PATH, or of a jar for this platform. */
    private static String findCommand() {
        String named = System.getenv("HOLDFAST_BIN");
        if (named != null && !named.isEmpty()) return named;
        String path = System.getenv("PATH");
        for (String dir : (path == null ? "" : path).split(File.pathSeparator)) {
            Path file = Path.of(dir, "holdfast");
            if (!dir.isEmpty() && Files.isRegularFile(file) && Files.isExecutable(file)) return file.toString();
        }
        return EngineFile.find();
    }
}
