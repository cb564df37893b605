package io.holdfast;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Consumer;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/** Calls holdfast serve, by HTTP/1.1 over a unix socket, TCP or TLS. The HTTP client of the JDK has no unix sockets. */
final class Server {
    /** A waiting stream has a line every 10 s at least. If none comes for so many milliseconds, the server is gone. */
    static final long SILENCE = 30_000;
    static final long CALL_LIMIT = 30_000;
    private static final long IDLE_LIMIT = 60_000;
    private static final int KEPT = 8;

    private final String url, host, token;
    private final SocketAddress address;
    private final int port;
    private final SSLContext tls;
    private final Deque<Connection> unused = new ArrayDeque<>();

    Server(String url, String token, SSLContext tls) {
        if (token != null && token.matches("(?s).*[\\r\\n\\x00].*")) {
            throw new HoldfastException.Invalid("the token has a line end: strip what was read from a file");
        }
        this.url = url;
        this.token = "".equals(token) ? null : token;
        if (url.startsWith("unix:")) {
            address = UnixDomainSocketAddress.of(url.replaceFirst("^unix:(//)?", ""));
            host = "localhost";
            port = 0;
            this.tls = null;
            return;
        }
        try {
            URI parts = new URI(url);
            boolean secure = "https".equals(parts.getScheme());
            String path = parts.getRawPath();
            if (parts.getHost() == null || parts.getUserInfo() != null || path != null && path.length() > 1) {
                throw new URISyntaxException(url, "");
            }
            host = parts.getHost().replaceAll("^\\[|\\]$", "");
            port = parts.getPort() > 0 ? parts.getPort() : secure ? 443 : 80;
            address = null;
            this.tls = !secure ? null : tls != null ? tls : SSLContext.getDefault();
        } catch (URISyntaxException | java.security.NoSuchAlgorithmException wrong) {
            throw new HoldfastException.Invalid("the URL of a server is https://HOST:PORT, http://HOST:PORT or unix:PATH");
        }
    }

    /** Calls, and returns the answer. again: it does no harm if the call arrives twice. */
    Map<String, Object> call(String method, String path, Map<String, Object> body, long limit, boolean again) {
        Connection kept;
        synchronized (unused) {
            kept = unused.poll();
            while (kept != null && !kept.isFresh()) {
                kept.close();
                kept = unused.poll();
            }
        }
        if (kept != null) {
            try {
                return callOn(kept, method, path, body, limit);
            } catch (HoldfastException.StoreUnavailable broken) {
                if (!again || broken.silent || !(broken.getCause() instanceof IOException)) throw broken;
            } // the server may have closed it meanwhile
        }
        return callOn(connect(), method, path, body, limit);
    }

    private Map<String, Object> callOn(Connection c, String method, String path, Map<String, Object> body, long limit) {
        boolean keep = false;
        try (Limit timer = new Limit(c, limit)) {
            try {
                int status = c.request(method, path, body, null);
                Map<String, Object> answer = c.readObject();
                keep = c.keepsOpen();
                if (status != 200) throw refusal(answer);
                return answer;
            } catch (IOException | IllegalArgumentException broken) {
                throw timer.explain(broken);
            }
        } finally {
            synchronized (unused) {
                keep = keep && unused.size() < KEPT;
                if (keep) unused.push(c);
            }
            if (!keep) c.close();
        }
    }

    /** Opens a stream. key is the one of a request that is sent again. limit is for its first line; 0 is no limit. */
    Stream stream(String method, String path, Map<String, Object> body, String key, long limit) {
        Connection c = connect();
        boolean open = false;
        try (Limit timer = new Limit(c, limit)) {
            try {
                if (c.request(method, path, body, key) != 200) throw refusal(c.readObject());
                open = true;
                return new Stream(c);
            } catch (IOException | IllegalArgumentException broken) {
                throw timer.explain(broken);
            }
        } finally {
            if (!open) c.close();
        }
    }

    /** The one object of an answer that may come late. opened is told of the stream, so that it can be closed meanwhile. */
    Map<String, Object> only(String method, String path, Map<String, Object> body, String key, long limit,
            Consumer<Stream> opened) {
        try (Stream stream = stream(method, path, body, key, limit)) {
            opened.accept(stream);
            Map<String, Object> answer = stream.next(SILENCE);
            if (answer == null) throw new HoldfastException.StoreUnavailable("the server has not answered", Map.of());
            return answer;
        }
    }

