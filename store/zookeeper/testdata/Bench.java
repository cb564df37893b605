import java.util.Scanner;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Takes and gives back Curator's mutex as often as it can. Each line that it reads says by how many threads, for how many
 * milliseconds, and on whether one lock or one each; it answers how often.
 */
class Bench {
    public static void main(String[] a) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(a[0], 20000, 10000, new ExponentialBackoffRetry(100, 5));
        client.start();
        client.blockUntilConnected();
        Scanner in = new Scanner(System.in);
        while (in.hasNext()) {
            Thread[] threads = new Thread[in.nextInt()];
            long end = System.nanoTime() + in.nextLong() * 1_000_000;
            boolean one = in.nextBoolean();
            AtomicInteger cycles = new AtomicInteger();
            for (int i = 0; i < threads.length; i++) {
                InterProcessMutex mutex = new InterProcessMutex(client, a[1] + "/" + (one ? "one" : i));
                threads[i] = new Thread(() -> {
                    try {
                        while (System.nanoTime() < end) {
                            mutex.acquire();
                            mutex.release();
                            cycles.incrementAndGet();
                        }
                    } catch (Exception e) {
                        e.printStackTrace();
                        System.exit(1);
                    }
                });
                threads[i].start();
            }
            for (Thread t : threads) {
                t.join();
            }
            System.out.println(cycles);
        }
    }
}
