import os
import time

held = []
for number in range(64):
    file = open("hidden", "wb")
    os.unlink("hidden")
    file.write(b"x" * (512 << 10))
    file.flush()
    held.append(file)
time.sleep(100)
