import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Adds 1 to the number in a file, several times, each time under the lock "counter": Worker ADDRESSES FILE TURNS TTL. */
final class Worker {
    public static void main(String[] args) throws Exception {
        String[] addresses = args[0].split(",");
        Path file = Path.of(args[1]), tokens = Path.of(args[1] + ".tokens");
        String options = "{\"ttl_ms\": " + args[3] + ", \"fair\": true}";
        for (int done = 0, tries = 0; done < Integer.parseInt(args[2]); ) {
            try (var lock = Holdfast.hold("http://" + addresses[tries % addresses.length], "counter", options)) {
                lock.check();
                int number = Integer.parseInt(Files.readString(file));
                Thread.sleep(1);
                Files.writeString(file, String.valueOf(number + 1));
                Files.writeString(tokens, lock.token + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
                done++;
            } catch (IOException failed) { // ask another server
                tries++;
                Thread.sleep(50);
            }
        }
    }
}
