import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Adds 1 to the number in a file, several times, each time under the lock "counter": Worker ADDRESS FILE TURNS. */
final class Worker {
    public static void main(String[] args) throws Exception {
        Path file = Path.of(args[1]), tokens = Path.of(args[1] + ".tokens");
        for (int turn = 0; turn < Integer.parseInt(args[2]); turn++) {
            try (var lock = Holdfast.hold("http://" + args[0], "counter", "{\"ttl_ms\": 20000, \"fair\": true}")) {
                lock.check();
                int number = Integer.parseInt(Files.readString(file));
                Thread.sleep(1);
                Files.writeString(file, String.valueOf(number + 1));
                Files.writeString(tokens, lock.token + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            }
        }
    }
}
