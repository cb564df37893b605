/** Holds the lock "lost" until it is lost, and says so: Loser ADDRESS TTL. */
final class Loser {
    public static void main(String[] args) throws Exception {
        try (var lock = Holdfast.hold("http://" + args[0], "lost", "{\"ttl_ms\": " + args[1] + "}")) {
            System.out.println("acquired");
            while (!lock.isLost()) Thread.sleep(10);
            System.out.println("lost");
        } catch (java.io.IOException failed) {
            System.out.println("not released");
        }
    }
}
