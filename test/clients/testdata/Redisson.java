import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Acquires and releases locks as Redisson does, for the benchmark: Redisson URL TOKEN. */
public class Redisson {
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]);
        RedissonClient client = org.redisson.Redisson.create(config);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            AtomicLong left = new AtomicLong(number(line, "count"));
            List<Thread> threads = new ArrayList<>();
            for (long i = 0; i < number(line, "callers"); i++) {
                RLock lock = client.getLock("redisson-" + i);
                threads.add(new Thread(() -> {
                    while (left.getAndDecrement() > 0) {
                        lock.lock(); // which Redisson renews
                        lock.unlock();
                    }
                }));
            }
            for (Thread t : threads) t.start();
            for (Thread t : threads) t.join();
            System.out.println("{\"id\":" + number(line, "id") + "}");
        }
        client.shutdown();
    }

    static long number(String line, String field) {
        Matcher m = Pattern.compile("\"" + field + "\":(\\d+)").matcher(line);
        if (!m.find()) throw new IllegalArgumentException(line);
        return Long.parseLong(m.group(1));
    }
}
