import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RScript;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Takes the lock as Redisson does, and counts at the witness how many are inside. */
public class Worker {
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + args[0]).setConnectionMinimumIdleSize(2).setConnectionPoolSize(4);
        RedissonClient client = Redisson.create(config);
        String witness = "if redis.call('INCR', 'witness:inside') ~= 1 then redis.call('INCR', 'witness:overlaps') end "
                + "redis.call('INCR', 'witness:redisson') return 1";
        RScript script = client.getScript(StringCodec.INSTANCE);
        RLock lock = client.getLock("interop");
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            lock.lock();
            script.eval(RScript.Mode.READ_WRITE, witness, RScript.ReturnType.INTEGER);
            Thread.sleep(0, 300_000);
            script.eval(RScript.Mode.READ_WRITE, "return redis.call('DECR', 'witness:inside')", RScript.ReturnType.INTEGER);
            lock.unlock();
            Thread.sleep(1);
        }
        client.shutdown();
    }
}
