import os
import time

# Each child is under the limit; all together are not.
for _ in range(8):
    if os.fork() == 0:
        held = b"x" * (60 << 20)
        time.sleep(100)
        os._exit(len(held) & 1)
time.sleep(100)
