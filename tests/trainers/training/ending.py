"""One of several processes: the second ends as it is told, the first would go on for minutes."""

import os
import sys
import time

if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        time.sleep(300)
    status = int(sys.argv[1])
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)