    private HoldfastException refusal(Map<String, Object> answer) {
        HoldfastException error = HoldfastException.of(answer);
        if (!error.code().equals("unauthorized") || token != null) return error;
        return new HoldfastException.NotAllowed(error.getMessage() + " (here: pass the token to Client.connect)", answer);
    }

    void close() {
        synchronized (unused) {
            unused.forEach(Connection::close);
            unused.clear();
        }
    }

    private Connection connect() {
        SocketChannel channel = null;
        try {
            channel = address != null ? SocketChannel.open(StandardProtocolFamily.UNIX) : SocketChannel.open();
            SocketChannel opened = channel;
            ScheduledFuture<?> timer = Background.after(CALL_LIMIT, () -> closeQuietly(opened));
            try {
                channel.connect(address != null ? address : new InetSocketAddress(host, port));
            } finally {
                timer.cancel(false);
            }
            return new Connection(channel);
        } catch (IOException | RuntimeException failed) {
            if (channel != null) closeQuietly(channel);
            String why = String.valueOf(failed.getMessage());
            if (why.contains("recognized SSL message")) why = "it does not speak TLS: use http:// in its URL, if that is meant";
            throw new Unreachable(url + " cannot be reached: " + why, failed);
        }
    }

    private static void closeQuietly(AutoCloseable it) {
        try {
            it.close();
        } catch (Exception closed) {
            // it is of no use any more
        }
    }

    /** There is no connection to the server, so nothing was sent. */
    static final class Unreachable extends HoldfastException.StoreUnavailable {
        private static final long serialVersionUID = 1;

        private Unreachable(String message, Throwable cause) {
            super(message, cause, false);
        }
    }

    /** An answer that is not of holdfast serve. */
    private static final class Foreign extends IOException {
        private static final long serialVersionUID = 1;

        Foreign(int status, String text) {
            super(status == 400 && text.contains("HTTPS") ? "the server speaks TLS: use https:// in its URL" // so do many servers
                : "this is not holdfast serve: it answers \"" + shorten(text) + "\", with the status " + status);
        }

        private static String shorten(String text) {
            String line = text.strip().replaceAll("\\s+", " ");
            return line.substring(0, Math.min(100, line.length()));
        }
    }

    /** Ends a connection if something is not done in time. */
    private static final class Limit implements AutoCloseable {
        private final ScheduledFuture<?> timer;
        private volatile boolean over;

        Limit(AutoCloseable what, long millis) {
            timer = millis <= 0 ? null : Background.after(millis, () -> {
                over = true;
                closeQuietly(what);
            });
        }

        HoldfastException.StoreUnavailable explain(Exception broken) {
            if (over) return new HoldfastException.StoreUnavailable("the server does not answer", broken, true);
            return broken instanceof Foreign ? new HoldfastException.StoreUnavailable(broken.getMessage(), broken, false)
                : new HoldfastException.StoreUnavailable("the connection to the server has ended: " + broken.getMessage(), broken, false);
        }

        @Override
        public void close() {
            if (timer != null) timer.cancel(false);
        }
    }

    /** A connection, for one request at a time. */
    final class Connection implements AutoCloseable {
        private final SocketChannel channel;
        private final InputStream in;
        private final OutputStream out;
        private final AutoCloseable secure;
        private final Map<String, String> fields = new HashMap<>();
        private long usedAt = System.nanoTime();
        private int status;
        private boolean atEnd;

        Connection(SocketChannel channel) throws IOException {
            this.channel = channel;
            if (tls == null) {
                in = new BufferedInputStream(Channels.newInputStream(channel));
                out = Channels.newOutputStream(channel);
                secure = null;
                return;
            }
            SSLSocket socket = (SSLSocket) tls.getSocketFactory().createSocket(channel.socket(), host, port, true);
            SSLParameters parameters = socket.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            socket.setSSLParameters(parameters);
            ScheduledFuture<?> timer = Background.after(CALL_LIMIT, () -> closeQuietly(channel));
            try {
                socket.startHandshake();
            } finally {
                timer.cancel(false);
            }
            in = new BufferedInputStream(socket.getInputStream());
            out = socket.getOutputStream();
            secure = socket;
        }

