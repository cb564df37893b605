package io.holdfast;

import java.io.IOException;
import java.io.InputStream;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.AtomicMoveNotSupportedException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;

/** The command that a jar carries. A file in a jar cannot be executed, so it is written once to a cache of the user. */
final class EngineFile {
    private EngineFile() { }

    static String find() {
        String os = System.getProperty("os.name").toLowerCase(Locale.ROOT).contains("mac") ? "darwin" : "linux";
        String arch = System.getProperty("os.arch").equals("aarch64") ? "arm64" : "amd64";
        String resource = "/META-INF/holdfast/" + os + "-" + arch + "/holdfast";
        String artifact = "io.holdfast:holdfast-engine-" + os + "-" + arch;
        List<String> failures = new ArrayList<>();
        try (InputStream sum = EngineFile.class.getResourceAsStream(resource + ".sha256")) {
            if (sum == null) {
                failures.add("the artifact " + artifact + " is not in the class path");
            } else {
                String hash = new String(sum.readAllBytes(), StandardCharsets.US_ASCII).strip();
                for (Path cache : caches()) {
                    try {
                        return write(cache, resource, hash).toString();
                    } catch (IOException | UnsupportedOperationException failed) {
                        failures.add("the command of " + artifact + " cannot be used in " + cache + ": " + failed.getMessage());
                    }
                }
            }
        } catch (IOException failed) {
            failures.add(failed.getMessage());
        }
        throw new HoldfastException.EngineMissing("there is no holdfast command to start: HOLDFAST_BIN is not set, no directory "
            + "of PATH has one, and " + String.join("; ", failures) + ". Set HOLDFAST_BIN to the path of the command, or put the "
            + "command into a directory of PATH, or connect to the URL of a server (https: or unix:), which needs none. The artifact "
            + "has it, too", null);
    }

    private static List<Path> caches() {
        List<Path> all = new ArrayList<>();
        String cache = System.getenv("XDG_CACHE_HOME"), home = System.getProperty("user.home");
        if (cache != null && !cache.isEmpty()) all.add(Path.of(cache, "holdfast"));
        if (home != null && !home.isEmpty() && !home.equals("?")) all.add(Path.of(home, ".cache", "holdfast"));
        all.add(Path.of(System.getProperty("java.io.tmpdir"), "holdfast-" + System.getProperty("user.name")));
        return all;
    }

    /** Writes the command, unless it is there, into a directory that is for this user alone. */
    private static Path write(Path cache, String resource, String hash) throws IOException {
        Path shared = Path.of(System.getProperty("java.io.tmpdir"));
        if (shared.equals(cache.getParent())) makeOwn(cache);
        else Files.createDirectories(cache);
        Path dir = cache.resolve(hash.substring(0, 16));
        if (!Files.isDirectory(dir, LinkOption.NOFOLLOW_LINKS)) {
            try {
                Files.createDirectory(dir, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
            } catch (java.nio.file.FileAlreadyExistsException meanwhile) {
                // by another process
            }
        }
        Path probe = Files.createTempFile(dir, "holdfast", ".new");
        try {
            boolean own = Files.getOwner(dir, LinkOption.NOFOLLOW_LINKS).equals(Files.getOwner(probe));
            boolean alone = !PosixFilePermissions.toString(Files.getPosixFilePermissions(dir, LinkOption.NOFOLLOW_LINKS)).matches("....w....|.......w.");
            if (!own || !alone) throw new IOException("others can write to " + dir);
            Path file = dir.resolve("holdfast");
            if (!Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS) || !hashOf(file).equals(hash)) {
                try (InputStream in = EngineFile.class.getResourceAsStream(resource)) {
                    if (in == null) throw new IOException(resource + " is missing");
                    Files.copy(in, probe, StandardCopyOption.REPLACE_EXISTING);
                }
                if (!hashOf(probe).equals(hash)) throw new IOException("the disk does not keep what is written");
                Files.setPosixFilePermissions(probe, PosixFilePermissions.fromString("rwx------"));
                try (FileChannel written = FileChannel.open(probe, StandardOpenOption.WRITE)) {
                    written.force(true);
                }
                move(probe, file);
            }
            if (!Files.isExecutable(file)) throw new IOException("its file system may be mounted noexec");
            return file;
        } finally {
            Files.deleteIfExists(probe);
        }
    }

    /** Makes a directory where others can make one, too, and refuses one of theirs. */
    static void makeOwn(Path dir) throws IOException {
        Path probe = Files.createTempFile(dir.getParent(), "holdfast", ".new");
        try {
            if (!Files.exists(dir, LinkOption.NOFOLLOW_LINKS)) {
                try {
                    Files.createDirectory(dir, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
                } catch (java.nio.file.FileAlreadyExistsException meanwhile) {
                    // it is looked at now
                }
            }
            boolean own = Files.isDirectory(dir, LinkOption.NOFOLLOW_LINKS)
                && Files.getOwner(dir, LinkOption.NOFOLLOW_LINKS).equals(Files.getOwner(probe))
                && PosixFilePermissions.toString(Files.getPosixFilePermissions(dir, LinkOption.NOFOLLOW_LINKS)).equals("rwx------");
            if (!own) throw new IOException(dir + " is not a directory for this user alone, with the mode 0700: remove it");
        } finally {
            Files.deleteIfExists(probe);
        }
    }

    private static void move(Path from, Path to) throws IOException {
        try {
            Files.move(from, to, StandardCopyOption.ATOMIC_MOVE);
        } catch (AtomicMoveNotSupportedException no) {
            Files.move(from, to, StandardCopyOption.REPLACE_EXISTING);
        }
    }

    private static String hashOf(Path file) throws IOException {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(file)));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IOException(impossible);
        }
    }
}
