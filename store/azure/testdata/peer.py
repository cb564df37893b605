"""Takes the lease of a blob with azure-storage-blob alone, and adds to the number in a file, for some rounds."""
import sys
import time

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob import BlobClient, BlobLeaseClient

container, account, key, name, rounds, file = sys.argv[1:7]
blob = BlobClient.from_blob_url(container + "/" + name, credential={"account_name": account, "account_key": key})
end = time.monotonic() + 180


def take(lease):
    """Asks for the lease until it is granted. It makes the blob if there is none."""
    while True:
        try:
            lease.acquire(lease_duration=60)
            return
        except ResourceNotFoundError:
            blob.upload_blob(b"")
        except HttpResponseError as e:
            if e.error_code not in ("LeaseAlreadyPresent", "LeaseIdMissing"):
                raise
        if time.monotonic() > end:
            sys.exit("no progress in three minutes")
        time.sleep(0.01)


for _ in range(int(rounds)):
    lease = BlobLeaseClient(blob)
    take(lease)
    with open(file) as f:
        n = int(f.read())
    with open(file, "w") as f:
        f.flush()
        f.write(str(n + 1))
    lease.release()
print("added", rounds)
