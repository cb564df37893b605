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

/** Takes a lock with ShedLock and adds to the number in a file under it, for some rounds. */
class Peer {
    public static void main(String[] a) throws Exception {
        String url = a[0], name = a[1];
        int rounds = Integer.parseInt(a[2]);
        Path file = Path.of(a[3]);
        JdbcTemplateLockProvider provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
            .withJdbcTemplate(new JdbcTemplate(new SingleConnectionDataSource(url, true)))
            .withLockedByValue("shedlock")
            .usingDbTime()
            .build());
        Random random = new Random();
        int refused = 0;
        for (int added = 0; added < rounds; ) {
            Optional<SimpleLock> lock = provider.lock(
                new LockConfiguration(Instant.now(), name, Duration.ofMinutes(1), Duration.ZERO));
            if (lock.isPresent()) {
                int number = Integer.parseInt(Files.readString(file));
                Files.writeString(file, "");
                Thread.sleep(random.nextInt(5));
                Files.writeString(file, Integer.toString(number + 1));
                added++;
                lock.get().unlock();
            } else {
                refused++;
            }
            Thread.sleep(random.nextInt(2));
        }
        System.out.println("refused " + refused);
    }
}
