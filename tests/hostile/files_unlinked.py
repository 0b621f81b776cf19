import os
import time

held = []
for number in range(64):
    file = open("hidden", "wb")
    os.unlink("hidden")
    held.append(file)
    try:
        file.write(b"x" * (512 << 10))
        file.flush()
    except OSError:
        break
time.sleep(100)
