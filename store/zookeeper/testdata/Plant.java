import java.io.File;
import org.apache.zookeeper.server.ZKDatabase;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** Sets the counter of a node's children in the data of a server that is not running. */
class Plant {
    public static void main(String[] a) throws Exception {
        File dir = new File(a[0]);
        FileTxnSnapLog log = new FileTxnSnapLog(dir, dir);
        ZKDatabase db = new ZKDatabase(log);
        db.loadDataBase();
        db.getDataTree().getNode(a[1]).stat.setCversion(Integer.parseInt(a[2]));
        log.save(db.getDataTree(), db.getSessionWithTimeOuts(), true);
        System.exit(0);
    }
}
