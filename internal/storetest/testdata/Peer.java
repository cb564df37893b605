import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.Random;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/** Takes a lock with ShedLock and adds to the number in a file under it, over and over, until there is a file to stop it. */
class Peer {
    public static void main(String[] a) throws Exception {
        String url = a[0], name = a[1];
        Path file = Path.of(a[2]), stop = Path.of(a[3]);
        JdbcTemplateLockProvider provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
            .withJdbcTemplate(new JdbcTemplate(new SingleConnectionDataSource(url, true)))
            .withLockedByValue("shedlock")
            .usingDbTime()
            .build());
        Random random = new Random();
        int refused = 0;
        while (!Files.exists(stop)) {
            Optional<SimpleLock> lock = provider.lock(
                new LockConfiguration(Instant.now(), name, Duration.ofMinutes(1), Duration.ZERO));
            if (lock.isPresent()) {
                int number = Integer.parseInt(Files.readString(file));
                Files.writeString(file, "");
                Thread.sleep(random.nextInt(5));
                Files.writeString(file, Integer.toString(number + 1));
                lock.get().unlock();
            } else {
                refused++;
            }
            Thread.sleep(random.nextInt(10));
        }
        System.out.println("refused " + refused);
    }
}
