import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Takes locks with Curator's recipes, and adds to the number in a file or looks that nobody does, for some rounds. */
class Peer {
    static Path file;
    static int added;

    public static void main(String[] a) throws Exception {
        String servers = a[0], path = a[1], kind = a[2];
        int rounds = Integer.parseInt(a[3]);
        file = Path.of(a[4]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(servers, 60000, 60000, new ExponentialBackoffRetry(100, 5));
        client.start();
        client.blockUntilConnected();
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        InterProcessReadWriteLock rw = new InterProcessReadWriteLock(client, path);
        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, 3);
        Random random = new Random();
        for (int i = 0; i < rounds; i++) {
            if (kind.equals("mutex")) {
                take(mutex);
                add();
                mutex.release();
                continue;
            }
            if (kind.equals("semaphore")) {
                Lease lease = semaphore.acquire(3, TimeUnit.MINUTES);
                if (lease == null) {
                    throw new Exception("no progress in three minutes");
                }
                mark("in");
                Thread.sleep(20);
                mark("out");
                lease.close();
                continue;
            }
            if (random.nextBoolean()) {
                take(rw.writeLock());
                add();
                rw.writeLock().release();
            } else {
                take(rw.readLock());
                look();
                rw.readLock().release();
            }
        }
        client.close();
        System.out.println("added " + added);
    }

    static void take(InterProcessMutex lock) throws Exception {
        if (!lock.acquire(3, TimeUnit.MINUTES)) {
            throw new Exception("no progress in three minutes");
        }
    }

    static void mark(String what) throws IOException {
        Files.writeString(file, what + "\n", StandardOpenOption.APPEND);
    }

    static String read() throws IOException {
        return Files.readString(file).trim();
    }

    static void add() throws Exception {
        int n = Integer.parseInt(read());
        Files.writeString(file, "");
        Files.writeString(file, Integer.toString(n + 1));
        added++;
    }

    static void look() throws Exception {
        String before = read();
        Thread.sleep(1);
        if (before.isEmpty() || !before.equals(read())) {
            throw new Exception("written under a reader");
        }
    }
}
