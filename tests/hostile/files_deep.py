import os

for _ in range(20000):
    os.mkdir("deep")
    os.chdir("deep")
os.chmod("..", 0)