        boolean isFresh() {
            return System.nanoTime() - usedAt < IDLE_LIMIT * 1_000_000;
        }

        boolean keepsOpen() {
            usedAt = System.nanoTime();
            return !"close".equalsIgnoreCase(fields.get("connection"));
        }

        /** Sends a request, and returns the status of the answer. */
        int request(String method, String path, Map<String, Object> body, String key) throws IOException {
            byte[] data = body == null ? new byte[0] : Json.write(body).getBytes(StandardCharsets.UTF_8);
            StringBuilder head = new StringBuilder(method).append(' ').append(path).append(" HTTP/1.1\r\nHost: ")
                .append(host.contains(":") ? "[" + host + "]" : host).append("\r\nContent-Length: ").append(data.length);
            if (body != null) head.append("\r\nContent-Type: application/json");
            if (key != null) head.append("\r\nIdempotency-Key: ").append(key);
            if (token != null) head.append("\r\nAuthorization: Bearer ").append(token);
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            all.write(head.append("\r\n\r\n").toString().getBytes(StandardCharsets.UTF_8));
            all.write(data);
            out.write(all.toByteArray());
            out.flush();
            String[] first = line().split(" ", 3);
            if (first.length < 2 || !first[0].startsWith("HTTP/1.")) throw new IOException("this is no HTTP");
            fields.clear();
            for (String field = line(); !field.isEmpty(); field = line()) {
                int colon = field.indexOf(':');
                if (colon > 0) fields.put(field.substring(0, colon).toLowerCase(Locale.ROOT), field.substring(colon + 1).strip());
            }
            atEnd = false;
            status = Integer.parseInt(first[1]);
            return status;
        }

        private String line() throws IOException {
            ByteArrayOutputStream line = new ByteArrayOutputStream();
            for (int b = in.read(); b != '\n'; b = in.read()) {
                if (b < 0) throw new EOFException("it was closed");
                if (b != '\r') line.write(b);
            }
            return line.toString(StandardCharsets.UTF_8);
        }

        /** The next part of the answer, or null at its end. */
        byte[] part() throws IOException {
            if (atEnd) return null;
            boolean chunked = fields.getOrDefault("transfer-encoding", "").contains("chunked");
            if (!chunked && !fields.containsKey("content-length")) {
                atEnd = true;
                return in.readAllBytes();
            }
            int size = chunked ? Integer.parseInt(line().split(";")[0].strip(), 16) : Integer.parseInt(fields.get("content-length"));
            byte[] data = in.readNBytes(size);
            if (data.length < size) throw new EOFException("it was closed");
            if (chunked) line();
            atEnd = !chunked || size == 0;
            return chunked && size == 0 ? null : data;
        }

        Map<String, Object> readObject() throws IOException {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            for (byte[] part = part(); part != null; part = part()) all.write(part);
            String text = all.toString(StandardCharsets.UTF_8);
            try {
                return Json.parse(text);
            } catch (IllegalArgumentException noJSON) {
                throw new Foreign(status, text);
            }
        }

        @Override
        public void close() {
            if (secure != null) closeQuietly(secure);
            closeQuietly(channel);
        }
    }

    /** An answer that is a stream of lines. It has a connection of its own. */
    static final class Stream implements AutoCloseable {
        private final Connection connection;
        private final ByteArrayOutputStream rest = new ByteArrayOutputStream();
        private final Deque<String> lines = new ArrayDeque<>();

        private Stream(Connection connection) {
            this.connection = connection;
        }

        /** The next line, or null at the end. No line within the limit is an error; 0 is no limit. */
        Map<String, Object> next(long limit) {
            try (Limit timer = new Limit(connection, limit)) {
                try {
                    while (lines.isEmpty()) {
                        byte[] part = connection.part();
                        if (part == null) return null;
                        for (byte b : part) {
                            if (b != '\n') {
                                rest.write(b);
                                continue;
                            }
                            lines.add(rest.toString(StandardCharsets.UTF_8));
                            rest.reset();
                        }
                    }
                    return Json.parse(lines.remove());
                } catch (IOException | IllegalArgumentException broken) {
                    throw timer.explain(broken);
                }
            }
        }

        @Override
        public void close() {
            connection.close();
        }
    }
}
