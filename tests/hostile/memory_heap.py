held = []
while True:
    held.append(b"x" * (1 << 22))
