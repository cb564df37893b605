# A plain worker: it runs events by the scheme of the ledger's layout, as people write it. It reads the ids of events, and
# receives each of them several times. Before it works on an event and before it writes that it has ended, it tells the
# test, and waits for its answer.
import datetime
import random
import sys

import boto3
from boto3.dynamodb.conditions import Key

endpoint, table_name, deliveries = sys.argv[1], sys.argv[2], int(sys.argv[3])
table = boto3.resource("dynamodb", endpoint_url=endpoint, region_name="eu-central-1").Table(table_name)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def tell(*words):
    print(*words, flush=True)
    if sys.stdin.readline() != "ok\n":
        sys.exit("the test has ended")


def begin(event):
    """Returns the sequence of a start, or None if somebody else runs or has run the event."""
    newest = table.query(
        KeyConditionExpression=Key("partition_key").eq(event),
        ScanIndexForward=False, Limit=1, ConsistentRead=True,
    )["Items"]
    if newest and newest[0]["exec_status"] in ("started", "succeeded"):
        return None
    sequence = newest[0]["sequence"] + 1 if newest else 1
    row = table.update_item(
        Key={"partition_key": event, "sequence": sequence},
        UpdateExpression="ADD atomic_counter :one SET exec_status = :started, created_at = :now",
        ExpressionAttributeValues={":one": 1, ":started": "started", ":now": now()},
        ReturnValues="ALL_NEW",
    )["Attributes"]
    return sequence if row["atomic_counter"] == 1 else None


tell("ready")
for event in map(str.strip, iter(sys.stdin.readline, "")):
    for _ in range(deliveries):
        sequence = begin(event)
        if sequence is None:
            continue
        status = random.choice(["succeeded", "failed"])
        tell("begin")
        tell(status)
        table.put_item(Item={
            "partition_key": event, "sequence": sequence + 1, "exec_status": status, "created_at": now(),
        })
    tell("done")
