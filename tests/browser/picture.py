"""Makes docs/page.png and docs/page-narrow.png, the page of a small job as a window and a telephone show it: picture.py BUILD FOLDER.

`make picture` calls it with FOLDER docs.

The job has three processes, and is refused what its last batch wants: more than its limit, whatever the others hold.
"""

import base64
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import NAMES, ROOT, Browser

# By name: width and height in pixels of the page, scale of the picture, whether it is dark.
PICTURES = {"page.png": (900, 1750, 0.7, False), "page-narrow.png": (390, 2180, 0.65, True)}
LOADER = "import time\nheld = []\nfor i in range(20):\n    held.append(bytearray(4 << 20))\n    time.sleep(0.4)  # pace: a time line has some samples a second\n"
TRAINER = """
import subprocess, sys, time
import sparkguard
workers = [subprocess.Popen([sys.executable, "loader.py"]) for _ in range(2)]
for batch in (1, 2, 4, 8, 16):
    with sparkguard.phase(f"batch {batch}"):
        for step in range(4):
            try:
                work = bytearray(batch * 30 << 20)
                time.sleep(0.4)  # pace: as above
                del work
            except MemoryError:
                break
            time.sleep(0.1)  # pace: as above
for worker in workers:
    worker.wait()
"""


def page_of_a_job(build, folder):
    (folder / "train.py").write_text(TRAINER)
    (folder / "loader.py").write_text(LOADER)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT / "tools/python"), "SPARKGUARD_HISTORY": "off"}
    env |= {"SPARKGUARD_DIR": str(folder / "live"), "LC_ALL": "C.UTF-8"}
    command = [build / "sparkguard", "-q", "--job", "train", "--limit", "350M", "python3", "train.py"]
    subprocess.run(command, cwd=folder, env=env, check=True)
    page = folder / "page.html"
    subprocess.run([build / "sparkguard-report", "--job", "train", "--html", page], env=env, check=True)
    return page


def main():
    build, folder = map(Path, sys.argv[1:])
    program = next(filter(None, map(shutil.which, NAMES)))
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "browser").mkdir()
        page = page_of_a_job(build.resolve(), Path(scratch))
        browser = Browser(program, Path(scratch) / "browser")
        for name, (width, height, scale, is_dark) in PICTURES.items():
            shown = browser.open(page, width, dark=is_dark)
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
            shot = shown.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
            (folder / name).write_bytes(base64.b64decode(shot["data"]))
        browser.close()


if __name__ == "__main__":
    main()
