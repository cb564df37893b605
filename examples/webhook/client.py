#!/usr/bin/env python3
"""Sets the stock of an item at a service that checks fencing tokens: client.py URL TOKEN PAIRS"""
import json
import sys
import urllib.error
import urllib.request

url, token, pairs = sys.argv[1:]
request = urllib.request.Request(url, pairs.encode(), {"Fencing-Token": token}, method="PUT")
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as refusal:
    problem = json.load(refusal)
    print(refusal.code, problem["type"], problem.get("largest", ""))
    sys.exit(1 if problem["type"].endswith("stale-token") else 2)
