"""Handles new keys once each by the idempotency utility of AWS Powertools, and prints how long each took.

Usage: powertools.py ENDPOINT KEYS. The table "powertools" must exist, with the partition key id.
"""

import sys
import time
import warnings

import boto3
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

warnings.simplefilter("ignore")  # it expects to run in a Lambda function
endpoint, keys = sys.argv[1], int(sys.argv[2])
client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="eu-central-1")
layer = DynamoDBPersistenceLayer(table_name="powertools", boto3_client=client)


@idempotent_function(data_keyword_argument="key", persistence_store=layer, config=IdempotencyConfig())
def handle(key):
    return {"done": key}


handle(key="first")
start = time.monotonic()
for i in range(keys):
    handle(key=f"key-{i}")
print((time.monotonic() - start) / keys)
