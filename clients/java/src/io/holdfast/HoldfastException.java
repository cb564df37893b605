package io.holdfast;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** What can go wrong. Each code of the API is one class; programs decide by class. */
public class HoldfastException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final transient Map<String, Object> problem;

    HoldfastException(String message, Map<String, Object> problem) {
        super(message);
        this.problem = problem;
    }

    HoldfastException(String message, Throwable cause) {
        super(message, cause);
        problem = Map.of();
    }

    /** The code of docs/serve.md; empty if this package has found the error itself. */
    public String code() {
        return Json.text(problem(), "code");
    }

    final Map<String, Object> problem() {
        return problem == null ? Map.of() : problem;
    }

    /** The lock is held, and the caller does not wait. */
    public static final class LockHeld extends HoldfastException {
        private static final long serialVersionUID = 1;

        LockHeld(String message, Map<String, Object> problem) {
            super(message, problem);
        }

        /** Who holds it, as far as that is known. */
        public List<Claim> holders() {
            return Json.list(problem(), "holders").stream().map(Claim::of).toList();
        }

        /** How many claims wait. */
        public int waiting() {
            return (int) Json.number(problem(), "waiting", 0);
        }
    }

    /** The lock was not granted in the time that was to be waited. */
    public static final class LockTimeout extends HoldfastException {
        private static final long serialVersionUID = 1;

        LockTimeout(String message, Map<String, Object> problem) {
            super(message, problem);
        }

        /** Who held it at the end, as far as that is known. */
        public List<Claim> holders() {
            return Json.list(problem(), "holders").stream().map(Claim::of).toList();
        }
    }

    /** The lock or the run has ended before its holder has ended it: somebody else may have it. */
    public static final class LockLost extends HoldfastException {
        private static final long serialVersionUID = 1;

        LockLost(String message, Map<String, Object> problem) {
            super(message, problem);
        }

        static LockLost because(String reason, String message) {
            return new LockLost(message, Map.of("code", "lost", "cause", reason));
        }

        static LockLost of(Map<String, Object> line) {
            return new LockLost(Json.text(line, "message"), line);
        }

        /** Why, as a word. */
        public String reason() {
            String cause = Json.text(problem(), "cause");
            return cause.isEmpty() ? "gone" : cause;
        }

        /** Which of several locks it is about, if it is about one. */
        public Optional<String> lock() {
            return Optional.of(Json.text(problem(), "lock")).filter(name -> !name.isEmpty());
        }
    }

    /** The holder has released the lock, or ended the run, before. */
    public static final class Released extends HoldfastException {
        private static final long serialVersionUID = 1;

        Released(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The name is in use with another kind or limit, or the key with another fingerprint or other options. */
    public static final class Mismatch extends HoldfastException {
        private static final long serialVersionUID = 1;

        Mismatch(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** An argument is wrong; the text says which one. */
    public static final class Invalid extends HoldfastException {
        private static final long serialVersionUID = 1;

        Invalid(String message, Map<String, Object> problem) {
            super(message, problem);
        }

        Invalid(String message) {
            this(message, Map.of());
        }
    }

    /** The store cannot do this. */
    public static final class Unsupported extends HoldfastException {
        private static final long serialVersionUID = 1;

        Unsupported(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The server does not know the token, or the caller does not have the right. */
    public static final class NotAllowed extends HoldfastException {
        private static final long serialVersionUID = 1;

        NotAllowed(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The store refuses the server. */
    public static final class Denied extends HoldfastException {
        private static final long serialVersionUID = 1;

        Denied(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The store holds what cannot be understood. */
    public static final class Corrupt extends HoldfastException {
        private static final long serialVersionUID = 1;

        Corrupt(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The lock has as many claims as its store allows. */
    public static final class QueueFull extends HoldfastException {
        private static final long serialVersionUID = 1;

        QueueFull(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** A newer claim with newestOnly waits, so this one has given up. */
    public static final class Superseded extends HoldfastException {
        private static final long serialVersionUID = 1;

        Superseded(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The outcome is not known. What may be left is cleaned up in the background, or expires with its TTL. */
    public static final class Uncertain extends HoldfastException {
        private static final long serialVersionUID = 1;

        Uncertain(String message, Map<String, Object> problem) {
            super(message, problem);
        }

        Uncertain(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** The store, or the server, cannot be reached or does not answer. */
    public static class StoreUnavailable extends HoldfastException {
        private static final long serialVersionUID = 1;
        /** The call was not answered in time. */
        final boolean silent;

        StoreUnavailable(String message, Map<String, Object> problem) {
            super(message, problem);
            silent = false;
        }

        StoreUnavailable(String message, Throwable cause, boolean silent) {
            super(message, cause);
            this.silent = silent;
        }
    }

    /** There is no holdfast command that could be started. */
    public static final class EngineMissing extends HoldfastException {
        private static final long serialVersionUID = 1;

        EngineMissing(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** No run of the key began. */
    public static class RunRefused extends HoldfastException {
        private static final long serialVersionUID = 1;

        RunRefused(String message, Map<String, Object> problem) {
            super(message, problem);
        }

        /** The last run of the key, if the caller may see it. */
        public Optional<RunInfo> run() {
            return Optional.ofNullable(Json.object(problem(), "run")).map(RunInfo::of);
        }
    }

    /** The key has succeeded before, so it is never run again. */
    public static final class AlreadySucceeded extends RunRefused {
        private static final long serialVersionUID = 1;

        AlreadySucceeded(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** A run of the key is in progress. */
    public static final class InProgress extends RunRefused {
        private static final long serialVersionUID = 1;

        InProgress(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The pause since the last run has not passed. */
    public static final class TooSoon extends RunRefused {
        private static final long serialVersionUID = 1;

        TooSoon(String message, Map<String, Object> problem) {
            super(message, problem);
        }

        /** After how long to try again. */
        public Duration retryAfter() {
            return Duration.ofMillis(Json.number(problem(), "retry_after_ms", 0));
        }
    }

    /** The key has had as many runs as it may have. */
    public static final class AttemptsUsed extends RunRefused {
        private static final long serialVersionUID = 1;

        AttemptsUsed(String message, Map<String, Object> problem) {
            super(message, problem);
        }
    }

    /** The exception of a problem that the server has answered with, or of the last line of a stream. */
    static HoldfastException of(Map<String, Object> p) {
        String text = Json.text(p, "detail");
        if (text.isEmpty()) text = Json.text(p, "message");
        if (text.isEmpty()) text = Json.text(p, "title");
        return switch (Json.text(p, "code")) {
            case "held" -> new LockHeld(text, p);
            case "timeout" -> new LockTimeout(text, p);
            case "lost", "not-found" -> new LockLost(text, p);
            case "released" -> new Released(text, p);
            case "mismatch", "key-reused" -> new Mismatch(text, p);
            case "invalid", "not-acquired" -> new Invalid(text, p);
            case "unsupported" -> new Unsupported(text, p);
            case "unauthorized", "forbidden", "break-not-allowed", "host-refused", "origin-refused" -> new NotAllowed(text, p);
            case "denied" -> new Denied(text, p);
            case "corrupt" -> new Corrupt(text, p);
            case "queue-full" -> new QueueFull(text, p);
            case "superseded" -> new Superseded(text, p);
            case "uncertain" -> new Uncertain(text, p);
            case "store-error", "rate-limited", "too-many-streams", "shutting-down" -> new StoreUnavailable(text, p);
            case "succeeded" -> new AlreadySucceeded(text, p);
            case "in-progress" -> new InProgress(text, p);
            case "too-soon" -> new TooSoon(text, p);
            case "attempts-used" -> new AttemptsUsed(text, p);
            default -> new HoldfastException(text, p);
        };
    }
}
