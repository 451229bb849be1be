"""What `helm test` runs: one query to the expander; the answer must hold keywords and a clause."""

import json
import os
import sys
import urllib.request

url, query = sys.argv[1:]
headers = {"Content-Type": "application/json"}
if token := os.environ.get("COGR_SERVING__TOKEN"):
    headers["Authorization"] = f"Bearer {token}"
request = urllib.request.Request(url, json.dumps({"query": query}).encode(), headers)
with urllib.request.urlopen(request, timeout=30) as response:
    answer = json.load(response)
print(json.dumps(answer))
if not answer["keywords"] or not answer["clause"]["bool"]["should"]:
    sys.exit("The answer has no keywords.")
