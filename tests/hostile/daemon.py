import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(0.01)
            try:
                open("late", "a").write("x")
            except OSError:
                pass
    os._exit(0)
os.wait()
print("left a daemon")
