import time

for number in range(64):
    with open(f"{number}.bin", "wb") as file:
        file.write(b"x" * (512 << 10))
time.sleep(100)
